"""ListOffsets, OffsetForLeaderEpoch and DeleteRecords over both regions of the log."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from aiokafka.record.default_records import DefaultRecordBatchBuilder
from kio.schema.errors import ErrorCode

from tests.unit.gateway.fakes import LOG, TOPIC, tracked_row, tracked_topic
from tests.unit.gateway.merged_log import merge
from tests.unit.gateway.tracked_bench import (
    Script,
    TrackedBench,
    forget_everything,
    leased,
    outcomes,
    produce,
)
from tideline.gateway.context import ApiKey
from tideline.gateway.messages import messages

PENDING = tracked_row(generation=1)
QUIESCING = tracked_row(generation=2, quiesced=True)
SUFFIX = tracked_row(
    generation=2,
    boundary=100,
    boundary_epoch=7,
    prefix_max_timestamp=900,
    prefix_max_timestamp_offset=42,
)
PREFIX_GONE = replace(SUFFIX, prefix_gone=True)
LATEST, EARLIEST, MAX_TIMESTAMP, EARLIEST_LOCAL, LATEST_TIERED, PENDING_UPLOAD = range(-1, -7, -1)


@pytest.fixture
async def bench(tmp_path: Path) -> AsyncIterator[TrackedBench]:
    async with leased(tmp_path) as made:
        made.client.broker[ApiKey.OFFSET_FOR_LEADER_EPOCH] = WHOLE
        yield made


def kafka_says(bench: TrackedBench, offset: int, timestamp: int = -1, code: str = "none") -> None:
    """The broker's answer to every ListOffsets."""
    bench.client.broker[ApiKey.LIST_OFFSETS] = listed(offset, timestamp, code)


def listed(offset: int, timestamp: int = -1, code: str = "none", epoch: int = 3) -> Script:
    """``epoch``: in which the record that was found was written."""

    def answer(request: Any) -> Any:
        api = messages(ApiKey.LIST_OFFSETS, int(request.__version__))
        return api.response(
            throttle_time=timedelta(0),
            topics=tuple(
                api.response_part(
                    "ListOffsetsTopicResponse",
                    name=topic.name,
                    partitions=tuple(
                        api.response_part(
                            "ListOffsetsPartitionResponse",
                            partition_index=row.partition_index,
                            error_code=ErrorCode[code],
                            offset=offset,
                            timestamp=timestamp,
                            leader_epoch=epoch,
                        )
                        for row in topic.partitions
                    ),
                )
                for topic in request.topics
            ),
        )

    return answer


async def asked(
    bench: TrackedBench,
    timestamp: int,
    partition: int = 0,
    topic: str = TOPIC,
    version: int = 11,
) -> tuple[str, int, int, int]:
    """(error, offset, timestamp, leader epoch)"""
    api = messages(ApiKey.LIST_OFFSETS, version)
    row = api.request_part("ListOffsetsPartition", partition_index=partition, timestamp=timestamp)
    message = api.request(
        replica_id=-1,
        isolation_level=0,
        timeout=timedelta(seconds=5),
        topics=(api.request_part("ListOffsetsTopic", name=topic, partitions=(row,)),),
    )
    response = await bench.ask(message)
    found = response.topics[0].partitions[0]
    return found.error_code.name, found.offset, found.timestamp, found.leader_epoch


async def appended(bench: TrackedBench, *timestamps: int) -> None:
    """One batch with a record at each timestamp."""
    builder = DefaultRecordBatchBuilder(2, 0, False, -1, -1, -1, 1 << 20)
    for number, timestamp in enumerate(timestamps):
        builder.append(number, timestamp, None, b"value", [])
    response = await bench.ask(produce((TOPIC, 0, bytes(builder.build()))))
    assert outcomes(response)[TOPIC, 0][0] == "none"


async def test_a_classic_topic_is_asked_of_kafka(bench: TrackedBench) -> None:
    bench.show(SUFFIX)
    kafka_says(bench, 17)
    assert await asked(bench, LATEST, topic="classic") == ("none", 17, -1, 3)


