"""One log from the objects of a bucket: its told batches in order, and the place of the others.

An object without a told outcome is placed in a hole that nothing else fits, neither whole nor in
part (single batches are refused, or withdrawn when their producer was told of a failure), or behind
the last batch when it is the only one that may lie there, with all that its stream has behind it.
There it is taken to have been committed whole, unless a producer in it may have sent something
again of which the first copy is gone. What is placed is marked as inferred (decision 0022).
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate
from uuid import UUID

from tideline.domain.ids import TopicIdPartition
from tideline.domain.log_batch import LogBatch
from tideline.domain.producer_state import NOBODY_KNOWS, KnownProducers, follows, judge
from tideline.domain.wal_footer import FooterBatch
from tideline.domain.wal_placing import Candidate, Hole, Search, TooManyWays, Way
from tideline.domain.wal_producers import (
    SURELY_KEPT_MS,
    producers_after,
    producers_at_end,
    taken_whole,
    why_not_taken,
)
from tideline.domain.wal_streams import WalObject

END_WITHIN_MS = 5 * 60 * 1000
"""An object that is older than the newest of the bucket by more is not placed at the end of a log.
It may have been given up, and who told so collected before it."""

_Sequences = tuple[int, int, int, int]


@dataclass(frozen=True, slots=True)
class OpenObject:
    """What an object without a told outcome may have added to one log."""

    log: TopicIdPartition
    wal_object: WalObject
    batches: tuple[FooterBatch, ...]
    """Without those that the log holds already under their producer's sequences."""
    placed_at: int | None
    """Where its first batch lies, as far as it could be inferred."""
    why: str
    settled: bool = False
    """Nothing of it can lie behind the last known batch."""

    @property
    def records(self) -> int:
        return sum(batch.record_count for batch in self.batches)


