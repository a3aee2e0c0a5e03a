"""Where the records of batches are unpacked and read that are too many for the event loop.

What always holds: connections take turns (:class:`~tideline.kafka.fair_thread.FairThread`), and
what unpacks to much has a thread and turns of its own. So nobody's batch waits for more than one of
anybody else's, and an ordinary one for no large one at all. Codecs and the native library let go of
the interpreter's lock while they work.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TypeVar

from tideline.kafka.fair_thread import FairThread
from tideline.kafka.records import UnpackedTooLarge

T = TypeVar("T")
ORDINARY_BYTES = 1024 * 1024
"""Of the records of a batch when they are unpacked: what nearly all clients write, and at most some
milliseconds of the worst."""


class Unpacking:
    """Two threads."""

    def __init__(self, ordinary: FairThread | None = None, large: FairThread | None = None) -> None:
        self._ordinary = ordinary or FairThread("unpacking")
        self._large = large or FairThread("unpacking-large")

    async def read(self, connection: object, work: Callable[[int | None], T]) -> T:
        """What ``work`` returns or raises when it is the turn of ``connection``. It is told how
        many bytes it may unpack, and raises :class:`UnpackedTooLarge` if there are more; then it
        is called again where there are large ones, with ``None``: as many as are allowed at all."""
        try:
            return await self._ordinary.run(connection, partial(work, ORDINARY_BYTES))
        except UnpackedTooLarge:
            pass  # outside of here: the error has what was unpacked
        return await self._large.run(connection, partial(work, None))

    def close(self) -> None:
        """End the threads; what waits for them is cancelled."""
        self._ordinary.close()
        self._large.close()
