"""Metadata records reach a frame as rows or packed, without a broker."""

from __future__ import annotations

from collections.abc import Iterator
from uuid import UUID

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession
from pyspark.sql.datasource import InputPartition

from spark.common.packing import unpack
from spark.common.remote_log import Extent, MetadataReader, RemoteLogSource
from tideline.domain.ids import TopicIdPartition
from tideline.domain.remote_log import SegmentState, SegmentUpdate
from tideline.kafka.remote_log_metadata import encode_update

VALUE = encode_update(
    "t",
    SegmentUpdate(
        TopicIdPartition(UUID(int=1), 0), UUID(int=2), SegmentState.COPY_SEGMENT_FINISHED
    ),
)


class OneRecord(MetadataReader):
    """Reads the same record whatever the extent."""

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        yield self._batch(3, [7], [VALUE])


class OneRecordSource(RemoteLogSource):
    @classmethod
    def name(cls) -> str:
        return "one_record"

    def reader(self, schema: object) -> MetadataReader:
        return OneRecord("nowhere", 1, [Extent(3, 7, 8)], self._packed)


@pytest.mark.parametrize("packed", [False, True])
def test_a_record_arrives_in_the_shape_that_was_asked_for(
    spark: SparkSession, packed: bool
) -> None:
    spark.dataSource.register(OneRecordSource)
    found = spark.read.format("one_record").option("packed", packed).load().toArrow()
    assert found.num_rows == 1
    if packed:
        events, _ = unpack(found)
        place = events.place[0], events.position[0]
    else:
        place = found["metadata_partition"][0].as_py(), found["record_offset"][0].as_py()
    assert place == (3, 7)
