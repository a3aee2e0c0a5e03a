"""`python -m benchmarks [--topics N]`: run the benchmarks on a stack of their own."""

from __future__ import annotations

import argparse
import asyncio
import sys
import tempfile
import time
from pathlib import Path

from benchmarks import write_pause
from tideline import control_plane
from tideline.demo.run import Console, DemoOptions, machine
from tideline.settings import WorkerSettings
from tideline.stack import Stack


async def run(stack: Stack, topics: int, console: Console) -> write_pause.PauseResult:
    settings = WorkerSettings.of(stack.environment("worker"))
    options = DemoOptions(topic="pause", history_segments=1, java_rate=0, before_s=5, after_s=3,
                          librdkafka_rate=1200)  # fmt: skip
    async with control_plane.connect(settings, application_name="tideline-bench") as plane:
        return await write_pause.measure(stack, plane, topics, options, console)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--topics", type=int, default=9, help="topics of 12 partitions each")
    parser.add_argument("--reports", type=Path, default=Path("reports"))
    arguments = parser.parse_args()
    started = time.monotonic()

    def step(text: str) -> None:
        print(f"{time.monotonic() - started:6.1f} s  {text}", file=sys.stderr)

    with tempfile.TemporaryDirectory(prefix="tideline-bench-") as home:
        Path(home).chmod(0o755)
        step("embedded stack")
        stack = Stack.up(home, brokers=3)
        try:
            result = asyncio.run(run(stack, arguments.topics, Console(step)))
        finally:
            stack.down()
    report = write_pause.to_markdown(result, machine())
    arguments.reports.mkdir(parents=True, exist_ok=True)
    (arguments.reports / "write-pause.md").write_text(report + "\n")
    print(report)
    return 1 if result.failed_checks else 0


if __name__ == "__main__":
    sys.exit(main())
