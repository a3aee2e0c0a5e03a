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
from typing import Any
from uuid import UUID

from tideline.control_plane.cataloged_jobs import connect_jobs
from tideline.demo.later import Later
from tideline.demo.report import Check, Moment, draw
from tideline.demo.topic import set_config
from tideline.demo.workload import wait_until_consumed
from tideline.domain.tiering import LogBounds
from tideline.errors import TidelineError
from tideline.settings import JobsSettings

LOCAL_RETENTION_MS = 5_000
"""What is older is tiered: everything that the migration's producers wrote."""
GRACE_MS = 61_000
"""Gateways hold keys that they have registered for 60 s (``gateway.produce.wal``)."""
COLLECTION = {"TIDELINE_GC_GRACE_MS": str(GRACE_MS), "TIDELINE_GC_MAX_PERCENT": "100"}
"""Nearly all there is goes, a minute after it was written: on a fast machine more objects than a
run deletes without being allowed to."""
JOB_TIMEOUT_S = 1_200.0
"""One that has not ended by then hangs, on any machine."""
Ends = list[tuple[int, int]]
"""Of batches: partition and last offset."""
_PROGRESS = re.compile(r"[\d.]+ s  (?P<what>\w+: .*)")
"""A line of a job's progress (``spark.common.entry``)."""


@dataclass(frozen=True, slots=True)
class Aged:
    checks: list[Check]
    picture: list[str]
    storage: dict[str, str | int]