async def test_the_end_is_the_suffixs_and_the_beginning_kafkas(bench: TrackedBench) -> None:
    bench.show(SUFFIX)
    await appended(bench, 1000, 1001)
    kafka_says(bench, 12)
    assert await asked(bench, LATEST) == ("none", 102, -1, 7)
    assert await asked(bench, EARLIEST) == ("none", 12, -1, 3)
    assert await asked(bench, EARLIEST_LOCAL) == ("none", 12, -1, 3)
    assert len(bench.client.forwarded) == 2


async def test_once_the_prefix_is_gone_the_log_begins_in_the_suffix(bench: TrackedBench) -> None:
    bench.show(SUFFIX)
    kafka_says(bench, 100)
    assert await asked(bench, EARLIEST) == ("none", 100, -1, 7)
    bench.plane.suffix(LOG).start = 130
    assert (await asked(bench, EARLIEST))[1] == 130


async def test_a_topic_born_diskless_asks_kafka_nothing(bench: TrackedBench) -> None:
    bench.show(tracked_row(boundary=0, boundary_epoch=0))
    await appended(bench, 500)
    for timestamp, offset in ((EARLIEST, 0), (LATEST, 1), (500, 0), (501, -1), (LATEST_TIERED, -1)):
        assert (await asked(bench, timestamp))[:2] == ("none", offset)
    assert not bench.client.forwarded


async def test_without_a_prefix_kafka_is_asked_nothing(bench: TrackedBench) -> None:
    """So any gateway can say it, also one whose broker knows nothing of the partition."""
    bench.show(PREFIX_GONE)
    await appended(bench, 500, 700)
    bench.plane.suffix(LOG).start = 101
    told = {
        EARLIEST: (101, 7),
        EARLIEST_LOCAL: (101, 7),
        LATEST: (102, 7),
        LATEST_TIERED: (-1, -1),
        PENDING_UPLOAD: (-1, -1),
        600: (101, 7),
        701: (-1, -1),
    }
    for timestamp, (offset, epoch) in told.items():
        error, found, _, leader_epoch = await asked(bench, timestamp)
        assert (error, found, leader_epoch) == ("none", offset, epoch), timestamp
    assert await ended(bench, 7) == ("none", 7, 102)
    assert await ended(bench, 6) == ("none", 6, 100)
    assert await deleted(bench, 40) == ("none", 101)
    assert await deleted(bench, 102) == ("none", 102)
    assert await deleted(bench, 103) == ("offset_out_of_range", -1)
    assert await deleted(bench, -2) == ("offset_out_of_range", -1)
    assert not bench.client.forwarded


async def test_a_search_by_time_answers_with_the_smallest_offset(bench: TrackedBench) -> None:
    bench.show(SUFFIX)
    await appended(bench, 300, 700, 500)
    kafka_says(bench, 42, 600)
    assert await asked(bench, 600) == ("none", 42, 600, 3)
    kafka_says(bench, -1)
    assert await asked(bench, 600) == ("none", 101, 700, 7)
    assert await asked(bench, 701) == ("none", -1, -1, -1)


async def test_a_late_append_in_kafka_answers_no_search(bench: TrackedBench) -> None:
    """Schedule 2."""
    bench.show(SUFFIX)
    await appended(bench, 700)
    kafka_says(bench, 100, 600)
    assert await asked(bench, 600) == ("none", 100, 700, 7)
    kafka_says(bench, 105)
    assert (await asked(bench, LATEST_TIERED))[1] == 99
    assert (await asked(bench, PENDING_UPLOAD))[1] == -1


async def test_a_leader_that_lost_the_end_of_the_prefix_ends_no_search_by_time(
    bench: TrackedBench,
) -> None:
    """A log gap: what was searched for may lie in what a replica that is away still has; a consumer
    that was sent on into the suffix would skip it."""
    bench.show(SUFFIX)
    await appended(bench, 700)
    broker = bench.client.broker
    broker[ApiKey.OFFSET_FOR_LEADER_EPOCH] = Lineage(90, e5=0, e6=60, e8=90)
    kafka_says(bench, -1)
    for timestamp in (600, 701):
        assert await asked(bench, timestamp) == ("not_leader_or_follower", -1, -1, -1)
    # Nor one that finds a record which was appended to it past the gateways, on either side of B0.
    broker[ApiKey.OFFSET_FOR_LEADER_EPOCH] = Lineage(130, e5=0, e6=60, e8=90)
    for offset in (95, 105):
        broker[ApiKey.LIST_OFFSETS] = listed(offset, 600, epoch=8)
        assert (await asked(bench, 600))[0] == "not_leader_or_follower"
    # What it has is found as ever, and ends are told.
    broker[ApiKey.LIST_OFFSETS] = listed(42, 600, epoch=7)
    assert await asked(bench, 600) == ("none", 42, 600, 7)
    assert (await asked(bench, LATEST))[1] == 101
    assert (await asked(bench, EARLIEST))[1] == 42
    # Of a gap that an operator has accepted there is nothing left to wait for.
    bench.show(replace(SUFFIX, accepted_gap_from=90))
    broker[ApiKey.LIST_OFFSETS] = listed(95, 600, epoch=8)
    assert await asked(bench, 600) == ("none", 100, 700, 7)


