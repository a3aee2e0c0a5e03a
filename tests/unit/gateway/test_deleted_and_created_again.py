"""A topic is deleted and created again, the admin client leaves at each point, and clients of every
kind go on: what is acknowledged then is in the new topic's log, never in the dead one's suffix."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from datetime import timedelta
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest
from kio.schema.delete_topics.v6 import request as delete
from kio.schema.errors import ErrorCode
from kio.schema.types import TopicName
from prometheus_client import CollectorRegistry

from tests.unit.gateway.fakes import TOPIC, TOPIC_ID, record_batch, tracked_row, until
from tests.unit.gateway.test_admin_handlers import SECONDS
from tests.unit.gateway.test_topic_deletion import creation
from tests.unit.gateway.tracked_bench import TrackedBench
from tests.unit.kafka.fake_cluster import FakeKafka, fake_kafka
from tideline.background import cancel_and_wait
from tideline.gateway.admin import tellings, topics
from tideline.gateway.assembly import build_parts
from tideline.gateway.context import ApiKey, ConnectionRegistry
from tideline.gateway.messages import key_fields, messages, topic_key
from tideline.kafka import topic_identity
from tideline.kafka.errors import KafkaUnavailable
from tideline.kafka.topic_identity import TopicIdentity
from tideline.worker import reports
from tideline.worker.identity import IdentityMetrics, IdentityReconciler
from tideline.worker.reports import ReportKeeper

DELETION = delete.DeleteTopicsRequest(
    topics=(delete.DeleteTopicState(name=TopicName(TOPIC), topic_id=None),), timeout=SECONDS
)
LEAVES = (
    "never",
    "before Kafka deletes",
    "before Kafka answers",
    "while Postgres is away",
    "with the gateway that it asked",
)
CREATIONS = ("through the gateway", "past the gateways")
PRODUCERS = (3, 7, 9, 12, 13)
"""Versions of Produce: by name up to 12 (librdkafka, Java before 4.1), by id from 13 on."""


METRICS = IdentityMetrics(CollectorRegistry())


class Bench(TrackedBench):
    """The gateway's parts between clients and a cluster of fake brokers."""

    def __init__(self, directory: Path, kafka: FakeKafka, cluster: Any) -> None:
        super().__init__(directory)
        self.kafka, self.cluster = kafka, cluster
        self.use(build_parts(self.settings, self.plane, self.store, cluster, ConnectionRegistry()))
        self.logs: dict[UUID, int] = {}
        """Records in Kafka's logs, by topic id."""
        node = kafka.nodes[0]
        self.client.broker |= {
            ApiKey.PRODUCE: self._append,
            ApiKey.CREATE_TOPICS: node._CreateTopicsRequest,
            ApiKey.DELETE_TOPICS: node._DeleteTopicsRequest,
        }

    def _append(self, request: Any) -> Any:
        api = messages(ApiKey.PRODUCE, int(request.__version__))
        (topic,) = request.topic_data
        key = topic_key(topic)
        ids = self.kafka.controller.topics
        topic_id = key if isinstance(key, UUID) else ids.get(str(key))
        known = topic_id in ids.values()
        if known and topic_id is not None:
            self.logs[topic_id] = self.logs.get(topic_id, 0) + 1
        unknown = (
            ErrorCode.unknown_topic_id
            if isinstance(key, UUID)
            else ErrorCode.unknown_topic_or_partition
        )
        row = api.response_part(
            "PartitionProduceResponse",
            index=0,
            error_code=ErrorCode.none if known else unknown,
            base_offset=0 if known else -1,
            record_errors=(),
        )
        return api.response(
            responses=(
                api.response_part(
                    "TopicProduceResponse", **key_fields(key), partition_responses=(row,)
                ),
            )
        )

    async def delete(self, leaves: str) -> None:
        """The admin client asks for the deletion, and leaves."""
        node = self.kafka.nodes[0]
        reached = asyncio.Event()

        def answer(request: Any) -> Any:
            reached.set()
            ended = KafkaUnavailable("the client's connection has ended")
            if leaves == "before Kafka deletes":
                return ended
            response = node._DeleteTopicsRequest(request)
            return ended if leaves == "before Kafka answers" else response

        self.client.broker[ApiKey.DELETE_TOPICS] = answer
        if leaves == "with the gateway that it asked":
            self.kafka.controller.delete(TOPIC)
            return
        self.plane.down = leaves == "while Postgres is away"
        asking = asyncio.ensure_future(self.ask(DELETION))
        await reached.wait()
        if leaves == "never":
            await asking
            return
        asking.cancel()
        await asyncio.gather(asking, return_exceptions=True)
        if leaves == "before Kafka deletes":
            self.kafka.controller.delete(TOPIC)

    async def create(self, how: str) -> UUID:
        """Another topic of the name, by an admin client that tries again."""
        if how == "past the gateways":
            made = self.kafka.controller.create(TOPIC)
            self.plane.down = False
            await self.look()
            return made
        for _ in range(20):
            answer = await self.ask(creation(TOPIC))
            code = answer.topics[0].error_code
            self.plane.down = False
            if code is ErrorCode.none:
                return self.kafka.controller.topics[TOPIC]
            assert code is ErrorCode.request_timed_out, "nothing but a retriable refusal"
        raise AssertionError("it is never created")

    async def look(self) -> None:
        """What the gateway and the worker do by themselves after a while."""
        await self.parts.identity.look()
        await self.parts.sync.reload()

    async def produce_until_acknowledged(self, version: int, new_id: UUID) -> None:
        """As a client does: the id it knows, and after a refusal the one that Metadata has."""
        known_id = TOPIC_ID
        for _ in range(10):
            code = await self.produce(version, known_id)
            if code is ErrorCode.none:
                return
            assert code.retriable, code
            await self.look()
            await self.reconciler.reconcile()
            if not self.parts.tracking.is_hidden(TOPIC):
                known_id = new_id
        raise AssertionError("it is never acknowledged")

    async def produce(self, version: int, topic_id: UUID) -> ErrorCode:
        api = messages(ApiKey.PRODUCE, version)
        key = {"topic_id": topic_id} if version >= 13 else {"name": TOPIC}
        row = api.request_part("PartitionProduceData", index=0, records=record_batch())
        answer = await self.ask(
            api.request(
                transactional_id=None,
                acks=-1,
                timeout=timedelta(seconds=5),
                topic_data=(api.request_part("TopicProduceData", **key, partition_data=(row,)),),
            )
        )
        found: ErrorCode = answer.responses[0].partition_responses[0].error_code
        return found

    @property
    def reconciler(self) -> IdentityReconciler:
        if not hasattr(self, "_reconciler"):
            self._reconciler = IdentityReconciler(self.plane, TopicIdentity(self.cluster), METRICS)
        return self._reconciler

    def reports(self) -> ReportKeeper:
        """The worker's look at what gateways report."""
        nothing: Any = None
        return ReportKeeper(self.plane, TopicIdentity(self.cluster), nothing, nothing, METRICS)


