"""``make demo-racks``: the demo of racks, from the start of its stack to the last process."""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from confluent_kafka import KafkaException
from rich.console import Console
from rich.table import Table

from tideline.demo.rack_tour import BROKERS, MANAGED, RACKS, TRANSFORMER, RackTour
from tideline.demo.report import Check
from tideline.demo.run import machine
from tideline.demo.zones import Stage
from tideline.errors import ExitCode, TidelineError
from tideline.stack import Stack
from tideline.stack.home import Home
from tideline.stack.progress import live_progress
from tideline.stack.signals import end_as_by_ctrl_c

LEGEND = (
    "kB in, out: produced, fetched by clients that say where they are; left: went to another rack. "
    "Of each rack: the longest time in ms without an acknowledgement in one of its partitions."
)


def main() -> None:
    """Exit code FAILED when a check has failed."""
    arguments = _arguments(sys.argv[1:])
    console, started = Console(stderr=arguments.output == "json"), time.monotonic()

    def say(text: str) -> None:
        console.print(f"[dim]{time.monotonic() - started:6.1f} s[/dim]  {text}")

    say(f"embedded stack of its own: {BROKERS} brokers with gateways in {RACKS} racks")
    end_as_by_ctrl_c()
    Stack.purge(arguments.home)
    checks: list[Check] = []
    stages: list[Stage] = []
    ok = False
    try:
        with live_progress(console) as progress:
            stack = Stack.up(
                arguments.home, brokers=BROKERS, racks=RACKS,
                settings=MANAGED | {TRANSFORMER: "false"}, progress=progress,
            )  # fmt: skip
        RackTour(stack, say, checks, stages).run()
        ok = all(check.ok for check in checks)
    except (TidelineError, KafkaException) as error:
        console.print(f"error: {error}", style="red", markup=False, soft_wrap=True)
    finally:
        (Stack.purge if ok else Stack.take_down)(arguments.home)
        console.print(stage_table(stages), check_table(checks), sep="\n")
    if arguments.output == "json":
        print(json.dumps(summary(ok, stages, checks, time.monotonic() - started)))
    say(
        "every check passed; no process is left"
        if ok
        else f"a check failed, or a step could not be done: {arguments.home / 'logs'}"
    )
    # Native threads of the Kafka client would hold the process.
    sys.stdout.flush()
    os._exit(ExitCode.OK if ok else ExitCode.FAILED)


def _arguments(given: Sequence[str]) -> argparse.Namespace:
    usual = Home.locate().path
    parser = argparse.ArgumentParser(prog="make demo-racks")
    parser.add_argument(
        "home", nargs="?", type=Path, default=usual.with_name(f"{usual.name}-racks"),
        help="of the stack; emptied before, and afterwards when all is well",
    )  # fmt: skip
    parser.add_argument("-o", dest="output", choices=("text", "json"), default="text")
    return parser.parse_args(given)


def stage_table(stages: Sequence[Stage]) -> Table:
    """What left a rack in each stage, and how long each rack waited."""
    racks = sorted({rack for stage in stages for rack in stage.gaps})
    table = Table("stage", box=None, pad_edge=False, caption_justify="left", caption=LEGEND)
    for head in ("s", "kB in", "left", "kB out", "left", *racks):
        table.add_column(head, justify="right", no_wrap=True)
    for stage in stages:
        cells = [
            cell
            for crossing in stage.bytes.values()
            for cell in (
                f"{(crossing.same + crossing.other) / 1e3:.0f}",
                f"{crossing.leaving:.0%}",
            )
        ]
        gaps = [f"{stage.gaps[rack]:.0f}" for rack in racks]
        table.add_row(stage.name, f"{stage.ended - stage.began:.0f}", *cells, *gaps)
    return table


def check_table(checks: Sequence[Check]) -> Table:
    table = Table("check", "verdict", "found", box=None, pad_edge=False)
    for check in checks:
        table.add_row(check.name, "ok" if check.ok else "FAILED", check.found)
    return table


def summary(
    ok: bool, stages: Sequence[Stage], checks: Sequence[Check], seconds: float
) -> dict[str, Any]:
    """For scripts: bytes by direction, gaps in ms by rack."""
    return {
        "ok": ok,
        "machine": machine(),
        "seconds": round(seconds, 1),
        "stages": [
            {
                "name": stage.name,
                "seconds": round(stage.ended - stage.began, 1),
                "bytes": {
                    direction: {
                        "same": crossing.same,
                        "other": crossing.other,
                        "unknown": crossing.unknown,
                    }
                    for direction, crossing in stage.bytes.items()
                },
                "longest_gap_ms": {rack: round(gap) for rack, gap in stage.gaps.items()},
            }
            for stage in stages
        ],
        "checks": [{"name": check.name, "ok": check.ok, "found": check.found} for check in checks],
    }


if __name__ == "__main__":
    main()
