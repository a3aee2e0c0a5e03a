"""``make demo-disable``: tiered storage of a topic is switched off and on, and nothing is lost.

Read-only and back, off with deletion and back, by the commands that an operator types. After each
step a consumer that begins at the first offset must get every record that the producer was told to
be there, byte for byte.
"""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from confluent_kafka import Consumer, KafkaError, Message, Producer, TopicPartition
from confluent_kafka.admin import AdminClient
from rich.console import Console
from rich.table import Table

from tideline.demo import topic as topics
from tideline.demo.patience import Patience
from tideline.demo.report import Check
from tideline.domain.tiered_storage import TieringState
from tideline.domain.topic_configs import LOCAL_RETENTION_BYTES
from tideline.errors import ExitCode, TidelineError
from tideline.migration.connections import WorkerServices, open_services
from tideline.migration.tiered_storage import PartitionTiering, TopicTiering, look
from tideline.settings import WorkerSettings
from tideline.stack import Stack
from tideline.stack.progress import live_progress
from tideline.stack.signals import end_as_by_ctrl_c

HOUR_MS = 3_600_000
SEGMENT = 262_144
LOCAL = str(SEGMENT)
"""The user's ``local.retention.bytes``: one segment."""
RECORDS, RECORD_BYTES = 2_000, 500
WAIT_S = 90.0