class LogFold:
    """One log: its told batches in order, its holes, and the place of what is not told."""

    def __init__(
        self,
        log: TopicIdPartition,
        start: int | None,
        explained: Sequence[int],
        unreadable: bool,
        newest_ms: int = -1,
        moved: bool = False,
        producers: KnownProducers = NOBODY_KNOWS,
    ) -> None:
        """``producers``: idempotent producers before the first batch that the bucket must have;
        what they have written already no commit takes again. ``newest_ms``: the latest time in the
        bucket. ``explained``: rising offsets of batches of unknown logs whose objects are gone.
        An object that cannot be read might be what fills any hole. ``moved``: the start is one that
        records were deleted up to, or that a rebuild has left offsets free before, and nobody
        knows where the log ended then."""
        self._log = log
        self._start = start
        self._explained = explained
        self._unreadable = unreadable
        self._newest_ms = newest_ms
        self._moved = moved
        self._producers = producers
        self.holes: tuple[Hole, ...] = ()
        self.open_objects: list[OpenObject] = []
        self.contradictions: list[str] = []
        self.disputed: list[Hole] = []
        """Offsets that were given twice: no batch lies there."""

    def run(self, told: list[LogBatch], tail: list[WalObject]) -> list[LogBatch]:
        """Every batch that has a place, in offset order."""
        rows = self._without_contradictions(told)
        if tail:
            rows = self._place(rows, tail)
        self.holes = tuple(_holes(rows, self._start))
        return rows

    def _without_contradictions(self, told: list[LogBatch]) -> list[LogBatch]:
        """Neither of two batches that share an offset: which one readers saw is not known."""
        rows: list[LogBatch] = []
        last: LogBatch | None = None
        for row in sorted(told, key=lambda r: (r.base_offset, r.object_key)):
            if last is None or row.base_offset > last.last_offset:
                rows.append(row)
                last = row
                continue
            self.contradictions.append(
                f"{self._log}: offsets {row.base_offset} to {row.last_offset} of "
                f"{row.object_key} were given to {last.object_key} too "
                f"({last.base_offset} to {last.last_offset}); neither is taken"
            )
            if rows and rows[-1] is last:
                rows.pop()
            self.disputed += [Hole(r.base_offset, r.last_offset) for r in (last, row)]
            last = max(last, row, key=lambda r: r.last_offset)
        return rows

    def _place(self, rows: list[LogBatch], tail: list[WalObject]) -> list[LogBatch]:
        """``rows`` with those of the tail that fit in exactly one way. Notes each object."""
        opened, why = self._opened(rows, tail)
        whole = self._taken_whole(rows, opened)
        candidates = {
            o.wal_object.key: Candidate(
                o.wal_object.key,
                o.wal_object.incarnation,
                o.wal_object.sequence,
                tuple(batch.record_count for batch in o.batches),
                o.wal_object.in_order and o.wal_object.key in whole,
            )
            for o in opened
            if o.batches
        }
        by_key = {o.wal_object.key: o for o in opened}
        way: Way = {}
        if not why:
            way, why = self._only_way(rows, candidates, by_key)
        for key, found in by_key.items():
            settled = True
            if not found.batches:
                said = "all its batches are in the log already, from another object"
            elif key in way:
                said = "inferred: nothing else fits here"
            else:
                said = why or "passed over: a later object of its stream is placed"
                settled = not why or self._ended_long_after(rows, found)
            self.open_objects.append(
                replace(found, placed_at=way.get(key), why=said, settled=settled)
            )
        placed = [row for key, base in way.items() for row in _rows_of(by_key[key], base)]
        return _with_times(sorted([*rows, *placed], key=lambda row: row.base_offset))

    @staticmethod
    def _ended_long_after(rows: Sequence[LogBatch], found: OpenObject) -> bool:
        """Whoever uploaded it has committed it, or has given it up, before the last batch came."""
        written = found.wal_object.written_at_ms
        return bool(rows) and rows[-1].append_time - written > END_WITHIN_MS

    def _opened(self, rows: list[LogBatch], tail: list[WalObject]) -> tuple[list[OpenObject], str]:
        """One open object for each sequence of a stream, and why none can be placed, if so."""
        held = self._held(rows, tail)
        opened: dict[tuple[UUID, int], OpenObject] = {}
        why = ""
        for found in sorted(tail, key=lambda o: o.key):
            mine = [batch for _, batch in found.batches if log_of(batch) == self._log]
            fresh: list[FooterBatch] = []
            for batch in mine:
                times = held.get(_sequences(batch), ())
                if any(abs(at - found.written_at_ms) <= SURELY_KEPT_MS for at in times):
                    continue  # Of two that came so close to each other a commit refuses one.
                if any(at < found.written_at_ms for at in times):
                    why = "a batch of long ago is there again: its producer may have been forgotten"
                fresh.append(batch)
            one = OpenObject(self._log, found, tuple(fresh), None, "")
            other = opened.setdefault((found.incarnation, found.sequence), one)
            if other is not one and other.wal_object.batches != found.batches:
                why = f"{other.wal_object.key} and {found.key} differ under one sequence"
        single, repeated = _without_repeats(opened.values())
        if repeated:
            why = why or "two objects hold the same sequences of one producer"
        if self._unreadable:
            why = why or "some objects cannot be read, and may hold what is missing"
        if self.contradictions:
            why = why or "the log contradicts itself"
        if not rows and self._start is None:
            why = why or "no batch of this log is known, nor where it begins"
        return single, why

    def _held(
        self, rows: Iterable[LogBatch], tail: Iterable[WalObject]
    ) -> dict[_Sequences | None, list[int]]:
        """When the log took batches with sequences that are in ``tail`` too: more than once if
        their producer was forgotten meanwhile."""
        held: dict[_Sequences | None, list[int]] = {
            key: []
            for found in tail
            for _, batch in found.batches
            if (key := _sequences(batch)) is not None
        }
        for producer_id, entry in self._producers.entries.items():
            for batch in entry.batches:
                key = producer_id, entry.epoch, batch.base_sequence, batch.last_sequence
                if key in held:
                    held[key].append(batch.append_time)
        for row in rows:
            if (key := _sequences(row.footer)) in held:
                held[key].append(row.append_time)
        return held

    def _only_way(
        self,
        rows: list[LogBatch],
        candidates: Mapping[str, Candidate],
        by_key: Mapping[str, OpenObject],
    ) -> tuple[Way, str]:
        """Base offsets by key, and why the others have none."""
        floors = _floors(rows, ((c.key, c.stream, c.sequence) for c in candidates.values()))
        holes = [hole for hole in _holes(rows, self._start) if not self._is_explained(hole)]
        of_producers: dict[int, list[LogBatch]] = defaultdict(list)
        wanted = {batch.producer_id for one in by_key.values() for batch in one.batches}
        for row in rows:
            if row.footer.producer_id in wanted:
                of_producers[row.footer.producer_id].append(row)
        breaks = self._breaks(rows)
        ways: list[Way | None] = []
        try:
            for way in Search(holes, list(candidates.values()), floors).ways():
                if way is None or self._may_be(of_producers, breaks, way, by_key):
                    ways.append(way)
                if len(ways) > 1:
                    return {}, f"there is more than one way to fill {_spelled(holes)}"
        except TooManyWays:
            return {}, f"too many ways to fill {_spelled(holes)} to look at them all"
        if not ways:
            return {}, f"nothing in the bucket fills {_spelled(holes)}: an object is missing"
        if ways[0] is None:
            return {}, f"only part of an object fits {_spelled(holes)}"
        return self._with_end(rows, candidates, by_key, ways[0])

    def _with_end(
        self,
        rows: list[LogBatch],
        candidates: Mapping[str, Candidate],
        by_key: Mapping[str, OpenObject],
        way: Way,
    ) -> tuple[Way, str]:
        """``way``, and what is left at the end of the log: one object, or those of one stream."""
        reached: dict[UUID, int] = {}
        for row in rows:
            reached[row.stream] = max(reached.get(row.stream, -1), row.sequence)
        for key in way:
            stream = candidates[key].stream
            reached[stream] = max(reached.get(stream, -1), candidates[key].sequence)
        left = [
            c
            for key, c in candidates.items()
            if key not in way and c.sequence > reached.get(c.stream, -1)
        ]
        in_order = all(by_key[c.key].wal_object.in_order for c in left)
        one_stream = len({c.stream for c in left}) == 1 and in_order
        if len(left) > 1 and not one_stream:
            names = ", ".join(sorted(c.key for c in left))
            return way, f"more than one object may come next at the end: {names}"
        told = rows[-1].last_offset + 1 if rows else 0
        if left and self._moved and told < (self._start or 0):
            return way, "it may lie before offsets that were deleted, or left free by a rebuild"
        end = max(told, self._start or 0)
        producers = self._producers_behind(rows, way, by_key, left)
        longer = dict(way)
        for candidate in sorted(left, key=lambda c: c.sequence):
            found = by_key[candidate.key]
            if self._newest_ms - found.wal_object.written_at_ms > END_WITHIN_MS:
                return longer, "it is much older than the newest object: it may have been given up"
            if why := why_not_taken(producers, found.batches):
                return longer, why
            longer[candidate.key] = end
            after = producers_after(producers, _rows_of(found, end), end)
            producers = replace(producers, entries=after)
            end += candidate.whole
        return longer, ""

    def _taken_whole(self, rows: Sequence[LogBatch], opened: Sequence[OpenObject]) -> set[str]:
        """Keys of those of which no batch can have been refused, wherever they lie."""
        if not _have_producers(opened):
            return {one.wal_object.key for one in opened}
        first = len(rows)
        while first > 0:
            missing = (
                Hole(rows[first - 1].last_offset + 1, rows[first].base_offset - 1)
                if first < len(rows)
                else None
            )
            if missing and missing.size > 0 and not self._is_in_tail(missing):
                break
            first -= 1
        known = NOBODY_KNOWS
        if self._start is not None:
            begins = rows[first].base_offset if first < len(rows) else self._start
            if begins <= self._start or self._is_in_tail(Hole(self._start, begins - 1)):
                known = self._producers
        if known.are_all and self._start is not None:
            while first < len(rows) and rows[first].base_offset < self._start:
                first += 1
        in_order = sorted(opened, key=lambda o: (o.wal_object.incarnation, o.wal_object.sequence))
        tail = [(o.wal_object.key, o.wal_object.incarnation, o.batches) for o in in_order]
        return taken_whole(known, rows[first:], tail, self._earliest(rows, opened))

    def _earliest(self, rows: Sequence[LogBatch], opened: Iterable[OpenObject]) -> dict[str, int]:
        """By key, the first offset at which it may lie: in a hole, or behind the last batch."""
        holes = list(_holes(rows, self._start))
        ends = [hole.last_offset for hole in holes]
        end = rows[-1].last_offset + 1 if rows else 0
        places = [
            (o.wal_object.key, o.wal_object.incarnation, o.wal_object.sequence) for o in opened
        ]
        earliest = {}
        for key, floor in _floors(rows, places).items():
            at = bisect_left(ends, floor)
            earliest[key] = max(floor, holes[at].base_offset if at < len(holes) else end)
        return earliest

    def _is_in_tail(self, hole: Hole) -> bool:
        """What is missing there was not deleted."""
        return hole.base_offset >= (self._start or 0) and not self._is_explained(hole)

    def _producers_behind(
        self,
        rows: Sequence[LogBatch],
        way: Way,
        by_key: Mapping[str, OpenObject],
        left: Iterable[Candidate],
    ) -> KnownProducers:
        """Where ``left`` begin, behind ``rows`` and ``way``, as far as any of them has some."""
        if not _have_producers(by_key[c.key] for c in left):
            return self._producers
        placed = [row for key, base in way.items() for row in _rows_of(by_key[key], base)]
        all_rows = sorted([*rows, *placed], key=lambda row: row.base_offset)
        return producers_at_end(self._producers, self._start, all_rows)

    def _may_be(
        self,
        told: Mapping[int, Sequence[LogBatch]],
        breaks: Sequence[int],
        way: Way,
        by_key: Mapping[str, OpenObject],
    ) -> bool:
        """Whether commits may have taken every placed batch, and then the one behind it: where
        something is missing between two of a producer, or it may have been forgotten meanwhile,
        they may. ``told``: of the tail's producers. ``breaks``: the first offsets behind what is
        missing whatever way is taken."""
        placed: dict[int, list[LogBatch]] = defaultdict(list)
        for key, base in way.items():
            for row in _rows_of(by_key[key], base):
                if row.footer.producer_id >= 0:
                    placed[row.footer.producer_id].append(row)
        for producer_id, rows in placed.items():
            before: LogBatch | None = None
            run = -1
            of_one = [*told.get(producer_id, ()), *rows]
            for row in sorted(of_one, key=lambda row: row.base_offset):
                mine = bisect_right(breaks, row.base_offset)
                if before is None or mine != run:
                    first = breaks[mine - 1] if mine else -1
                    from_start = self._start is not None and first <= self._start
                    if from_start and row.inferred and not self._may_begin(row):
                        return False
                elif not _may_follow(before, row):
                    return False
                before, run = row, mine
        return True

    def _breaks(self, rows: Sequence[LogBatch]) -> list[int]:
        """Where a run begins of which no offset is missing once every hole is filled that can be:
        the first one of ``rows``, or of the log, and behind each gap that stays."""
        if not rows:
            return []
        start = rows[0].base_offset if self._start is None else self._start
        breaks = [min(rows[0].base_offset, start)]
        following = breaks[0]
        for row in rows:
            if row.base_offset > following:
                hole = Hole(max(following, start), row.base_offset - 1)
                if following < start or self._is_explained(hole):
                    # What is missing below the start stays so; from there on holes are filled.
                    fills = row.base_offset > start and not self._is_explained(hole)
                    breaks.append(start if fills else row.base_offset)
            following = max(following, row.last_offset + 1)
        return breaks

    def _may_begin(self, row: LogBatch) -> bool:
        """Whether it follows what its producer wrote before."""
        batch = row.footer
        entry = self._producers.entries.get(batch.producer_id)
        if entry is None or row.append_time - entry.last_append_time > SURELY_KEPT_MS:
            return True
        told = judge(entry, batch.producer_epoch, batch.base_sequence, batch.last_sequence)
        return told.error == "NONE"

    def _is_explained(self, hole: Hole) -> bool:
        at = bisect_left(self._explained, hole.base_offset)
        return at < len(self._explained) and self._explained[at] <= hole.last_offset


