"""Tiered storage is switched on real brokers: what Kafka does by itself, and what Tideline adds.

Records go to the brokers directly; the switch is made by the command line and the stack's worker.
"""

from __future__ import annotations

import itertools
import json
import re
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest
from confluent_kafka import Consumer, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from tests.harness import (
    Command,
    alter_configs,
    command,
    create_topics,
    delete_topics,
    described,
    id_of,
    killed,
    own_configs,
    until_led,
)
from tests.support.waiting import HANGS_S, WITHIN_S, eventually, flushed, until
from tideline.demo import topic as topics
from tideline.domain.config_changes import DELETE_ON_DISABLE
from tideline.domain.ids import TopicIdPartition
from tideline.domain.preflight import CheckResult, Verdict
from tideline.domain.tiered_storage import (
    HELD,
    JUDGED,
    NOT_WITHOUT_DELETING,
    TieringState,
    kafkas_refusal,
)
from tideline.errors import ExitCode
from tideline.kafka.observer import OffsetSpec
from tideline.migration.connections import WorkerServices
from tideline.migration.preflight import run_preflight
from tideline.migration.tiered_storage import PartitionTiering, TopicTiering, look
from tideline.object_store.client import ObjectStoreClient
from tideline.object_store.inventory import partition_prefix
from tideline.stack import Stack

SMALL = {"internal.segment.bytes": "65536", "local.retention.bytes": "-2"}
HOUR_MS = 3_600_000
_numbers = itertools.count(1)