class Aging(Later):
    """The later life of one topic, step by step."""

    async def run(self, classic: Moment) -> Aged:
        """Prove, tier, collect and read back. ``classic``: the topic before its migration."""
        hybrid, committed = await self._moment("hybrid")
        async with self.producing("later"):
            checks = [await self._prove_prefix()]
            wal_before = await self._wal_keys()
            tiering = await self._tier_suffix()
            # At once: the longer the collection takes, the more rows the producer adds.
            tiered, left = await self._moment("tiered")
            merged = sum(log.frontier - log.boundary for log in tiered.logs.values())
            checks.append(
                Check(
                    "the aged suffix is in merged segments",
                    all(
                        log.frontier > max(hybrid.logs[p].frontier, log.boundary)
                        for p, log in tiered.logs.items()
                    ),
                    f"{merged} offsets, {_numbers(tiering)}",
                )
            )
            before, after = (_rows_of_merged(rows, tiered) for rows in (committed, left))
            checks.append(
                Check(
                    "Postgres holds no batch of what is merged",
                    before > after == 0,
                    f"rows of it {before} -> {after}",
                )
            )
            if self.demo.options.collect:
                checks += await self._collect_objects(wal_before)
            wal_after = await self._wal_keys()
        kept_up = await asyncio.to_thread(wait_until_consumed, self.demo.ledger, 60.0)
        checks.append(
            Check("readers saw no difference while data moved", kept_up, "the group kept up")
        )
        self.step("another group reads the whole topic again, from the first offset")
        checks.append(await asyncio.to_thread(self.read_again, "late", "after it"))
        if self.demo.options.collect:
            checks += [await self._count_as_table(), await self._verify()]
        return Aged(
            checks=checks,
            picture=draw([classic, hybrid, tiered]),
            storage={
                "suffix, tiered again: merged offsets": merged,
                "suffix: WAL objects afterwards": len(wal_after),
            },
        )

    async def _prove_prefix(self) -> Check:
        self.step("coverage: a Spark job proves that remote storage holds every offset below B0")
        coverage = await self._job("coverage", "--topic", self.ref.topic)
        statuses = await self.demo.control_plane.migration_status(self.ref.topic)
        complete = [status.tiering_complete for status in statuses]
        return Check(
            "coverage proves the prefix",
            bool(coverage.get("ok")) and len(complete) == self.ref.partitions and all(complete),
            f"run {coverage.get('run_id')}: tieringComplete on every partition",
        )

    async def _tier_suffix(self) -> dict[str, Any]:
        topic = self.ref.topic
        self.step(
            f"local.retention.ms={LOCAL_RETENTION_MS} by a stock admin client: the suffix is aged"
        )
        await asyncio.to_thread(
            set_config, self.demo.admin, topic, "local.retention.ms", str(LOCAL_RETENTION_MS)
        )
        self.step("tiering: split and merge; clients write and read on")
        small = {"TIDELINE_TIERING_MIN_SEGMENT_BYTES": "1024"}
        return await self._job("tiering", "--topic", topic, **small)

    async def _collect_objects(self, before: set[str]) -> list[Check]:
        """gc notes what is unreferenced, and deletes at the earliest a grace later: two runs. A new
        group reads everything between them. ``before``: keys of WAL objects before the tiering."""
        self.step("object collection: what nothing refers to any more is noted")
        await self._job("gc", **COLLECTION)
        over = time.monotonic() + GRACE_MS / 1000 + 1
        self.step("a new group reads the whole topic, from the first offset, while clients go on")
        early = await asyncio.to_thread(self.read_again, "early", "before collection")
        self.step(f"the grace of {GRACE_MS // 1000} s passes, for readers and uploads under way")
        await asyncio.sleep(max(0.0, over - time.monotonic()))
        self.step("object collection: what was noted then goes")
        collected = await self._job("gc", **COLLECTION)
        gone = len(before - await self._wal_keys())
        return [
            early,
            Check(
                "S3 holds fewer WAL objects",
                gone > 0,
                f"{gone} of {len(before)} WAL objects collected; {_numbers(collected)}",
            ),
        ]

    async def _count_as_table(self) -> Check:
        topic = self.ref.topic
        self.step("a query in Spark reads the topic as a table, from object storage alone")
        found = await self._job("table", "--topic", topic)
        self.step(f"  {found['query']}")
        rows = found["topics"][topic]
        for row in rows:
            self.step("  " + ", ".join(f"{name} {value}" for name, value in row.items()))
        below, above = (sum(row[side] for row in rows) for side in ("below_b0", "from_b0"))
        acknowledged, _ = self.demo.ledger.counts()
        return Check(
            "the topic as a table has every acknowledged record, on both sides of B0",
            below + above == acknowledged and min(below, above) > 0,
            f"{below} below B0 and {above} from B0 on, {acknowledged} acknowledged",
        )

    async def _verify(self) -> Check:
        self.step("verify: each record in object storage beside the one that gateways serve")
        found = await self._job("verify", "--topic", self.ref.topic)
        (verdict,) = found["topics"]
        return Check(
            "verify: what object storage holds is what gateways serve",
            verdict["differences"] == 0 and verdict["records"] > 0,
            f"{verdict['differences']} differences in {verdict['records']} records, "
            f"{verdict['ranges']} ranges, {verdict['bytes']} bytes",
        )

    async def _moment(self, name: str) -> tuple[Moment, Ends]:
        return await asyncio.to_thread(self._read_moment, name)

    def _read_moment(self, name: str) -> tuple[Moment, Ends]:
        """With the batches that Postgres holds."""
        topic_id = UUID(self.ref.topic_id)
        settings = JobsSettings.of(self.demo.stack.environment("jobs"))
        with connect_jobs(settings, application_name="tideline-demo") as plane:
            logs = plane.log_id_range()
            found = {row.log_id: row for row in plane.partitions(*logs) if row.topic_id == topic_id}
            ends = [
                (found[batch.log_id].partition, batch.last_offset)
                for batch in plane.batches(*logs)
                if batch.log_id in found
            ]
        bounds = {
            row.partition: LogBounds(
                max(0, row.log_start),
                row.boundary,
                row.suffix_start,
                row.tiered_high_offset,
                row.high_watermark,
            )
            for row in found.values()
        }
        return Moment(name, bounds, len(ends)), ends

    async def _wal_keys(self) -> set[str]:
        found = await asyncio.to_thread(self.demo.diskless_objects, "wal/")
        return {entry.key for entry in found}

    async def _job(self, job: str, *arguments: str, **settings: str) -> dict[str, Any]:
        """The job's result document. Raises :class:`TidelineError` with its own words if it
        fails."""
        inherited = {k: v for k, v in os.environ.items() if not k.startswith("TIDELINE_")}
        with tempfile.TemporaryDirectory(prefix="tideline-demo-") as directory:
            result = Path(directory) / "result.json"
            process = await asyncio.create_subprocess_exec(
                sys.executable, "-m", f"spark.{job}", "--result", str(result), *arguments,
                env=self.demo.stack.environment("jobs") | inherited | settings,
                stdout=asyncio.subprocess.DEVNULL,
                stderr=asyncio.subprocess.PIPE,
            )  # fmt: skip
            last = await self._end_of(process, job)
            document: dict[str, Any] = json.loads(result.read_text()) if result.exists() else {}
        if process.returncode != 0:
            raise TidelineError(f"{job}: {document.get('error') or last}")
        return document

    async def _end_of(self, process: asyncio.subprocess.Process, job: str) -> str:
        """Report the job's progress until it ends; its last line."""
        last = ""
        try:
            async with asyncio.timeout(JOB_TIMEOUT_S):
                assert process.stderr is not None
                async for line in process.stderr:
                    last = line.decode(errors="replace").strip() or last
                    if progress := _PROGRESS.match(last):
                        self.step(f"  {progress['what']}")
                await process.wait()
        except TimeoutError:
            raise TidelineError(f"{job} was not done after {JOB_TIMEOUT_S:.0f} s: {last}") from None
        finally:
            if process.returncode is None:
                process.kill()
                await process.wait()
        return last


def classic_moment(acknowledged_through: Mapping[int, int]) -> Moment:
    """Before the migration everything is Kafka's. Offsets are inclusive."""
    return Moment(
        "classic",
        {p: LogBounds(0, -1, -1, -1, last + 1) for p, last in acknowledged_through.items()},
        0,
    )


def _rows_of_merged(batches: Ends, tiered: Moment) -> int:
    """How many lie in what is in merged segments."""
    return sum(last < tiered.logs[partition].frontier for partition, last in batches)


def _numbers(document: Mapping[str, Any]) -> str:
    """The numbers of a job's result, in a line."""
    parts = {"": document} | {k: v for k, v in document.items() if isinstance(v, dict)}
    numbers = [
        f"{part} {key.replace('_', ' ')} {value}".strip()
        for part, found in parts.items()
        for key, value in found.items()
        if type(value) is int and value and key not in {"elapsed_ms", "exit_code"}
    ]
    return ", ".join(numbers) or "done"