def log_of(batch: FooterBatch) -> TopicIdPartition:
    return TopicIdPartition(batch.topic_id, batch.partition)


def _have_producers(opened: Iterable[OpenObject]) -> bool:
    """Whether any batch is of an idempotent one."""
    return any(batch.producer_id >= 0 for one in opened for batch in one.batches)


def _without_repeats(opened: Iterable[OpenObject]) -> tuple[list[OpenObject], bool]:
    """Without batches that an object before them in their stream has, too: a commit would have
    found them to be duplicates. And whether others are there twice."""
    single: list[OpenObject] = []
    seen: dict[_Sequences, tuple[UUID | None, int]] = {}
    repeated = False
    for one in sorted(opened, key=lambda o: (o.wal_object.incarnation, o.wal_object.sequence)):
        stream = one.wal_object.incarnation if one.wal_object.in_order else None
        written = one.wal_object.written_at_ms
        kept = []
        for batch in one.batches:
            key = _sequences(batch)
            if key is not None and key in seen:
                first_stream, first_written = seen[key]
                soon = written - first_written <= SURELY_KEPT_MS
                if stream is not None and first_stream == stream and soon:
                    continue
                repeated = True
            elif key is not None:
                seen[key] = stream, written
            kept.append(batch)
        single.append(replace(one, batches=tuple(kept)))
    return single, repeated