@dataclass
class Subject:
    """One topic of one partition on three brokers."""

    stack: Stack
    services: WorkerServices
    admin: AdminClient
    topic: str
    topic_id: UUID

    def write(self, records: int, age_ms: int = 0) -> None:
        """One more record of 300 bytes for each, ``age_ms`` old."""
        producer = Producer(
            {
                "bootstrap.servers": self.stack.endpoints.kafka_bootstrap,
                "enable.idempotence": True,
                "batch.size": 10_000,
            }
        )
        failed: list[object] = []
        at = int(time.time() * 1000) - age_ms
        for _ in range(records):
            producer.produce(
                self.topic,
                b"x" * 300,
                timestamp=at,
                on_delivery=lambda error, _: failed.append(error) if error else None,
            )
        flushed(producer, 30)
        assert not failed, failed[0]

    def read(self) -> list[int]:
        """The offsets of every record from the first on, as a consumer gets them."""
        consumer = Consumer(
            {
                "bootstrap.servers": self.stack.endpoints.kafka_bootstrap,
                "group.id": f"reads-{self.topic}",
                "enable.auto.commit": False,
                "auto.offset.reset": "error",
            }
        )
        first, end = consumer.get_watermark_offsets(TopicPartition(self.topic, 0), timeout=HANGS_S)
        consumer.assign([TopicPartition(self.topic, 0, first)])
        offsets: list[int] = []

        def all_read() -> bool:
            for message in consumer.consume(1_000, timeout=1.0):
                assert message.error() is None, message.error()
                offsets.append(message.offset())
            return not offsets[-1:] < [end - 1]

        try:
            if first < end:
                until(f"offset {end - 1} to be read", all_read)
        finally:
            consumer.close()
        return offsets

    def set_configs(self, **configs: str | None) -> None:
        """By hand, as a user does; ``__`` for a dot."""
        wanted = {key.replace("__", "."): value for key, value in configs.items()}
        alter_configs(self.admin, self.topic, wanted)
        for address in self.stack.endpoints.brokers.values():
            until("every broker to show it", partial(self._shown_by, address, wanted))

    def _shown_by(self, address: str, wanted: dict[str, str | None]) -> bool:
        found = own_configs(address, self.topic)
        return all(found.get(key) == value for key, value in wanted.items())

    def own_configs(self) -> dict[str, str]:
        found = described(self.admin, self.topic)
        return {key: entry.value for key, entry in found.items() if entry.source == 1}

    def effective(self) -> dict[str, str | None]:
        found = described(self.admin, self.topic)
        return {key: found[key].value for key in JUDGED}

    async def look(self) -> TopicTiering:
        return await look(self.services, self.topic)

    async def partition(self) -> PartitionTiering:
        return (await self.look()).partitions[0]

    async def when(
        self, what: str, holds: Callable[[PartitionTiering], bool], limit_s: float = 60
    ) -> PartitionTiering:
        """The partition as soon as ``holds``."""

        async def held() -> PartitionTiering | None:
            found = await self.partition()
            return found if holds(found) else None

        return await eventually(what, held, limit_s)

    async def tiered_up_to(self, offset: int) -> None:
        """Wait until the broker says that everything up to ``offset`` (inclusive) is tiered."""
        await self.when(f"offset {offset} to be tiered", lambda p: p.highest_tiered >= offset)

    async def _local_segments(self) -> list[Path]:
        """On the leader's disk; what is being deleted has another name."""
        leader = (await self.services.observer.partition(self.topic, 0)).leader
        return list((self.stack.data_path(f"kafka-{leader}") / f"{self.topic}-0").glob("*.log"))

    async def closed_up_to(self) -> int:
        """The last offset that is in no active segment."""
        return max(int(path.stem) for path in await self._local_segments()) - 1

    async def local_bytes(self) -> int:
        found = 0
        for path in await self._local_segments():
            with suppress(FileNotFoundError):  # it has another name by now
                found += path.stat().st_size
        return found

    def _said_of_it(self, node: int) -> list[str]:
        """What a broker's log has of the topic, by line."""
        said = self.stack.log_path(f"kafka-{node}").read_text(errors="replace")
        return [line for line in said.splitlines() if self.topic in line]

    def deletion_failed(self) -> bool:
        """As its leader says in its log."""
        said = [line for node in self.stack.endpoints.brokers for line in self._said_of_it(node)]
        return any("Error while stopping the partition" in line for line in said)

    def ended_tasks(self) -> dict[int, set[str]]:
        """Which of the partition's tasks each broker's ``RemoteLogManager`` has ended."""
        ended = re.compile(r"Cancelling the (\w+) RLM task for partition")
        return {
            node: {task for line in self._said_of_it(node) for task in ended.findall(line)}
            for node in self.stack.endpoints.brokers
        }

    async def tasks_end(self, of_leader: set[str], of_followers: set[str]) -> None:
        """Wait until these have ended; the leader is who leads now."""
        leader = (await self.services.observer.partition(self.topic, 0)).leader
        wanted = {
            n: of_leader if n == leader else of_followers for n in self.stack.endpoints.brokers
        }
        until(f"the tasks {wanted} to end", lambda: self.ended_tasks() == wanted)

    async def locally_from_past(self, offset: int) -> PartitionTiering:
        """Wait until the leader has deleted something past ``offset`` locally."""
        return await self.when("local retention", lambda p: p.local_start > offset)

    async def raised_to_local_start(self) -> None:
        """Wait until the leader has given the tiered part up, without asking the store."""

        async def is_raised() -> bool:
            start = await self.begins(OffsetSpec.EARLIEST)
            return start == await self.begins(OffsetSpec.EARLIEST_LOCAL)

        await eventually("the log to begin where it is local", is_raised, WITHIN_S)

    async def begins(self, spec: OffsetSpec) -> int:
        """The offset that its leader names for ``spec``."""
        observer = self.services.observer
        layout = await observer.partition(self.topic, 0)
        return (await observer.offset(self.topic, 0, spec, node=layout.leader)).offset

    async def tiered_check(self) -> CheckResult:
        """What the preflight says of a topic that was enabled again."""
        report = await run_preflight(self.services, self.topic)
        return next(c for c in report.checks if c.name == "tiered_offsets_proven")

    def tideline(self, *arguments: str) -> Command:
        verb, *options = arguments
        return command(self.stack, "tiered-storage", verb, self.topic, *options, "-o", "json")

    def switched(self, *arguments: str) -> dict[str, Any]:
        """The outcome of a switch that ends."""
        started = self.tideline(*arguments, "--wait", "--timeout", f"{HANGS_S:.0f}")
        assert started.wait(120) == 0, started.output()
        found: dict[str, Any] = json.loads(started.answer())
        return found

    def shown(self) -> dict[str, Any]:
        started = self.tideline("show")
        assert started.wait(60) == 0, started.output()
        found: dict[str, Any] = json.loads(started.answer())
        return found

    def leave_an_object(self) -> str:
        """In the bucket, as a deletion that failed does."""
        store = ObjectStoreClient(self.services.settings)
        settings = self.services.settings
        log = TopicIdPartition(self.topic_id, 0)
        prefix = partition_prefix(settings.s3_tiered_prefix, self.topic, log)
        key = f"{prefix}{7:020d}-{'A' * 22}.log"
        store.put(settings.s3_tiered_bucket, key, b"left behind")
        return key


