"""Each partition of a topic as its leader and the controller see it, for the preflight."""

from __future__ import annotations

import asyncio

from tideline.domain.preflight import PartitionHealth
from tideline.kafka.observer import (
    DEBUG_CONSUMER,
    KafkaObserver,
    OffsetAnswer,
    OffsetSpec,
    TopicLayout,
)
from tideline.kafka.topic_observer import TopicObserver


async def partition_health(
    observer: KafkaObserver, topics: TopicObserver, layout: TopicLayout
) -> tuple[PartitionHealth, ...]:
    """Every partition of ``layout``, by number, with two requests to each leader.

    Raises :class:`KafkaUnavailable` when a broker does not answer.
    """
    moving = await topics.reassigning(layout.name, layout.partitions)
    by_leader: dict[int, list[int]] = {}
    for number, where in layout.partitions.items():
        if where.leader >= 0:
            by_leader.setdefault(where.leader, []).append(number)

    async def ask(spec: OffsetSpec) -> dict[int, int]:
        answers = await asyncio.gather(
            *(
                observer.offsets(layout.name, numbers, spec, node=leader, replica_id=DEBUG_CONSUMER)
                for leader, numbers in by_leader.items()
            )
        )
        return {
            number: answer.offset
            for found in answers
            for number, answer in found.items()
            if isinstance(answer, OffsetAnswer)
        }

    starts, ends = await asyncio.gather(ask(OffsetSpec.EARLIEST), ask(OffsetSpec.LATEST))
    return tuple(
        PartitionHealth(
            partition=number,
            # One that did not answer is as good as without a leader now.
            leader=where.leader if number in starts and number in ends else -1,
            replicas=where.replicas,
            in_sync=where.in_sync,
            log_start=starts.get(number, 0),
            log_end=ends.get(number, -1),
            reassigning=number in moving,
        )
        for number, where in sorted(layout.partitions.items())
    )
