"""The rows of a piece: what a consumer would be handed, as Arrow.

Columns have the names and types of Spark's own source for Kafka, with ``headers`` always there and
``leaderEpoch`` beside them.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np
import pyarrow as pa

from spark.table.pieces import Piece
from spark.table.scan import Scanner, StoredBatch
from tideline.domain.table import Isolation, TableUnreadable
from tideline.kafka.batches import InvalidBatch
from tideline.kafka.record_columns import RecordColumns, append_records
from tideline.kafka.records import InvalidRecords, UnpackedTooLarge, unpacked
from tideline.kafka.txn_index import Aborted

ROWS_AT_ONCE = 10_000
BYTES_AT_ONCE = 8 * 1024 * 1024
"""Of one record batch of Arrow, about: a batch of Kafka is not divided unless it is larger."""
MAX_UNPACKED = 512 * 1024 * 1024
"""bytes; a batch that unpacks to more is refused: a hundred of its kind would fill an executor."""
SCHEMA = pa.schema(
    [
        pa.field("key", pa.binary()),
        pa.field("value", pa.binary()),
        pa.field("topic", pa.string(), nullable=False),
        pa.field("partition", pa.int32(), nullable=False),
        pa.field("offset", pa.int64(), nullable=False),
        pa.field("timestamp", pa.timestamp("us", "UTC"), nullable=False),
        pa.field("timestampType", pa.int32(), nullable=False),
        pa.field(
            "headers",
            pa.list_(pa.struct([pa.field("key", pa.string()), pa.field("value", pa.binary())])),
        ),
        pa.field("leaderEpoch", pa.int32(), nullable=False),
    ]
)
LOG_APPEND_TIME = 1
MOST_MS = (2**63 - 1) // 1000
"""The last time, and with a minus the first one, that a timestamp of Spark can be."""


@dataclass(slots=True)
class _Pending:
    """Rows that are not handed on yet; runs of them share what their batch says."""

    columns: RecordColumns = field(default_factory=RecordColumns)
    runs: list[tuple[int, int, int]] = field(default_factory=list)
    """Of each batch: rows, timestamp type, leader epoch."""
    size: int = 0

    def add(self, batch: StoredBatch, piece: Piece) -> None:
        before = len(self.columns)
        body = unpacked(batch.data, batch.header, MAX_UNPACKED)
        append_records(
            self.columns, bytes(body), batch.header, base_offset=batch.base_offset,
            start=piece.start, end=piece.end, append_time=batch.append_time,
        )  # fmt: skip
        kind = 0 if batch.append_time is None else LOG_APPEND_TIME
        self.runs.append((len(self.columns) - before, kind, batch.leader_epoch))
        self.size += len(body)

    def to_arrow(self, piece: Piece) -> pa.RecordBatch:
        columns, count = self.columns, len(self.columns)
        lengths = [run[0] for run in self.runs]
        ms = np.clip(np.asarray(columns.timestamps, dtype=np.int64), -MOST_MS, MOST_MS)
        return pa.RecordBatch.from_arrays(
            [
                pa.array(columns.keys, pa.binary()),
                pa.array(columns.values, pa.binary()),
                pa.repeat(pa.scalar(piece.topic), count),
                pa.array(np.full(count, piece.partition, np.int32)),
                pa.array(columns.offsets, pa.int64()),
                pa.array(ms * 1000, pa.int64()).cast(SCHEMA.field("timestamp").type),
                pa.array(np.repeat(np.asarray([r[1] for r in self.runs], np.int32), lengths)),
                pa.array(columns.headers, SCHEMA.field("headers").type),
                pa.array(np.repeat(np.asarray([r[2] for r in self.runs], np.int32), lengths)),
            ],
            schema=SCHEMA,
        )


def wanted_batches(scanner: Scanner, piece: Piece, isolation: Isolation) -> Iterator[StoredBatch]:
    """Without markers and, of committed records, without those of aborted transactions. Raises as
    :meth:`Scanner.batches`."""
    committed = isolation is Isolation.READ_COMMITTED
    aborted = Aborted(piece.aborted)
    for batch in scanner.batches(piece):
        if batch.header.is_control or batch.header.record_count == 0:
            continue
        if not (committed and aborted.has(batch.header)):
            yield batch


def arrow_rows(
    scanner: Scanner, piece: Piece, isolation: Isolation, rows_at_once: int = ROWS_AT_ONCE
) -> Iterator[pa.RecordBatch]:
    """The records of ``piece`` in the order of their offsets, handed on once there are so many rows
    or :data:`BYTES_AT_ONCE`. Raises as :meth:`Scanner.batches`."""
    pending = _Pending()
    for batch in wanted_batches(scanner, piece, isolation):
        try:
            pending.add(batch, piece)
        except (InvalidBatch, InvalidRecords, UnpackedTooLarge) as error:
            raise TableUnreadable(
                f"{piece.topic}-{piece.partition}: the batch with offsets {batch.base_offset} to "
                f"{batch.last_offset}: {error}"
            ) from error
        if len(pending.columns) >= rows_at_once or pending.size >= BYTES_AT_ONCE:
            if len(pending.columns):
                yield pending.to_arrow(piece)
            pending = _Pending()
    if len(pending.columns):
        yield pending.to_arrow(piece)