@pytest.fixture
def subject(stack: Stack, services: WorkerServices) -> Iterator[Subject]:
    admin = AdminClient({"bootstrap.servers": stack.endpoints.kafka_bootstrap})
    topic = f"switched-{next(_numbers)}-{int(time.time() * 1000)}"
    create_topics(admin, NewTopic(topic, 1, 3, config={**topics.TIERED_CONFIGS, **SMALL}))
    until_led(stack.endpoints.brokers.values(), topic, 1)
    yield Subject(stack, services, admin, topic, id_of(admin, topic))
    delete_topics(admin, topic)


def test_kafka_refuses_what_the_rules_refuse_and_in_the_same_words(subject: Subject) -> None:
    """Every combination of the configs, from a topic that is tiered and from one that is not."""
    choices: dict[str, tuple[str, ...]] = {
        "remote.storage.enable": ("true", "false"),
        "remote.log.copy.disable": ("false", "true"),
        DELETE_ON_DISABLE: ("false", "true"),
        "cleanup.policy": ("delete", "compact", "compact,delete"),
        "local.retention.ms": ("-2", "-1", "5", "604800000", "604800001"),
        "local.retention.bytes": ("-2", "7"),
    }
    refused = 0
    for off in (False, True):
        if off:
            subject.set_configs(
                remote__storage__enable="false", remote__log__delete__on__disable="true"
            )
        before = subject.effective()
        for values in itertools.product(*choices.values()):
            after = dict(zip(choices, values, strict=True))
            said = None
            try:
                alter_configs(subject.admin, subject.topic, after, only_ask=True)
            except KafkaException as error:
                said = error.args[0].str()
            expected = kafkas_refusal(before, {**before, **after})
            assert said == expected, (off, after)
            refused += said is not None
    assert refused > 100


def test_both_configs_are_false_unless_they_are_set(subject: Subject) -> None:
    found = subject.effective()
    assert (found["remote.log.copy.disable"], found[DELETE_ON_DISABLE]) == ("false", "false")
    asked = subject.tideline("disable")
    assert asked.wait(60) == ExitCode.REFUSED
    assert NOT_WITHOUT_DELETING in asked.output()
    assert subject.own_configs()["remote.storage.enable"] == "true"


async def test_copying_and_expiry_have_threads_of_their_own(subject: Subject) -> None:
    sizes = [
        await subject.services.topics.broker_config(
            1, f"remote.log.manager.{task}.thread.pool.size"
        )
        for task in ("copier", "expiration")
    ]
    assert sizes == ["10", "10"]


async def test_a_read_only_topic_uploads_nothing_more_and_stays_whole(subject: Subject) -> None:
    subject.write(1_000)
    await subject.tiered_up_to(await subject.closed_up_to())  # nothing is being copied any more
    outcome = subject.switched("read-only")
    assert (outcome["was"], outcome["state"]) == ("enabled", "read-only")
    before = await subject.partition()
    subject.write(1_000)
    assert subject.shown()["state"] == "read-only"
    after = await subject.partition()
    assert (after.segments, after.highest_tiered) == (before.segments, before.highest_tiered)
    assert subject.read() == list(range(2_000))
    await subject.tasks_end({"copy"}, set())


