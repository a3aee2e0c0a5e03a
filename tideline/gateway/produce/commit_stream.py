"""What the WAL objects of a gateway tell of themselves and of each other (decision 0019).

What always holds: an object is numbered in the order of the commits of its incarnation; an outcome
is told by every object that begins its upload after the commit, until one of them is committed, and
by one without batches, which stays as long as it is needed; nothing is told that is not certain,
and nothing behind it either.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import groupby
from uuid import UUID

import structlog

from tideline.control_plane import ControlPlane
from tideline.control_plane.model import (
    BatchToCommit,
    CommittedBatch,
    StreamPlace,
    UntoldCommit,
)
from tideline.domain.topic_configs import LOG_APPEND_TIME
from tideline.domain.wal_footer import (
    WITHDRAWN,
    BatchOutcome,
    EarlierCommit,
    Footer,
    FooterBatch,
    encode,
)
from tideline.gateway.tracking.lease import Lease

log = structlog.get_logger()
ENCODED_AT_ONCE = 2_000
"""Batches of a footer that the loop may encode; more go to a thread."""
INHERITED_AT_ONCE = 200
"""Commits that are asked for at once."""
_WITHDRAWN = BatchOutcome(WITHDRAWN, -1, -1)


@dataclass(frozen=True, slots=True)
class Inherited:
    """Commits of an ended incarnation whose outcomes no object tells yet."""

    incarnation: UUID
    commits: tuple[EarlierCommit, ...]


@dataclass(frozen=True, slots=True)
class Ending:
    """What an object ends with."""

    footer: bytes = b""
    told: tuple[EarlierCommit, ...] = ()
    """Whose outcomes it carries."""
    inherited: bool = False


class CommitStream:
    """Numbers the objects of one gateway, and remembers which outcomes are not told yet."""

    def __init__(
        self,
        lease: Lease,
        history_id: Callable[[], UUID],
        *,
        wall_clock: Callable[[], float] = time.time,
    ) -> None:
        """``history_id`` raises ``ControlPlaneUnavailable`` while no Postgres was seen."""
        self._lease = lease
        self._history_id = history_id
        self._wall_clock = wall_clock
        self._incarnation = lease.incarnation
        self._sequence = -1
        self._untold: dict[int, EarlierCommit] = {}
        """Told by no carrier."""
        self._fresh: dict[int, EarlierCommit] = {}
        """Told by no committed object at all."""
        self._silent = False

    def next(self) -> int:
        """The place of the next object. A new incarnation is a new stream."""
        if self._incarnation != self._lease.incarnation:
            self._incarnation = self._lease.incarnation
            self._sequence, self._silent = -1, False
            self._untold.clear()
            self._fresh.clear()
        self._sequence += 1
        return self._sequence

    @property
    def untold(self) -> int:
        """So many outcomes have no carrier."""
        return len(self._untold) if self._incarnation == self._lease.incarnation else 0

    async def ending(
        self, sequence: int, placed: Sequence[BatchToCommit], inherited: Inherited | None = None
    ) -> Ending:
        """Of the object at ``sequence`` that holds ``placed``; of a carrier without any."""
        if inherited is not None:
            told = inherited.commits
        else:
            told = tuple((self._fresh if placed else self._untold).values())
        incarnation = self._incarnation if inherited is None else inherited.incarnation
        history_id, written_at = self._history_id(), int(self._wall_clock() * 1000)

        def build() -> bytes:
            return encode(
                Footer(
                    history_id=history_id,
                    gateway_id=self._lease.gateway_id,
                    incarnation=incarnation,
                    sequence=sequence,
                    written_at_ms=written_at,
                    batches=tuple(_described(batch) for batch in placed),
                    earlier=told,
                )
            )

        small = len(placed) + sum(len(c.outcomes) for c in told) <= ENCODED_AT_ONCE
        footer = build() if small else await asyncio.to_thread(build)
        return Ending(footer, told, inherited is not None)

    def place(self, sequence: int, count: int, live: Sequence[int]) -> StreamPlace:
        """For the commit of an object with ``count`` batches, of which those at ``live`` are
        committed."""
        return StreamPlace(sequence, withdrawn=tuple(sorted(set(range(count)) - set(live))))

    def carrying(self, sequence: int, ending: Ending) -> StreamPlace:
        """For the commit of a carrier."""
        return StreamPlace(sequence, tells=tuple(commit.object_key for commit in ending.told))

    def told_by(self, ending: Ending) -> None:
        """The object with ``ending`` is committed."""
        for commit in ending.told:
            self._fresh.pop(commit.sequence, None)

    def carried(self, ending: Ending) -> None:
        """The carrier with ``ending`` is committed: it stays while what it tells of is read."""
        if not ending.inherited:
            self.told_by(ending)
            for commit in ending.told:
                self._untold.pop(commit.sequence, None)

    def committed(
        self,
        sequence: int,
        key: str,
        count: int,
        live: Sequence[int],
        outcomes: Sequence[CommittedBatch],
    ) -> None:
        """What became of the object's batches: those at ``live`` were committed with it. Of an
        object that was never put, for want of batches, nothing is told."""
        if not count:
            return
        told = [_WITHDRAWN] * count
        for place, outcome in zip(live, outcomes, strict=True):
            told[place] = BatchOutcome(outcome.error, outcome.base_offset, outcome.append_time)
        self._tell(EarlierCommit(sequence, key, tuple(told)))

    def not_committed(self, sequence: int, key: str, count: int) -> None:
        """The object was given up for certain, and may be in the bucket."""
        if key and count:
            self._tell(EarlierCommit(sequence, key, (_WITHDRAWN,) * count))

    def fall_silent(self, why: str) -> None:
        """Nobody knows whether an object was committed: what came later in this stream is told by
        the next incarnation, out of Postgres."""
        if not self._silent:
            log.error("wal.stream_is_silent", incarnation=str(self._incarnation), error=why)
        self._silent = True

    def _tell(self, commit: EarlierCommit) -> None:
        if self._silent:
            return
        for untold in (self._untold, self._fresh):
            # What was given up is said by any later outcome: an outage of the store leaves one.
            if untold and all(o is _WITHDRAWN for o in next(reversed(untold.values())).outcomes):
                untold.popitem()
            untold[commit.sequence] = commit

    async def inherited(self, control_plane: ControlPlane) -> list[Inherited]:
        """What earlier incarnations committed and did not tell. Raises what the control plane
        raises."""
        found = await control_plane.untold_commits(
            self._lease.gateway_id, self._lease.incarnation, INHERITED_AT_ONCE
        )
        return [
            Inherited(incarnation, tuple(map(_remembered, commits)))
            for incarnation, commits in groupby(found, key=lambda commit: commit.incarnation)
        ]


def _described(batch: BatchToCommit) -> FooterBatch:
    return FooterBatch(
        topic_id=batch.log.topic_id,
        partition=batch.log.partition,
        byte_offset=batch.byte_offset,
        byte_size=batch.byte_size,
        record_count=batch.record_count,
        producer_id=batch.producer_id,
        producer_epoch=batch.producer_epoch,
        base_sequence=batch.base_sequence,
        last_sequence=batch.last_sequence,
        max_timestamp=batch.max_timestamp,
        log_append_time=batch.timestamp_type == LOG_APPEND_TIME,
    )


def _remembered(commit: UntoldCommit) -> EarlierCommit:
    """As it was committed, with what the object holds besides."""
    withdrawn = set(commit.withdrawn)
    outcomes = map(BatchOutcome, map(str, commit.errors), commit.base_offsets, commit.append_times)
    return EarlierCommit(
        commit.sequence,
        commit.object_key,
        tuple(
            _WITHDRAWN if place in withdrawn else next(outcomes)
            for place in range(len(commit.errors) + len(withdrawn))
        ),
    )
