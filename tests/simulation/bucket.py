"""What the bucket tells at any moment of a run, against what the control plane knows (decision
0022).

Whatever was killed, lost and answered twice on the way: who folds the footers of the bucket gets
the control plane's batches, at their offsets, or is told of an object that is open. Behind the
last offset that the control plane has given there may be what was on its way. At the end of a run
the bucket is held against what clients were told, too, byte by byte.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import lru_cache
from itertools import islice

from tests.history.operations import Operation, Outcome, Partition, Produce, Truncated
from tests.history.violations import Kind, Violation
from tests.simulation import records
from tideline.control_plane.memory.plane import MemoryControlPlane
from tideline.control_plane.memory.suffix import Suffix
from tideline.domain.ids import TopicIdPartition
from tideline.domain.producer_state import KnownProducers, entries_from_seeds
from tideline.domain.rebuild import Rebuilt, rebuild
from tideline.domain.wal_footer import Footer, FooterBatch, decode_tail
from tideline.domain.wal_streams import Streams

Place = tuple[int, str]
"""Base offset and object key."""


@lru_cache(maxsize=64)
def footer_of(body: bytes) -> Footer:
    """Of an object; whoever looks at its batches when it is put has read it already."""
    return decode_tail(body, len(body))


class BucketJudge:
    """Reads each footer once."""

    def __init__(self, objects: Mapping[str, bytes], plane: MemoryControlPlane) -> None:
        """``objects``: of the WAL, all that were ever put. Nothing has collected any."""
        self._objects, self._plane = objects, plane
        self._streams = Streams()
        self.given_up: set[str] = set()
        """Keys of objects that were committed, and are not any more: an operator accepted that."""
        self._folded: tuple[object, Rebuilt] | None = None
        """The last fold, and what it was made of."""

    def _fold(
        self,
    ) -> tuple[Rebuilt, dict[TopicIdPartition, Suffix], dict[TopicIdPartition, set[Place]]]:
        """What the bucket tells now, and the suffixes that Postgres knows, and their batches."""
        for key, body in islice(self._objects.items(), self._streams.objects, None):
            self._streams.add(key, len(body), footer_of(body))
        suffixes = {
            partition.log: partition.suffix
            for partition in self._plane.topics.partitions()
            if partition.suffix is not None and not partition.deleted
        }
        known = {
            log: {(b.base_offset, b.object_key) for b in suffix.batches}
            for log, suffix in suffixes.items()
        }
        starts = {log: min(places)[0] for log, places in known.items() if places}
        begun = {
            partition.log: partition.seeds or ()
            for partition in self._plane.topics.partitions()
            if partition.suffix and starts.get(partition.log) == partition.suffix.boundary
        }
        current = self._plane.history.history_id if self.given_up else None
        made_of = self._streams.objects, starts, begun, current
        if self._folded is None or self._folded[0] != made_of:
            producers = {
                log: KnownProducers(entries_from_seeds(seeds, -1), True)
                for log, seeds in begun.items()
            }
            folded = rebuild(self._streams, starts, producers, current=current)
            self._folded = made_of, folded
        return self._folded[1], suffixes, known

    def told(self, operations: Iterable[Operation]) -> list[Violation]:
        """What is wrong for clients: every record that was acknowledged in a suffix lies at its
        offset in the object that the footers name there, or in one that is open. What Kafka had
        acknowledged and lost is none, since B0 may lie below it, nor what an operator gave up."""
        operations = list(operations)
        lost = [one for one in operations if isinstance(one, Truncated)]
        found, suffixes, _ = self._fold()
        logs = {Partition(str(log.topic_id), log.partition): log for log in suffixes}
        violations = []
        for operation in operations:
            if not isinstance(operation, Produce) or operation.outcome is not Outcome.ACKNOWLEDGED:
                continue
            log, offset = logs.get(operation.partition), operation.base_offset
            if log is None or offset is None or offset < suffixes[log].boundary:
                continue
            if any(_was_lost(operation, one) for one in lost):
                continue
            if self._at(found, log, offset) != operation.values and not any(
                self._values(one.wal_object.key, batch) == operation.values
                for one in found.open_objects
                if one.log == log
                for batch in one.batches
            ):
                text = f"{operation.values[0]!r}, told at {offset}, is not told by the bucket there"
                violations.append(Violation(Kind.MISTOLD, operation.partition, text, (operation,)))
        return violations

    def _at(self, found: Rebuilt, log: TopicIdPartition, offset: int) -> tuple[str, ...]:
        rows = found.logs[log].batches if log in found.logs else ()
        row = next((row for row in rows if row.base_offset == offset), None)
        return () if row is None else self._values(row.object_key, row.footer)

    def _values(self, key: str, batch: FooterBatch) -> tuple[str, ...]:
        start, end = batch.byte_offset, batch.byte_offset + batch.byte_size
        return tuple(value for _, value, _ in records.read(self._objects[key][start:end]))

    def judge(self) -> list[Violation]:
        """As if Postgres and all gateways were lost in this moment."""
        found, suffixes, known = self._fold()
        said = [f"contradiction: {text}" for text in dict.fromkeys(found.contradictions)]
        read = {key for places in known.values() for _, key in places}
        said += [f"{key} is read, and is called never committed" for key in found.never_committed
                 if key in read]  # fmt: skip
        violations = [Violation(Kind.MISTOLD, None, text) for text in said]
        for log, places in sorted(known.items()):
            for text in _unlike(found, log, places, suffixes[log].high_watermark, self.given_up):
                partition = Partition(str(log.topic_id), log.partition)
                violations.append(Violation(Kind.MISTOLD, partition, text))
        return violations


def _was_lost(told: Produce, loss: Truncated) -> bool:
    """Whether what it was told may have been lost, as :mod:`tests.history` counts it."""
    offset = told.base_offset
    return (
        told.partition == loss.partition
        and told.invoked <= loss.at
        and offset is not None
        and offset + len(told.values) > loss.offset
    )


def _unlike(
    found: Rebuilt, log: TopicIdPartition, places: set[Place], end: int, given_up: set[str]
) -> list[str]:
    rebuilt = found.logs.get(log)
    rows = rebuilt.batches if rebuilt else ()
    told = {(b.base_offset, b.object_key) for b in rows if not b.inferred or b.base_offset < end}
    open_keys = {o.wal_object.key for o in found.open_objects if o.log == log}
    wrong = [
        f"{key} is said to lie at {offset}"
        for offset, key in sorted(told - places)
        if key not in given_up
    ]
    silent = [
        f"{key}, which lies at {offset}, is neither told nor open"
        for offset, key in sorted(places - told)
        if key not in open_keys
    ]
    return wrong + silent
