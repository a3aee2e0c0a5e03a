"""Postgres is lost, and rebuilt out of the bucket into an empty one or a backup that is older, as
docs/restore.md says, with clients attached.

A group and a producer go on through the loss: what the producer was told before it is there, and
what it sends waits, or is refused, until the rebuilt Postgres serves it. Then everything is read
again from the first offset and compared.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tideline.demo.context import DemoContext
from tideline.demo.later import Later
from tideline.demo.ledger import Ledger
from tideline.demo.patience import Patience
from tideline.demo.report import Check
from tideline.demo.workload import wait_until_consumed
from tideline.domain.messages import TopicRef
from tideline.errors import TidelineError
from tideline.stack.credentials import SUPERUSER

COMMAND_TIMEOUT_S = 600.0
OUTAGE_S = 900
"""A rebuild takes a minute or two, and what a test looks at before it."""
LOADED_S = 2.0
RATE = 100.0
"""Records a second while Postgres is lost."""


class Rehearsal(Later):
    """One loss and one rebuild."""

    def __init__(
        self,
        demo: DemoContext,
        ref: TopicRef,
        backup: Path | None = None,
        meanwhile: Callable[[], list[Check]] = list,
    ) -> None:
        """``backup``: restored instead of an empty Postgres, and started although gateways and
        worker run; ``meanwhile`` looks at what they do then."""
        super().__init__(demo, ref)
        self._backup, self._meanwhile = backup, meanwhile
        programs = demo.stack.programs
        self._gateways = [name for name in programs if name.startswith("gateway-")]

    async def run(self) -> list[Check]:
        """Raises :class:`TidelineError` when a command fails; a bad outcome is in the checks."""
        stack = self.demo.stack
        async with self.producing("through", rate=RATE, patience_s=OUTAGE_S):
            await asyncio.sleep(LOADED_S)
            self.step("Postgres is killed and its data removed, while a producer and a group go on")
            lost = time.monotonic()
            await asyncio.to_thread(stack.lose_postgres)
            refused = [] if self._backup is None else await self._restore(self._backup)
            self.step("gateways and worker are stopped")
            programs = [*self._gateways, "worker"]
            await asyncio.gather(*(asyncio.to_thread(stack.stop, name) for name in programs))
            if self._backup is None:
                self.step("an empty Postgres is started")
                await asyncio.to_thread(stack.start_postgres_anew)
            began = time.monotonic()
            said, written = await self._rebuild_both()
            took = time.monotonic() - began
            leave_empty(written, self.ref.topic, self.demo.ledger)
            self.step("gateways and worker are started again")
            before = self.demo.ledger.counts()[0]
            for name in programs:
                await asyncio.to_thread(stack.start, name)
            self.step(f"served again {time.monotonic() - lost:.0f} s after the loss")
            goes_on = await asyncio.to_thread(self._until_told, before)
        kept_up = await asyncio.to_thread(wait_until_consumed, self.demo.ledger, 120.0)
        self.step("another group reads the whole topic again, from the first offset")
        again = await asyncio.to_thread(self.read_again, "rebuilt", "after Postgres was rebuilt")
        trouble = [*_trouble(said), *_trouble(written)]
        return [
            *refused,
            Check(
                "Postgres was destroyed and rebuilt out of the bucket",
                bool(said["fine"]) and bool(written["fine"]) and not trouble,
                f"{len(written['logs'])} logs, {said['batches']} batches, {took:.0f} s; "
                f"{said['tail']['objects']} objects, of the last {said['tail']['ms']} ms, had "
                "outcomes that nobody told" + "".join(f"; {text}" for text in trouble),
            ),
            Check("clients go on", goes_on and kept_up, "the producer was told, the group kept up"),
            again,
        ]

    async def _restore(self, backup: Path) -> list[Check]:
        """What was seen of gateways and worker, which nobody had stopped."""
        self.step("the backup is restored and started; nobody goes on with it")
        await asyncio.to_thread(self.demo.stack.start_postgres_anew, backup)
        return await asyncio.to_thread(self._meanwhile)

    async def _rebuild_both(self) -> tuple[dict[str, Any], dict[str, Any]]:
        """The report, and what was written."""
        with tempfile.TemporaryDirectory(prefix="tideline-told-") as directory:
            told = [f"--told={path}" for path in self._told(Path(directory))]
            self.step("tideline rebuild: what the bucket tells, then --write")
            said = await self.rebuild(*told)
            because = ("--reason", "a rehearsal", "--by", "demo")
            return said, await self.rebuild("--write", *because, *told)

    def _told(self, directory: Path) -> list[Path]:
        """What gateways and the producer were told, as ``tideline rebuild --told`` reads it."""
        stack, ledger = self.demo.stack, self.demo.ledger
        states = (
            Path(stack.environment(name)["TIDELINE_GATEWAY_STATE_DIR"]) for name in self._gateways
        )
        own = directory / "acknowledged.jsonl"
        lines = (
            {
                "topic": self.ref.topic,
                "partition": p,
                "acknowledged": ledger.acknowledged_through(p),
            }
            for p in ledger.partitions
        )
        own.write_text("".join(f"{json.dumps(line)}\n" for line in lines))
        return [*(state / "tracking.json" for state in states), own]

    def _until_told(self, before: int, patience_s: float = 60.0) -> bool:
        """Whether the producer is told of new records."""
        patience = Patience(patience_s)
        while not patience.over:
            if self.demo.ledger.counts()[0] > before:
                return True
            time.sleep(0.1)
        return False

    async def rebuild(self, *arguments: str) -> dict[str, Any]:
        """What ``tideline rebuild`` says."""
        stack = self.demo.stack
        inherited = {k: v for k, v in os.environ.items() if not k.startswith("TIDELINE_")}
        own = {
            "TIDELINE_REBUILD_POSTGRES_DSN": stack.endpoints.postgres_dsn(SUPERUSER),
            "TIDELINE_HOME": str(stack.home),
        }
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-m", "tideline", "rebuild", "-o", "json", *arguments,
            env=inherited | self.demo.environment | own,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
        )  # fmt: skip
        try:
            async with asyncio.timeout(COMMAND_TIMEOUT_S):
                out, error = await process.communicate()
        finally:
            if process.returncode is None:
                process.kill()
                await process.wait()
        try:
            found: dict[str, Any] = json.loads(out)
        except ValueError:
            last = error.decode(errors="replace").strip() or f"it ended with {process.returncode}"
            raise TidelineError(f"tideline rebuild {' '.join(arguments)}: {last}") from None
        return found


def leave_empty(report: dict[str, Any], topic: str, ledger: Ledger) -> None:
    """Note what was given up because it was acknowledged to nobody: its producers send it again."""
    for log in report["logs"]:
        if log["topic"] == topic:
            for first, last in log["filled_now"]:
                ledger.leave_empty(log["partition"], first, last)


def _trouble(report: dict[str, Any]) -> list[str]:
    """What a report is not fine for."""
    found = [
        f"{log['topic']}-{log['partition']} is {log['verdict']} ({log['holes']}, {log['open']})"
        for log in report["logs"]
        if log["verdict"] not in ("whole", "behind", "unanswered")
    ]
    found += [f"unreadable: {one}" for one in report["unreadable"]["first"]]
    found += [f"told and not known: {text}" for text in report["told_and_not_known"]]
    return [*found, *report["contradictions"], *report["blockers"]]
