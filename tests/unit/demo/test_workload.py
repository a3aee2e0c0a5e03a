"""What client libraries leave unsaid: a consumer that stands still, an offset."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, cast

import pytest

from tests.support.waiting import SOON_S, set_within, until
from tideline.demo import workload
from tideline.demo.ledger import NOT_TOLD, Ledger
from tideline.demo.workload import GroupConsumer, told_offset

if TYPE_CHECKING:
    from confluent_kafka import Message


class Library:
    """Of two clients the first tells no statistic, ever."""

    def __init__(self) -> None:
        self.made: list[dict[str, Any]] = []
        self.closed: list[int] = []
        self.goes_on = threading.Event()
        self.second: Callable[[], None]
        """Called when that is made."""

    def consumer(self, config: dict[str, Any]) -> LibraryConsumer:
        self.made.append(config)
        if len(self.made) == 2:
            self.second()
        return LibraryConsumer(self, len(self.made), config["stats_cb"])


class LibraryConsumer:
    def __init__(self, library: Library, number: int, told: Callable[[str], None]) -> None:
        self._library, self._number, self._told = library, number, told

    def subscribe(self, topics: list[str], **_: object) -> None:
        assert topics == ["orders"]

    def consume(self, _: int, timeout_s: float) -> list[object]:
        threading.Event().wait(timeout_s / 20)
        if self._number > 1:
            self._told("{}")
            self._library.goes_on.set()
        return []

    def assignment(self) -> object:
        raise AssertionError("never returns, and keeps Python's lock")

    def close(self) -> None:
        self._library.closed.append(self._number)


def test_a_consumer_whose_library_stands_still_begins_anew_as_the_same_member(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    library = Library()
    monkeypatch.setattr(workload, "Consumer", library.consumer)
    monkeypatch.setattr(workload, "STANDS_STILL_S", 0.1)
    library.second = lambda: monkeypatch.setattr(workload, "STANDS_STILL_S", 600.0)
    member = GroupConsumer("c1", "127.0.0.1:1", "orders", "readers", Ledger())
    member.start()
    set_within("the second client", library.goes_on)
    until("news of it", lambda: "told something 0 s ago" in member.state(), SOON_S)
    member.stop()
    assert [config["group.instance.id"] for config in library.made] == ["c1", "c1"]
    assert member.errors == ["c1's library stands still: it begins anew"]
    assert library.closed == [2], "the first would wait for ever"


class Delivered:
    """As librdkafka reports a message."""

    def __init__(self, offset: int | None) -> None:
        self._offset = offset

    def offset(self) -> int | None:
        return self._offset


@pytest.mark.parametrize(("reported", "told"), [(0, 0), (435, 435), (None, NOT_TOLD)])
def test_who_is_told_no_offset_is_not_told_the_first(reported: int | None, told: int) -> None:
    assert told_offset(cast("Message", Delivered(reported))) == told
