"""The commit streams of a bucket, from the footers of its WAL objects in any order.

Says of each object whether its outcome is told, is not told yet (the unmanifested tail), or never
will be. What always holds: an outcome counts only for the object whose key it names and for all of
that object's batches; whatever contradicts it is said and left out (decision 0022). A notice takes
batches out of the tail, and keeps an object in it whose outcome is not known (decision 0022).
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from uuid import UUID

from tideline.domain.wal_footer import (
    UNANSWERED,
    WITHDRAWN,
    BatchOutcome,
    EarlierCommit,
    Footer,
    FooterBatch,
)


@dataclass(frozen=True, slots=True)
class WalObject:
    """One object with batches, of the stream of ``incarnation``."""

    key: str
    size: int
    """In bytes, with the footer."""
    gateway_id: int
    incarnation: UUID
    sequence: int
    written_at_ms: int
    count: int
    """Batches in it, also of topics that were not asked for."""
    batches: tuple[tuple[int, FooterBatch], ...]
    """Those of the topics asked for, by their place in the object; in the tail without those that
    were withdrawn."""
    in_order: bool = True
    """Of the tail: it was committed whole or not at all, and nothing of the tail behind it was
    without it."""
    unanswered: bool = False
    """Its gateway has told nobody that it was committed, and never will."""


@dataclass(frozen=True, slots=True)
class ToldObject:
    """An object and what became of its batches, by their place."""

    wal_object: WalObject
    outcomes: tuple[BatchOutcome, ...]
    carrier: Carrier | None = None


@dataclass(frozen=True, slots=True)
class Carrier:
    """An object that only tells outcomes."""

    key: str
    size: int
    gateway_id: int
    incarnation: UUID


@dataclass(frozen=True, slots=True)
class UnreadableObject:
    """An object without a whole footer: what it holds is known to Postgres alone."""

    key: str
    size: int
    why: str


@dataclass(frozen=True, slots=True)
class GoneObject:
    """An object whose outcomes are told, and which is not in the bucket."""

    key: str
    incarnation: UUID
    sequence: int
    base_offsets: tuple[int, ...]
    """Of its batches that were committed; of which logs, nothing tells any more."""


class Streams:
    """Takes footers in any order, each once; then says what they tell.

    Grows with the batches of the topics for which ``wanted`` is true, and with the told outcomes.
    """

    def __init__(
        self,
        wanted: Callable[[UUID], bool] = lambda _: True,
        histories: frozenset[UUID] | None = None,
    ) -> None:
        """``histories``: those whose objects count; ``None``: every history does."""
        self._wanted = wanted
        self._histories = histories
        self._objects: dict[UUID, dict[str, WalObject]] = defaultdict(dict)
        self._told: dict[UUID, dict[int, EarlierCommit]] = defaultdict(dict)
        self._notices: dict[UUID, dict[int, EarlierCommit]] = defaultdict(dict)
        self._disputed: dict[tuple[UUID, int], list[EarlierCommit]] = {}
        self._tail: list[WalObject] | None = None
        """As it was found since the last object came."""
        self.unreadable: list[UnreadableObject] = []
        self.foreign: list[tuple[str, UUID]] = []
        """Keys of objects of other histories, with those."""
        self.contradictions: list[str] = []
        self.histories: dict[UUID, UUID] = {}
        """Of each incarnation whose objects have batches: one lives in a single history, but its
        last outcomes may be told in a later one."""
        self.carriers: dict[tuple[UUID, int], Carrier] = {}
        """Which object without batches tells the outcomes, by incarnation and sequence; the first
        one read. It stays in the bucket for that."""
        self.objects = 0
        self.batches = 0
        """So many were read, also of topics that were not asked for."""
        self.newest_ms = -1
        """The latest time that any footer names, of an object or of a commit."""

    def add(self, key: str, size: int, footer: Footer) -> None:
        """Take in the object ``key`` of ``size`` bytes."""
        self.objects += 1
        self._tail = None
        if self._histories is not None and footer.history_id not in self._histories:
            self.foreign.append((key, footer.history_id))
            return
        self.batches += len(footer.batches)
        self.newest_ms = max(self.newest_ms, footer.written_at_ms, *_append_times(footer))
        if footer.batches:
            self.histories[footer.incarnation] = footer.history_id
            self._objects[footer.incarnation][key] = WalObject(
                key=key,
                size=size,
                gateway_id=footer.gateway_id,
                incarnation=footer.incarnation,
                sequence=footer.sequence,
                written_at_ms=footer.written_at_ms,
                count=len(footer.batches),
                batches=tuple(
                    (place, batch)
                    for place, batch in enumerate(footer.batches)
                    if self._wanted(batch.topic_id)
                ),
            )
        told, notices = self._told[footer.incarnation], self._notices[footer.incarnation]
        for commit in footer.earlier:
            if commit.is_notice:
                # Both say which batches are withdrawn; the one that answers nobody comes last.
                if commit.sequence not in notices or _is_unanswered(commit):
                    notices[commit.sequence] = commit
                continue
            known = told.setdefault(commit.sequence, commit)
            if not footer.batches:
                self.carriers.setdefault(
                    (footer.incarnation, commit.sequence),
                    Carrier(key, size, footer.gateway_id, footer.incarnation),
                )
            if known != commit:
                self._disputed.setdefault((footer.incarnation, commit.sequence), []).append(commit)
                self.contradictions.append(
                    f"commit {commit.sequence} of incarnation {footer.incarnation} is told in two "
                    f"ways: {known.object_key} with {_short(known.outcomes)}, and in {key}: "
                    f"{commit.object_key} with {_short(commit.outcomes)}"
                )

    def add_unreadable(self, key: str, size: int, why: str) -> None:
        """Take in an object without a footer that can be read."""
        self.objects += 1
        self.unreadable.append(UnreadableObject(key, size, why))

    def told(self) -> Iterator[ToldObject]:
        """Objects whose outcomes are told. Notes those that contradict them."""
        for incarnation, commits in self._told.items():
            objects = self._objects.get(incarnation, {})
            for sequence, commit in commits.items():
                found = objects.get(commit.object_key)
                if found is None or (incarnation, sequence) in self._disputed:
                    continue
                if not _agrees(found, sequence, commit):
                    self.contradictions.append(
                        f"{found.key} is object {found.sequence} of its stream with {found.count} "
                        f"batches, and is told of as object {sequence} with "
                        f"{len(commit.outcomes)} outcomes"
                    )
                    continue
                carrier = self.carriers.get((incarnation, sequence))
                yield ToldObject(found, commit.outcomes, carrier)

    def doubtful(self) -> Iterator[tuple[WalObject, list[EarlierCommit]]]:
        """Objects of which contradicting things are told, with all of them: where their batches
        lie is not known, but what is named has been given to somebody."""
        for incarnation, commits in self._told.items():
            objects = self._objects.get(incarnation, {})
            for sequence, commit in commits.items():
                versions = [commit, *self._disputed.get((incarnation, sequence), ())]
                found = [objects[v.object_key] for v in versions if v.object_key in objects]
                if found and (len(versions) > 1 or not _agrees(found[0], sequence, commit)):
                    yield from ((one, versions) for one in dict.fromkeys(found))

    def gone(self) -> list[GoneObject]:
        """What was told of and is not in the bucket: collected, or lost."""
        return [
            GoneObject(
                commit.object_key,
                incarnation,
                sequence,
                tuple(told.base_offset for told in commit.outcomes if told.error == "NONE"),
            )
            for incarnation, commits in self._told.items()
            for sequence, commit in commits.items()
            if commit.object_key not in self._objects.get(incarnation, {})
        ]

    def tail(self) -> list[WalObject]:
        """Objects above the largest told sequence of their streams, and those below it of which
        nobody knows whether they were committed: the unmanifested tail. Notes what contradicts an
        object, once."""
        if self._tail is None:
            self._tail = self._find_tail()
        return self._tail

    def _find_tail(self) -> list[WalObject]:
        found: list[WalObject] = []
        for incarnation, objects in self._objects.items():
            told = self._told.get(incarnation, {})
            last = max(told, default=-1)
            committed = max((s for s, c in told.items() if not c.is_given_up), default=-1)
            opened = [
                noticed
                for one in objects.values()
                if one.sequence not in told and (noticed := self._noticed(one)) is not None
                if one.sequence > last or noticed.unanswered
            ]
            opened = _last_attempts(opened)
            newest = max((one.sequence for one in opened), default=-1)
            for one in opened:
                # What is behind one that nobody knows of may lie where that one would.
                decided = one.sequence == newest or not one.unanswered
                in_order = one.in_order and one.sequence > committed and decided
                found.append(replace(one, in_order=in_order))
        return found

    def _noticed(self, found: WalObject) -> WalObject | None:
        notice = self._notices.get(found.incarnation, {}).get(found.sequence)
        return found if notice is None else self._as_noticed(found, notice)

    def _as_noticed(self, found: WalObject, notice: EarlierCommit) -> WalObject | None:
        """Without what is withdrawn; ``None``: it was another attempt that went to the commit."""
        if notice.object_key != found.key:
            return None
        if len(notice.outcomes) != found.count:
            self.contradictions.append(
                f"{found.key} is told of with {len(notice.outcomes)} batches, and has {found.count}"
            )
            return replace(found, in_order=False)
        left = tuple(
            (place, batch)
            for place, batch in found.batches
            if notice.outcomes[place].error != WITHDRAWN
        )
        return replace(found, batches=left, unanswered=_is_unanswered(notice))

    def never_committed(self) -> list[str]:
        """Keys of objects that were passed over: a later one of the stream is told, or another
        attempt of the same sequence, or a later attempt is there."""
        tail = {found.key for found in self.tail()}
        return [
            found.key
            for incarnation, objects in self._objects.items()
            for found in objects.values()
            if found.key not in tail
            and (
                (said := self._told.get(incarnation, {}).get(found.sequence)) is None
                or said.object_key != found.key
            )
        ]


def _last_attempts(found: Sequence[WalObject]) -> list[WalObject]:
    """Without what was stored and tried again all the same: whoever does that commits none but the
    last, and gives each later attempt a later time."""
    last: dict[int, WalObject] = {}
    for one in found:
        other = last.setdefault(one.sequence, one)
        if one.written_at_ms > other.written_at_ms:
            last[one.sequence] = one
    return [one for one in found if not _is_earlier(one, last[one.sequence])]


def _is_earlier(one: WalObject, other: WalObject) -> bool:
    return one.written_at_ms < other.written_at_ms and one.batches == other.batches


def _is_unanswered(commit: EarlierCommit) -> bool:
    return any(outcome.error == UNANSWERED for outcome in commit.outcomes)


def _append_times(footer: Footer) -> Iterator[int]:
    return (told.append_time for commit in footer.earlier for told in commit.outcomes)


def _agrees(found: WalObject, sequence: int, commit: EarlierCommit) -> bool:
    return found.sequence == sequence and found.count == len(commit.outcomes)


def _short(outcomes: tuple[BatchOutcome, ...]) -> str:
    first = ", ".join(f"{told.error} at {told.base_offset}" for told in outcomes[:3])
    return f"{len(outcomes)} outcomes ({first}{', …' if len(outcomes) > 3 else ''})"
