"""Searches by timestamp inside of batches, and what they have found.

What always holds: connections take turns; and what was found in a batch is remembered, since a
batch never changes, so that who asks the same again costs nothing.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from functools import partial
from typing import TypeAlias

from tideline.gateway.unpacking import Unpacking
from tideline.kafka.record_search import FoundRecord, UndecodableBatch, find_record
from tideline.kafka.records import UnpackedTooLarge

Search: TypeAlias = Callable[[], FoundRecord | None]
MOST_KEPT = 4_096
"""Answers that are remembered, some 2 MB."""


@dataclass(frozen=True, slots=True)
class Searcher:
    """For whom a batch is looked into."""

    connection: object
    most_unpacked: int
    """Bytes that the records of one batch may have."""
    on_account: Callable[[Search], Search]
    """Has what threads do counted as the request's."""


@dataclass(frozen=True, slots=True)
class BatchSearch:
    """A search in one batch, as :func:`~tideline.kafka.record_search.find_record` has it."""

    object_key: str
    tiered: bool
    position: int
    base_offset: int
    not_before: int
    timestamp: int | None


class RecordSearch:
    """Finds records in batches."""

    def __init__(self, unpacking: Unpacking) -> None:
        self._unpacking = unpacking
        self._found: OrderedDict[BatchSearch, tuple[FoundRecord | None]] = OrderedDict()

    async def find(
        self,
        searcher: Searcher,
        asked: BatchSearch,
        read: Callable[[], Awaitable[memoryview]],
    ) -> FoundRecord | None:
        """``read``: the bytes of the batch, if they are needed; what it raises is raised. Raises
        :class:`~tideline.kafka.record_search.UndecodableBatch` besides."""
        known = self._found.get(asked)
        if known is None:
            known = await self._looked_for(searcher, asked, await read())
            self._found[asked] = known
        self._found.move_to_end(asked)
        if len(self._found) > MOST_KEPT:
            self._found.popitem(last=False)
        return known[0]

    async def _looked_for(
        self, searcher: Searcher, asked: BatchSearch, batch: memoryview
    ) -> tuple[FoundRecord | None]:
        def look(most: int) -> FoundRecord | None:
            return find_record(
                batch,
                asked.timestamp,
                base_offset=asked.base_offset,
                not_before=asked.not_before,
                most_unpacked=most,
            )

        def search(most: int | None) -> tuple[FoundRecord | None]:
            # Another may have found it, until its turn came.
            if (known := self._found.get(asked)) is not None:
                return known
            bound = searcher.most_unpacked if most is None else most
            return (searcher.on_account(partial(look, bound))(),)

        try:
            return await self._unpacking.read(searcher.connection, search)
        except UnpackedTooLarge as error:
            raise UndecodableBatch(
                f"the records of the batch at offset {asked.base_offset} of "
                f"{asked.object_key}: {error}; raise max.message.bytes of its topic to what it "
                "was when they were written"
            ) from error