def _sequences(batch: FooterBatch) -> _Sequences | None:
    """What makes a batch of an idempotent producer the same one."""
    if batch.producer_id < 0:
        return None
    return batch.producer_id, batch.producer_epoch, batch.base_sequence, batch.last_sequence


def _holes(rows: Sequence[LogBatch], start: int | None) -> Iterator[Hole]:
    """From ``start`` on, or from the first batch."""
    if not rows:
        return
    following = rows[0].base_offset if start is None else start
    for row in rows:
        if row.base_offset > following:
            yield Hole(following, row.base_offset - 1)
        following = max(following, row.last_offset + 1)


def _floors(rows: Sequence[LogBatch], places: Iterable[tuple[str, UUID, int]]) -> dict[str, int]:
    """By key, the first offset behind what is told before it in its stream. ``places``: key, stream
    and sequence of each."""
    wanted = list(places)
    streams = {stream for _, stream, _ in wanted}
    ends: dict[UUID, dict[int, int]] = {stream: {} for stream in streams}
    for row in rows:
        if row.stream in streams:
            of_stream = ends[row.stream]
            of_stream[row.sequence] = max(of_stream.get(row.sequence, 0), row.last_offset + 1)
    sequences = {stream: sorted(of_stream) for stream, of_stream in ends.items()}
    highest = {
        stream: list(accumulate((ends[stream][n] for n in sequences[stream]), max))
        for stream in streams
    }
    floors = {}
    for key, stream, sequence in wanted:
        before = bisect_left(sequences[stream], sequence)
        floors[key] = highest[stream][before - 1] if before else 0
    return floors