async def test_a_record_without_a_leader_epoch_is_found_by_a_leader_with_the_whole_prefix(
    bench: TrackedBench,
) -> None:
    """As a client of before version 4 is answered."""
    bench.show(SUFFIX)
    bench.client.broker[ApiKey.LIST_OFFSETS] = listed(42, 600, epoch=-1)
    assert (await asked(bench, 600))[:3] == ("none", 42, 600)
    bench.client.broker[ApiKey.OFFSET_FOR_LEADER_EPOCH] = Lineage(90, e5=0, e6=60, e8=90)
    assert (await asked(bench, 600))[0] == "not_leader_or_follower"


async def test_a_search_by_time_ends_at_no_leader_that_moved_in_between(
    bench: TrackedBench,
) -> None:
    bench.show(SUFFIX)
    await appended(bench, 700)
    nothing, found = listed(-1), listed(95, 600, epoch=7)
    short = Lineage(90, e5=0, e6=60, e8=90)
    for lists, ends in (
        ((nothing, found), WHOLE),
        ((nothing, nothing), short),
        ((nothing, listed(-1, code="not_leader_or_follower")), WHOLE),
    ):
        bench.client.broker[ApiKey.LIST_OFFSETS] = one_by_one(lists)
        bench.client.broker[ApiKey.OFFSET_FOR_LEADER_EPOCH] = ends
        assert await asked(bench, 600) == ("not_leader_or_follower", -1, -1, -1)
    bench.client.broker[ApiKey.OFFSET_FOR_LEADER_EPOCH] = WHOLE
    bench.client.broker[ApiKey.LIST_OFFSETS] = one_by_one((nothing, nothing))
    assert await asked(bench, 600) == ("none", 100, 700, 7)


async def test_a_broker_that_times_a_search_out_at_once_is_asked_anew(bench: TrackedBench) -> None:
    """Kafka does so now and then; librdkafka would give its own search up."""
    bench.show(SUFFIX)
    await appended(bench, 700)
    nothing, not_now = listed(-1), listed(-1, code="request_timed_out")
    bench.client.broker[ApiKey.OFFSET_FOR_LEADER_EPOCH] = WHOLE
    bench.client.broker[ApiKey.LIST_OFFSETS] = one_by_one([nothing, not_now, not_now, nothing])
    assert await asked(bench, 600) == ("none", 100, 700, 7)
    bench.client.broker[ApiKey.LIST_OFFSETS] = one_by_one([nothing, *[not_now] * 4])
    assert (await asked(bench, 600))[0] == "not_leader_or_follower", "not for ever"
    bench.client.broker[ApiKey.LIST_OFFSETS] = one_by_one([nothing, not_now, listed(95, 600)])
    assert (await asked(bench, 600))[0] == "not_leader_or_follower", "it moved"


async def test_a_search_that_began_before_b0_was_known_asks_again(bench: TrackedBench) -> None:
    """Nobody was asked yet whether the leader has the whole prefix."""
    bench.show(QUIESCING)
    bench.client.broker[ApiKey.OFFSET_FOR_LEADER_EPOCH] = Lineage(90, e5=0, e6=60, e8=90)

    def crosses(request: Any) -> Any:
        bench.show(SUFFIX)
        return listed(-1)(request)

    bench.client.broker[ApiKey.LIST_OFFSETS] = crosses
    assert await asked(bench, 600) == ("not_leader_or_follower", -1, -1, -1)


