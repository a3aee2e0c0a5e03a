"""Postgres is lost and rebuilt out of the bucket, as docs/restore.md says, with clients attached.

A group goes on; a producer rests for the moment of the loss, so that nothing is left untold, and
goes on behind it: its requests wait, or are refused, until the rebuilt Postgres serves them. Then
everything is read again from the first offset and compared.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
import time
from typing import Any

from tideline.demo.later import Later
from tideline.demo.report import Check
from tideline.demo.workload import wait_until_consumed
from tideline.errors import TidelineError
from tideline.stack.credentials import SUPERUSER

COMMAND_TIMEOUT_S = 600.0
TOLD_AFTER_S = 2.0
"""A gateway has told the outcomes of its last commits within a second of its last object."""


class Rehearsal(Later):
    """One loss and one rebuild."""

    async def run(self) -> list[Check]:
        """Raises :class:`TidelineError` when a command fails; a bad outcome is in the checks."""
        stack = self.demo.stack
        gateways = [name for name in stack.programs if name.startswith("gateway-")]
        self.step("a producer writes, and rests for the moment in which Postgres is lost")
        async with self.producing("before"):
            await asyncio.sleep(TOLD_AFTER_S)
        await asyncio.sleep(TOLD_AFTER_S)
        self.step("Postgres is killed and its data removed, while the group goes on")
        lost = time.monotonic()
        await asyncio.to_thread(stack.lose_postgres)
        async with self.producing("after"):
            self.step("gateways and worker are stopped; an empty Postgres is started")
            await asyncio.gather(*(asyncio.to_thread(stack.stop, n) for n in [*gateways, "worker"]))
            await asyncio.to_thread(stack.start_postgres_anew)
            self.step("tideline rebuild: what the bucket tells, then --write")
            said = await self._rebuild()
            began = time.monotonic()
            written = await self._rebuild("--write", "--reason", "a rehearsal", "--by", "demo")
            took = time.monotonic() - began
            self.step("gateways and worker are started again")
            before = self.demo.ledger.counts()[0]
            for name in [*gateways, "worker"]:
                await asyncio.to_thread(stack.start, name)
            self.step(f"served again {time.monotonic() - lost:.0f} s after the loss")
            goes_on = await asyncio.to_thread(self._until_told, before)
        kept_up = await asyncio.to_thread(wait_until_consumed, self.demo.ledger, 120.0)
        self.step("another group reads the whole topic again, from the first offset")
        again = await asyncio.to_thread(self.read_again, "rebuilt", "after Postgres was rebuilt")
        return [
            Check(
                "Postgres was destroyed and rebuilt out of the bucket",
                bool(said["fine"]) and bool(written["fine"]),
                f"{len(written['logs'])} logs, {said['batches']} batches, {took:.0f} s"
                + "".join(f"; {text}" for text in [*_trouble(said), *_trouble(written)]),
            ),
            Check("clients go on", goes_on and kept_up, "the producer was told, the group kept up"),
            again,
        ]

    def _until_told(self, before: int, patience_s: float = 60.0) -> bool:
        """Whether the producer is told of new records."""
        end = time.monotonic() + patience_s
        while time.monotonic() < end:
            if self.demo.ledger.counts()[0] > before:
                return True
            time.sleep(0.1)
        return False

    async def _rebuild(self, *arguments: str) -> dict[str, Any]:
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


def _trouble(report: dict[str, Any]) -> list[str]:
    """What a report is not fine for."""
    found = [
        f"{log['topic']}-{log['partition']} is {log['verdict']} ({log['holes']}, {log['open']})"
        for log in report["logs"]
        if log["verdict"] not in ("whole", "behind")
    ]
    found += [f"unreadable: {one}" for one in report["unreadable"]["first"]]
    return [*found, *report["contradictions"], *report["blockers"]]
