"""What leaders say of many logs at once: few requests, one answer for each log."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import Any
from uuid import UUID

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from kio.schema.errors import ErrorCode
from kio.schema.list_offsets.v9 import response as lo
from kio.schema.metadata.v12 import response as md
from kio.schema.offset_for_leader_epoch.v4 import response as le
from kio.schema.types import BrokerId, TopicName
from kio.static.primitive import i32, i32Timedelta, i64

from spark.common.kafka_logs import ObservedLog, WantedLog, observe
from tideline.domain.remote_log import EpochStart
from tideline.kafka.errors import KafkaUnavailable
from tideline.kafka.observer import OffsetSpec, milliseconds

TOPIC = UUID(int=1)
NO_THROTTLE = i32Timedelta.parse(milliseconds(0))


@dataclass
class Log:
    """As its leader has it: every leader epoch that is left, with its first offset."""

    leader: int = 1
    epochs: tuple[tuple[int, int], ...] = ((0, 0),)
    start: int = 0
    end: int = 100
    local: dict[int, int] = field(default_factory=lambda: {1: 100, 2: 100})
    errors: list[ErrorCode] = field(default_factory=list)
    """Of the next ListOffsets for its start."""


@dataclass
class Cluster:
    topics: dict[str, tuple[UUID, dict[int, Log]]]
    away: set[int] = field(default_factory=set)
    asked: Counter[tuple[int, str]] = field(default_factory=Counter)

    async def any(self) -> Broker:
        return Broker(self, 1)

    async def nodes(self) -> list[int]:
        return [1, 2]

    async def node(self, node: int) -> Broker:
        if node in self.away:
            raise KafkaUnavailable(f"broker {node} is away")
        return Broker(self, node)


@dataclass
class Broker:
    cluster: Cluster
    node: int

    async def send(self, request: Any, timeout_ms: int) -> Any:
        kind = type(request).__name__.removesuffix("Request")
        self.cluster.asked[self.node, kind] += 1
        return getattr(self, f"_{kind}")(request)

    def _Metadata(self, request: Any) -> md.MetadataResponse:
        rows = []
        for asked in request.topics:
            topic_id, logs = self.cluster.topics.get(str(asked.name), (None, {}))
            rows.append(
                md.MetadataResponseTopic(
                    error_code=ErrorCode.none if topic_id else ErrorCode.unknown_topic_or_partition,
                    name=asked.name,
                    topic_id=topic_id,
                    is_internal=False,
                    partitions=tuple(
                        md.MetadataResponsePartition(
                            error_code=ErrorCode.none,
                            partition_index=i32(number),
                            leader_id=BrokerId(log.leader),
                            leader_epoch=i32(log.epochs[-1][0]),
                            replica_nodes=tuple(map(BrokerId, log.local)),
                            isr_nodes=tuple(map(BrokerId, log.local)),
                            offline_replicas=(),
                        )
                        for number, log in logs.items()
                    ),
                )
            )
        return md.MetadataResponse(
            throttle_time=NO_THROTTLE, brokers=(), cluster_id="c", controller_id=BrokerId(1),
            topics=tuple(rows),
        )  # fmt: skip

    def _ListOffsets(self, request: Any) -> lo.ListOffsetsResponse:
        def answer(topic: str, asked: Any) -> lo.ListOffsetsPartitionResponse:
            log = self.cluster.topics[topic][1][int(asked.partition_index)]
            earliest = int(asked.timestamp) == OffsetSpec.EARLIEST
            error = log.errors.pop(0) if earliest and log.errors else ErrorCode.none
            return lo.ListOffsetsPartitionResponse(
                partition_index=asked.partition_index,
                error_code=error,
                timestamp=i64(-1),
                offset=i64(log.start if earliest else log.local[self.node]),
                leader_epoch=i32(-1),
            )

        return lo.ListOffsetsResponse(
            throttle_time=NO_THROTTLE,
            topics=tuple(
                lo.ListOffsetsTopicResponse(
                    name=topic.name,
                    partitions=tuple(answer(str(topic.name), p) for p in topic.partitions),
                )
                for topic in request.topics
            ),
        )

    def _OffsetForLeaderEpoch(self, request: Any) -> le.OffsetForLeaderEpochResponse:
        def answer(topic: str, asked: Any) -> le.EpochEndOffset:
            log = self.cluster.topics[topic][1][int(asked.partition)]
            ends = [start for _, start in log.epochs[1:]] + [log.end]
            known = [
                (epoch, end)
                for (epoch, _), end in zip(log.epochs, ends, strict=True)
                if epoch <= int(asked.leader_epoch)
            ]
            epoch, end = known[-1] if known else (-1, -1)
            return le.EpochEndOffset(
                error_code=ErrorCode.none,
                partition=asked.partition,
                leader_epoch=i32(epoch),
                end_offset=i64(end),
            )

        return le.OffsetForLeaderEpochResponse(
            throttle_time=NO_THROTTLE,
            topics=tuple(
                le.OffsetForLeaderTopicResult(
                    topic=TopicName(topic.topic),
                    partitions=tuple(answer(str(topic.topic), p) for p in topic.partitions),
                )
                for topic in request.topics
            ),
        )


async def observed(cluster: Cluster, *wanted: WantedLog) -> list[ObservedLog]:
    return await observe(cluster, 1_000, wanted)  # type: ignore[arg-type]


def want(log_id: int, partition: int = 0, **fields: Any) -> WantedLog:
    return WantedLog(log_id, **{"topic": "t", "topic_id": TOPIC, "partition": partition,
                                "boundary": 100} | fields)  # fmt: skip


async def test_each_broker_is_asked_once_a_step_for_all_that_it_leads() -> None:
    cluster = Cluster(
        {
            name: (
                UUID(int=n),
                {p: Log(1 + p % 2, ((0, 0), (3, 10), (4, 20))) for p in range(100)},
            )
            for n, name in enumerate(("a", "b"), 1)
        }
    )
    wanted = [
        want(n * 1_000 + p, p, topic=name, topic_id=UUID(int=n), ask_replicas=True)
        for n, name in enumerate(("a", "b"), 1)
        for p in range(100)
    ]
    found = await observed(cluster, *wanted)
    lineage = (EpochStart(0, 0), EpochStart(3, 10), EpochStart(4, 20))
    assert found == [ObservedLog(one.log_id, 0, lineage) for one in wanted]
    assert cluster.asked == {
        (1, "Metadata"): 1,
        (1, "ListOffsets"): 2,
        (2, "ListOffsets"): 2,
        (1, "OffsetForLeaderEpoch"): 3,
        (2, "OffsetForLeaderEpoch"): 3,
    }


@given(
    st.lists(
        st.tuples(
            st.lists(st.tuples(st.integers(0, 9), st.integers(0, 50)), min_size=1, max_size=5),
            st.integers(0, 60),
        ),
        min_size=1,
        max_size=8,
    )
)
@settings(max_examples=100, deadline=None)
async def test_each_logs_lineage_reaches_down_to_its_start(
    logs: list[tuple[list[tuple[int, int]], int]],
) -> None:
    made = {}
    for number, (entries, start) in enumerate(logs):
        epochs = sorted({epoch for epoch, _ in entries})
        starts = sorted({at for _, at in entries})
        size = min(len(epochs), len(starts))
        made[number] = Log(
            epochs=tuple(zip(epochs[:size], starts[:size], strict=True)), start=start
        )
    found = await observed(Cluster({"t": (TOPIC, made)}), *(want(n, n) for n in made))
    for told in found:
        log = made[told.log_id]
        ends = [start for _, start in log.epochs[1:]] + [log.end]
        left = [entry for entry, end in zip(log.epochs, ends, strict=True) if end > log.start]
        first, *others = left
        assert told.lineage == (
            EpochStart(first[0], min(log.start, log.end)),
            *(EpochStart(*entry) for entry in others),
        )


async def test_a_log_whose_leader_moved_is_looked_at_again_and_holds_up_nobody() -> None:
    moved = Log(errors=[ErrorCode.not_leader_or_follower])
    gone = Log(errors=[ErrorCode.not_leader_or_follower] * 9)
    cluster = Cluster({"t": (TOPIC, {0: moved, 1: Log(), 2: gone})})
    first, second, third = await observed(cluster, want(1), want(2, 1), want(3, 2))
    assert (first.problem, second.problem) == (None, None)
    assert first.lineage == second.lineage == (EpochStart(0, 0),)
    assert third.problem is not None
    assert "NOT_LEADER_OR_FOLLOWER" in third.problem


async def test_what_is_not_there_is_a_row_with_a_problem() -> None:
    cluster = Cluster({"t": (TOPIC, {0: Log(), 1: Log(leader=-1)})})
    found = await observed(
        cluster, want(1), want(2, 1), want(3, 2), want(4, topic="u"), want(5, topic_id=UUID(int=9))
    )
    assert [one.problem for one in found] == [
        None,
        "the partition has no leader",
        "the partition has no leader",
        "Kafka has no such topic any more",
        "Kafka has no such topic any more",
    ]


async def test_a_log_that_starts_past_the_boundary_is_asked_nothing_more() -> None:
    cluster = Cluster({"t": (TOPIC, {0: Log(start=100)})})
    assert await observed(cluster, want(1)) == [ObservedLog(1, 100)]
    assert (1, "OffsetForLeaderEpoch") not in cluster.asked


async def test_replicas_that_have_not_rolled_or_are_away_are_named() -> None:
    cluster = Cluster({"t": (TOPIC, {0: Log(local={1: 100, 2: 40, 3: 100})})}, away={3})
    (found,) = await observed(cluster, want(1, ask_replicas=True))
    assert found.problem is None
    assert found.unrolled == (
        "replica 2 has not rolled to B0: it still has offset 40; "
        "replica 3 did not answer: broker 3 is away"
    )
    cluster.away = {1}
    with pytest.raises(KafkaUnavailable):
        await observed(cluster, want(1))
