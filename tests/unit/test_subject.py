"""Lines of the log say which request they are about, and no other one."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any

from tideline import subject
from tideline.background import spawn


class Request:
    def __init__(self, number: int) -> None:
        self.number = number

    def words(self) -> Mapping[str, object]:
        return {"correlation_id": self.number, "client": "a:1"}


def line(**words: Any) -> dict[str, Any]:
    return dict(subject.add_words(None, "info", words))


async def test_what_a_request_gathers_is_about_it_and_what_goes_on_by_itself_is_not() -> None:
    async def part() -> dict[str, Any]:
        await asyncio.sleep(0)
        return line(event="x")

    async def request(number: int) -> list[dict[str, Any]]:
        subject.begin(Request(number))
        return [*await asyncio.gather(part(), part()), await spawn(part(), "goes-on")]

    both = await asyncio.gather(request(1), request(2))
    for number, (*parts, goes_on) in enumerate(both, 1):
        about = {"event": "x", "correlation_id": number, "client": "a:1"}
        assert parts == [about, about]
        assert goes_on == {"event": "x"}
    assert line(event="x") == {"event": "x"}


async def test_a_lines_own_words_win() -> None:
    async def request() -> dict[str, Any]:
        subject.begin(Request(1))
        return line(client="b:2")

    assert await asyncio.ensure_future(request()) == {"client": "b:2", "correlation_id": 1}
