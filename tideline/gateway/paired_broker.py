"""The gateway's own questions about tracked partitions to brokers, first of all the paired one."""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import Any

from kio.schema.describe_configs.v4 import request as dc
from kio.schema.errors import ErrorCode
from kio.static.primitive import i8

from tideline.domain.ids import TopicPartition
from tideline.domain.kafka_release import why_too_old
from tideline.errors import TidelineError
from tideline.kafka.client import KafkaCluster, KafkaConnection
from tideline.kafka.errors import KafkaUnavailable
from tideline.kafka.observer import KafkaObserver, OffsetSpec

TIMEOUT_MS = 2_000
BROKER_RESOURCE = 4
NODE_ID = "node.id"


ANOTHER = (
    "the broker at TIDELINE_GATEWAY_BROKER is another one than TIDELINE_GATEWAY_BROKER_ID names: "
    "connections are refused. Correct one of the two, and restart this gateway"
)
TOO_OLD = "the paired broker is of a Kafka that is not supported: connections are refused"


async def why_unfit(connection: KafkaConnection, broker_id: int) -> tuple[str, str] | None:
    """What an operator is told of a broker that nobody is to be joined to, and the reason;
    ``None``: it is ``broker_id``, of a release that is supported or that it does not say. Raises
    :class:`~tideline.kafka.errors.KafkaUnavailable`."""
    if (why := await why_not_supported(connection)) is not None:
        return TOO_OLD, why
    why = await why_another(connection, broker_id)
    return None if why is None else (ANOTHER, why)


async def why_not_supported(connection: KafkaConnection) -> str | None:
    """Of the broker's release; ``None``: it is supported, or the broker does not say it. One that
    does not answer at all is found out by the next question."""
    try:
        return why_too_old(await connection.metadata_level(TIMEOUT_MS))
    except KafkaUnavailable:
        return None


async def why_another(connection: KafkaConnection, broker_id: int) -> str | None:
    """What the broker says if it is not ``broker_id``: one describes its own configs, and refuses
    another's (``ConfigHelper``). ``None``: it is, or the gateway may not ask. Raises
    :class:`~tideline.kafka.errors.KafkaUnavailable`."""
    asked = dc.DescribeConfigsResource(
        resource_type=i8(BROKER_RESOURCE),
        resource_name=str(broker_id),
        configuration_keys=(NODE_ID,),
    )
    answer: Any = await connection.send(
        dc.DescribeConfigsRequest(resources=(asked,)), timeout_ms=TIMEOUT_MS
    )
    for result in answer.results:
        if result.error_code is ErrorCode.invalid_request:
            return str(result.error_message)
    return None


class PairedBroker:
    """Asks the broker that a client is joined to; ``None`` means that it could not say (not the
    leader, or no answer)."""

    def __init__(
        self,
        cluster: KafkaCluster,
        broker_id: int,
        stood_in_for: Callable[[], Collection[int]] = tuple,
    ) -> None:
        """``stood_in_for``: the brokers that clients are joined to here, beside the paired one."""
        self._cluster = cluster
        self._observer = KafkaObserver(cluster, TIMEOUT_MS)
        self._broker_id = broker_id
        self._stood_in_for = stood_in_for

    async def high_watermark(self, at: TopicPartition) -> int | None:
        """Next offset that consumers do not see yet, if this broker leads the partition, or one
        that is stood in for."""
        for node in dict.fromkeys((self._broker_id, *self._stood_in_for())):
            found = await self._offset(at, OffsetSpec.LATEST, node)
            if found is not None:
                return found
        return None

    async def log_start(self, at: TopicPartition, node: int) -> int | None:
        """First offset (inclusive) that the log still has, if the broker ``node`` leads it."""
        return await self._offset(at, OffsetSpec.EARLIEST, node)

    async def log_start_of_leader(self, at: TopicPartition) -> int | None:
        """The same, whoever leads it."""
        try:
            leader = await self._cluster.leader_id(at.topic, at.partition)
        except TidelineError:
            return None
        return await self._offset(at, OffsetSpec.EARLIEST, leader)

    async def _offset(self, at: TopicPartition, spec: OffsetSpec, node: int) -> int | None:
        try:
            answer = await self._observer.offset(at.topic, at.partition, spec, node=node)
        except TidelineError:
            return None
        return answer.offset
