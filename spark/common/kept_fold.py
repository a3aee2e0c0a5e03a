"""What the records of one partition of ``__remote_log_metadata`` come to, to go on from.

Folding is repeated here with a memory: of each log its present segments are kept as the records
that registered them, each in the state and with the time of its last change, and how many records
no legal history contained. Folded with what comes later that gives what a fold of everything gives
(a property test shows it), so it may be kept between runs and need not fit a whole history.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

import numpy as np
import pyarrow as pa

from spark.common.fold import FOLDED, SEGMENT, Segments, fold
from spark.common.packing import (
    EPOCH,
    FORMS,
    UNKNOWN_PARTITION,
    WHOLE,
    PackedEvents,
    unpacked,
)
from spark.common.rows import arrow_schema

Key = tuple[bytes, int]
"""Topic id (16 bytes) and partition."""
NOT_UNDERSTOOD: Key = (bytes(16), UNKNOWN_PARTITION)
_WHOLE = FORMS.index(WHOLE)


@dataclass(frozen=True, slots=True)
class PackedLog:
    """Of :data:`WHOLE` and :data:`EPOCH`."""

    records: bytes
    epochs: bytes

    @property
    def rows(self) -> int:
        return len(self.records) // WHOLE.itemsize


@dataclass(slots=True)
class KeptFold:
    """By log what the fold has left. ``upto``: the last offset that it took."""

    place: int
    upto: int = -1
    logs: dict[Key, PackedLog] = field(default_factory=dict)

    @property
    def rows(self) -> int:
        """Segments, and what else is kept of logs."""
        return sum(log.rows for log in self.logs.values())

    @property
    def can_be_kept(self) -> bool:
        """Not while there is a record that was not understood: another version may understand it,
        and has to see the record itself."""
        return NOT_UNDERSTOOD not in self.logs

    def take(self, batch: pa.RecordBatch | pa.Table, upto: int) -> None:
        """Fold rows of :class:`PackedEvents`, all past what was taken before, the last of them at
        or before ``upto``."""
        self.upto = upto
        new: dict[Key, list[tuple[int, bytes, bytes]]] = defaultdict(list)
        columns = (batch[name].to_pylist() for name in batch.schema.names)
        for topic_id, partition, form, records, epochs in zip(*columns, strict=True):
            new[topic_id, partition].append((form, records, epochs))
        for key, rows in new.items():
            if (before := self.logs.get(key)) is not None:
                rows.insert(0, (_WHOLE, before.records, before.epochs))
            if key == NOT_UNDERSTOOD:
                left = PackedLog(b"".join(r for _, r, _ in rows), b"".join(e for *_, e in rows))
            else:
                left = self._packed(fold(unpacked(*zip(*rows, strict=True))[0]))
            if left.rows:
                self.logs[key] = left
            else:
                self.logs.pop(key, None)

    def _packed(self, found: Segments) -> PackedLog:
        base = found.base
        records = np.zeros(len(base) + bool(found.anomalies), dtype=WHOLE)
        of_segments = records[: len(base)]
        of_segments["kind"], of_segments["flag"] = SEGMENT, base.txn_index_empty
        for name, values in (
            ("state", base.state), ("place", base.place), ("position", base.position),
            ("first", base.start), ("last", base.end), ("size", base.size),
            ("stamp", base.stamp), ("newest", base.newest),
            ("id_high", base.id_high), ("id_low", base.id_low),
            ("epochs", base.epochs.offsets[1:] - base.epochs.offsets[:-1]),
        ):  # fmt: skip
            of_segments[name] = values
        if found.anomalies:
            counted = records[-1:]
            counted["kind"], counted["size"] = FOLDED, found.anomalies
            counted["place"], counted["position"] = self.place, self.upto
        epochs = np.zeros(len(base.epochs.values), dtype=EPOCH)
        epochs["epoch"], epochs["start"] = base.epochs.values, base.epoch_starts.values
        return PackedLog(records.tobytes(), epochs.tobytes())

    def packed(
        self, topics: frozenset[bytes] | None = None, logs: frozenset[Key] | None = None
    ) -> pa.RecordBatch:
        """Rows of :class:`PackedEvents`: of ``topics`` and among ``logs``, and what was not
        understood."""
        return batch_of(
            (key, log)
            for key, log in self.logs.items()
            if ((topics is None or key[0] in topics) and (logs is None or key in logs))
            or key == NOT_UNDERSTOOD
        )


def batch_of(logs: Iterable[tuple[Key, PackedLog]]) -> pa.RecordBatch:
    some = list(logs)
    return pa.RecordBatch.from_pydict(
        {
            "topic_id": [key[0] for key, _ in some],
            "partition": [key[1] for key, _ in some],
            "form": [_WHOLE] * len(some),
            "records": [log.records for _, log in some],
            "epochs": [log.epochs for _, log in some],
        },
        schema=arrow_schema(PackedEvents),
    )


def logs_of(table: pa.Table) -> Iterator[tuple[Key, PackedLog]]:
    """Inverse of :func:`batch_of`."""
    names = ("topic_id", "partition", "records", "epochs")
    for topic_id, partition, records, epochs in zip(
        *(table[name].to_pylist() for name in names), strict=True
    ):
        yield (topic_id, partition), PackedLog(records, epochs)
