"""What the WAL objects of a gateway tell of themselves and of each other (decision 0022).

What always holds: an object is numbered in the order of the commits of its incarnation; an outcome
is told by every object that begins its upload after the commit, until one of them is committed, and
by one without batches, which stays as long as it is needed. Before a commit is sent, the bucket
tells what was given up or refused in front of it and what it leaves out.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from uuid import UUID

from tideline.control_plane import ControlPlane
from tideline.control_plane.model import (
    BatchToCommit,
    CommitError,
    CommittedBatch,
    StreamPlace,
    UntoldCommit,
)
from tideline.domain.topic_configs import LOG_APPEND_TIME
from tideline.domain.wal_footer import (
    UNANSWERED,
    WANTED,
    WITHDRAWN,
    BatchOutcome,
    EarlierCommit,
    Footer,
    FooterBatch,
    encode,
    written_again,
)
from tideline.gateway.listeners import Listeners
from tideline.gateway.tracking.lease import Lease

ENCODED_AT_ONCE = 2_000
"""Batches of a footer that the loop may encode; more go to a thread."""
INHERITED_AT_ONCE = 200
"""Commits that are asked for at once."""
_WITHDRAWN = BatchOutcome(WITHDRAWN, -1, -1)
_WANTED = BatchOutcome(WANTED, -1, -1)
_UNANSWERED = BatchOutcome(UNANSWERED, -1, -1)


@dataclass(frozen=True, slots=True)
class Inherited:
    """Commits of another incarnation whose outcomes no object tells yet."""

    incarnation: UUID
    commits: tuple[EarlierCommit, ...]


@dataclass(frozen=True, slots=True)
class Ending:
    """What an object ends with."""

    footer: bytes = b""
    told: tuple[EarlierCommit, ...] = ()
    """Whose outcomes it carries."""
    inherited: bool = False


@dataclass(frozen=True, slots=True)
class LeftOver:
    """An object that was not committed when its stream ended."""

    sequence: int
    key: str
    """Empty: it was never put."""
    count: int
    """Batches in its body."""
    live: Sequence[int]
    """Places of those that went to the commit."""
    sent: bool


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
        self._hidden: dict[int, EarlierCommit] = {}
        """Told by no object that is stored, whether committed or not; notices, and what was given
        up, by no statement."""
        self._first: set[int] = set()
        """Sequences of what must be stored before anything is committed."""
        self._since: dict[int, float] = {}
        """Of what is hidden, in the loop's seconds."""
        self.hides: Listeners[[]] = Listeners()
        """Called when there is something more that no stored object tells."""

    def next(self) -> int:
        """The place of the next object. A new incarnation is a new stream."""
        if self._incarnation != self._lease.incarnation:
            self._incarnation = self._lease.incarnation
            self._sequence = -1
            self._untold.clear()
            self._fresh.clear()
            for sequence in list(self._hidden):
                self._reveal(sequence)
        self._sequence += 1
        return self._sequence

    @property
    def incarnation(self) -> UUID:
        """Whose stream it is; another one begins with the next object."""
        return self._incarnation

    @property
    def untold(self) -> int:
        """So many outcomes have no carrier."""
        return len(self._untold) if self._incarnation == self._lease.incarnation else 0

    @property
    def hidden(self) -> tuple[EarlierCommit, ...]:
        """What no stored object tells."""
        return tuple(self._hidden.values())

    @property
    def hidden_since(self) -> float | None:
        """The loop's time at which the oldest of it came; ``None``: there is nothing."""
        return next(iter(self._since.values()), None)

    async def ending(
        self, sequence: int, placed: Sequence[BatchToCommit], inherited: Inherited | None = None
    ) -> Ending:
        """Of the object at ``sequence`` that holds ``placed``; of a carrier without any."""
        if inherited is not None:
            told = inherited.commits
        else:
            told = tuple((self._fresh if placed else self._untold).values())
        incarnation = self._incarnation if inherited is None else inherited.incarnation
        footer = await self._footer(incarnation, sequence, placed, told)
        return Ending(footer, told, inherited is not None)

    def again(self, ending: Ending) -> Ending:
        """Of the next attempt to store the object with ``ending``: it tells the same, later."""
        return replace(ending, footer=written_again(ending.footer, int(self._wall_clock() * 1000)))

    async def statement(self, told: Sequence[EarlierCommit], incarnation: UUID) -> Ending:
        """Of an object that is put at once, and that nobody commits. It tells all that has no
        carrier, too: it outlives what was committed, whose footers may tell that alone, and of what
        is told nowhere, before something that is told, nothing was committed."""
        known = self._untold if incarnation == self._incarnation else {}
        by_sequence = known | {commit.sequence: commit for commit in told}
        together = tuple(by_sequence[sequence] for sequence in sorted(by_sequence))
        footer = await self._footer(incarnation, together[-1].sequence, (), together)
        return Ending(footer, together)

    async def _footer(
        self,
        incarnation: UUID,
        sequence: int,
        placed: Sequence[BatchToCommit],
        told: Sequence[EarlierCommit],
    ) -> bytes:
        history_id, written_at = self._history_id(), int(self._wall_clock() * 1000)

        def build() -> bytes:
            return encode(
                Footer(
                    history_id=history_id,
                    gateway_id=self._lease.gateway_id,
                    incarnation=incarnation,
                    sequence=sequence,
                    written_at_ms=written_at,
                    batches=tuple(described(batch) for batch in placed),
                    earlier=tuple(told),
                )
            )

        small = len(placed) + sum(len(c.outcomes) for c in told) <= ENCODED_AT_ONCE
        return build() if small else await asyncio.to_thread(build)

    def place(self, sequence: int, count: int, live: Sequence[int]) -> StreamPlace:
        """For the commit of an object with ``count`` batches, of which those at ``live`` are
        committed."""
        if len(live) == count:  # as nearly every one is
            return StreamPlace(sequence)
        return StreamPlace(sequence, withdrawn=tuple(sorted(set(range(count)) - set(live))))

    def carrying(self, sequence: int, ending: Ending) -> StreamPlace:
        """For the commit of a carrier. A notice is not yet the outcome."""
        told = (commit.object_key for commit in ending.told if not commit.is_notice)
        return StreamPlace(sequence, tells=tuple(told))

    def stored(self, ending: Ending) -> None:
        """The object with ``ending`` is in the bucket. What departs from the order of the stream
        needs one that nobody commits: what is committed is collected when it is dead, with what it
        tells, and a commit that has been under way for so long would come behind that."""
        self._told_in_bucket(c for c in ending.told if not (c.is_notice or c.is_given_up))

    def stated(self, ending: Ending) -> None:
        """The statement with ``ending`` is in the bucket: an orphan, which stays for days."""
        self._told_in_bucket(ending.told)

    def _told_in_bucket(self, told: Iterable[EarlierCommit]) -> None:
        for commit in told:
            if self._hidden.get(commit.sequence) is commit:
                self._reveal(commit.sequence)

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

    def before(
        self, sequence: int, key: str, count: int, live: Sequence[int], *, again: bool = False
    ) -> tuple[EarlierCommit, ...]:
        """What must be stored before the object at ``sequence`` is committed without the batches
        that are not ``live``; ``again``: an attempt under another key may be in the bucket, too.
        With what was given up goes all that is hidden: of what is told nowhere, before something
        that is told, nothing was committed."""
        first = list(self._hidden.values()) if self._first else []
        if len(live) < count or again:
            first.append(EarlierCommit(sequence, key, _at(live, count, _WANTED)))
        return tuple(first)

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
        if not live:
            self.not_committed(sequence, key, count)
            return
        told = [_WITHDRAWN] * count
        for place, outcome in zip(live, outcomes, strict=True):
            told[place] = BatchOutcome(outcome.error, outcome.base_offset, outcome.append_time)
        if any(outcome.error != CommitError.NONE for outcome in outcomes):
            # Why it was refused, a producer's state or a boundary, need not be in the bucket.
            self._first.add(sequence)
        self._tell(EarlierCommit(sequence, key, tuple(told)))

    def not_committed(self, sequence: int, key: str, count: int) -> None:
        """The object was given up for certain, and may be in the bucket."""
        if key and count:
            self._first.add(sequence)
            self._tell(EarlierCommit(sequence, key, (_WITHDRAWN,) * count))

    def unanswered(self, sequence: int, key: str, count: int, live: Sequence[int]) -> None:
        """Nobody knows whether the object was committed, and nobody is told that it was."""
        self._first.add(sequence)
        self._tell(EarlierCommit(sequence, key, _at(live, count, _UNANSWERED)))

    def closing(self, left: Sequence[LeftOver]) -> tuple[EarlierCommit, ...]:
        """All that there is to tell when the stream ends with what was ``left``."""
        told = dict(self._hidden)
        for one in left:
            if one.key and one.count:
                live = one.live if one.sent else ()
                told[one.sequence] = EarlierCommit(
                    one.sequence, one.key, _at(live, one.count, _UNANSWERED)
                )
        # With all that has no carrier, as in every statement: the stream may be over by then.
        return tuple((self._untold | told).values()) if told else ()

    def _tell(self, commit: EarlierCommit) -> None:
        # What was given up is said by any later outcome: an outage of the store leaves one.
        implies = not commit.is_notice
        for untold in (self._untold, self._fresh):
            if implies and untold and next(reversed(untold.values())).is_given_up:
                untold.popitem()
            untold[commit.sequence] = commit
        if implies and self._hidden and next(reversed(self._hidden.values())).is_given_up:
            self._reveal(next(reversed(self._hidden)))
        self._hidden[commit.sequence] = commit
        self._since[commit.sequence] = asyncio.get_running_loop().time()
        self.hides()

    def _reveal(self, sequence: int) -> None:
        del self._hidden[sequence], self._since[sequence]
        self._first.discard(sequence)

    async def inherited(self, control_plane: ControlPlane) -> list[Inherited]:
        """What earlier incarnations committed and did not tell, and gateways that stay away. Raises
        what the control plane raises."""
        found = await control_plane.untold_commits(
            self._lease.gateway_id, self._lease.incarnation, INHERITED_AT_ONCE
        )
        return [
            Inherited(incarnation, tuple(map(_remembered, commits)))
            for incarnation, commits in groupby(found, key=lambda commit: commit.incarnation)
        ]


def _at(live: Sequence[int], count: int, outcome: BatchOutcome) -> tuple[BatchOutcome, ...]:
    """``outcome`` at the places ``live`` of ``count``; the others are withdrawn."""
    told = [_WITHDRAWN] * count
    for place in live:
        told[place] = outcome
    return tuple(told)


def described(batch: BatchToCommit) -> FooterBatch:
    """As a footer has it."""
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
