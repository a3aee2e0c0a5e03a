"""One range of a topic: the table's rows beside the records that gateways serve."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import closing
from dataclasses import dataclass, field

import pyarrow as pa

from spark.table.pieces import Piece, Place
from spark.table.rows import arrow_rows
from spark.table.scan import Objects, Scanner, StoredBatch
from spark.verify.served import Gateways, NotServed, Record
from tideline.domain.table import Isolation, TableRefused, TableUnreadable
from tideline.settings import JobsSettings

NAMED = 20
"""Differences of a range that are named; the others are counted."""


@dataclass(frozen=True, slots=True)
class Difference:
    """At ``offset`` of ``partition``; ``what`` is a sentence."""

    partition: int
    offset: int
    what: str


@dataclass(frozen=True, slots=True)
class RangeVerdict:
    """What was found in ``[start, end)``."""

    topic: str
    partition: int
    place: Place
    start: int
    end: int
    batches: int
    records: int
    byte_count: int
    """Of the batches, as they are stored."""
    gone: bool
    """Retention has removed a part meanwhile: what is left is not judged."""
    differences: int
    first: tuple[Difference, ...]


class WatchedScanner(Scanner):
    """Notes what passes, and which offsets no batch has of those that one must have."""

    def __init__(self, settings: JobsSettings, *, store: Objects | None = None) -> None:
        super().__init__(settings, store=store)
        self.begin(0)

    def begin(self, start: int) -> None:
        self.next, self.count, self.byte_count = start, 0, 0
        self.transactional = False
        self.gaps: list[tuple[int, int]] = []

    def batches(self, piece: Piece) -> Iterator[StoredBatch]:
        self.begin(piece.start)
        for batch in super().batches(piece):
            self._reach(piece, batch.base_offset)
            self.next = max(self.next, min(batch.last_offset + 1, piece.end))
            self.count, self.byte_count = self.count + 1, self.byte_count + batch.header.size
            self.transactional |= batch.header.is_transactional
            yield batch
        self._reach(piece, piece.end)

    def _reach(self, piece: Piece, offset: int) -> None:
        if offset > self.next:
            if piece.place.is_dense:
                self.gaps.append((self.next, offset))
            self.next = offset


@dataclass
class _Findings:
    piece: Piece
    count: int = 0
    first: list[Difference] = field(default_factory=list)

    def add(self, offset: int, what: str) -> None:
        """Named inside of the range, which is looked at again for it."""
        self.count += 1
        if len(self.first) < NAMED:
            inside = max(self.piece.start, min(offset, self.piece.end - 1))
            self.first.append(Difference(self.piece.partition, inside, what))


def compare(scanner: WatchedScanner, gateways: Gateways, piece: Piece) -> RangeVerdict:
    """All records, and of transactions those of committed ones a second time.

    Raises ``KafkaUnavailable``, ``ObjectStoreUnavailable``, ``ControlPlaneUnavailable``.
    """
    findings, records, gone = _Findings(piece), 0, False
    try:
        records = _compare(scanner, gateways, piece, Isolation.READ_UNCOMMITTED, findings)
        for start, end in scanner.gaps:
            findings.add(start, f"no stored batch has offsets {start} to {end - 1}")
        if scanner.transactional:
            _compare(scanner, gateways, piece, Isolation.READ_COMMITTED, findings)
    except (NotServed, TableRefused, TableUnreadable) as error:
        begins = gateways.log_start(piece.topic, piece.partition)
        gone = begins > scanner.next or (isinstance(error, NotServed) and begins > piece.start)
        if not gone:
            findings.add(scanner.next, str(error))
    return RangeVerdict(
        piece.topic, piece.partition, piece.place, piece.start, piece.end, scanner.count, records,
        scanner.byte_count, gone, findings.count, tuple(findings.first),
    )  # fmt: skip


def _compare(
    scanner: WatchedScanner,
    gateways: Gateways,
    piece: Piece,
    isolation: Isolation,
    findings: _Findings,
) -> int:
    """How many records the table has."""
    served = gateways.records(piece.topic, piece.partition, piece.start, piece.end, isolation)
    counted = 0
    with closing(served):
        for ours, theirs in _beside(_rows(arrow_rows(scanner, piece, isolation)), served):
            counted += ours is not None
            if ours is not None and ours != theirs and findings.count < NAMED:
                # By the library's fault, or the gateways'. Behind so many it matters no more.
                where = piece.topic, piece.partition, ours.offset
                if ours == gateways.again(*where, isolation):
                    continue
            if ours is None and theirs is not None:
                findings.add(theirs.offset, f"served ({isolation}), and not in the table")
            elif theirs is None and ours is not None:
                findings.add(ours.offset, f"in the table, and not served ({isolation})")
            elif ours is not None and theirs is not None and ours != theirs:
                findings.add(ours.offset, _unlike(ours, theirs))
    return counted


def _rows(batches: Iterable[pa.RecordBatch]) -> Iterator[Record]:
    for batch in batches:
        columns = [
            batch.column("offset").to_pylist(),
            [at // 1000 for at in batch.column("timestamp").cast("int64").to_pylist()],
            batch.column("timestampType").to_pylist(),
            batch.column("key").to_pylist(),
            batch.column("value").to_pylist(),
            [
                None if headers is None else [(one["key"], one["value"]) for one in headers]
                for headers in batch.column("headers").to_pylist()
            ],
            batch.column("leaderEpoch").to_pylist(),
        ]
        yield from map(Record._make, zip(*columns, strict=True))


def _beside(
    ours: Iterator[Record], theirs: Iterator[Record]
) -> Iterator[tuple[Record | None, Record | None]]:
    """Records with the same offset together. One whose offset does not grow stands alone."""
    mine, other = next(ours, None), next(theirs, None)
    last = -1
    while mine is not None or other is not None:
        if other is not None and other.offset <= last:
            yield None, other
            other = next(theirs, None)
        elif mine is not None and (other is None or mine.offset < other.offset):
            last = mine.offset
            yield mine, None
            mine = next(ours, None)
        elif mine is None or (other is not None and other.offset < mine.offset):
            assert other is not None
            last = other.offset
            yield None, other
            other = next(theirs, None)
        else:
            last = mine.offset
            yield mine, other
            mine, other = next(ours, None), next(theirs, None)


def _unlike(ours: Record, theirs: Record) -> str:
    wrong = [
        f"{name} {_short(mine)} is stored, {_short(other)} served"
        for name, mine, other in zip(Record._fields, ours, theirs, strict=True)
        if mine != other
    ]
    return "; ".join(wrong)


def _short(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:60]}… ({len(text)} characters)"
