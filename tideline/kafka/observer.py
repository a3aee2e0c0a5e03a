"""What each replica of a partition says about itself.

A debug ListOffsets (replica id −2) may be answered by any replica and gives its log *end*; every
request names the leader epoch that it expects, so that an answer of another epoch is an error
instead of a number (Kafka: ``ReplicaManager.fetchOffset``; KIP-320). Offsets that end something
are exclusive.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from enum import IntEnum
from uuid import UUID

from kio.schema.describe_topic_partitions.v0 import request as dt
from kio.schema.describe_topic_partitions.v0.response import (
    DescribeTopicPartitionsResponse,
    DescribeTopicPartitionsResponsePartition,
)
from kio.schema.errors import ErrorCode
from kio.schema.list_offsets.v9 import request as lo
from kio.schema.list_offsets.v9.response import ListOffsetsResponse
from kio.schema.metadata.v12 import request as md
from kio.schema.metadata.v12.response import (
    MetadataResponse,
    MetadataResponsePartition,
    MetadataResponseTopic,
)
from kio.schema.types import BrokerId, TopicName
from kio.static.primitive import i8, i32, i64

from tideline.domain.ids import TopicPartition
from tideline.domain.quiescence import settled_at
from tideline.domain.remote_log import EpochStart
from tideline.kafka.client import KafkaCluster, KafkaConnection
from tideline.kafka.errors import KafkaError, KafkaUnavailable, TopicReplaced
from tideline.kafka.lineages import DEBUG_CONSUMER as DEBUG_CONSUMER
from tideline.kafka.lineages import WantedLineage, lineages
from tideline.kafka.topic_identity import Presence, TopicIdentity


class OffsetSpec(IntEnum):
    """The special timestamps of ListOffsets."""

    LATEST = -1
    """High watermark; last stable offset with read_committed; log end as debug consumer."""
    EARLIEST = -2
    MAX_TIMESTAMP = -3
    EARLIEST_LOCAL = -4
    LATEST_TIERED = -5
    """Highest offset in remote storage (inclusive). Never a proof of coverage."""


@dataclass(frozen=True, slots=True)
class PartitionLayout:
    """Who has a partition, as one broker's metadata says."""

    partition: int
    leader: int
    leader_epoch: int
    replicas: tuple[int, ...]
    in_sync: tuple[int, ...]
    offline: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class TopicLayout:
    name: str
    topic_id: UUID
    internal: bool
    partitions: Mapping[int, PartitionLayout]


@dataclass(frozen=True, slots=True)
class OffsetAnswer:
    """One answer of ListOffsets. ``timestamp`` in ms."""

    offset: int
    timestamp: int
    leader_epoch: int


@dataclass(frozen=True, slots=True)
class LogEnd:
    """The end of the log at one leader epoch, on every in-sync replica. Ends are exclusive."""

    layout: PartitionLayout
    last_stable_offset: int
    high_watermark: int
    log_ends: Mapping[int, int]
    """LEO by node id."""
    problems: Mapping[int, str] = field(default_factory=dict)
    """Replicas that did not answer at this epoch, and why."""

    @property
    def settled(self) -> bool:
        """LSO = HW = the LEO of every in-sync replica, all of which answered."""
        at = settled_at(
            self.last_stable_offset, self.high_watermark, self.layout.in_sync, self.log_ends
        )
        return at is not None and not self.problems

    def describe(self) -> str:
        """For a waiting reason."""
        ends = ", ".join(f"{node}: {end}" for node, end in sorted(self.log_ends.items()))
        text = f"LSO {self.last_stable_offset}, HW {self.high_watermark}, log ends {{{ends}}}"
        if self.problems:
            text += "; " + "; ".join(f"broker {n}: {why}" for n, why in self.problems.items())
        return text


CONSUMER = -1

STALE_EPOCH_ERRORS = frozenset(
    {
        ErrorCode.fenced_leader_epoch,
        ErrorCode.unknown_leader_epoch,
        ErrorCode.not_leader_or_follower,
    }
)
"""The leader moved between two steps of one observation."""


class LeaderMoved(KafkaError):
    """The partition's leader epoch is not the expected one any more: observe anew."""


