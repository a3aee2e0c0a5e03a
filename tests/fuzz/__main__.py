"""``python -m tests.fuzz``: a gateway among hostile clients (docs/hostile-clients.md)."""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from tests.fuzz.run import PARTS, SETTINGS, narrowed, run
from tideline.stack import Stack
from tideline.stack.signals import end_as_by_ctrl_c


def main(given: Sequence[str] | None = None) -> int:
    """1 if something did not hold."""
    parser = argparse.ArgumentParser(prog="make fuzz", description=__doc__)
    parser.add_argument("--frames", type=int, default=1_000_000, help="how many")
    parser.add_argument("--seconds", type=float, default=3_600, help="and no longer than this")
    parser.add_argument("--seed", type=int, default=1, help="what is sent")
    parser.add_argument("--first", type=int, default=0, help="connections to leave out")
    parser.add_argument("--at-once", type=int, default=32, help="connections side by side")
    parser.add_argument("--home", help="of a stack that stays; default: one of its own")
    asked = parser.parse_args(given)
    end_as_by_ctrl_c()
    home = Path(asked.home or tempfile.mkdtemp(prefix="tideline-fuzz-"))
    home.chmod(0o755)
    stack = Stack.up(home, brokers=1, parts=PARTS, settings=SETTINGS)
    try:
        result = run(
            stack,
            asked.seed,
            frames=asked.frames,
            seconds=asked.seconds,
            at_once=asked.at_once,
            first=asked.first,
        )
        report = Path("reports") / f"fuzz-{asked.seed}.json"
        result.save(report)
        print(result.text())
        for frame in narrowed(stack, result.suspects):
            print(f"one frame that shows it: {frame}")
        print(f"written to {report}")
    finally:
        Stack.take_down(home)
    if not result.found and asked.home is None:
        Stack.purge(home)
    return 1 if result.found else 0


if __name__ == "__main__":
    sys.exit(main())
