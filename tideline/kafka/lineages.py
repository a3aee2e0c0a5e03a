"""The leader epochs of logs with their first offsets, as the logs' leaders know them.

OffsetForLeaderEpoch answers the largest epoch at or below the one asked, with its end; so a walk
goes from the newest epoch down, each end being the start of the next. Walks of many logs go side
by side: one request a round and leader, with the next question of each.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from kio.schema.errors import ErrorCode
from kio.schema.offset_for_leader_epoch.v4 import request as le
from kio.schema.offset_for_leader_epoch.v4.response import OffsetForLeaderEpochResponse
from kio.schema.types import BrokerId, TopicName
from kio.static.primitive import i32

from tideline.domain.ids import TopicPartition
from tideline.domain.remote_log import EpochStart
from tideline.kafka.client import KafkaCluster

DEBUG_CONSUMER = -2
"""``FetchRequest.DEBUGGING_CONSUMER_ID``."""
MAX_EPOCHS = 10_000
"""Bound of a walk: a log with more leader elections than this is not looked at."""
PARTITIONS_AT_ONCE = 1_000
"""Of one request."""


@dataclass(frozen=True, slots=True)
class WantedLineage:
    """A log, who leads it at which epoch, and down to where its lineage is wanted."""

    log: TopicPartition
    leader: int
    leader_epoch: int
    log_start: int


async def lineages(
    cluster: KafkaCluster, wanted: Iterable[WantedLineage], timeout_ms: int
) -> dict[TopicPartition, tuple[EpochStart, ...] | ErrorCode]:
    """The lineage of each log, ascending, down to its log start; or the leader's error.

    Raises :class:`tideline.kafka.errors.KafkaUnavailable` when a leader does not answer.
    """
    by_leader: dict[int, list[_Walk]] = defaultdict(list)
    for one in wanted:
        by_leader[one.leader].append(_Walk(one, one.leader_epoch))
    walks = [
        (leader, some[start : start + PARTITIONS_AT_ONCE])
        for leader, some in by_leader.items()
        for start in range(0, len(some), PARTITIONS_AT_ONCE)
    ]
    await asyncio.gather(*(_walk(cluster, leader, some, timeout_ms) for leader, some in walks))
    return {walk.wanted.log: walk.result() for _, some in walks for walk in some}


@dataclass(slots=True)
class _Walk:
    """One log's way down its leader epochs. ``asks``: the next epoch to ask for; -1: it ended."""

    wanted: WantedLineage
    asks: int
    entries: list[EpochStart] = field(default_factory=list)
    """Newest first."""
    at: tuple[int, int] | None = None
    """The epoch whose start is asked for, and its end (exclusive)."""
    error: ErrorCode | None = None

    def take(self, epoch: int, end: int) -> None:
        """The answer to what :attr:`asks` asked. -1: the log has no such epoch."""
        if self.at is None:
            self._go_on(epoch, end)
            return
        newer, newer_end = self.at
        if epoch < 0 or end <= self.wanted.log_start:
            self._end(newer, newer_end)
            return
        self.entries.append(EpochStart(newer, end))
        self._go_on(epoch, end)

    def _go_on(self, epoch: int, end: int) -> None:
        self.at, self.asks = (epoch, end), epoch - 1
        if epoch < 0 or len(self.entries) >= MAX_EPOCHS:
            self.asks = -1
        elif epoch == 0:
            self._end(epoch, end)

    def _end(self, epoch: int, end: int) -> None:
        self.entries.append(EpochStart(epoch, min(self.wanted.log_start, end)))
        self.asks = -1

    def fail(self, error: ErrorCode) -> None:
        self.error, self.asks = error, -1

    def result(self) -> tuple[EpochStart, ...] | ErrorCode:
        return tuple(reversed(self.entries)) if self.error is None else self.error


async def _walk(
    cluster: KafkaCluster, leader: int, walks: Sequence[_Walk], timeout_ms: int
) -> None:
    """Bring ``walks`` to their ends."""
    under_way = [walk for walk in walks if walk.asks >= 0]
    while under_way:
        connection = await cluster.node(leader)
        response = await connection.send(_request(under_way), timeout_ms=timeout_ms)
        assert isinstance(response, OffsetForLeaderEpochResponse)
        answers = {
            (str(topic.topic), int(p.partition)): p
            for topic in response.topics
            for p in topic.partitions
        }
        for walk in under_way:
            log = walk.wanted.log
            answer = answers.get((log.topic, log.partition))
            if answer is None:
                walk.fail(ErrorCode.unknown_topic_or_partition)
            elif answer.error_code is not ErrorCode.none:
                walk.fail(answer.error_code)
            else:
                walk.take(int(answer.leader_epoch), int(answer.end_offset))
        under_way = [walk for walk in under_way if walk.asks >= 0]


def _request(walks: Sequence[_Walk]) -> le.OffsetForLeaderEpochRequest:
    by_topic: dict[str, list[_Walk]] = defaultdict(list)
    for walk in walks:
        by_topic[walk.wanted.log.topic].append(walk)
    return le.OffsetForLeaderEpochRequest(
        replica_id=BrokerId(DEBUG_CONSUMER),
        topics=tuple(
            le.OffsetForLeaderTopic(
                topic=TopicName(topic),
                partitions=tuple(
                    le.OffsetForLeaderPartition(
                        partition=i32(walk.wanted.log.partition),
                        current_leader_epoch=i32(walk.wanted.leader_epoch),
                        leader_epoch=i32(walk.asks),
                    )
                    for walk in some
                ),
            )
            for topic, some in by_topic.items()
        ),
    )
