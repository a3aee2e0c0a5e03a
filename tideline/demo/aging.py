"""What happens to a hybrid topic later: its prefix is proven, its aged suffix becomes segments.

The jobs run as they run in production, each as a process of its own, while a producer and the
consumer group go on. Then everything is read again from the first offset and compared.
"""

from __future__ import annotations

import asyncio
import json
import os
import re
import sys
import tempfile
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any
from uuid import UUID

from tideline.control_plane.jobs import connect_jobs
from tideline.demo.history import list_objects
from tideline.demo.picture import Moment, draw
from tideline.demo.report import Check
from tideline.demo.topic import set_config
from tideline.demo.workload import GroupConsumer, LibrdkafkaProducer, wait_until_consumed
from tideline.domain.messages import TopicRef
from tideline.domain.tiering import LogBounds
from tideline.errors import TidelineError
from tideline.settings import JobsSettings

if TYPE_CHECKING:
    from tideline.demo.run import Demo

LOCAL_RETENTION_MS = 5_000
"""What is older is tiered: everything that the migration's producers wrote."""
GRACE_MS = 61_000
"""Gateways hold keys that they have registered for 60 s (``gateway.produce.wal``)."""
JOB_TIMEOUT_S = 300.0
WHEN = {"early": "before collection", "late": "after it"}
_PROGRESS = re.compile(r"[\d.]+ s  (?P<what>\w+: .*)")
"""A line of a job's progress (``spark.common.entry``)."""


@dataclass(frozen=True, slots=True)
class Aged:
    """What was found, for the proof."""

    checks: list[Check]
    picture: list[str]
    storage: dict[str, str | int]


async def age(demo: Demo, ref: TopicRef, classic: Moment) -> Aged:
    """Prove, tier, collect and read back. ``classic``: the topic before its migration."""
    step, settings = demo.console.step, JobsSettings.of(demo.stack.environment("jobs"))
    producer = LibrdkafkaProducer(
        "later", demo.bootstrap, ref.topic, range(ref.partitions), demo.ledger,
        records_per_second=ref.partitions,
    )  # fmt: skip
    hybrid = await asyncio.to_thread(_moment, "hybrid", settings, ref)
    producer.start()
    try:
        step("coverage: a Spark job proves that remote storage holds every offset below B0")
        coverage = await _run_job(demo, "coverage", ref)
        wal_before = await asyncio.to_thread(_wal_keys, demo)
        step(f"local.retention.ms={LOCAL_RETENTION_MS} by a stock admin client: the suffix is aged")
        await asyncio.to_thread(
            set_config, demo.admin, ref.topic, "local.retention.ms", str(LOCAL_RETENTION_MS)
        )
        step("tiering: split and merge; clients write and read on")
        tiering = await _run_job(demo, "tiering", ref, TIDELINE_TIERING_MIN_SEGMENT_BYTES="1024")
        step("object collection: what nothing refers to any more is noted")
        await _run_job(demo, "gc", None, TIDELINE_GC_GRACE_MS=str(GRACE_MS))
        noted = time.monotonic()
        step("a new group reads the whole topic, from the first offset, while clients go on")
        early = await asyncio.to_thread(_read_again, demo, ref, "early")
        left_s = noted + GRACE_MS / 1000 + 1 - time.monotonic()
        step(f"the grace of {GRACE_MS // 1000} s passes, for readers and uploads under way")
        await asyncio.sleep(max(0.0, left_s))
        step("object collection: what was noted then goes")
        collected = await _run_job(demo, "gc", None, TIDELINE_GC_GRACE_MS=str(GRACE_MS))
        tiered = await asyncio.to_thread(_moment, "tiered", settings, ref)
        wal_after = await asyncio.to_thread(_wal_keys, demo)
    finally:
        await asyncio.to_thread(producer.stop)
    caught_up = await asyncio.to_thread(wait_until_consumed, demo.ledger, 60.0)
    step("another group reads the whole topic again, from the first offset")
    late = await asyncio.to_thread(_read_again, demo, ref, "late")
    merged = sum(log.frontier - log.boundary for log in tiered.logs.values())
    return Aged(
        checks=[
            Check(
                "coverage proves the prefix",
                bool(coverage.get("ok")) and await _covered(demo, ref),
                f"run {coverage.get('run_id')}: tieringComplete on every partition",
            ),
            Check(
                "the aged suffix is in merged segments",
                all(
                    log.frontier > max(hybrid.logs[p].frontier, log.boundary)
                    for p, log in tiered.logs.items()
                ),
                f"{merged} offsets, {_told(tiering)}",
            ),
            Check(
                "Postgres holds fewer batches, S3 fewer WAL objects",
                tiered.rows < hybrid.rows and bool(wal_before - wal_after),
                f"rows {hybrid.rows} -> {tiered.rows}, {len(wal_before - wal_after)} of "
                f"{len(wal_before)} WAL objects collected; {_told(collected)}",
            ),
            Check("readers saw no difference while data moved", caught_up, "the group kept up"),
            early,
            late,
        ],
        picture=draw([classic, hybrid, tiered]),
        storage={
            "suffix, tiered again: merged offsets": merged,
            "suffix: WAL objects after collection": len(wal_after),
        },
    )


