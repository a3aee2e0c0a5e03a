"""What Tideline changes in Kafka, and nothing else: configs, transactions, leadership, the start
of a log."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from uuid import UUID

from kio.schema.alter_partition_reassignments.v0 import request as ar
from kio.schema.alter_partition_reassignments.v0.response import (
    AlterPartitionReassignmentsResponse,
)
from kio.schema.delete_records.v2 import request as dr
from kio.schema.delete_records.v2.response import DeleteRecordsResponse
from kio.schema.elect_leaders.v2 import request as el
from kio.schema.elect_leaders.v2.response import ElectLeadersResponse
from kio.schema.errors import ErrorCode
from kio.schema.find_coordinator.v4.request import FindCoordinatorRequest
from kio.schema.find_coordinator.v4.response import FindCoordinatorResponse
from kio.schema.incremental_alter_configs.v1 import request as ic
from kio.schema.incremental_alter_configs.v1.response import IncrementalAlterConfigsResponse
from kio.schema.init_producer_id.v4.request import InitProducerIdRequest
from kio.schema.init_producer_id.v4.response import InitProducerIdResponse
from kio.schema.types import BrokerId, ProducerId, TopicName, TransactionalId
from kio.schema.write_txn_markers.v1 import request as wt
from kio.schema.write_txn_markers.v1.response import WriteTxnMarkersResponse
from kio.static.primitive import i8, i16, i32, i32Timedelta, i64

from tideline.domain.ids import TopicPartition
from tideline.domain.topic_configs import ConfigChange
from tideline.domain.transactions import Blocker
from tideline.kafka.client import KafkaCluster
from tideline.kafka.errors import KafkaError, KafkaUnavailable
from tideline.kafka.observer import KafkaObserver, TopicLayout, milliseconds

TRANSACTION_KEY = 1
"""``FindCoordinatorRequest.CoordinatorType.TRANSACTION``."""
SET, DELETE = 0, 1
"""``AlterConfigOp.OpType``."""
PREFERRED = 0
"""``ElectionType``."""
FENCING_TIMEOUT_MS = 60_000
"""Transaction timeout named by the fencing InitProducerId; the producer it makes is not used."""


class KafkaAdmin:
    """Sends requests to the brokers directly. Each is safe to repeat."""

    def __init__(self, cluster: KafkaCluster, timeout_ms: int = 10_000) -> None:
        self._cluster = cluster
        self._timeout_ms = timeout_ms

    async def alter_configs(self, topic: str, changes: Sequence[ConfigChange]) -> None:
        """Set or remove topic configs in one IncrementalAlterConfigs, all or none.

        Raises :class:`KafkaError` with the controller's message when one is refused.
        """
        request = ic.IncrementalAlterConfigsRequest(
            resources=(
                ic.AlterConfigsResource(
                    resource_type=i8(2),
                    resource_name=topic,
                    configs=tuple(
                        ic.AlterableConfig(
                            name=change.key,
                            config_operation=i8(DELETE if change.value is None else SET),
                            value=change.value,
                        )
                        for change in changes
                    ),
                ),
            ),
            validate_only=False,
        )
        connection = await self._cluster.any()
        response = await connection.send(request, timeout_ms=self._timeout_ms)
        assert isinstance(response, IncrementalAlterConfigsResponse)
        (result,) = response.responses
        if result.error_code is not ErrorCode.none:
            raise KafkaError(result.error_code, f"configs of {topic!r}: {result.error_message}")

    async def fence_transaction(self, transactional_id: str) -> bool:
        """Abort an ongoing transaction as a new producer of its id would, fencing the old one.

        Returns whether it is over; ``False``: the coordinator is aborting it, ask again
        (``CONCURRENT_TRANSACTIONS``). Raises :class:`KafkaError` otherwise.
        """
        connection = await self._cluster.any()
        found = await connection.send(
            FindCoordinatorRequest(
                key_type=i8(TRANSACTION_KEY), coordinator_keys=(transactional_id,)
            ),
            timeout_ms=self._timeout_ms,
        )
        assert isinstance(found, FindCoordinatorResponse)
        (coordinator,) = found.coordinators
        if coordinator.error_code is not ErrorCode.none:
            raise KafkaError(coordinator.error_code, f"coordinator of {transactional_id!r}")
        connection = await self._cluster.node(int(coordinator.node_id))
        response = await connection.send(
            InitProducerIdRequest(
                transactional_id=TransactionalId(transactional_id),
                transaction_timeout=i32Timedelta.parse(milliseconds(FENCING_TIMEOUT_MS)),
                producer_id=ProducerId(-1),
                producer_epoch=i16(-1),
            ),
            timeout_ms=self._timeout_ms,
        )
        assert isinstance(response, InitProducerIdResponse)
        if response.error_code is ErrorCode.concurrent_transactions:
            return False
        if response.error_code is not ErrorCode.none:
            raise KafkaError(response.error_code, f"aborting transaction {transactional_id!r}")
        return True

    async def write_abort_marker(
        self, partition: TopicPartition, leader: int, hanging: Blocker
    ) -> None:
        """End a hanging transaction on one partition at its leader. Only for a transaction that
        no coordinator knows. Raises :class:`KafkaError`."""
        request = wt.WriteTxnMarkersRequest(
            markers=(
                wt.WritableTxnMarker(
                    producer_id=ProducerId(hanging.producer_id),
                    producer_epoch=i16(hanging.producer_epoch),
                    transaction_result=False,
                    topics=(
                        wt.WritableTxnMarkerTopic(
                            name=TopicName(partition.topic),
                            partition_indexes=(i32(partition.partition),),
                        ),
                    ),
                    coordinator_epoch=i32(max(hanging.coordinator_epoch, 0)),
                ),
            )
        )
        connection = await self._cluster.node(leader)
        response = await connection.send(request, timeout_ms=self._timeout_ms)
        assert isinstance(response, WriteTxnMarkersResponse)
        result = response.markers[0].topics[0].partitions[0]
        if result.error_code is not ErrorCode.none:
            raise KafkaError(result.error_code, f"abort marker of {partition}")

    async def reorder_replicas(self, partition: TopicPartition, replicas: Sequence[int]) -> None:
        """Make the first of ``replicas`` (the same set) the preferred leader."""
        refused = await self.assign_replicas({partition: replicas})
        for code in refused.values():
            raise KafkaError(code, f"replica order of {partition}")

    async def assign_replicas(
        self, wanted: Mapping[TopicPartition, Sequence[int] | None]
    ) -> dict[TopicPartition, ErrorCode]:
        """Begin to move partitions to other replicas; ``None``: take back what is under way.

        The controller goes on with it by itself. Returns those that were refused; one that is to
        be taken back and is not under way is none. Raises :class:`KafkaError` if all were.
        """
        by_topic: dict[str, list[ar.ReassignablePartition]] = defaultdict(list)
        for partition, replicas in wanted.items():
            by_topic[partition.topic].append(
                ar.ReassignablePartition(
                    partition_index=i32(partition.partition),
                    replicas=None if replicas is None else tuple(map(BrokerId, replicas)),
                )
            )
        request = ar.AlterPartitionReassignmentsRequest(
            timeout=i32Timedelta.parse(milliseconds(self._timeout_ms)),
            topics=tuple(
                ar.ReassignableTopic(name=TopicName(topic), partitions=tuple(some))
                for topic, some in by_topic.items()
            ),
        )
        connection = await self._cluster.any()
        response = await connection.send(request, timeout_ms=self._timeout_ms)
        assert isinstance(response, AlterPartitionReassignmentsResponse)
        if response.error_code is not ErrorCode.none:
            raise KafkaError(response.error_code, f"replicas of {', '.join(by_topic)}")
        return {
            TopicPartition(str(topic.name), int(p.partition_index)): p.error_code
            for topic in response.responses
            for p in topic.partitions
            if p.error_code not in (ErrorCode.none, ErrorCode.no_reassignment_in_progress)
        }

    async def elect_preferred(self, partition: TopicPartition) -> None:
        """Hold a preferred-leader election. One that is not needed succeeds."""
        request = el.ElectLeadersRequest(
            election_type=i8(PREFERRED),
            topic_partitions=(
                el.TopicPartitions(
                    topic=TopicName(partition.topic), partitions=(i32(partition.partition),)
                ),
            ),
            timeout=i32Timedelta.parse(milliseconds(self._timeout_ms)),
        )
        connection = await self._cluster.any()
        response = await connection.send(request, timeout_ms=self._timeout_ms)
        assert isinstance(response, ElectLeadersResponse)
        codes = [response.error_code]
        codes += [
            p.error_code for t in response.replica_election_results for p in t.partition_result
        ]
        for code in codes:
            if code not in (ErrorCode.none, ErrorCode.election_not_needed):
                raise KafkaError(code, f"preferred leader of {partition}")


AT_ONCE = 32
"""Topics that are asked for side by side."""


@dataclass(frozen=True, slots=True)
class Deletion:
    """Delete what lies below ``before_offset`` (exclusive) of one partition."""

    topic: str
    topic_id: UUID
    partition: int
    before_offset: int

    @property
    def name(self) -> TopicPartition:
        """The partition as Kafka calls it."""
        return TopicPartition(self.topic, self.partition)


@dataclass(frozen=True, slots=True)
class NotDeleted:
    """Why nothing was deleted, or why it is not known whether it was."""

    reason: str
    gone: bool = False
    """The topic is another one by now, or none: nothing is left to do."""


class RecordDeletion:
    """Sends DeleteRecords for many partitions to the brokers directly, one request per leader.
    Repeating it does no harm: a log's start never moves back.

    The request names topics, not topic ids. So the id is asked for right before, and a topic that
    was deleted and created again under its name is left alone (schedules.md, 19).
    """

    def __init__(self, cluster: KafkaCluster, timeout_ms: int = 10_000) -> None:
        self._cluster = cluster
        self._observer = KafkaObserver(cluster, timeout_ms)
        self._timeout_ms = timeout_ms

    async def delete(self, wanted: Sequence[Deletion]) -> dict[TopicPartition, int | NotDeleted]:
        """The log start of each partition afterwards, on all of its live replicas.

        Raises :class:`KafkaUnavailable` when no broker answers at all; one leader that does not
        answer refuses its own partitions only.
        """
        layouts = await self._layouts({d.topic for d in wanted})
        answers: dict[TopicPartition, int | NotDeleted] = {}
        by_leader: dict[int, list[Deletion]] = defaultdict(list)
        for deletion in wanted:
            leader = _leader(layouts[deletion.topic], deletion)
            if isinstance(leader, NotDeleted):
                answers[deletion.name] = leader
            else:
                by_leader[leader].append(deletion)
        for found in await asyncio.gather(
            *(self._delete_at(leader, some) for leader, some in by_leader.items())
        ):
            answers |= found
        return answers

    async def _layouts(
        self, topics: Iterable[str]
    ) -> Mapping[str, TopicLayout | NotDeleted | None]:
        places = asyncio.Semaphore(AT_ONCE)

        async def one(topic: str) -> TopicLayout | NotDeleted | None:
            async with places:
                try:
                    return await self._observer.topic(topic)
                except KafkaError as error:
                    return NotDeleted(str(error))

        names = list(topics)
        found = await asyncio.gather(*(one(name) for name in names))
        return dict(zip(names, found, strict=True))

    async def _delete_at(
        self, leader: int, wanted: Sequence[Deletion]
    ) -> dict[TopicPartition, int | NotDeleted]:
        by_topic: dict[str, list[Deletion]] = defaultdict(list)
        for deletion in wanted:
            by_topic[deletion.topic].append(deletion)
        request = dr.DeleteRecordsRequest(
            topics=tuple(
                dr.DeleteRecordsTopic(
                    name=TopicName(topic),
                    partitions=tuple(
                        dr.DeleteRecordsPartition(
                            partition_index=i32(d.partition), offset=i64(d.before_offset)
                        )
                        for d in some
                    ),
                )
                for topic, some in by_topic.items()
            ),
            timeout=i32Timedelta.parse(milliseconds(self._timeout_ms)),
        )
        try:
            connection = await self._cluster.node(leader)
            # The broker itself waits up to the timeout for the replicas.
            response = await connection.send(request, timeout_ms=2 * self._timeout_ms)
        except (KafkaUnavailable, KafkaError) as error:
            return {d.name: NotDeleted(str(error)) for d in wanted}
        assert isinstance(response, DeleteRecordsResponse)
        return {
            TopicPartition(str(topic.name), int(p.partition_index)): (
                int(p.low_watermark)
                if p.error_code is ErrorCode.none
                else NotDeleted(f"DeleteRecords: Kafka answered {p.error_code.name.upper()}")
            )
            for topic in response.topics
            for p in topic.partitions
        }


def _leader(layout: TopicLayout | NotDeleted | None, wanted: Deletion) -> int | NotDeleted:
    if isinstance(layout, NotDeleted):
        return layout
    if layout is None or layout.topic_id != wanted.topic_id:
        return NotDeleted("Kafka has no such topic any more", gone=True)
    partition = layout.partitions.get(wanted.partition)
    if partition is None or partition.leader < 0:
        return NotDeleted("the partition has no leader")
    return partition.leader