async def test_of_a_read_only_topic_the_remote_part_expires_first(subject: Subject) -> None:
    """Expiry goes on while copying has ended, from the first remote offset to the left end of what
    is local, and only then on."""
    subject.set_configs(local__retention__bytes="65536")
    subject.write(1_000, age_ms=5 * HOUR_MS)
    await subject.tiered_up_to(600)
    await subject.locally_from_past(0)
    subject.switched("read-only")
    subject.write(1_000, age_ms=HOUR_MS)
    before = await subject.partition()
    assert before.log_start < before.local_start
    subject.set_configs(retention__ms=str(3 * HOUR_MS))
    after = await subject.when("the remote part to expire", lambda p: p.segments == 0)
    assert after.log_start >= before.local_start
    assert subject.read() == list(range(after.log_start, 2_000))


async def test_of_a_read_only_topic_no_offset_is_missing_while_all_of_it_expires(
    subject: Subject,
) -> None:
    """Seed 001 has local segments wait until nothing is remote. Stock Kafka does not: both go by
    the same retention, each at its own checks. What it keeps is that the log begins past all that
    is gone: it gives up what is remote below with the first local segment that it deletes
    (``UnifiedLog.deleteSegments``)."""
    subject.set_configs(local__retention__bytes="65536")
    subject.write(2_000, age_ms=5 * HOUR_MS)
    await subject.tiered_up_to(await subject.closed_up_to())
    await subject.locally_from_past(0)
    subject.switched("read-only")
    before = await subject.partition()
    assert before.log_start < before.local_start < before.log_end
    assert before.segments > 1
    subject.set_configs(retention__ms=str(3 * HOUR_MS))

    async def all_gone() -> bool:
        # In this order: both only grow, and the log may go on to begin later in between.
        local = await subject.begins(OffsetSpec.EARLIEST_LOCAL)
        start = await subject.begins(OffsetSpec.EARLIEST)
        assert local == before.local_start or start >= local, (
            f"[{start}, {local}) is in no place: local segments went, and the log begins before"
        )
        return start == before.log_end

    await eventually("all of it to expire", all_gone, WITHIN_S)
    after = await subject.when("the remote part to go", lambda p: p.segments == 0)
    assert (after.log_start, after.log_end) == (before.log_end, before.log_end)
    subject.write(10)
    assert subject.read() == list(range(before.log_end, before.log_end + 10))


async def test_a_read_only_topic_expires_by_its_size_alone(subject: Subject) -> None:
    """By that of the whole log, remote and local, and no longer by that of the local part
    (``UnifiedLog.localRetentionSize``); no record is old."""
    segment, local, whole = (n << 10 for n in (64, 128, 384))
    subject.set_configs(local__retention__bytes=str(local))
    subject.write(2_000)
    await subject.tiered_up_to(await subject.closed_up_to())
    await subject.locally_from_past(0)
    subject.switched("read-only")
    subject.write(2_000)
    assert await subject.local_bytes() > whole + segment
    before = await subject.partition()
    assert before.log_start == 0 < before.segments
    subject.set_configs(retention__bytes=str(whole))
    await subject.when(
        "the remote part to expire", lambda p: p.segments == 0 and p.log_start == p.local_start
    )

    async def fits() -> bool:
        return await subject.local_bytes() < whole + segment

    await eventually("the local part to expire", fits, WITHIN_S)
    assert await subject.local_bytes() >= whole
    first = await subject.begins(OffsetSpec.EARLIEST)
    assert subject.read() == list(range(first, 4_000))


