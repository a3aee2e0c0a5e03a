"""What the benchmark of a fleet generates is what the codec writes."""

from __future__ import annotations

from uuid import UUID, uuid4

import pytest

from benchmarks.fleet_records import STARTED_AT, Template, segment
from tideline.domain.ids import TopicIdPartition
from tideline.kafka import remote_log_metadata as codec

AT_MS = 1_800_000_000_000


@pytest.mark.parametrize("number", [0, 1, 2, 499, 70_000])
@pytest.mark.parametrize("topic", ["t", "fleet-9", "x" * 249])
def test_a_template_gives_the_bytes_of_the_codec(topic: str, number: int) -> None:
    log = TopicIdPartition(uuid4(), 999)
    template = Template.of(segment(topic, log, 1, 1_000, AT_MS))
    one = segment(topic, log, number, 1_000, AT_MS)
    made = template.values(one.segment_id.bytes, one.start_offset, one.end_offset)
    assert list(made) == [r.value for r in codec.metadata_records(one, started_at=STARTED_AT)]


def test_segments_of_a_fleet_have_ids_of_their_own() -> None:
    logs = [TopicIdPartition(UUID(int=topic), number) for topic in (1, 2) for number in range(3)]
    ids = [segment("t", log, number, 10, AT_MS).segment_id for log in logs for number in range(9)]
    assert len(set(ids)) == len(ids)