def classic_moment(acknowledged_through: Mapping[int, int]) -> Moment:
    """Before the migration everything is Kafka's. Offsets are inclusive."""
    return Moment(
        "classic",
        {p: LogBounds(0, -1, -1, -1, last + 1) for p, last in acknowledged_through.items()},
        0,
    )


def _moment(name: str, settings: JobsSettings, ref: TopicRef) -> Moment:
    topic_id = UUID(ref.topic_id)
    with connect_jobs(settings, application_name="tideline-demo") as plane:
        found = [row for row in plane.partitions(*plane.log_id_range()) if row.topic_id == topic_id]
        rows = sum(s.pending_batches + s.pending_split_batches
                   for s in plane.tiering_status(ref.topic))  # fmt: skip
    return Moment(
        name,
        {
            row.partition: LogBounds(
                max(0, row.log_start),
                row.boundary,
                row.suffix_start,
                row.tiered_high_offset,
                row.high_watermark,
            )
            for row in found
        },
        rows,
    )


async def _run_job(
    demo: Demo, job: str, ref: TopicRef | None, **settings: str
) -> dict[str, Any]:  # fmt: skip
    """The job's result document. Raises :class:`TidelineError` with its own words if it fails."""
    with tempfile.TemporaryDirectory(prefix="tideline-demo-") as directory:
        result = Path(directory) / "result.json"
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-m", f"spark.{job}", "--result", str(result),
            *(("--topic", ref.topic) if ref else ()),
            env=demo.stack.environment("jobs") | _inherited() | settings,
            stdout=asyncio.subprocess.DEVNULL,
            stderr=asyncio.subprocess.PIPE,
        )  # fmt: skip
        last = ""
        try:
            async with asyncio.timeout(JOB_TIMEOUT_S):
                assert process.stderr is not None
                async for line in process.stderr:
                    last = line.decode(errors="replace").strip() or last
                    if progress := _PROGRESS.match(last):
                        demo.console.step(f"  {progress['what']}")
                await process.wait()
        except TimeoutError:
            raise TidelineError(f"{job} was not done after {JOB_TIMEOUT_S:.0f} s: {last}") from None
        finally:
            if process.returncode is None:
                process.kill()
                await process.wait()
        document: dict[str, Any] = json.loads(result.read_text()) if result.exists() else {}
    if process.returncode != 0:
        raise TidelineError(f"{job}: {document.get('error') or last}")
    return document


def _inherited() -> dict[str, str]:
    return {k: v for k, v in os.environ.items() if not k.startswith("TIDELINE_")}


async def _covered(demo: Demo, ref: TopicRef) -> bool:
    statuses = await demo.control_plane.migration_status(ref.topic)
    return len(statuses) == ref.partitions and all(s.tiering_complete for s in statuses)


def _wal_keys(demo: Demo) -> set[str]:
    return set(list_objects(demo.s3, demo.environment["TIDELINE_S3_BUCKET"], "wal/"))


def _read_again(demo: Demo, ref: TopicRef, when: str) -> Check:
    ledger = demo.ledger.for_another_reader()
    member = GroupConsumer(when, demo.bootstrap, ref.topic, f"{when}-{ref.topic}", ledger)
    member.start()
    try:
        done = wait_until_consumed(ledger, 120.0)
    finally:
        member.stop()
    verdicts = [ledger.verdict(p) for p in range(ref.partitions)]
    acknowledged, consumed = ledger.counts()
    return Check(
        f"every acknowledged record is read from the first offset, {WHEN[when]}",
        done and all(v.ok for v in verdicts) and not member.resets,
        f"{acknowledged} acknowledged, {consumed} consumed across prefix, merged segments and WAL",
    )


def _told(document: Mapping[str, Any]) -> str:
    """The numbers of a job's result, in a line."""
    parts = {"": document} | {k: v for k, v in document.items() if isinstance(v, dict)}
    told = [
        f"{part} {key.replace('_', ' ')} {value}".strip()
        for part, numbers in parts.items()
        for key, value in numbers.items()
        if type(value) is int and value and key not in {"elapsed_ms", "exit_code"}
    ]
    return ", ".join(told) or "done"
