"""One reading of the metadata topic serves a whole worker; a topic that joins disturbs no other."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from uuid import UUID

import pytest

from tests.support.waiting import within
from tests.unit.kafka.metadata_topic import MetadataTopic, segment
from tideline.domain.ids import TopicIdPartition
from tideline.domain.remote_log import SegmentState, SegmentUpdate
from tideline.kafka import remote_log_metadata as codec
from tideline.kafka.errors import KafkaUnavailable, MetadataNotUnderstood
from tideline.kafka.remote_log_reader import FORGOTTEN_AFTER_MS, RemoteLogFollower

A, B = TopicIdPartition(UUID(int=1), 0), TopicIdPartition(UUID(int=2), 0)


@pytest.fixture
def metadata() -> MetadataTopic:
    topic = MetadataTopic()
    for n in range(20):
        topic.add(n % 2, codec.encode_segment(segment(A if n < 10 else B)))
    return topic


@pytest.fixture
def follower(metadata: MetadataTopic) -> RemoteLogFollower:
    return metadata.follower()


async def test_a_topic_that_joins_does_not_make_the_others_be_read_again(
    metadata: MetadataTopic, follower: RemoteLogFollower
) -> None:
    assert len(await follower.segments(A)) == 10
    metadata.fetched.clear()
    assert len(await follower.segments(B)) == 10
    assert metadata.fetched[0, 0] == 1, "once, for the one that joins"
    metadata.fetched.clear()
    assert len(await follower.segments(A)) == 10
    assert metadata.fetched.keys() == {(0, 10), (1, 10)}


async def test_who_is_followed_is_answered_while_another_one_is_read_from_the_start(
    metadata: MetadataTopic, follower: RemoteLogFollower
) -> None:
    """It may be inside its write pause."""
    await follower.segments(A)
    reached, go_on = asyncio.Event(), asyncio.Event()

    async def held(partition: int, offset: int) -> None:
        if offset == 5:
            reached.set()
            await go_on.wait()

    metadata.before_fetch = held
    joining = asyncio.ensure_future(follower.segments(B))
    await reached.wait()
    assert len(await within("segments that are known", follower.segments(A))) == 10
    finished = segment(A)
    metadata.add(0, codec.encode_segment(finished))
    assert finished in await follower.segments(A)
    go_on.set()
    assert len(await joining) == 10


async def test_nothing_that_is_written_while_a_topic_joins_is_applied_twice_or_never(
    metadata: MetadataTopic, follower: RemoteLogFollower
) -> None:
    await follower.segments(A)
    late, gone = segment(B), segment(B)

    async def writing(partition: int, offset: int) -> None:
        if (partition, offset) == (1, 9):
            metadata.before_fetch = None
            for one in (late, gone):
                metadata.add(1, codec.encode_segment(one))
            ends = (SegmentState.DELETE_SEGMENT_STARTED, SegmentState.DELETE_SEGMENT_FINISHED)
            for state in ends:
                update = SegmentUpdate(B, gone.segment_id, state, 2, 1)
                metadata.add(1, codec.encode_update("orders", update))

    metadata.before_fetch = writing
    found = await follower.segments(B)
    assert late in found
    assert gone.segment_id not in {one.segment_id for one in found}
    assert (len(found), follower.anomalies) == (11, 0)
    assert await follower.segments(B) == found


async def test_a_first_reading_that_was_given_up_goes_on_where_it_was(
    metadata: MetadataTopic, follower: RemoteLogFollower
) -> None:
    async def away(partition: int, offset: int) -> None:
        if offset == 6:
            raise KafkaUnavailable("broker 1 is away")

    metadata.before_fetch = away
    with pytest.raises(KafkaUnavailable):
        await follower.segments(A)
    metadata.before_fetch = None
    metadata.fetched.clear()
    assert len(await follower.segments(A)) == 10
    assert metadata.fetched[0, 0] == 0
    assert metadata.fetched[0, 6] == 1


async def test_many_who_ask_at_once_are_answered_by_few_readings(
    metadata: MetadataTopic, follower: RemoteLogFollower
) -> None:
    await follower.segments(A)
    metadata.layouts = 0
    answers = await asyncio.gather(*(follower.segments(A) for _ in range(50)))
    assert {len(answer) for answer in answers} == {10}
    assert metadata.layouts <= 2


async def test_a_topic_that_nobody_asks_for_is_forgotten(
    metadata: MetadataTopic, follower: RemoteLogFollower
) -> None:
    now = [0.0]
    follower._clock_ms = lambda: now[0]
    await follower.segments(A)
    now[0] += FORGOTTEN_AFTER_MS + 1
    await follower.segments(B)
    assert {log.topic_id for log in follower._state.index.segments} == {B.topic_id}
    assert len(await follower.segments(A)) == 10
    other = replace(A, partition=1)
    assert await follower.segments(other) == ()


NEWER = b"\1\x09\0whatever a newer broker has to say"
NEWER_VERSION = b"\1\0\1" + codec.encode_segment(segment(B))[3:]
CUT = codec.encode_segment(segment(B))[:-20]
"""About B, and nobody knows what."""


@pytest.mark.parametrize("value", [NEWER, NEWER_VERSION, b"", b"\7"])
async def test_nothing_is_told_of_any_topic_once_a_record_is_not_understood(
    metadata: MetadataTopic, follower: RemoteLogFollower, value: bytes
) -> None:
    """It might say that a segment is gone."""
    assert len(await follower.segments(A)) == 10
    metadata.add(1, value)
    metadata.add(1, value)
    for _ in range(2):
        for asking in (
            follower.segments(A), follower.topic_segments(B.topic_id), follower.finished_once(A),
            follower.refresh(B.topic_id), follower.once([A.topic_id]),
        ):  # fmt: skip
            with pytest.raises(MetadataNotUnderstood, match="partition 1 at offset 10"):
                await asking


async def test_a_record_of_another_topic_that_cannot_be_read_stands_in_nobodys_way(
    metadata: MetadataTopic, follower: RemoteLogFollower
) -> None:
    metadata.add(0, CUT)
    assert len(await follower.segments(A)) == 10
    for _ in range(2):
        with pytest.raises(MetadataNotUnderstood, match="partition 0 at offset 10"):
            await follower.segments(B)
    assert len(await follower.segments(A)) == 10
    assert (await follower.once([A.topic_id])).of(A)
    with pytest.raises(MetadataNotUnderstood):
        await follower.once([A.topic_id, B.topic_id])