async def test_the_largest_timestamp_of_the_prefix_was_kept_at_the_boundary(
    bench: TrackedBench,
) -> None:
    bench.show(SUFFIX)
    await appended(bench, 100, 800)
    assert (await asked(bench, MAX_TIMESTAMP))[:3] == ("none", 42, 900)
    await appended(bench, 950, 940)
    assert (await asked(bench, MAX_TIMESTAMP))[:3] == ("none", 102, 950)
    assert not bench.client.forwarded


async def test_a_maximum_that_went_with_the_prefix_is_not_told(bench: TrackedBench) -> None:
    bench.show(SUFFIX)
    await appended(bench, 100, 800)
    bench.plane.move_prefix(42)
    assert (await asked(bench, MAX_TIMESTAMP))[:3] == ("none", 42, 900)
    bench.plane.move_prefix(43)
    assert (await asked(bench, MAX_TIMESTAMP))[:3] == ("none", 101, 800)


async def test_no_special_timestamp_answers_below_the_earliest(bench: TrackedBench) -> None:
    """Nor with a record of an accepted log gap, which nobody can read any more."""
    bench.show(replace(SUFFIX, accepted_gap_from=43))
    await appended(bench, 100, 800)
    assert (await asked(bench, MAX_TIMESTAMP))[:3] == ("none", 42, 900)
    bench.show(replace(SUFFIX, accepted_gap_from=42))
    assert (await asked(bench, MAX_TIMESTAMP))[:3] == ("none", 101, 800)
    bench.show(PREFIX_GONE)
    assert (await asked(bench, MAX_TIMESTAMP))[:3] == ("none", 101, 800)
    assert (await asked(bench, EARLIEST))[1] == 100
    for timestamp in (LATEST, EARLIEST_LOCAL, LATEST_TIERED, PENDING_UPLOAD):
        assert (await asked(bench, timestamp))[1] in {-1, 100, 101, 102}, timestamp


async def test_searches_go_through_segments_as_through_the_rest(bench: TrackedBench) -> None:
    bench.show(SUFFIX)
    for timestamps in ((300, 700, 500), (950, 400), (960, 970)):
        await appended(bench, *timestamps)
    merge(bench.store, bench.plane.suffix(LOG), 1, leader_epoch=7)
    merge(bench.store, bench.plane.suffix(LOG), 1, leader_epoch=7)
    kafka_says(bench, -1)
    for timestamp, answer in ((600, (101, 700)), (701, (103, 950)), (951, (105, 960))):
        assert await asked(bench, timestamp) == ("none", *answer, 7)
    assert (await asked(bench, MAX_TIMESTAMP))[:3] == ("none", 106, 970)
    bench.plane.suffix(LOG).start = 102
    assert (await asked(bench, 600))[:3] == ("none", 103, 950)
    assert (await asked(bench, 450))[:3] == ("none", 102, 500)
    bench.store.down = True
    forget_everything(bench)
    assert (await asked(bench, 600))[0] == "request_timed_out"


async def test_a_timestamp_that_its_version_does_not_know_is_refused(bench: TrackedBench) -> None:
    """As by a broker (``ReplicaManager.isListOffsetsTimestampUnsupported``), which is not asked."""
    since = {MAX_TIMESTAMP: 7, EARLIEST_LOCAL: 8, LATEST_TIERED: 9, PENDING_UPLOAD: 11}
    refused = ("unsupported_version", -1, -1, -1)
    for shown in (SUFFIX, PREFIX_GONE, tracked_row(boundary=0, boundary_epoch=0)):
        bench.show(shown)
        kafka_says(bench, 12)
        for timestamp, version in since.items():
            assert await asked(bench, timestamp, version=version - 1) == refused, timestamp
            assert (await asked(bench, timestamp, version=version))[0] == "none", timestamp
        for unknown in (-7, -100, -(2**63)):
            assert await asked(bench, unknown, version=11) == refused, unknown
        for timestamp in (LATEST, EARLIEST):
            assert (await asked(bench, timestamp, version=4))[0] == "none", timestamp
    assert await asked(bench, MAX_TIMESTAMP, partition=99, version=6) == refused, "before it looks"


