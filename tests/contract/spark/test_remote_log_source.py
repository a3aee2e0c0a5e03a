"""Metadata records reach a frame, one by one or folded, without a broker."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from uuid import UUID

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

from spark.common import remote_log
from spark.common.code import DIGEST
from spark.common.fold import fold
from spark.common.metadata_records import UNKNOWN, MetadataRecord
from spark.common.metadata_topic import Extent
from spark.common.packing import UNKNOWN_PARTITION, PackedEvents, unpack
from spark.common.remote_log import FoldOfPlace, FoldReader, Plan, RowReader
from spark.common.rows import from_frame
from spark.common.snapshots import Identity, LastRecord, SnapshotStore
from tests.unit.spark.test_kept_folds import LOG, Message, Store, finished, registered

VALUES = [registered(1), finished(1), b"\1\x09\0new"]


@dataclass
class Records:
    """Every partition has the same records. Travels to where the readers are."""

    values: list[bytes] = field(default_factory=lambda: VALUES)

    def messages(self, wanted: Extent) -> Iterator[list[Message]]:
        yield [Message(n, value) for n, value in enumerate(self.values)]


EXTENTS = [Extent(3, 0, 3), Extent(4, 7, 7), Extent(5, 0, 3)]


def test_records_arrive_one_by_one(spark: SparkSession) -> None:
    wanted = frozenset([LOG.topic_id.bytes])
    reader = RowReader(Records(), EXTENTS, wanted)  # type: ignore[arg-type]
    found = from_frame(MetadataRecord, remote_log.frame_of(spark, MetadataRecord, reader))
    assert sorted((r.metadata_partition, r.record_offset, r.kind) for r in found) == [
        (place, n, kind) for place in (3, 5) for n, kind in enumerate((0, 1, UNKNOWN))
    ]


@pytest.mark.parametrize("topic", [LOG.topic_id, UUID(int=99)])
def test_folded_they_are_a_row_for_each_wanted_log(spark: SparkSession, topic: UUID) -> None:
    kept = SnapshotStore(Store(), "b", "", Identity("c", UUID(int=7), 50))  # type: ignore[arg-type]
    plan = Plan(kept, {}, tuple(EXTENTS), False)
    reader = FoldReader(Records(), plan, frozenset([topic.bytes]), 0, 0, False)  # type: ignore[arg-type]
    found = remote_log.frame_of(spark, PackedEvents, reader).toArrow()
    of_logs = [partition != UNKNOWN_PARTITION for partition in found["partition"].to_pylist()]
    logs = found.filter(pa.array(of_logs))["partition"].to_pylist()
    assert len(found) - len(logs) == 2, "what is not understood concerns every log"
    if topic != LOG.topic_id:
        assert logs == []
        return
    assert logs == [LOG.partition] * 2
    events, _ = unpack(found.filter(pa.array(of_logs)))
    assert sorted(events.place.tolist()) == [3, 5]
    assert fold(events.take(events.place.argsort()[:1])).base.state.tolist() == [1]


def test_only_the_logs_that_are_asked_for_come_and_the_driver_hears_of_every_fold(
    spark: SparkSession,
) -> None:
    kept = SnapshotStore(Store(), "b", "", Identity("c", UUID(int=7), 50))  # type: ignore[arg-type]
    plan = Plan(kept, {}, tuple(EXTENTS), False)
    topics = frozenset([LOG.topic_id.bytes])
    last = LastRecord.of(2, 1, 1_002, VALUES[2])
    for partition, rows in ((LOG.partition, 2), (LOG.partition + 1, 0)):
        told = remote_log.folds_told(spark)
        logs = frozenset([(LOG.topic_id.bytes, partition)])
        reader = FoldReader(Records(), plan, topics, 50, 0, False, logs, told)  # type: ignore[arg-type]
        found = remote_log.frame_of(spark, PackedEvents, reader).toArrow()
        assert found["partition"].to_pylist().count(LOG.partition) == rows
        assert found["partition"].to_pylist().count(UNKNOWN_PARTITION) == 2
        assert told.value == {FoldOfPlace(place, 50, last, DIGEST) for place in (3, 5)}
