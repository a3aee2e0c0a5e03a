"""Look-ups of coordinates, grouped when many consumers ask at once.

A commit wakes every consumer that waits for its partition, and each looks for the same batches. As
long as a connection is free a look-up is a call of its own; the ones that would queue for a
connection are gathered, equal ones once, and go as one call when a call ends.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from itertools import islice
from typing import Protocol

from tideline.background import spawn
from tideline.control_plane.model import FindBatchesRequest, FoundBatches

AT_ONCE = 4
"""Calls under way: the connections that a gateway has for reading."""
TOGETHER = 500
"""Look-ups in one call."""


class Finder(Protocol):
    """The part of :class:`tideline.control_plane.ControlPlane` that is needed."""

    async def find_batches(self, requests: Sequence[FindBatchesRequest]) -> list[FoundBatches]: ...


class Lookups:
    """What always holds: an answer was looked for after it was asked for. Nobody joins a call that
    has been sent: the commit that woke a consumer may be younger than that."""

    def __init__(self, control_plane: Finder) -> None:
        self._control_plane = control_plane
        self._under_way = 0
        self._gathered: dict[FindBatchesRequest, asyncio.Future[FoundBatches]] = {}

    async def find(self, requests: Sequence[FindBatchesRequest]) -> list[FoundBatches]:
        """One answer per request, in their order. Raises as ``find_batches`` does."""
        if self._under_way < AT_ONCE:
            self._under_way += 1
            return await self._call(requests)
        new = asyncio.get_running_loop().create_future
        answers = [self._gathered.get(one) or self._gathered.setdefault(one, new())
                   for one in requests]  # fmt: skip
        # Shared: who gives up leaves the others their answer.
        return [await asyncio.shield(answer) for answer in answers]

    async def _call(self, requests: Sequence[FindBatchesRequest]) -> list[FoundBatches]:
        try:
            return await self._control_plane.find_batches(requests)
        finally:
            self._under_way -= 1
            if self._gathered:
                self._under_way += 1
                some = dict(islice(self._gathered.items(), TOGETHER))
                for request in some:
                    del self._gathered[request]
                spawn(self._answer(some), "suffix-lookups")

    async def _answer(
        self, answers: dict[FindBatchesRequest, asyncio.Future[FoundBatches]]
    ) -> None:
        try:
            found = await self._call(list(answers))
        except Exception as error:
            for answer in answers.values():
                answer.set_exception(error)
                answer.exception()  # those who wait may all have given up
        else:
            for answer, rows in zip(answers.values(), found, strict=True):
                answer.set_result(rows)
        finally:
            for answer in answers.values():
                answer.cancel()