async def test_a_partition_that_is_named_twice_is_refused_once_and_the_others_are_answered(
    bench: TrackedBench,
) -> None:
    """As by Kafka, whatever is asked of it (``ListOffsetsRequest.duplicatePartitions``)."""
    api = messages(ApiKey.LIST_OFFSETS, 6)
    bench.show(SUFFIX, replace(SUFFIX, partition=1))
    wanted = ((0, LATEST), (1, LATEST), (0, MAX_TIMESTAMP), (9, 5), (9, 5))
    topics = tuple(
        api.request_part(
            "ListOffsetsTopic",
            name=TOPIC,
            partitions=(
                api.request_part("ListOffsetsPartition", partition_index=n, timestamp=timestamp),
            ),
        )
        for n, timestamp in wanted
    )
    message = api.request(replica_id=-1, isolation_level=0, topics=topics)
    (found,) = (await bench.ask(message)).topics
    assert [(r.partition_index, r.error_code.name, r.offset) for r in found.partitions] == [
        (0, "invalid_request", -1),
        (1, "none", 100),
        (9, "invalid_request", -1),
    ]


async def test_errors_of_kafka_are_told_and_outages_time_out(bench: TrackedBench) -> None:
    bench.show(SUFFIX)
    kafka_says(bench, -1, code="not_leader_or_follower")
    assert (await asked(bench, EARLIEST))[0] == "not_leader_or_follower"
    bench.plane.down = True
    assert (await asked(bench, LATEST))[0] == "request_timed_out"
    assert (await asked(bench, LATEST, partition=9))[0] == "not_leader_or_follower"


async def test_without_a_lease_no_end_is_told_beyond_what_was_seen_before(
    bench: TrackedBench,
) -> None:
    """Schedule 2: a consumer that starts at the end would skip the suffix's record at B0."""
    bench.show(PENDING)
    kafka_says(bench, 100)
    assert (await asked(bench, LATEST))[1] == 100
    bench.lapse()
    kafka_says(bench, 101, 5)
    assert (await asked(bench, LATEST))[0] == "not_leader_or_follower"
    assert (await asked(bench, MAX_TIMESTAMP))[0] == "not_leader_or_follower"
    kafka_says(bench, 99, 5)
    assert (await asked(bench, 3))[1:3] == (99, 5)


async def test_without_a_lease_and_without_having_seen_anything_no_end_is_told(
    bench: TrackedBench,
) -> None:
    bench.show(QUIESCING)
    bench.lapse()
    kafka_says(bench, 100)
    assert (await asked(bench, LATEST))[0] == "not_leader_or_follower"


async def ended(bench: TrackedBench, epoch: int, topic: str = TOPIC) -> tuple[str, int, int]:
    """(error, leader epoch, end offset)"""
    ((found,),) = await ends_of(bench, [epoch], topic=topic)
    return found


async def ends_of(
    bench: TrackedBench, *epochs: Sequence[int], topic: str = TOPIC
) -> list[list[tuple[str, int, int]]]:
    """Of one request that names the topic as often as there are ``epochs``, and its partition for
    each of them."""
    api = messages(ApiKey.OFFSET_FOR_LEADER_EPOCH, 4)
    topics = tuple(
        api.request_part(
            "OffsetForLeaderTopic",
            topic=topic,
            partitions=tuple(
                api.request_part("OffsetForLeaderPartition", partition=0, leader_epoch=epoch)
                for epoch in some
            ),
        )
        for some in epochs
    )
    response = await bench.ask(api.request(replica_id=-1, topics=topics))
    return [
        [(row.error_code.name, row.leader_epoch, row.end_offset) for row in found.partitions]
        for found in response.topics
    ]


def epoch_ends(epoch: int, end: int) -> Script:
    return lambda request: _ends(request, lambda _: (epoch, end))


def _ends(request: Any, end_of: Callable[[int], tuple[int, int]]) -> Any:
    """A broker that answers each row of its own."""
    api = messages(ApiKey.OFFSET_FOR_LEADER_EPOCH, 4)
    topics = tuple(
        api.response_part(
            "OffsetForLeaderTopicResult",
            topic=topic.topic,
            partitions=tuple(
                api.response_part(
                    "EpochEndOffset",
                    error_code=ErrorCode.none,
                    partition=0,
                    leader_epoch=epoch,
                    end_offset=end,
                )
                for row in topic.partitions
                for epoch, end in [end_of(int(row.leader_epoch))]
            ),
        )
        for topic in request.topics
    )
    return api.response(throttle_time=timedelta(0), topics=topics)


