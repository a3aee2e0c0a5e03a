"""The demo, step by step: stack, history, live clients, migration, proof."""

from __future__ import annotations

import asyncio
import os
import platform
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any
from uuid import UUID

import psutil

from tideline.control_plane.model import PartitionMigrationStatus
from tideline.demo import topic as demo_topic
from tideline.demo.aging import Aging, classic_moment
from tideline.demo.context import DemoContext
from tideline.demo.history import last_segment_starts
from tideline.demo.patience import Patience
from tideline.demo.prove import Evidence, prove
from tideline.demo.rehearsal import Rehearsal
from tideline.demo.report import Check, Proof
from tideline.demo.workload import (
    GroupConsumer,
    JavaProducer,
    LibrdkafkaProducer,
    wait_until_consumed,
)
from tideline.domain.ids import topic_id_to_base64
from tideline.domain.messages import TopicRef
from tideline.domain.migration import Phase, PhaseStatus
from tideline.errors import TidelineError
from tideline.object_store.client import ObjectEntry
from tideline.settings import TemporalSettings
from tideline.temporal import workflow_url


class Demo(DemoContext):
    """The steps, in their order."""

    async def run(self) -> Proof:
        """Raises :class:`TidelineError` when a step cannot be done; a bad outcome is in the
        proof's checks instead."""
        topic_id, before = await asyncio.to_thread(self._history)
        ref = TopicRef(self.options.topic, str(topic_id), self.options.partitions)
        members = await asyncio.to_thread(self._members)
        try:
            async with self._producers():
                self.output.step(f"clients write and read for {self.options.before_s:.0f} s")
                await asyncio.sleep(self.options.before_s)
                classic = classic_moment(
                    {p: self.ledger.acknowledged_through(p) for p in range(ref.partitions)}
                )
                await asyncio.to_thread(self._trigger, ref.topic)
                statuses = await self._until_ready(ref)
                self.output.step(f"hybrid; clients go on for {self.options.after_s:.0f} s")
                await asyncio.sleep(self.options.after_s)
            self.output.step("producers have settled; the group reads to the end")
            proof = prove(await self._evidence(ref, members, before, statuses))
            if self.options.aging:
                aged = await Aging(self, ref).run(classic)
                proof.checks += aged.checks
                proof.storage |= aged.storage
                proof.picture = aged.picture
            if self.options.rehearse:
                proof.checks += await Rehearsal(self, ref).run()
            if self.options.aging or self.options.rehearse:
                proof.checks += self._breaches(ref)
            return proof
        finally:
            for member in members:
                await asyncio.to_thread(member.stop)

    def _breaches(self, ref: TopicRef) -> list[Check]:
        """Of partitions of which something is not well at the end."""
        return [
            Check(
                f"partition {p}: nothing lost, doubled or reordered to the end",
                verdict.ok,
                f"{verdict.acknowledged} acknowledged, {verdict.consumed} consumed",
            )
            for p in range(ref.partitions)
            if not (verdict := self.ledger.verdict(p)).ok
        ]

    def _trigger(self, topic: str) -> None:
        if not self.options.migrate:
            self.output.step(f"trigger: a stock admin client sets diskless.enable=true on {topic}")
            demo_topic.trigger_migration(self.admin, topic)
            return
        command = ["migrate", topic, *self.options.migrate]
        self.output.step(f"trigger: tideline {' '.join(command)}")
        started = subprocess.run(
            [sys.executable, "-m", "tideline", *command],
            env=os.environ | self.environment,
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
        if started.returncode != 0:
            raise TidelineError(f"tideline {' '.join(command)}: {started.stderr.strip()}")

    async def _evidence(
        self,
        ref: TopicRef,
        members: list[GroupConsumer],
        before: dict[str, ObjectEntry],
        statuses: list[PartitionMigrationStatus],
    ) -> Evidence:
        caught_up = await asyncio.to_thread(wait_until_consumed, self.ledger, 60.0)
        settings = TemporalSettings.of(self.environment)
        return Evidence(
            ref=ref,
            machine=machine(),
            ledger=self.ledger,
            statuses=await self.control_plane.migration_status(ref.topic) or statuses,
            before=before,
            after=await asyncio.to_thread(self._listing, ref),
            tiered_before=last_segment_starts(before.values()),
            resets=[reset for member in members for reset in member.resets],
            caught_up=caught_up,
            configs=await asyncio.to_thread(
                demo_topic.topic_configs, self.admin, self.options.topic
            ),
            wal_objects=await asyncio.to_thread(self._wal_objects),
            workflow_url=workflow_url(settings, ref.workflow_id) or "",
        )

    def _history(self) -> tuple[UUID, dict[str, ObjectEntry]]:
        options = self.options
        self.output.step(f"tiered topic {options.topic}: {options.partitions} partitions")
        brokers = len(self.stack.endpoints.gateways)
        topic_id = demo_topic.create_tiered(
            self.admin, options.topic, options.partitions, min(3, brokers)
        )
        self.output.step(
            f"history: {options.history_segments} segments of 1 MiB per partition into S3"
        )
        records = (options.history_segments + 1) * 1100 * options.partitions
        history = LibrdkafkaProducer(
            "history",
            self.bootstrap,
            options.topic,
            range(options.partitions),
            self.ledger,
            records_per_second=1e9,
            value_bytes=1000,
            config={"linger.ms": 20, "compression.type": "none", **self.login},
            limit=records,
        )
        history.start()
        history.wait()
        if self.ledger.failures:
            raise TidelineError(f"history could not be written: {self.ledger.failures[0]}")
        prefix = self._topic_prefix(topic_id)
        listing = demo_topic.wait_until_tiered(
            self.store,
            self.s3.s3_tiered_bucket,
            prefix,
            options.partitions,
            segments=options.history_segments,
            timeout_s=120,
        )
        return topic_id, listing

    def _topic_prefix(self, topic_id: UUID) -> str:
        base = self.s3.s3_tiered_prefix.strip("/")
        name = f"{self.options.topic}-{topic_id_to_base64(topic_id)}/"
        return f"{base}/{name}" if base else name

    def _listing(self, ref: TopicRef) -> dict[str, ObjectEntry]:
        prefix = self._topic_prefix(UUID(ref.topic_id))
        found = self.store.list_objects(self.s3.s3_tiered_bucket, prefix)
        return {entry.key: entry for entry in found}

    def _wal_objects(self) -> tuple[int, int]:
        found = self.diskless_objects()
        return len(found), sum(entry.size for entry in found)

    def _members(self) -> list[GroupConsumer]:
        members = [
            GroupConsumer(
                f"reader-{n}",
                self.bootstrap,
                self.options.topic,
                f"readers-of-{self.options.topic}",
                self.ledger,
                config=self.login,
            )
            for n in (1, 2)
        ]
        for member in members:
            member.start()
        for member in members:
            if not member.assigned.wait(60):
                raise TidelineError("the consumer group got no assignment within 60 s")
        return members

    @asynccontextmanager
    async def _producers(self) -> AsyncIterator[None]:
        options = self.options
        producers: list[LibrdkafkaProducer | JavaProducer] = [
            LibrdkafkaProducer(
                "librdkafka",
                self.bootstrap,
                options.topic,
                range(options.partitions),
                self.ledger,
                records_per_second=options.librdkafka_rate,
                config=self.login,
            )
        ]
        if options.java_rate:
            producers.append(
                JavaProducer(
                    "java",
                    self.bootstrap,
                    options.topic,
                    self.ledger,
                    directory=self.stack.home / "demo",
                    records_per_second=options.java_rate,
                    login=self.stack.client_properties(),
                )
            )
        async with AsyncExitStack() as cleanup:
            for producer in producers:
                producer.start()
                cleanup.push_async_callback(asyncio.to_thread, producer.stop)
            yield

    async def _until_ready(self, ref: TopicRef) -> list[PartitionMigrationStatus]:
        patience = Patience(self.options.timeout_s)
        while True:
            statuses = await self.control_plane.migration_status(ref.topic)
            self.output.progress(statuses)
            if len(statuses) == ref.partitions and all(map(is_ready, statuses)):
                return statuses
            if patience.over:
                raise TidelineError(
                    f"{ref.topic} was not hybrid after {self.options.timeout_s:.0f} s; "
                    f"`tideline status {ref.topic}` shows the phase and the reason"
                )
            await asyncio.sleep(0.25)


def is_ready(status: PartitionMigrationStatus) -> bool:
    """Whether the last phase of the partition is done."""
    return any(p.phase == Phase.READINESS and p.status == PhaseStatus.DONE for p in status.phases)


def machine() -> str:
    """The machine in a line, as benchmarks report it."""
    memory = psutil.virtual_memory().total / 2**30
    return f"{psutil.cpu_count()} cores, {memory:.0f} GiB, {platform.system()} {platform.machine()}"


def summary(proof: Proof) -> dict[str, Any]:
    """The proof in a few values, for scripts."""
    return {"ok": proof.ok, "failed": [c.name for c in proof.checks if not c.ok]}