class KafkaObserver:
    """Reads the brokers directly, never through a gateway. Changes nothing."""

    def __init__(self, cluster: KafkaCluster, timeout_ms: int = 10_000) -> None:
        self._cluster = cluster
        self._timeout_ms = timeout_ms

    async def topic(
        self, name: str, node: int | None = None, *, topic_id: UUID | None = None
    ) -> TopicLayout | None:
        """The topic's layout as ``node`` (or any broker) knows it; ``None``: no such topic.

        Without ``node`` a topic does not exist only if no broker knows it: one that has just
        started, or lags behind the controller, does not know the newest topics.

        ``topic_id``: the topic that is meant. If the name means another one, or none:
        :class:`TopicReplaced` when Kafka does not have the id any more, by two whole looks, else
        :class:`KafkaUnavailable` (one broker that lags is not believed).
        """
        first = await (self._cluster.any() if node is None else self._cluster.node(node))
        found = (await self._topics_from((name,), first))[name]
        if found is None and node is None:
            for other in await self._cluster.nodes():
                connection = await self._cluster.node(other)
                if found := (await self._topics_from((name,), connection))[name]:
                    break
        if topic_id is not None and (found is None or found.topic_id != topic_id):
            await self._raise_replaced(name, topic_id, found)
        return found

    async def topics(self, names: Sequence[str]) -> dict[str, TopicLayout | None]:
        """Many topics with one request to any broker; ``None``: that broker knows none.

        Raises :class:`KafkaError` when one topic's answer is an error.
        """
        return await self._topics_from(names, await self._cluster.any())

    async def partition_count(self, topic_id: UUID) -> int:
        """How many partitions the topic has, whichever broker lags behind the controller: see
        :meth:`~tideline.kafka.topic_identity.TopicIdentity.partitions`."""
        return await TopicIdentity(self._cluster, self._timeout_ms).partitions(topic_id)

    async def all_topics(self) -> dict[str, TopicLayout]:
        """Every topic of the cluster, as any one broker knows them."""
        found = await self._topics_from(None, await self._cluster.any())
        return {name: layout for name, layout in found.items() if layout is not None}

    async def _topics_from(
        self, names: Sequence[str] | None, connection: KafkaConnection
    ) -> dict[str, TopicLayout | None]:
        """``None``: all of them."""
        asked = names or ()
        topics = tuple(md.MetadataRequestTopic(topic_id=None, name=TopicName(n)) for n in asked)
        request = md.MetadataRequest(
            topics=None if names is None else topics,
            allow_auto_topic_creation=False,
            include_topic_authorized_operations=False,
        )
        response = await connection.send(request, timeout_ms=self._timeout_ms)
        assert isinstance(response, MetadataResponse)
        layouts: dict[str, TopicLayout | None] = dict.fromkeys(asked)
        for found in response.topics:
            if found.error_code is ErrorCode.unknown_topic_or_partition or found.topic_id is None:
                continue
            if found.error_code is not ErrorCode.none:
                raise KafkaError(found.error_code, f"metadata of topic {str(found.name)!r}")
            layouts[str(found.name)] = _layout(found)
        return layouts

    async def partition(
        self,
        topic: str,
        partition: int,
        node: int | None = None,
        *,
        topic_id: UUID | None = None,
    ) -> PartitionLayout:
        """One partition's layout, which costs the same however many the topic has. Raises
        :class:`KafkaError` if there is none, and what :meth:`topic` raises if the name does not
        mean ``topic_id``."""
        first = await (self._cluster.any() if node is None else self._cluster.node(node))
        if found := await self._partition_from(topic, partition, topic_id, first):
            return found
        # Not there as that broker sees it, or it does not know the request: all is looked at.
        layout = await self.topic(topic, node, topic_id=topic_id)
        if layout is None or partition not in layout.partitions:
            raise KafkaError(ErrorCode.unknown_topic_or_partition, f"partition {topic}-{partition}")
        return layout.partitions[partition]

    async def _partition_from(
        self, topic: str, partition: int, topic_id: UUID | None, connection: KafkaConnection
    ) -> PartitionLayout | None:
        """KIP-966: a description of the one partition. ``None``: another look must tell."""
        request = dt.DescribeTopicPartitionsRequest(
            topics=(dt.TopicRequest(name=TopicName(topic)),),
            response_partition_limit=i32(1),
            cursor=dt.Cursor(topic_name=TopicName(topic), partition_index=i32(partition)),
        )
        if not connection.supports(int(request.__api_key__), int(request.__version__)):
            return None
        response = await connection.send(request, timeout_ms=self._timeout_ms)
        assert isinstance(response, DescribeTopicPartitionsResponse)
        for found in response.topics:
            if found.error_code is not ErrorCode.none or found.topic_id is None:
                continue
            if topic_id is None or found.topic_id == topic_id:
                return next(
                    (_place(p) for p in found.partitions if int(p.partition_index) == partition),
                    None,
                )
        return None

    async def _raise_replaced(self, topic: str, topic_id: UUID, layout: TopicLayout | None) -> None:
        now = f"has topic id {layout.topic_id}" if layout is not None else "does not exist"
        found = await TopicIdentity(self._cluster, self._timeout_ms).find(topic_id)
        if found.presence is not Presence.GONE:
            raise KafkaUnavailable(
                f"topic {topic!r} {now} to one broker, topic id {topic_id} is meant: {found.why}"
            )
        raise TopicReplaced(
            f"topic {topic!r} {now}, the migration began with topic id {topic_id}, which is gone: "
            f"{found.why}. Nothing of the other topic was changed; once the old one is buried "
            f"(`tideline topic check {topic}`), `tideline migrate {topic}` migrates the new one"
        )

    async def offset(
        self,
        topic: str,
        partition: int,
        spec: int,
        *,
        node: int,
        leader_epoch: int = -1,
        replica_id: int = CONSUMER,
        read_committed: bool = False,
    ) -> OffsetAnswer:
        """Ask one broker for one offset of one partition.

        Raises :class:`LeaderMoved` if ``leader_epoch`` (−1: any) is not the broker's.
        """
        answers = await self.offsets(
            topic,
            [partition],
            spec,
            node=node,
            leader_epochs={partition: leader_epoch},
            replica_id=replica_id,
            read_committed=read_committed,
        )
        answer = answers[partition]
        if isinstance(answer, ErrorCode):
            what = f"offset {OffsetSpec(spec).name if spec < 0 else spec} of {topic}-{partition}"
            raise refusal(answer, f"{what} on broker {node}")
        return answer

    async def offsets(
        self,
        topic: str,
        partitions: Iterable[int],
        spec: int,
        *,
        node: int,
        leader_epochs: Mapping[int, int] | None = None,
        replica_id: int = DEBUG_CONSUMER,
        read_committed: bool = False,
    ) -> dict[int, OffsetAnswer | ErrorCode]:
        """Ask one broker for the same spec of several partitions; errors are per partition."""
        answers = await self.offsets_of(
            {topic: partitions},
            spec,
            node=node,
            leader_epochs={(topic, n): epoch for n, epoch in (leader_epochs or {}).items()},
            replica_id=replica_id,
            read_committed=read_committed,
        )
        return {partition: answer for (_, partition), answer in answers.items()}

    async def offsets_of(
        self,
        wanted: Mapping[str, Iterable[int]],
        spec: int,
        *,
        node: int,
        leader_epochs: Mapping[tuple[str, int], int] | None = None,
        replica_id: int = DEBUG_CONSUMER,
        read_committed: bool = False,
    ) -> dict[tuple[str, int], OffsetAnswer | ErrorCode]:
        """The same for partitions of many topics, with one request."""
        epochs = leader_epochs or {}
        request = lo.ListOffsetsRequest(
            replica_id=BrokerId(replica_id),
            isolation_level=i8(1 if read_committed else 0),
            topics=tuple(
                lo.ListOffsetsTopic(
                    name=TopicName(topic),
                    partitions=tuple(
                        lo.ListOffsetsPartition(
                            partition_index=i32(partition),
                            current_leader_epoch=i32(epochs.get((topic, partition), -1)),
                            timestamp=i64(spec),
                        )
                        for partition in partitions
                    ),
                )
                for topic, partitions in wanted.items()
            ),
        )
        connection = await self._cluster.node(node)
        response = await connection.send(request, timeout_ms=self._timeout_ms)
        assert isinstance(response, ListOffsetsResponse)
        return {
            (str(found.name), int(p.partition_index)): (
                OffsetAnswer(int(p.offset), int(p.timestamp), int(p.leader_epoch))
                if p.error_code is ErrorCode.none
                else p.error_code
            )
            for found in response.topics
            for p in found.partitions
        }

    async def log_end(self, topic: str, layout: PartitionLayout) -> LogEnd:
        """LSO, HW and every in-sync replica's LEO, all asked at once at ``layout``'s epoch.

        A replica that cannot answer becomes a problem of the result. Raises
        :class:`LeaderMoved` when the leader is another one, :class:`KafkaUnavailable` when it
        does not answer.
        """
        partition, epoch = layout.partition, layout.leader_epoch

        async def ask(node: int, replica_id: int, committed: bool = False) -> int:
            answer = await self.offset(
                topic,
                partition,
                OffsetSpec.LATEST,
                node=node,
                leader_epoch=epoch,
                replica_id=replica_id,
                read_committed=committed,
            )
            return answer.offset

        lso, watermark, *ends = await asyncio.gather(
            ask(layout.leader, CONSUMER, committed=True),
            ask(layout.leader, CONSUMER),
            *(ask(node, DEBUG_CONSUMER) for node in layout.in_sync),
            return_exceptions=True,
        )
        if isinstance(lso, BaseException):
            raise lso
        if isinstance(watermark, BaseException):
            raise watermark
        log_ends: dict[int, int] = {}
        problems: dict[int, str] = {}
        for node, end in zip(layout.in_sync, ends, strict=True):
            if isinstance(end, int):
                log_ends[node] = end
            elif isinstance(end, KafkaError | KafkaUnavailable):
                problems[node] = str(end)
            else:
                raise end
        return LogEnd(layout, lso, watermark, log_ends, problems)

    async def on_replicas(
        self, topic: str, layout: PartitionLayout, spec: OffsetSpec
    ) -> dict[int, int | str]:
        """One offset as every replica sees it, by node id; a text says why one did not answer."""

        async def ask(node: int) -> int | str:
            try:
                answer = await self.offset(
                    topic, layout.partition, spec, node=node, replica_id=DEBUG_CONSUMER
                )
            except (KafkaError, KafkaUnavailable) as error:
                return str(error)
            return answer.offset

        answers = await asyncio.gather(*(ask(node) for node in layout.replicas))
        return dict(zip(layout.replicas, answers, strict=True))

    async def lineage(
        self, topic: str, layout: PartitionLayout, log_start: int
    ) -> tuple[EpochStart, ...]:
        """The log's leader epochs with their first offsets, ascending, down to ``log_start``.

        Raises :class:`LeaderMoved` if the leader's epoch is not ``layout``'s any more.
        """
        log = TopicPartition(topic, layout.partition)
        wanted = WantedLineage(log, layout.leader, layout.leader_epoch, log_start)
        found = (await lineages(self._cluster, [wanted], self._timeout_ms))[log]
        if isinstance(found, ErrorCode):
            raise refusal(found, f"leader epochs of {log}")
        return found


def refusal(code: ErrorCode, what: str) -> KafkaError:
    """A broker's error to a question that named a leader epoch: :class:`LeaderMoved` if it is of
    another one now."""
    return (LeaderMoved if code in STALE_EPOCH_ERRORS else KafkaError)(code, what)


def _layout(found: MetadataResponseTopic) -> TopicLayout:
    assert found.topic_id is not None
    assert found.name is not None
    return TopicLayout(
        name=str(found.name),
        topic_id=found.topic_id,
        internal=found.is_internal,
        partitions={int(p.partition_index): _place(p) for p in found.partitions},
    )


def _place(
    found: MetadataResponsePartition | DescribeTopicPartitionsResponsePartition,
) -> PartitionLayout:
    return PartitionLayout(
        partition=int(found.partition_index),
        leader=int(found.leader_id),
        leader_epoch=int(found.leader_epoch),
        replicas=tuple(map(int, found.replica_nodes)),
        in_sync=tuple(map(int, found.isr_nodes)),
        offline=tuple(map(int, found.offline_replicas)),
    )


def milliseconds(value: int) -> timedelta:
    """A protocol duration."""
    return timedelta(milliseconds=value)