async def test_a_consumer_past_the_boundary_is_not_sent_back_after_a_leader_move(
    bench: TrackedBench,
) -> None:
    """Schedule 8: the broker would answer B0, and the consumer would report truncation."""
    bench.show(SUFFIX)
    await appended(bench, 1, 2, 3)
    assert await ended(bench, 7) == ("none", 7, 103)
    assert await ended(bench, 12) == ("none", 7, 103)
    assert not bench.client.forwarded


class Lineage:
    """The leader epochs of a broker's log: ``LeaderEpochFileCache.endOffsetFor``."""

    def __init__(self, end: int, **starts: int) -> None:
        """``starts``: by epoch, ``e5=60``: epoch 5 begins at 60."""
        self.end, self.starts = end, {int(name[1:]): at for name, at in starts.items()}

    def __call__(self, request: Any) -> Any:
        return _ends(request, self._end_of)

    def _end_of(self, asked: int) -> tuple[int, int]:
        newer = [epoch for epoch in self.starts if epoch > asked]
        if not newer and asked not in self.starts:
            return -1, -1
        floor = max((epoch for epoch in self.starts if epoch <= asked), default=asked)
        return floor, self.starts[min(newer)] if newer else self.end


WHOLE = Lineage(105, e5=0, e6=60, e7=80)


def one_by_one(leaders: Iterable[Script]) -> Script:
    """Another broker leads at each question."""
    left = iter(leaders)
    return lambda request: next(left)(request)


async def test_older_epochs_end_in_kafka_and_at_most_at_the_boundary(bench: TrackedBench) -> None:
    """Schedules 6 and 8."""
    bench.show(SUFFIX)
    broker = bench.client.broker
    broker[ApiKey.OFFSET_FOR_LEADER_EPOCH] = Lineage(105, e5=0, e6=60)
    assert await ended(bench, 6) == ("none", 6, 100)
    assert await ended(bench, 5) == ("not_leader_or_follower", -1, -1), "it never led at B0's epoch"
    broker[ApiKey.OFFSET_FOR_LEADER_EPOCH] = Lineage(105, e5=0, e6=60, e7=100)
    assert await ended(bench, 6) == ("none", 6, 100)
    assert await ended(bench, 5) == ("none", 5, 60)
    assert await ended(bench, 4) == ("none", 4, 0)


async def test_each_epoch_of_a_partition_that_is_named_twice_has_its_own_end(
    bench: TrackedBench,
) -> None:
    """As with Kafka (``ReplicaManager.lastOffsetForLeaderEpoch``), topic by topic."""
    for shown, newest in ((SUFFIX, 100), (PENDING, 105)):
        bench.show(shown)
        assert await ends_of(bench, [5, 6, 5], [7, 6], []) == [
            [("none", 5, 60), ("none", 6, 80), ("none", 5, 60)],
            [("none", 7, newest), ("none", 6, 80)],
            [],
        ]


async def test_without_a_lease_nobody_is_told_where_the_epoch_of_the_suffix_ends(
    bench: TrackedBench,
) -> None:
    """A Postgres that a promotion left behind would have consumers truncate to where it ended."""
    bench.show(SUFFIX)
    assert await ended(bench, 7) == ("none", 7, 100)
    bench.lapse()
    assert await ended(bench, 7) == ("not_leader_or_follower", -1, -1)


async def test_an_end_that_postgres_said_while_the_lease_ended_is_not_told(
    bench: TrackedBench, monkeypatch: pytest.MonkeyPatch
) -> None:
    bench.show(SUFFIX)
    asked_of_postgres = bench.plane.high_watermarks

    async def lapses(*logs: Any) -> Any:
        found = await asked_of_postgres(*logs)
        bench.lapse()
        return found

    monkeypatch.setattr(bench.plane, "high_watermarks", lapses)
    assert await ended(bench, 7) == ("not_leader_or_follower", -1, -1)


