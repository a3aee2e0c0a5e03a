"""What a migration changes in Kafka, and nothing else: configs, transactions, leadership."""

from __future__ import annotations

from collections.abc import Sequence

from kio.schema.alter_partition_reassignments.v0 import request as ar
from kio.schema.alter_partition_reassignments.v0.response import (
    AlterPartitionReassignmentsResponse,
)
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
from kio.static.primitive import i8, i16, i32, i32Timedelta

from tideline.domain.ids import TopicPartition
from tideline.domain.topic_configs import ConfigChange
from tideline.domain.transactions import Blocker
from tideline.kafka.client import KafkaCluster
from tideline.kafka.errors import KafkaError
from tideline.kafka.observer import milliseconds

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
        request = ar.AlterPartitionReassignmentsRequest(
            timeout=i32Timedelta.parse(milliseconds(self._timeout_ms)),
            topics=(
                ar.ReassignableTopic(
                    name=TopicName(partition.topic),
                    partitions=(
                        ar.ReassignablePartition(
                            partition_index=i32(partition.partition),
                            replicas=tuple(map(BrokerId, replicas)),
                        ),
                    ),
                ),
            ),
        )
        connection = await self._cluster.any()
        response = await connection.send(request, timeout_ms=self._timeout_ms)
        assert isinstance(response, AlterPartitionReassignmentsResponse)
        codes = [response.error_code]
        codes += [p.error_code for t in response.responses for p in t.partitions]
        for code in codes:
            if code is not ErrorCode.none:
                raise KafkaError(code, f"replica order of {partition}")

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
