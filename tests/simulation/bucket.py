"""What the bucket tells at any moment of a run, against what the control plane knows (decisions
0020, 0022).

Whatever was killed, lost and answered twice on the way: who folds the footers of the bucket gets
the control plane's batches, at their offsets, or is told of an object that is open. Behind the
last offset that the control plane has given there may be what was on its way.
"""

from __future__ import annotations

from collections.abc import Mapping

from tests.history.operations import Partition
from tests.history.violations import Kind, Violation
from tideline.control_plane.memory.plane import MemoryControlPlane
from tideline.domain.ids import TopicIdPartition
from tideline.domain.producer_state import KnownProducers, entries_from_seeds
from tideline.domain.rebuild import Rebuilt, rebuild
from tideline.domain.wal_footer import Footer, decode_tail
from tideline.domain.wal_streams import Streams

Place = tuple[int, str]
"""Base offset and object key."""


class BucketJudge:
    """Reads each footer once."""

    def __init__(self, objects: Mapping[str, bytes], plane: MemoryControlPlane) -> None:
        """``objects``: of the WAL, all that were ever put. Nothing has collected any."""
        self._objects, self._plane = objects, plane
        self._footers: dict[str, Footer] = {}

    def judge(self) -> list[Violation]:
        """As if Postgres and all gateways were lost in this moment."""
        streams = Streams()
        for key, body in self._objects.items():
            if key not in self._footers:
                self._footers[key] = decode_tail(body, len(body))
            streams.add(key, len(body), self._footers[key])
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
        producers = {
            partition.log: KnownProducers(entries_from_seeds(partition.seeds or (), -1), True)
            for partition in self._plane.topics.partitions()
            if partition.suffix and starts.get(partition.log) == partition.suffix.boundary
        }
        found = rebuild(streams, starts, producers)
        said = [f"contradiction: {text}" for text in found.contradictions]
        read = {key for places in known.values() for _, key in places}
        said += [f"{key} is read, and is called never committed" for key in found.never_committed
                 if key in read]  # fmt: skip
        violations = [Violation(Kind.MISTOLD, None, text) for text in said]
        for log, places in sorted(known.items()):
            for text in _unlike(found, log, places, suffixes[log].high_watermark):
                partition = Partition(str(log.topic_id), log.partition)
                violations.append(Violation(Kind.MISTOLD, partition, text))
        return violations


def _unlike(found: Rebuilt, log: TopicIdPartition, places: set[Place], end: int) -> list[str]:
    rebuilt = found.logs.get(log)
    rows = rebuilt.batches if rebuilt else ()
    told = {(b.base_offset, b.object_key) for b in rows if not b.inferred or b.base_offset < end}
    open_keys = {o.wal_object.key for o in found.open_objects if o.log == log}
    wrong = [f"{key} is said to lie at {offset}" for offset, key in sorted(told - places)]
    silent = [
        f"{key}, which lies at {offset}, is neither told nor open"
        for offset, key in sorted(places - told)
        if key not in open_keys
    ]
    return wrong + silent