async def test_an_epoch_that_goes_on_behind_b0_ends_in_the_suffix_if_b0_is_told_meanwhile(
    bench: TrackedBench,
) -> None:
    """Schedule 8: the next leader of the prefix says that B0's epoch ended at B0."""
    bench.show(SUFFIX)
    await appended(bench, 700)
    view = bench.parts.tracking
    view.replace_all([tracked_topic(PENDING)])

    def crosses(request: Any) -> Any:
        view.replace_all([tracked_topic(SUFFIX)])
        return Lineage(100, e7=0, e8=100)(request)

    bench.client.broker[ApiKey.OFFSET_FOR_LEADER_EPOCH] = crosses
    assert await ended(bench, 7) == ("none", 7, 101)


async def test_a_leader_that_lost_the_end_of_the_prefix_does_not_say_where_an_epoch_ended(
    bench: TrackedBench,
) -> None:
    """A log gap: a consumer at 95, which has read what epoch 6 had there, would begin anew, or skip
    to the end."""
    bench.show(SUFFIX)
    broker = bench.client.broker
    broker[ApiKey.OFFSET_FOR_LEADER_EPOCH] = Lineage(90, e5=0, e6=60, e8=90)
    assert await ended(bench, 6) == ("not_leader_or_follower", -1, -1)
    assert await ended(bench, 5) == ("not_leader_or_follower", -1, -1)
    assert (await ended(bench, 7))[0] == "none"
    # Nor once something was appended to it past the gateways.
    broker[ApiKey.OFFSET_FOR_LEADER_EPOCH] = Lineage(130, e5=0, e6=60, e8=90)
    assert await ended(bench, 6) == ("not_leader_or_follower", -1, -1)
    # Of a gap that an operator has accepted there is nothing left to wait for.
    bench.show(replace(SUFFIX, accepted_gap_from=90))
    assert await ended(bench, 6) == ("none", 6, 100)
    assert await ended(bench, 5) == ("none", 5, 60)


async def test_an_end_of_an_epoch_is_not_told_of_a_leader_that_moved_in_between(
    bench: TrackedBench,
) -> None:
    bench.show(SUFFIX)
    short, whole = Lineage(90, e5=0, e6=60, e8=90), Lineage(100, e5=0, e6=60, e7=95, e9=100)
    for leaders in ((short, whole, whole), (whole, short, short), (whole, whole, short)):
        bench.client.broker[ApiKey.OFFSET_FOR_LEADER_EPOCH] = one_by_one(leaders)
        assert await ended(bench, 6) == ("not_leader_or_follower", -1, -1)
    bench.client.broker[ApiKey.OFFSET_FOR_LEADER_EPOCH] = whole
    assert await ended(bench, 6) == ("none", 6, 95)


async def test_an_end_that_cannot_be_asked_for_is_not_guessed(bench: TrackedBench) -> None:
    bench.show(SUFFIX)
    bench.plane.down = True
    assert await ended(bench, 7) == ("request_timed_out", -1, -1)


async def deleted(
    bench: TrackedBench,
    *offsets: int,
    log_start: int = 0,
    code: str = "none",
    meanwhile: Callable[[], None] = lambda: None,
) -> tuple[str, int]:
    """(error, low watermark), once for all ``offsets``. ``log_start``: where Kafka's log begins
    already; ``meanwhile`` is done while Kafka deletes."""
    api = messages(ApiKey.DELETE_RECORDS, 2)
    rows = tuple(
        api.request_part("DeleteRecordsPartition", partition_index=0, offset=offset)
        for offset in offsets
    )
    message = api.request(
        topics=(api.request_part("DeleteRecordsTopic", name=TOPIC, partitions=rows),),
        timeout=timedelta(seconds=5),
    )

    def answer(request: Any) -> Any:
        meanwhile()
        (asked_row,) = request.topics[0].partitions
        result = api.response_part(
            "DeleteRecordsPartitionResult",
            partition_index=0,
            low_watermark=max(asked_row.offset, log_start) if code == "none" else -1,
            error_code=ErrorCode[code],
        )
        topic = api.response_part("DeleteRecordsTopicResult", name=TOPIC, partitions=(result,))
        return api.response(throttle_time=timedelta(0), topics=(topic,))

    bench.client.broker[ApiKey.DELETE_RECORDS] = answer
    response = await bench.ask(message)
    ((found,),) = (topic.partitions for topic in response.topics)
    return found.error_code.name, found.low_watermark


