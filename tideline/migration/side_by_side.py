"""The same question about many partitions, a few at a time."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable
from typing import TypeVar

K = TypeVar("K")
T = TypeVar("T")

AT_ONCE = 8


async def side_by_side(
    call: Callable[[K], Awaitable[T]], wanted: Iterable[K], at_once: int = AT_ONCE
) -> list[T]:
    """The answers, in the order of ``wanted``. One that fails does not end the others: all are
    waited for, then the first failure is raised."""
    places = asyncio.Semaphore(at_once)

    async def one(item: K) -> T:
        async with places:
            return await call(item)

    answers = await asyncio.gather(*map(one, wanted), return_exceptions=True)
    found: list[T] = []
    for answer in answers:
        if isinstance(answer, BaseException):
            raise answer
        found.append(answer)
    return found