async def test_off_with_deletion_the_bucket_is_empty_and_what_is_local_stays(
    subject: Subject,
) -> None:
    subject.set_configs(local__retention__bytes="131072")
    subject.write(2_000)
    await subject.tiered_up_to(1_500)
    before = await subject.locally_from_past(0)
    outcome = subject.switched("disable", "--delete")
    assert (outcome["was"], outcome["state"], outcome["collected"]) == ("enabled", "disabled", 0)
    after = await subject.partition()
    assert (after.segments, after.objects) == (0, 0)
    assert after.log_start == after.local_start >= before.local_start
    await subject.tasks_end({"copy", "expiration"}, {"follower"})
    assert subject.read() == list(range(after.log_start, 2_000))
    assert subject.own_configs()["local.retention.bytes"] == "131072"


async def test_what_is_left_in_the_bucket_is_found_and_collected(subject: Subject) -> None:
    subject.switched("disable", "--delete")
    subject.leave_an_object()
    shown = subject.shown()
    assert shown["state"] == TieringState.DELETING
    outcome = subject.switched("disable", "--delete", "--collect-after-s", "0")
    assert (outcome["was"], outcome["collected"]) == ("deleting", 1)
    assert subject.shown()["state"] == TieringState.DISABLED


async def test_enabled_again_nothing_is_lost_and_the_users_local_retention_comes_back(
    subject: Subject,
) -> None:
    """Tiered, deleted, enabled: what was tiered and is still local is claimed and is nowhere. When
    it has expired the log begins behind it; Kafka alone would leave its start where it was."""
    subject.write(1_000, age_ms=5 * HOUR_MS)
    await subject.tiered_up_to(600)
    subject.switched("disable", "--delete")
    first = (await subject.partition()).log_start
    subject.set_configs(local__retention__bytes="65536")
    assert subject.tideline("enable").wait(HANGS_S) == ExitCode.OK

    def says_why() -> bool:
        switch = subject.shown()["switch"] or {}
        return "local retention is held at the total" in (switch.get("waiting_reason") or "")

    until("the switch to say why it waits", says_why)
    waits = subject.tideline("enable", "--wait", "--timeout", "1")
    assert waits.wait(HANGS_S) == ExitCode.TIMED_OUT, waits.output()
    assert "the workflow goes on" in waits.output()
    assert HELD.items() <= subject.own_configs().items()
    subject.write(1_000)
    found = await subject.look()
    assert not found.proven
    assert found.partitions[0].highest_tiered >= 600
    check = await subject.tiered_check()
    assert check.verdict is Verdict.REFUSED
    assert "tiered-storage enable" in check.remedy
    before = subject.own_configs()
    asked = command(subject.stack, "migrate", subject.topic)
    assert asked.wait(HANGS_S) == ExitCode.REFUSED
    assert "tiered-storage enable" in asked.output()
    assert subject.own_configs() == before
    assert subject.read() == list(range(first, 2_000))
    subject.set_configs(retention__ms=str(HOUR_MS))
    assert subject.switched("enable")["state"] == "enabled"
    assert subject.own_configs()["local.retention.bytes"] == "65536"
    assert (await subject.tiered_check()).verdict is Verdict.PASSED
    end = await subject.locally_from_past(1_000)
    assert first < end.log_start <= 1_000
    assert subject.read() == list(range(end.log_start, 2_000))


async def test_enabled_again_by_hand_stock_kafka_loses_what_it_does_not_upload(
    subject: Subject,
) -> None:
    """Why local retention is held: this is not Tideline's doing."""
    subject.write(1_000)
    await subject.tiered_up_to(600)
    subject.set_configs(
        remote__storage__enable="false", remote__log__delete__on__disable="true",
        local__retention__bytes="65536",
    )  # fmt: skip
    first = (await subject.partition()).log_start
    assert subject.read() == list(range(first, 1_000))
    subject.set_configs(remote__storage__enable="true", remote__log__delete__on__disable=None)
    lost = await subject.locally_from_past(first)
    assert not [s for s in await _segments(subject) if s < lost.local_start]


