"""What the Admin trigger must know of a topic before it says yes, observed through the brokers.

Only the checks of the topic alone are made here, so that the answer is quick; the workflow makes
all of them (:mod:`tideline.domain.preflight`).
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from uuid import UUID

from kio.schema.errors import ErrorCode
from tenacity import AsyncRetrying, retry_if_exception, stop_after_delay, wait_fixed

from tideline.control_plane.model import ClusterAttestation, in_force
from tideline.domain.preflight import (
    INTERNAL_TOPICS,
    PartitionHealth,
    PreflightObservation,
    eligible,
)
from tideline.domain.topic_configs import COPY_DISABLE
from tideline.errors import RefusedError
from tideline.kafka.client import KafkaCluster
from tideline.kafka.errors import KafkaError
from tideline.kafka.observer import (
    DEBUG_CONSUMER,
    KafkaObserver,
    OffsetSpec,
    PartitionLayout,
    TopicLayout,
)
from tideline.kafka.topic_observer import TopicObserver

Attestations = Callable[[str], Awaitable[Sequence[ClusterAttestation]]]
"""Those of a cluster, as Postgres has them."""
TIMEOUT_MS = 5_000
METADATA_LAG_S = 3.0


async def eligible_topic(
    cluster: KafkaCluster,
    attestations: Attestations,
    topic: str,
    changes: Mapping[str, str | None],
) -> UUID:
    """The id of a topic that may migrate once ``changes`` (configs of the same request) hold.

    Asks again for a few seconds while a broker does not know a new topic or a new leader.
    Raises :class:`RefusedError` naming value, rule and remedy, and
    :class:`tideline.kafka.errors.KafkaUnavailable` when that cannot be learned.
    """
    async for attempt in AsyncRetrying(
        retry=retry_if_exception(lambda error: isinstance(error, KafkaError) and error.retriable),
        stop=stop_after_delay(METADATA_LAG_S),
        wait=wait_fixed(0.1),
        reraise=True,
    ):
        with attempt:
            return await _eligible(cluster, attestations, topic, changes)
    raise AssertionError("tenacity ends by a result or by the last error")


async def _eligible(
    cluster: KafkaCluster,
    attestations: Attestations,
    topic: str,
    changes: Mapping[str, str | None],
) -> UUID:
    cluster_id = await cluster.cluster_id()
    observer = KafkaObserver(cluster, TIMEOUT_MS)
    layout = await observer.topic(topic)
    configs: dict[str, str] = {}
    if layout is not None:
        found = await TopicObserver(cluster, TIMEOUT_MS).configs(topic)
        configs = {key: entry.value for key, entry in found.items() if entry.value is not None}
        configs |= {key: value for key, value in changes.items() if value is not None}
    copied = (
        configs.get("remote.storage.enable", "false").lower() == "true"
        and configs.get(COPY_DISABLE, "false").lower() != "true"
    )
    report = eligible(
        PreflightObservation(
            topic=topic,
            topic_id=None if layout is None else str(layout.topic_id),
            internal=topic in INTERNAL_TOPICS or (layout is not None and layout.internal),
            configs=configs,
            partitions=() if layout is None else await _health(observer, layout, needed=not copied),
            attested=in_force(await attestations(cluster_id)),
            cluster_id=cluster_id,
        )
    )
    if not report.accepted or layout is None:
        raise RefusedError(f"topic {topic} cannot become diskless: {report.refusal()}")
    return layout.topic_id


async def _health(
    observer: KafkaObserver, layout: TopicLayout, *, needed: bool
) -> tuple[PartitionHealth, ...]:
    """The partitions with their log ends, which matter only to a topic that is not copied to
    remote storage."""
    rows = layout.partitions.values()
    ends = (
        await asyncio.gather(*(_ends(observer, layout.name, row) for row in rows))
        if needed
        else [(0, 0)] * len(rows)
    )
    return tuple(
        PartitionHealth(
            partition=row.partition,
            leader=row.leader,
            replicas=row.replicas,
            in_sync=row.in_sync,
            log_start=start,
            log_end=end,
        )
        for row, (start, end) in zip(rows, ends, strict=True)
    )


async def _ends(observer: KafkaObserver, topic: str, row: PartitionLayout) -> tuple[int, int]:
    if row.leader < 0:
        raise KafkaError(ErrorCode.leader_not_available, f"partition {topic}-{row.partition}")
    start, end = await asyncio.gather(
        observer.offset(topic, row.partition, OffsetSpec.EARLIEST, node=row.leader),
        observer.offset(
            topic, row.partition, OffsetSpec.LATEST, node=row.leader, replica_id=DEBUG_CONSUMER
        ),
    )
    return start.offset, end.offset