@dataclass
class Tour:
    """One topic of one partition, and what was written into it."""

    stack: Stack
    services: WorkerServices
    loop: asyncio.Runner
    say: Callable[[str], None]
    topic: str
    checks: list[Check] = field(default_factory=list)
    written: dict[int, bytes] = field(default_factory=dict)
    """By offset, as acknowledged."""

    def __post_init__(self) -> None:
        self.admin = AdminClient({"bootstrap.servers": self.stack.endpoints.gateway_bootstrap})

    def run(self) -> None:
        """Every step. Raises :class:`TidelineError` when one cannot be done."""
        self._history()
        self._keep()
        self._enable_after_keeping()
        self._delete()
        self._enable_after_deleting()

    def _history(self) -> None:
        self.say(f"tiered topic {self.topic}: {2 * RECORDS} records of five hours ago")
        topics.create_tiered(
            self.admin, self.topic, 1, len(self.stack.endpoints.gateways), placed=(),
            **{"internal.segment.bytes": str(SEGMENT), LOCAL_RETENTION_BYTES: LOCAL},
        )  # fmt: skip
        self._write(2 * RECORDS, age_ms=5 * HOUR_MS)
        self._until("history in S3, and gone from the brokers", lambda p: p.local_start > 0)

    def _keep(self) -> None:
        self.say("disable --keep: what is tiered stays readable, nothing more is uploaded")
        self._switch("disable", "--keep")
        before = self._partition()
        self._write(RECORDS, age_ms=5 * HOUR_MS)
        after = self._partition()
        self._check(
            "read-only: nothing more is uploaded",
            after.segments == before.segments and self._look().state is TieringState.READ_ONLY,
            f"{after.segments} segments, {after.log_end - before.log_end} records more",
        )
        self._read("read-only: the whole log is read")

    def _enable_after_keeping(self) -> None:
        self.say("enable: uploading goes on where it ended")
        start = self._partition().local_start
        self._switch("enable", "--local-retention-bytes", LOCAL)
        self._until("the rest in S3", lambda p: p.local_start > start)
        self._read("enabled again: the whole log is read, without a gap")

    def _delete(self) -> None:
        # Else nothing that is tiered would be local, too, and the next step would be easy.
        topics.set_config(self.admin, self.topic, LOCAL_RETENTION_BYTES, str(4 * SEGMENT))
        self._write(RECORDS, age_ms=5 * HOUR_MS)
        end = self._partition().log_end
        self._until("it in S3", lambda p: p.highest_tiered >= end - 2 * SEGMENT // RECORD_BYTES)
        self.say("disable --delete: what is tiered goes, what is local stays")
        self._switch("disable", "--delete")
        found = self._partition()
        left = f"{found.segments} segments, {found.objects} objects are left"
        nothing = not (found.segments or found.objects)
        self._check("off: remote storage has nothing of the topic", nothing, left)
        self._read("off: every record that was local is read", gone=found.local_start)

    def _enable_after_deleting(self) -> None:
        self.say("enable: Kafka takes for tiered what it has deleted; local retention is held")
        topics.set_config(self.admin, self.topic, LOCAL_RETENTION_BYTES, LOCAL)
        self._switch("enable", waits=False)
        self._write(RECORDS)
        found = self._until("the hold", lambda p: bool(p.not_proven))
        self._check(
            "held: what Kafka claims is nowhere else, and stays local",
            found.local_start == found.log_start <= found.highest_tiered,
            found.not_proven,
        )
        self._read("held: every record is read")
        self.say("retention.ms: what is claimed expires, as in its time it would")
        topics.set_config(self.admin, self.topic, "retention.ms", str(HOUR_MS))
        self._until_switched()
        value = self._look().configs[LOCAL_RETENTION_BYTES]
        self._check("proven: the user's local retention is back", value == LOCAL, f"{value}")
        end = self._partition().log_end
        found = self._until(
            "local retention to delete again", lambda p: p.local_start > end - RECORDS // 2
        )
        self._read("at the end: every record that has not expired is read", gone=found.log_start)

    # Clients

    def _write(self, records: int, age_ms: int = 0) -> None:
        """``records`` of ``age_ms`` ago; remembers each that is acknowledged."""
        producer = Producer(
            {
                "bootstrap.servers": self.stack.endpoints.gateway_bootstrap,
                "enable.idempotence": True,
                "batch.size": 10_000,
            }
        )
        at = int(time.time() * 1000) - age_ms
        failed: list[KafkaError] = []

        def settled(error: KafkaError | None, message: Message) -> None:
            if error is not None:
                failed.append(error)
            else:
                self.written[message.offset() or 0] = message.value() or b""

        for _ in range(records):
            value = os.urandom(RECORD_BYTES // 2).hex().encode()
            producer.produce(self.topic, value, partition=0, timestamp=at, on_delivery=settled)
            producer.poll(0)
        if producer.flush(60) or failed:
            raise TidelineError(f"not every record was acknowledged: {failed[:1]}")

    def _read(self, name: str, gone: int = 0) -> None:
        """Check that a consumer gets all that was written from ``gone`` (inclusive) on."""
        self.written = {offset: v for offset, v in self.written.items() if offset >= gone}
        consumer = Consumer(
            {
                "bootstrap.servers": self.stack.endpoints.gateway_bootstrap,
                "group.id": f"reads-{self.topic}",
                "enable.auto.commit": False,
                "auto.offset.reset": "error",
            }
        )
        try:
            found = _consumed(consumer, self.topic)
        finally:
            consumer.close()
        said = f"{len(found)} records from offset {min(found, default=-1)} on"
        self._check(name, found == self.written, said)

    def _check(self, name: str, ok: bool, found: str) -> None:
        self.checks.append(Check(name, ok, found))

    # Commands

    def _switch(self, verb: str, *options: str, waits: bool = True) -> None:
        wait = ("--wait", "--timeout", str(WAIT_S)) if waits else ()
        self._tideline(verb, *options, *wait)

    def _look(self) -> TopicTiering:
        """As ``tideline tiered-storage show`` does."""
        return self.loop.run(look(self.services, self.topic))

    def _partition(self) -> PartitionTiering:
        return self._look().partitions[0]

    def _tideline(self, verb: str, *options: str) -> str:
        command = ["tiered-storage", verb, self.topic, *options, "-o", "json"]
        ended = subprocess.run(
            [sys.executable, "-m", "tideline", *command],
            env=os.environ | self.stack.environment("worker"),
            capture_output=True,
            text=True,
            timeout=4 * WAIT_S,
            check=False,
        )
        if ended.returncode != ExitCode.OK:
            raise TidelineError(f"tideline {' '.join(command)}: {ended.stderr.strip()}")
        return ended.stdout

    def _until(self, what: str, holds: Callable[[PartitionTiering], bool]) -> PartitionTiering:
        patience = Patience(WAIT_S)
        while not holds(found := self._partition()):
            if patience.over:
                raise TidelineError(f"waited {WAIT_S:.0f} s for {what}: {found}")
        return found

    def _until_switched(self) -> None:
        patience = Patience(WAIT_S)
        while (status := json.loads(self._tideline("show"))["switch"]) is not None:
            if patience.over:
                raise TidelineError(f"the switch still waits: {status['waiting_reason']}")


def _consumed(consumer: Consumer, topic: str) -> dict[int, bytes]:
    """Every record from the first offset on. Raises :class:`TidelineError` at an error."""
    where = TopicPartition(topic, 0)
    first, end = consumer.get_watermark_offsets(where, timeout=30)
    consumer.assign([TopicPartition(topic, 0, first)])
    found: dict[int, bytes] = {}
    patience = Patience(WAIT_S)
    while max(found, default=first - 1) < end - 1:
        for message in consumer.consume(1_000, timeout=1.0):
            if (error := message.error()) is not None:
                raise TidelineError(f"reading {topic}: {error.str()}")
            found[message.offset() or 0] = message.value() or b""
        if patience.over:
            raise TidelineError(f"{topic} was read to {max(found, default=-1)} of {end}")
    return found


def main() -> None:
    """Exit code FAILED when a check has failed."""
    console, started = Console(), time.monotonic()

    def say(text: str) -> None:
        console.print(f"[dim]{time.monotonic() - started:6.1f} s[/dim]  {text}")

    say("embedded stack: Postgres, S3, Temporal, Kafka, gateways, worker")
    end_as_by_ctrl_c()
    with live_progress(console) as progress:
        stack = Stack.up(Path(sys.argv[1]) if sys.argv[1:] else None, progress=progress)
    checks: list[Check] = []
    ok = False
    try:
        with asyncio.Runner() as loop:
            tour(stack, loop, say, checks)
        ok = all(check.ok for check in checks)
    except TidelineError as error:
        console.print(f"error: {error}", style="red", markup=False, soft_wrap=True)
    finally:
        console.print(_table(checks))
        if not stack.was_running:
            stack.down()
    say("every check passed" if ok else "a check failed, or a step could not be done")
    # Native threads of the Kafka client would hold the process.
    sys.stdout.flush()
    os._exit(ExitCode.OK if ok else ExitCode.FAILED)


def tour(
    stack: Stack, loop: asyncio.Runner, say: Callable[[str], None], checks: list[Check]
) -> None:
    """Fills ``checks``. Raises :class:`TidelineError` when a step cannot be done."""
    opened = open_services(WorkerSettings.of(stack.environment("worker")))
    services = loop.run(opened.__aenter__())
    try:
        topic = f"returns-{time.strftime('%H%M%S')}"
        Tour(stack, services, loop, say, topic, checks).run()
    finally:
        loop.run(opened.__aexit__(None, None, None))


def _table(checks: list[Check]) -> Table:
    table = Table("check", "verdict", "found", box=None, pad_edge=False)
    for check in checks:
        table.add_row(check.name, "ok" if check.ok else "FAILED", check.found)
    return table


if __name__ == "__main__":
    main()