@pytest.mark.parametrize(
    ("offset", "kafkas", "low_watermark"),
    [(40, 40, 40), (100, 100, 100), (102, 100, 102), (-1, 100, 103)],
)
async def test_each_region_deletes_its_own(
    bench: TrackedBench, offset: int, kafkas: int, low_watermark: int
) -> None:
    bench.show(SUFFIX)
    await appended(bench, 1, 2, 3)
    assert await deleted(bench, offset) == ("none", low_watermark)
    (request,) = bench.client.forwarded
    assert request.topics[0].partitions[0].offset == kafkas
    assert bench.plane.suffix().prefix_start == (kafkas if kafkas < SUFFIX.boundary else -1)


@pytest.mark.parametrize(
    ("offset", "kafkas", "low_watermark"),
    [(40, 40, 40), (80, 80, 100), (90, 80, 100), (100, 80, 100), (102, 80, 102), (-1, 80, 103)],
)
async def test_an_accepted_gap_below_the_boundary_holds_no_deletion_up(
    bench: TrackedBench, offset: int, kafkas: int, low_watermark: int
) -> None:
    bench.show(replace(SUFFIX, accepted_gap_from=80))
    await appended(bench, 1, 2, 3)
    assert await deleted(bench, offset) == ("none", low_watermark)
    (request,) = bench.client.forwarded
    assert request.topics[0].partitions[0].offset == kafkas
    kafka_says(bench, kafkas)
    assert (await asked(bench, EARLIEST))[:2] == ("none", low_watermark)


async def test_the_log_begins_where_the_last_deletion_said_at_each_step_across_the_boundary(
    bench: TrackedBench,
) -> None:
    bench.show(SUFFIX)
    await appended(bench, 1, 2, 3)
    kafkas_start = 0
    for offset, start in ((40, 40), (99, 99), (100, 100), (101, 101), (60, 101), (-1, 103)):
        assert await deleted(bench, offset, log_start=kafkas_start) == ("none", start)
        kafkas_start = min(start, 100)
        kafka_says(bench, kafkas_start)
        assert (await asked(bench, EARLIEST))[:2] == ("none", start)


async def test_of_a_partition_that_is_named_twice_the_last_offset_counts(
    bench: TrackedBench,
) -> None:
    """As with Kafka, which keeps them in a map: nothing is deleted up to the other one."""
    bench.show(SUFFIX)
    await appended(bench, 1, 2, 3)
    assert await deleted(bench, 102, 40) == ("none", 40)
    assert bench.plane.suffix().start == SUFFIX.boundary
    assert await deleted(bench, 40, 102) == ("none", 102)


async def test_past_the_end_nothing_is_deleted_not_even_below_the_boundary(
    bench: TrackedBench,
) -> None:
    bench.show(SUFFIX)
    await appended(bench, 1)
    assert await deleted(bench, 102) == ("offset_out_of_range", -1)
    bench.plane.down = True
    assert await deleted(bench, 101) == ("request_timed_out", -1)
    assert not bench.client.forwarded


async def test_a_broker_that_is_behind_the_boundary_does_not_say_what_is_out_of_range(
    bench: TrackedBench,
) -> None:
    """Schedule 3."""
    bench.show(SUFFIX)
    await appended(bench, 1)
    assert await deleted(bench, -1, code="offset_out_of_range") == ("not_leader_or_follower", -1)
    assert await deleted(bench, -7, code="offset_out_of_range") == ("offset_out_of_range", -1)
    assert bench.plane.suffix().start == SUFFIX.boundary, "the suffix waits for the prefix"


async def test_what_kafka_deleted_stays_told_while_postgres_is_away(bench: TrackedBench) -> None:
    bench.show(SUFFIX)
    bench.plane.down = True
    assert await deleted(bench, 40) == ("none", 40)
    assert (await deleted(bench, 100))[0] == "request_timed_out"


async def test_nothing_is_deleted_while_the_boundary_is_being_set(bench: TrackedBench) -> None:
    bench.show(QUIESCING)
    assert await deleted(bench, 40) == ("request_timed_out", -1)
    bench.show(PENDING)
    assert await deleted(bench, 40) == ("none", 40)
    bench.lapse()
    assert await deleted(bench, 40) == ("request_timed_out", -1)
