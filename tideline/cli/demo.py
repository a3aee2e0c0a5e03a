"""``tideline demo``: the main job, with proof."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console as RichConsole
from rich.live import Live
from rich.markdown import Markdown
from rich.table import Table

from tideline import control_plane
from tideline.cli.output import echo_json
from tideline.control_plane.model import PartitionMigrationStatus
from tideline.demo import report
from tideline.demo.context import DemoOptions, DemoOutput
from tideline.demo.run import Demo, summary
from tideline.domain.migration import PHASE_ORDER, PhaseStatus
from tideline.errors import ExitCode
from tideline.settings import WorkerSettings
from tideline.stack import Stack
from tideline.stack.home import Home
from tideline.stack.progress import live_progress
from tideline.stack.signals import end_as_by_ctrl_c


def demo(
    keep: Annotated[bool, typer.Option(help="leave the stack up to play with")] = False,
    brokers: Annotated[int | None, typer.Option(min=1, max=3, help="default: 3")] = None,
    partitions: Annotated[int, typer.Option(min=1, max=200)] = 12,
    home: Annotated[
        Path | None, typer.Option(help="the stack's directory (default: .tideline)")
    ] = None,
    rehearse: Annotated[
        bool, typer.Option(help="then lose Postgres and rebuild it out of the bucket")
    ] = False,
    secure: Annotated[
        bool, typer.Option(help="a stack with TLS, logins and rights, beside the usual one")
    ] = False,
    reports: Annotated[Path, typer.Option(help="where the proof is written")] = Path("reports"),
    output: Annotated[str, typer.Option("-o", help="text or json")] = "text",
) -> None:
    """Migrate a live tiered topic on real Kafka and prove that nothing was lost or rewritten."""
    screen = RichConsole(stderr=output == "json")
    started = time.monotonic()

    def step(text: str) -> None:
        screen.print(f"[dim]{time.monotonic() - started:6.1f} s[/dim]  {text}")

    step(
        "embedded stack: Postgres, S3, Temporal, Kafka, gateways, worker"
        + (", secured" if secure else "")
    )
    end_as_by_ctrl_c()
    with live_progress(screen) as progress:
        place = Home.locate(home).path
        if secure and home is None:
            place = place.with_name(f"{place.name}-secure")
        stack = Stack.up(place, brokers=brokers, secure=secure or None, progress=progress)
    keep = keep or stack.was_running
    try:
        options = DemoOptions(topic=_fresh_name(), partitions=partitions, rehearse=rehearse)
        with Live(console=screen, auto_refresh=False, transient=True) as live:
            console = DemoOutput(step, lambda s: live.update(progress_table(s), refresh=True))
            proof = asyncio.run(_run(stack.environment("worker"), stack, options, console))
        markdown, machine = report.write(proof, reports)
        if output == "json":
            echo_json({**summary(proof), "report": str(machine)})
        else:
            screen.print(Markdown(report.to_markdown(proof)))
        step(f"proof written to {markdown} and {machine}")
        if keep:
            step(f"the stack stays up; workflow: {proof.workflow_url}")
            step("look: tideline status; stop: make down")
    finally:
        if not keep:
            stack.down()
            step("the stack is down; no process is left")
    raise typer.Exit(ExitCode.OK if proof.ok else ExitCode.FAILED)


def _fresh_name() -> str:
    return f"orders-{time.strftime('%H%M%S')}"


async def _run(
    environment: dict[str, str], stack: Stack, options: DemoOptions, console: DemoOutput
) -> report.Proof:
    settings = WorkerSettings.of(environment)
    async with control_plane.connect(settings, application_name="tideline-demo") as plane:
        return await Demo(stack, plane, options, console).run()


def progress_table(statuses: list[PartitionMigrationStatus]) -> Table:
    """A line per partition: which phase, B0, why it waits."""
    table = Table("partition", "phase", "", "B0", "waits for")
    for status in sorted(statuses, key=lambda s: s.log.partition):
        done = [p.phase for p in status.phases if p.status == PhaseStatus.DONE]
        running = [p for p in status.phases if p.status != PhaseStatus.DONE]
        bar = "".join("■" if phase in done else "□" for phase in PHASE_ORDER)
        table.add_row(
            str(status.log.partition),
            running[-1].phase if running else (done[-1] if done else "tracking"),
            bar,
            str(status.boundary) if status.boundary >= 0 else "",
            (running[-1].waiting_reason or "") if running else "",
        )
    return table