async def _segments(subject: Subject) -> list[int]:
    found = await subject.services.remote_log.topic_segments(subject.topic_id)
    return [segment.start_offset for segment in found]


async def test_enabled_again_with_data_left_the_log_goes_on_without_a_gap(
    subject: Subject,
) -> None:
    subject.write(1_000)
    await subject.tiered_up_to(600)
    subject.switched("read-only")
    subject.write(1_000)
    assert subject.switched("enable", "--local-retention-bytes", "65536")["was"] == "read-only"
    subject.write(1_000)
    await subject.tiered_up_to(2_500)
    await subject.locally_from_past(0)
    assert subject.read() == list(range(3_000))


async def test_enabled_again_when_everything_remote_has_expired_the_log_goes_on_without_a_gap(
    subject: Subject,
) -> None:
    """Seed 001, scenario 2: read-only until nothing is remote. What Kafka remembers as tiered has
    expired, so nothing is held back."""
    subject.write(1_000, age_ms=5 * HOUR_MS)
    await subject.tiered_up_to(await subject.closed_up_to())
    subject.switched("read-only")
    subject.write(1_000, age_ms=HOUR_MS)
    subject.set_configs(retention__ms=str(3 * HOUR_MS))
    expired = await subject.when(
        "the remote part to expire", lambda p: p.segments == 0 and p.log_start == p.local_start > 0
    )
    assert expired.log_start <= 1_000, "of what is an hour old nothing"
    assert subject.read() == list(range(expired.log_start, 2_000))
    assert subject.switched("enable", "--local-retention-bytes", "65536")["was"] == "read-only"
    subject.write(1_000)
    await subject.tiered_up_to(2_500)
    found = await subject.locally_from_past(expired.log_start)
    assert found.log_start == expired.log_start
    assert await _segments(subject)
    assert subject.read() == list(range(expired.log_start, 3_000))


async def test_enabled_again_while_objects_are_left_they_are_collected_first(
    subject: Subject,
) -> None:
    subject.switched("disable", "--delete")
    subject.write(1_000)
    key = subject.leave_an_object()
    assert subject.switched("enable", "--collect-after-s", "0")["collected"] == 1
    await subject.tiered_up_to(600)
    store = ObjectStoreClient(subject.services.settings)
    listed = store.list_objects(subject.services.settings.s3_tiered_bucket, key)
    assert [entry.key for entry in listed] == []
    assert subject.read() == list(range(1_000))


def test_a_compacted_topic_is_not_enabled_again(subject: Subject) -> None:
    subject.switched("disable", "--delete")
    subject.set_configs(cleanup__policy="compact")
    asked = subject.tideline("enable")
    assert asked.wait(60) == ExitCode.REFUSED
    assert "cleanup.policy=delete" in asked.output()


async def test_a_deletion_that_fails_is_finished_when_the_store_is_back(subject: Subject) -> None:
    """Kafka gives its deletion up while S3 is away, and says nothing."""
    subject.set_configs(local__retention__bytes="65536")
    subject.write(1_000)
    await subject.tiered_up_to(600)
    await subject.locally_from_past(0)
    held = (await subject.partition()).objects
    with killed(subject.stack, "s3"):
        subject.set_configs(
            remote__storage__enable="false", remote__log__delete__on__disable="true"
        )
        # Overlaps: the brokers have turned it off, and their store is away.
        await subject.raised_to_local_start()
        await eventually("the deletion to fail", subject.deletion_failed, WITHIN_S)
    left = (await subject.look()).partitions[0].objects
    assert 0 < left <= held, "the deletion was to fail"
    outcome = subject.switched("disable", "--delete", "--collect-after-s", "1")
    assert outcome["was"] == "deleting"
    assert outcome["collected"] > 0
    assert subject.shown()["state"] in (TieringState.DISABLED, TieringState.DELETING)
    assert (await subject.partition()).objects == 0
