"""The activities against real brokers, Postgres and S3: observations are what Kafka does.

Records are written to the brokers directly: no gateway has to let them through here.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from types import SimpleNamespace
from typing import Any
from uuid import UUID

import boto3
import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic
from temporalio.exceptions import ApplicationError

from activities.configs import offsets_proven_for_roll
from activities.registration import ACTIVITIES
from tests.harness import (
    alter_configs,
    create_topics,
    delete_topics,
    described,
    id_of,
    own_configs,
    until_led,
)
from tests.support.waiting import HANGS_S, WITHIN_S, eventually, flushed, until
from tideline.demo import topic as topics
from tideline.domain import failures
from tideline.domain.ids import TopicPartition
from tideline.domain.messages import (
    BoundaryObservation,
    ConfigStage,
    ConfigStep,
    PartitionRef,
    PhaseInput,
    QuiesceResult,
    TopicRef,
    TopicStep,
)
from tideline.domain.options import MigrationOptions, OpenTransactionsPolicy
from tideline.domain.preflight import CheckResult, Verdict
from tideline.kafka.errors import KafkaError
from tideline.kafka.observer import DEBUG_CONSUMER, LogEnd, OffsetSpec, PartitionLayout
from tideline.migration.connections import WorkerServices
from tideline.migration.prefix import prefix_coverage
from tideline.migration.preflight import run_preflight
from tideline.object_store.inventory import partition_prefix
from tideline.stack import Stack

SMALL = {"internal.segment.bytes": "65536", "local.retention.bytes": "-2"}
_numbers = itertools.count(1)
LASTING = MigrationOptions(quiesce_hold_ms=60_000)
"""Nobody tries again here what a busy machine has not done within the hold."""


@dataclass
class Subject:
    """One topic, the activities, and clients that reach its brokers directly."""

    stack: Stack
    services: WorkerServices
    admin: AdminClient
    topic: str
    topic_id: UUID
    options: MigrationOptions

    @property
    def activities(self) -> Any:
        return SimpleNamespace(**{n: partial(run, self.services) for n, run in ACTIVITIES.items()})

    @property
    def ref(self) -> PartitionRef:
        return PartitionRef(self.topic, self.topic_id.hex, 0)

    @property
    def topic_ref(self) -> TopicRef:
        return TopicRef(self.topic, self.topic_id.hex, 1)

    def given(self, quiesced: QuiesceResult | None = None, **seen: int) -> PhaseInput:
        return PhaseInput(
            self.ref, self.options, generation=quiesced.generation if quiesced else 0, **seen
        )

    def producer(self, **config: object) -> Producer:
        return Producer(
            {
                "bootstrap.servers": self.stack.endpoints.kafka_bootstrap,
                "enable.idempotence": True,
                "batch.size": 10_000,
                "linger.ms": 2,
                **config,
            }
        )

    def write(self, records: int, size: int = 300, **config: object) -> None:
        producer = self.producer(**config)
        failed: list[object] = []
        for number in range(records):
            producer.produce(
                self.topic,
                key=str(number),
                value=b"x" * size,
                on_delivery=lambda error, _: failed.append(error) if error else None,
            )
        flushed(producer, 30)
        assert not failed, failed[0]

    def configs(self) -> dict[str, str]:
        """The configs that are set on the topic itself."""
        found = described(self.admin, self.topic)
        return {key: entry.value for key, entry in found.items() if entry.source == 1}

    def set_config(self, key: str, value: str) -> None:
        alter_configs(self.admin, self.topic, {key: value})
        self.until_told(key, value)

    def until_told(self, key: str, value: str) -> None:
        """By every broker: each hears of it by itself."""
        for address in self.stack.endpoints.brokers.values():
            until(
                f"{key}={value} to be told",
                lambda at=address: own_configs(at, self.topic).get(key) == value,  # type: ignore[misc]
            )

    async def offset(self, spec: OffsetSpec) -> int:
        layout = await self.services.observer.partition(self.topic, 0)
        answer = await self.services.observer.offset(
            self.topic, 0, spec, node=layout.leader, replica_id=DEBUG_CONSUMER
        )
        return answer.offset

    async def tiered_up_to(self, offset: int) -> None:
        """Wait until the broker says that everything up to ``offset`` (inclusive) is tiered."""

        async def enough() -> bool:
            return await self.offset(OffsetSpec.LATEST_TIERED) >= offset

        await eventually(f"offset {offset} to be tiered", enough, WITHIN_S)

    async def track(self) -> None:
        step = TopicStep(self.topic_ref, self.options)
        await again(lambda: self.activities.begin_tracking(step))
        await again(lambda: self.activities.await_tracking(step))

    async def hold(self, stage: ConfigStage) -> None:
        await again(
            lambda: self.activities.reconcile_configs(
                ConfigStep(self.topic_ref, self.options, stage)
            )
        )

    async def cross(self) -> tuple[QuiesceResult, BoundaryObservation]:
        """The write pause."""
        quiesced = await self.activities.quiesce(self.given())
        seen = await self.activities.roll_and_flush(self.given(quiesced))
        await self.activities.seed_and_persist(self.after(quiesced, seen))
        return quiesced, seen

    def after(self, quiesced: QuiesceResult, seen: BoundaryObservation) -> PhaseInput:
        return self.given(quiesced, boundary=seen.boundary, leader_epoch=seen.leader_epoch)


async def again(call: Callable[[], Awaitable[object]]) -> None:
    """Retry as a workflow does: a wait whose bound has passed begins anew."""

    async def done() -> bool:
        try:
            await call()
        except ApplicationError as error:
            if error.non_retryable:
                raise
            return False
        return True

    await eventually("the activity to be done", done, 90)


@pytest.fixture
def subject(stack: Stack, services: WorkerServices) -> Iterator[Subject]:
    admin = AdminClient({"bootstrap.servers": stack.endpoints.kafka_bootstrap})
    topic = f"activities-{next(_numbers)}-{int(time.time() * 1000)}"
    new = NewTopic(topic, 1, 3, config={**topics.TIERED_CONFIGS, **SMALL})
    create_topics(admin, new)
    until_led(stack.endpoints.brokers.values(), topic, 1)
    yield Subject(stack, services, admin, topic, id_of(admin, topic), LASTING)
    delete_topics(admin, topic)


async def test_every_replica_tells_its_own_log_end(subject: Subject) -> None:
    subject.write(500)
    observer = subject.services.observer
    layout = await observer.partition(subject.topic, 0)

    async def settled() -> LogEnd | None:
        end = await observer.log_end(subject.topic, layout)
        return end if end.settled else None

    end = await eventually("the followers to catch up", settled, WITHIN_S)
    assert end.log_ends == {1: 500, 2: 500, 3: 500}
    assert (end.last_stable_offset, end.high_watermark) == (500, 500)


async def test_the_lineage_follows_the_leaders(subject: Subject) -> None:
    subject.write(100)
    observer, admin = subject.services.observer, subject.services.admin
    before = await observer.partition(subject.topic, 0)
    target = before.replicas[1]
    partition = TopicPartition(subject.topic, 0)
    await admin.reorder_replicas(partition, [target, *(n for n in before.replicas if n != target)])

    async def moved() -> PartitionLayout | None:
        with suppress(KafkaError):  # not in sync yet
            await admin.elect_preferred(partition)
        now = await observer.partition(subject.topic, 0)
        return now if now.leader == target else None

    now = await eventually("the leader to move", moved, WITHIN_S)
    subject.write(50)
    lineage = await observer.lineage(subject.topic, now, 0)
    assert [(e.epoch, e.start_offset) for e in lineage] == [
        (before.leader_epoch, 0),
        (now.leader_epoch, 100),
    ]


async def test_a_dry_run_names_what_stands_in_the_way(subject: Subject) -> None:
    subject.set_config("compression.type", "zstd")

    async def settled() -> dict[str, CheckResult] | None:
        """Brokers hear of a topic and its configs a moment after the one that was asked for
        them."""
        found = await looked_at(subject)
        refused = found["compression_type"].verdict is Verdict.REFUSED
        return found if refused and found["replicas_in_sync"].verdict is Verdict.PASSED else None

    found = await eventually("the brokers to have heard of the topic", settled, 30)
    for name in (
        "tiered_storage", "tiered_storage_healthy", "remote_objects_recognised", "acls",
        "transactional_producers", "no_share_group",
    ):  # fmt: skip
        assert found[name].verdict is Verdict.PASSED, found[name]


async def looked_at(subject: Subject) -> dict[str, CheckResult]:
    report = await run_preflight(subject.services, subject.topic)
    return {check.name: check for check in report.checks}


async def test_an_open_transaction_is_seen_named_and_aborted(
    subject: Subject, monkeypatch: pytest.MonkeyPatch
) -> None:
    await subject.track()
    producer = subject.producer(**{"transactional.id": f"pay-{subject.topic}"})
    producer.init_transactions(HANGS_S)
    producer.begin_transaction()
    producer.produce(subject.topic, b"inside", partition=0)
    flushed(producer, 30)
    report = await run_preflight(subject.services, subject.topic)
    warned = next(c for c in report.checks if c.name == "transactional_producers")
    assert warned.verdict is Verdict.WARNING
    assert f"pay-{subject.topic}" in warned.found
    with monkeypatch.context() as short:
        short.setattr(subject.services, "wait_bound_ms", 500)
        with pytest.raises(ApplicationError) as waits:
            await subject.activities.drain_transactions(subject.given())
    assert waits.value.type == failures.WAITING
    assert f"pay-{subject.topic}" in waits.value.message
    subject.options = MigrationOptions(
        open_transactions=OpenTransactionsPolicy.ABORT, drain_deadline_ms=0
    )
    await again(lambda: subject.activities.drain_transactions(subject.given()))
    assert subject.services.cached[subject.ref.log].scanned_end == 2, "the record and its marker"


async def test_a_partition_crosses_rolls_and_is_frozen(subject: Subject) -> None:
    subject.set_config("flush.messages", "50")
    subject.write(1_000)
    await subject.tiered_up_to(600)
    steps = subject.activities
    await subject.track()
    await subject.hold(ConfigStage.TRACKED)
    await subject.hold(ConfigStage.ARMED)
    subject.until_told("flush.messages", "1")
    await again(lambda: steps.validate(subject.given()))
    await again(lambda: steps.drain_transactions(subject.given()))
    quiesced, seen = await subject.cross()
    assert seen.boundary == 1_000
    assert seen.replicas == {"1": 1_000, "2": 1_000, "3": 1_000}
    crossed = subject.after(quiesced, seen)
    await steps.seed_and_persist(crossed)
    await subject.hold(ConfigStage.CROSSED)
    subject.until_told("flush.messages", "50")
    await again(lambda: steps.zombie_cleanup(crossed))
    await subject.hold(ConfigStage.ROLLING)
    await again(lambda: steps.readiness(crossed))
    await subject.hold(ConfigStage.FROZEN)
    subject.until_told("max.message.bytes", "78")
    layout = await subject.services.observer.partition(subject.topic, 0)
    starts = await subject.services.observer.on_replicas(
        subject.topic, layout, OffsetSpec.EARLIEST_LOCAL
    )
    assert starts == {1: 1_000, 2: 1_000, 3: 1_000}
    status = next(
        s
        for s in await subject.services.control_plane.migration_status(subject.topic)
        if s.log == subject.ref.log
    )
    await subject.services.evidence.flush()
    assert status.tiering_complete
    assert all(p.status == "done" for p in status.phases), status.phases


async def test_the_seeds_are_the_producers_last_five_batches(subject: Subject) -> None:
    await subject.track()
    subject.write(2_000, **{"batch.size": 3_000})
    await again(lambda: subject.activities.drain_transactions(subject.given()))
    layout = await subject.services.observer.partition(subject.topic, 0)
    (active,) = await subject.services.topics.producers(subject.topic, 0, layout.leader)
    kept = subject.services.tails._tails[subject.ref.log][1].batches[active.producer_id]
    assert len(kept) == 5
    assert kept[-1].last_sequence == active.last_sequence == 1_999
    assert kept[-1].last_offset == 1_999
    await subject.cross()


async def test_an_abort_restores_every_config_exactly(subject: Subject) -> None:
    subject.set_config("retention.bytes", "123456789")
    before = subject.configs()
    await subject.track()
    await subject.hold(ConfigStage.TRACKED)
    await subject.hold(ConfigStage.ARMED)
    until("configs to be held", lambda: subject.configs() != before)
    step = TopicStep(subject.topic_ref, subject.options)
    assert (await subject.activities.abort_migration(step)).won
    await subject.hold(ConfigStage.RESTORED)
    await subject.activities.stop_tracking(step)
    until("configs to be as before", lambda: subject.configs() == before)
    assert not (await subject.activities.observe_partition(subject.ref)).tracked


async def test_an_abort_after_the_boundary_is_lost_and_says_why(subject: Subject) -> None:
    subject.write(10)
    await subject.track()
    await subject.cross()
    step = TopicStep(subject.topic_ref, subject.options)
    decision = await subject.activities.abort_migration(step)
    assert not decision.won
    assert decision.reason


async def test_a_missing_object_uncovers_the_prefix(subject: Subject, stack: Stack) -> None:
    subject.write(1_000)
    await subject.tiered_up_to(600)
    layout = await subject.services.observer.partition(subject.topic, 0)
    whole = await prefix_coverage(subject.services, subject.ref, layout, 600)
    assert whole.complete, whole.reason()
    place = stack.endpoints.s3
    s3 = boto3.client(
        "s3",
        endpoint_url=place.url,
        region_name=place.region,
        aws_access_key_id=place.access_key,
        aws_secret_access_key=place.secret_key,
    )
    prefix = partition_prefix(place.tiered_prefix, subject.topic, subject.ref.log)
    found = s3.list_objects_v2(Bucket=place.tiered_bucket, Prefix=prefix)["Contents"]
    first = min(entry["Key"] for entry in found if entry["Key"].endswith(".log"))
    s3.delete_object(Bucket=place.tiered_bucket, Key=first)
    broken = await prefix_coverage(subject.services, subject.ref, layout, 600)
    assert broken.gaps[0].start == 0
    assert "not in the bucket" in broken.reason()
    report = await run_preflight(subject.services, subject.topic)
    refused = next(c for c in report.checks if c.name == "remote_objects_recognised")
    assert refused.verdict is Verdict.REFUSED
    assert "not in the bucket" in refused.found


async def test_a_highest_tiered_offset_from_before_a_re_enable_is_no_proof(
    subject: Subject,
) -> None:
    """Stock Kafka would delete local segments that were never uploaded."""
    subject.write(1_000)
    await subject.tiered_up_to(600)
    for key, value in (
        ("remote.log.copy.disable", "true"),
        ("remote.log.delete.on.disable", "true"),
        ("remote.storage.enable", "false"),
    ):
        subject.set_config(key, value)
    subject.write(1_000)
    subject.set_config("remote.log.copy.disable", "false")
    subject.set_config("remote.log.delete.on.disable", "false")
    subject.set_config("remote.storage.enable", "true")
    with pytest.raises(ApplicationError) as unproven:
        await offsets_proven_for_roll(subject.services, subject.topic_ref)
    assert unproven.value.type == failures.WAITING
    assert "turned off and on again" in unproven.value.message


async def test_a_tail_past_the_boundary_is_exported_and_never_moves_it(subject: Subject) -> None:
    subject.write(20)
    await subject.track()
    quiesced, seen = await subject.cross()
    subject.write(5)
    crossed = subject.after(quiesced, seen)
    await again(lambda: subject.activities.zombie_cleanup(crossed))
    status = next(
        s
        for s in await subject.services.control_plane.migration_status(subject.topic)
        if s.log == subject.ref.log
    )
    evidence = next(p.evidence for p in status.phases if p.phase == "zombie_cleanup")
    tail = evidence["divergent_tail"]
    assert (tail["from"], tail["exported_to"]) == (20, 25)
    assert tail["object"].startswith("s3://")
    row = await subject.services.control_plane.tracked_partition(subject.topic_id, 0)
    assert row is not None
    assert row.boundary == 20


async def test_an_empty_topic_crosses_at_zero_and_is_ready_at_once(subject: Subject) -> None:
    await subject.track()
    await again(lambda: subject.activities.drain_transactions(subject.given()))
    quiesced, seen = await subject.cross()
    assert seen.boundary == 0
    await subject.activities.readiness(subject.after(quiesced, seen))


async def test_a_second_attempt_makes_the_first_one_stale(subject: Subject) -> None:
    subject.write(10)
    await subject.track()
    first = await subject.activities.quiesce(subject.given())
    seen = await subject.activities.roll_and_flush(subject.given(first))
    await subject.activities.quiesce(subject.given())
    with pytest.raises(ApplicationError) as stale:
        await subject.activities.seed_and_persist(subject.after(first, seen))
    assert stale.value.type == failures.STALE_GENERATION
    assert stale.value.non_retryable