def _spelled(holes: Sequence[Hole]) -> str:
    spans = ", ".join(f"{hole.base_offset} to {hole.last_offset}" for hole in holes[:5])
    return f"offsets {spans}{', …' if len(holes) > 5 else ''}"


def _rows_of(found: OpenObject, base: int) -> Iterator[LogBatch]:
    for batch in found.batches:
        yield LogBatch(
            base,
            found.wal_object.key,
            found.wal_object.written_at_ms,
            batch,
            found.wal_object.incarnation,
            found.wal_object.sequence,
            inferred=True,
        )
        base += batch.record_count


def _may_follow(before: LogBatch, after: LogBatch) -> bool:
    """Of one producer, and no offset is missing between them."""
    if not (before.inferred or after.inferred):
        return True
    if after.append_time - before.append_time > SURELY_KEPT_MS:
        return True
    one, other = before.footer, after.footer
    return follows(other.producer_epoch, other.base_sequence, one.producer_epoch, one.last_sequence)


def _with_times(rows: list[LogBatch]) -> list[LogBatch]:
    """Append times of inferred batches between those of their neighbours: they never go back."""
    timed: list[LogBatch] = []
    following: list[int | None] = []
    upper: int | None = None
    for row in reversed(rows):
        upper = upper if row.inferred else row.append_time
        following.append(upper)
    for row, after in zip(rows, reversed(following), strict=True):
        if row.inferred:
            at = max(row.append_time, timed[-1].append_time if timed else row.append_time)
            row = replace(row, append_time=at if after is None else min(at, after))
        timed.append(row)
    return timed
