"""`python -m benchmarks [--topics N] [--only NAME]`: run the benchmarks on a stack of their own,
and write their lines of docs/performance.md."""

from __future__ import annotations

import argparse
import asyncio
import re
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

from benchmarks import coverage, gc, growth, page, read_latency, tiering, write_pause
from benchmarks.own_stack import own_stack
from tideline import control_plane
from tideline.demo.context import DemoOptions, DemoOutput
from tideline.demo.run import machine
from tideline.domain.options import Durability
from tideline.settings import WorkerSettings
from tideline.stack import Stack

OPTIONS = DemoOptions(
    aging=False,
    topic="pause",
    history_segments=1,
    java_rate=0,
    librdkafka_rate=600,
    before_s=4,
    after_s=3,
)


async def _write_pause(
    stack: Stack,
    topics: int,
    durabilities: Sequence[str],
    rate: float,
    step: Callable[[str], None],
) -> dict[str, write_pause.PauseResult]:
    settings = WorkerSettings.of(stack.environment("worker"))
    async with control_plane.connect(settings, application_name="tideline-bench") as plane:
        return await write_pause.measure(
            stack,
            plane,
            topics,
            durabilities,
            replace(OPTIONS, librdkafka_rate=rate),
            DemoOutput(step),
        )


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--only",
        choices=["coverage", "growth", "write-pause", "read-latency", "tiering", "gc"],
    )
    parser.add_argument("--topics", type=int, default=9, help="topics of 12 partitions each")
    parser.add_argument(
        "--rate", type=float, default=OPTIONS.librdkafka_rate, help="records per second per topic"
    )
    parser.add_argument(
        "--durability",
        action="append",
        choices=[durability.value for durability in Durability],
        help="of the write pause; may be repeated, then the topics take turns",
    )
    parser.add_argument(
        "--rounds", type=int, default=5, help="rounds of reads, coverage and tiering"
    )
    parser.add_argument("--partitions", type=int, default=2_000, help="partitions of coverage")
    parser.add_argument("--segments", type=int, default=2_500, help="segments of each of them")
    parser.add_argument("--megabytes", type=int, default=100, help="of one round of tiering")
    parser.add_argument("--objects", type=int, default=20_000, help="objects of gc")
    parser.add_argument(
        "--rows", type=int, nargs="+", default=[1_000_000], help="batch rows of growth"
    )
    parser.add_argument(
        "--parts", type=int, nargs="+", default=[0, 16], help="hash partitions of growth; 0: none"
    )
    parser.add_argument("--reports", type=Path, default=Path("reports"))
    arguments = parser.parse_args()
    arguments.reports.mkdir(parents=True, exist_ok=True)
    started = time.monotonic()
    failed = False

    def step(text: str) -> None:
        print(f"{time.monotonic() - started:6.1f} s  {text}", file=sys.stderr)

    def report(name: str, text: str, figure: page.Figure | None) -> None:
        (arguments.reports / f"{name}.md").write_text(text + "\n")
        print(f"# {name}\n\n{text}\n")
        if figure is not None:
            flags = re.sub(r"--only \S+", "", " ".join(sys.argv[1:]))
            command = " ".join(["--only", name, *flags.split()])
            where = f"{datetime.now(UTC):%Y-%m-%d}, {machine()}"
            page.write(page.PAGE, name, figure, command, where)

    if arguments.only in (None, "coverage"):
        with tempfile.TemporaryDirectory(prefix="tideline-coverage-") as fleet:
            covers = coverage.measure(
                Path(fleet), arguments.partitions, arguments.segments, arguments.rounds, step
            )
        failed = bool(covers.wrong)
        figure = None if failed else coverage.figure(covers)
        report("coverage", coverage.to_markdown(covers, machine()), figure)
        if arguments.only == "coverage":
            return 1 if failed else 0
    if arguments.only in (None, "growth"):
        grown = growth.measure(arguments.rows, arguments.parts, arguments.rounds, step)
        report("growth", growth.to_markdown(grown, machine()), growth.figure(grown))
        if arguments.only == "growth":
            return 0
    with own_stack(step) as stack:
        if arguments.only in (None, "write-pause"):
            durabilities = arguments.durability or [write_pause.DEFAULT]
            pauses = asyncio.run(
                _write_pause(stack, arguments.topics, durabilities, arguments.rate, step)
            )
            wrong = any(result.failed_checks for result in pauses.values())
            figure = None if wrong else write_pause.figure(pauses)
            report("write-pause", write_pause.to_markdown(pauses, machine()), figure)
            failed = failed or wrong
        if arguments.only in (None, "read-latency"):
            reads = read_latency.measure(stack, arguments.rounds, step)
            figure = read_latency.figure(reads)
            report("read-latency", read_latency.to_markdown(reads, machine()), figure)
        if arguments.only in (None, "tiering"):
            tiered = tiering.measure(stack, arguments.rounds, arguments.megabytes, step)
            figure = tiering.figure(tiered)
            report("tiering", tiering.to_markdown(tiered, machine()), figure)
        if arguments.only in (None, "gc"):
            swept = gc.measure(stack, arguments.objects, arguments.rounds, step)
            figure = None if swept.wrong else gc.figure(swept)
            report("gc", gc.to_markdown(swept, machine()), figure)
            failed = failed or swept.wrong
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