@pytest.fixture
async def bench(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Bench]:
    monkeypatch.setattr(topic_identity, "BETWEEN_LOOKS_S", 0.0)
    monkeypatch.setattr(topics, "LOOK_EVERY_S", 0.01)
    monkeypatch.setattr(reports, "QUIET_S", 0.05)  # nobody notifies it here
    monkeypatch.setattr(tellings, "LONGEST_PAUSE_S", 0.05)
    monkeypatch.setattr(tellings, "ANSWER_WAITS_S", 0.1)
    monkeypatch.setattr(reports, "EVERY_S", 0.01)
    monkeypatch.setattr(reports, "SOON_S", 0.01)
    monkeypatch.setattr(reports, "BETWEEN_LOOKS_S", 0.0)
    async with fake_kafka(2) as kafka, kafka.client() as cluster:
        made = Bench(tmp_path, kafka, cluster)
        await made.lease()
        kafka.controller.create(TOPIC, TOPIC_ID)
        made.show(tracked_row(boundary=0, boundary_epoch=0))
        looking = asyncio.ensure_future(made.reports().run())
        yield made
        await cancel_and_wait(looking)
        made.plane.down = False
        await made.close()


@pytest.mark.parametrize("version", PRODUCERS)
@pytest.mark.parametrize("how", CREATIONS)
@pytest.mark.parametrize("leaves", LEAVES)
async def test_nothing_is_acknowledged_into_a_dead_topic(
    bench: Bench, leaves: str, how: str, version: int
) -> None:
    assert await bench.produce(version, TOPIC_ID) is ErrorCode.none
    await bench.delete(leaves)
    new_id = await bench.create(how)
    committed = len(bench.plane.commits)
    await bench.produce_until_acknowledged(version, new_id)
    assert bench.logs == {new_id: 1}
    taken = [batch for _, batches in bench.plane.commits[committed:] for batch in batches]
    assert bench.plane.suffix().high_watermark == 1, taken


@pytest.mark.parametrize("leaves", LEAVES[:-1])
async def test_the_dead_id_is_buried_whenever_the_admin_client_leaves(
    bench: Bench, leaves: str
) -> None:
    await bench.delete(leaves)
    bench.plane.down = False

    def is_buried() -> bool:
        topic = bench.plane.topics.by_id(TOPIC_ID)
        return topic is not None and topic.tombstone is not None

    await until(is_buried)
    await until(lambda: not bench.parts.tellings.pending())
