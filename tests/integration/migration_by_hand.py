"""A topic through the states of a migration; the test does the worker's part in Postgres."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from itertools import count
from typing import TypeVar

from confluent_kafka import (
    TopicPartition,
)
from confluent_kafka.admin import AdminClient, NewTopic, PartitionMetadata
from pydantic import SecretStr

from tests.harness import again, create_topics, id_of
from tests.support.waiting import (
    HANGS_S,
    WITHIN_S,
    eventually,
    until,
)
from tideline.control_plane import ControlPlane, connect
from tideline.control_plane.model import BarrierEntry, BoundaryToPersist
from tideline.domain.ids import TopicIdPartition
from tideline.domain.ids import TopicPartition as Place
from tideline.domain.producer_tail import ProducerSeed
from tideline.gateway.paired_broker import PairedBroker
from tideline.kafka.client import KafkaCluster
from tideline.kafka.log_reader import LogReader, tail_batches
from tideline.settings import ControlPlaneSettings
from tideline.stack import Stack

_names = count()
R = TypeVar("R")


HOLD_MS = 300_000
"""Of a quiesce that the test itself ends."""


async def passed(ask: Callable[[], Awaitable[list[BarrierEntry]]]) -> None:
    """Every gateway has acknowledged; asked again and again, as a worker does."""

    async def acknowledged() -> bool:
        return all(entry.acknowledged for entry in await ask())

    await eventually("every gateway to acknowledge", acknowledged, WITHIN_S)


class Migration:
    """A classic topic with one partition per test's wish, moved by hand."""

    def __init__(self, stack: Stack, partitions: int, replicas: int = 1) -> None:
        self.stack = stack
        self.partitions = partitions
        self.name = f"moving-{next(_names)}-{time.monotonic_ns() % 1_000_000}"
        self.bootstrap = stack.endpoints.gateway_bootstrap
        self.admin = AdminClient({"bootstrap.servers": self.bootstrap})
        create_topics(self.admin, NewTopic(self.name, partitions, replicas))
        self.topic_id = id_of(self.admin, self.name)
        self.dsn = stack.environment("worker")["TIDELINE_POSTGRES_DSN"]

    def leader(self, partition: int = 0) -> int:
        """Node id of the partition's leader, as the brokers say."""
        return int(self.placed(lambda found: partition in found)[partition].leader)

    def placed(
        self, enough: Callable[[dict[int, PartitionMetadata]], bool]
    ) -> dict[int, PartitionMetadata]:
        """The partitions, as told by a broker that knows ``enough`` of them already."""
        brokers = ",".join(self.stack.endpoints.brokers.values())
        admin = AdminClient({"bootstrap.servers": brokers})

        def known() -> dict[int, PartitionMetadata] | None:
            told = admin.list_topics(self.name, timeout=HANGS_S).topics[self.name]
            return told.partitions if told.error is None and enough(told.partitions) else None

        return until("a broker to know the partitions", known)

    def delete_records(self, before: int) -> int:
        """Of partition 0; the new low watermark. A stand-in that gives its clients back ends their
        connections."""
        at = TopicPartition(self.name, 0, before)
        deleted = again(
            "records to be deleted",
            lambda: self.admin.delete_records([at])[at].result(HANGS_S),
        )
        return int(deleted.low_watermark)

    def log(self, partition: int = 0) -> TopicIdPartition:
        return TopicIdPartition(self.topic_id, partition)

    def do(self, work: Callable[[ControlPlane], Awaitable[R]]) -> R:
        """Run the worker's part."""

        async def run() -> R:
            settings = ControlPlaneSettings(postgres_dsn=SecretStr(self.dsn))
            async with connect(settings, application_name="test") as plane:
                return await work(plane)

        return asyncio.run(run())

    def track(self) -> None:
        """Tracked by every gateway."""

        async def work(plane: ControlPlane) -> None:
            (attested, *_) = await plane.attestations()
            await plane.begin_migration(
                self.name,
                self.topic_id,
                self.partitions,
                "CreateTime",
                1_048_588,
                attested.cluster_id,
            )
            await passed(lambda: plane.tracking_barrier(self.name))
            await plane.activate_topic(self.name)

        self.do(work)

    def close(self, partition: int = 0, hold_ms: int = HOLD_MS, wait: bool = True) -> int:
        """Quiesce: every gateway has acknowledged that the generation is closed."""

        async def work(plane: ControlPlane) -> int:
            return await self._close(plane, partition, hold_ms, wait)

        return self.do(work)

    def close_all(self, hold_ms: int) -> None:
        """Every partition, at once."""

        async def work(plane: ControlPlane) -> None:
            every = range(self.partitions)
            await asyncio.gather(*(self._close(plane, p, hold_ms, True) for p in every))

        self.do(work)

    async def _close(self, plane: ControlPlane, partition: int, hold_ms: int, wait: bool) -> int:
        generation = await plane.next_generation(self.log(partition))
        await plane.close_generation(self.log(partition), generation, hold_ms)
        if wait:
            await passed(lambda: plane.quiesce_barrier(self.log(partition), generation))
        return generation

    def cross(self, generation: int, partition: int = 0) -> int:
        """Persist B0 at Kafka's log end with the producers' last batches, and return it."""
        leader = self.leader(partition)

        async def work(plane: ControlPlane) -> int:
            host, _, port = self.stack.endpoints.brokers[leader].rpartition(":")
            async with KafkaCluster([(host, int(port))]) as cluster:
                end = await PairedBroker(cluster, leader).high_watermark(
                    Place(self.name, partition)
                )
                assert end is not None
                seeds = await self._seeds(LogReader(cluster), partition, leader, end)
            await plane.initialize_diskless_migration(
                BoundaryToPersist(
                    log=self.log(partition),
                    boundary=end,
                    leader_epoch=0,
                    generation=generation,
                    seeds=seeds,
                    prefix_log_start=0,
                )
            )
            return end

        return self.do(work)

    async def _seeds(
        self, reader: LogReader, partition: int, leader: int, end: int
    ) -> tuple[ProducerSeed, ...]:
        """The last five batches of each producer, read from the whole log."""
        kept: dict[int, list[ProducerSeed]] = {}
        position = 0
        while position < end:
            piece = await reader.fetch(self.name, partition, position, node=leader)
            for batch in tail_batches(piece.data):
                if position <= batch.base_offset and batch.producer_id >= 0:
                    seed = ProducerSeed(
                        producer_id=batch.producer_id,
                        producer_epoch=batch.producer_epoch,
                        base_sequence=batch.base_sequence,
                        last_sequence=batch.last_sequence,
                        base_offset=batch.base_offset,
                        last_offset=batch.last_offset,
                        timestamp=batch.max_timestamp,
                    )
                    kept[batch.producer_id] = [*kept.get(batch.producer_id, []), seed][-5:]
                last = batch.last_offset
            position = last + 1
        return tuple(seed for seeds in kept.values() for seed in seeds)
