"""Two versions side by side: what a newer one writes must not end an older one, nor let anything
through."""

from __future__ import annotations

from typing import Any
from uuid import UUID

import pytest

from tideline.control_plane.calls import Function, value
from tideline.control_plane.errors import UnknownToThisVersion
from tideline.control_plane.model import TopicStatus
from tideline.control_plane.pool import Pool
from tideline.control_plane.row_readers import partition_view, tracked_topics
from tideline.domain.request_handling import RouteKind
from tideline.errors import TidelineError
from tideline.gateway.tracking.view import TrackingView


def partition(topic_id: UUID, number: int, **changes: object) -> dict[str, object]:
    return {
        "topic_id": str(topic_id),
        "partition": number,
        "state": "HYBRID",
        "generation": 1,
        "quiesced": False,
        "boundary": 40,
        "boundary_epoch": 1,
        **changes,
    }


def topic(number: int, *partitions: dict[str, object], **changes: object) -> dict[str, Any]:
    return {
        "name": f"topic-{number}",
        "topic_id": UUID(int=number),
        "kind": "migrated",
        "status": "active",
        "timestamp_type": "CreateTime",
        "max_message_bytes": 1_000_000,
        "partitions": [*partitions],
        "overrides": [],
        "a_column_of_tomorrow": 1,
        **changes,
    }


def test_what_a_newer_version_wrote_of_one_topic_is_refused_and_costs_no_other_its_reading() -> (
    None
):
    rows = [
        topic(1, partition(UUID(int=1), 0)),
        topic(2, partition(UUID(int=2), 0), status="archived"),
        topic(3, partition(UUID(int=3), 0), kind="replicated"),
        topic(4, partition(UUID(int=4), 0), partition(UUID(int=4), 1, state="COMPACTING")),
    ]
    view = TrackingView(lambda: True)
    view.replace_all(tracked_topics(rows))
    routes = {
        (n, p): view.partition(UUID(int=n), p).kind
        for n, p in ((1, 0), (2, 0), (3, 0), (4, 0), (4, 1))
    }
    assert routes == {
        (1, 0): RouteKind.SUFFIX,
        (2, 0): RouteKind.UNKNOWN,
        (3, 0): RouteKind.UNKNOWN,
        (4, 0): RouteKind.SUFFIX,
        (4, 1): RouteKind.UNKNOWN,
    }
    assert not any(view.is_classic(f"topic-{n}") for n in range(1, 5)), "nothing passes through"


async def test_an_answer_that_only_a_newer_version_knows_is_an_error_that_background_work_survives(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def fetch(*_: object, **__: object) -> list[dict[str, Any]]:
        return [{"status": "archived"}]

    pool = Pool.__new__(Pool)
    monkeypatch.setattr(pool, "fetch", fetch, raising=False)
    with pytest.raises(UnknownToThisVersion, match="upgrade this process"):
        await pool.call(Function("of_tomorrow", value(TopicStatus)))
    assert issubclass(UnknownToThisVersion, TidelineError)


def test_a_single_row_of_a_newer_version_is_not_taken_for_another() -> None:
    view = partition(UUID(int=1), 0, state="COMPACTING")
    with pytest.raises(ValueError, match="COMPACTING"):
        partition_view([{"tracked_partition": view}])
