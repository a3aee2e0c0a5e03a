"""``python -m tests.differential``: odd requests to a gateway and to the broker beside it
(docs/differential.md)."""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from tests.differential.pair import machine_on
from tideline.stack import Stack
from tideline.stack.signals import end_as_by_ctrl_c

PARTS = ("postgres", "s3", "temporal", "kafka", "gateway", "worker")
"""The worker lets topics be born diskless."""


def main(given: Sequence[str] | None = None) -> int:
    """1 if two answers differ without a reason."""
    parser = argparse.ArgumentParser(prog="make differential", description=__doc__)
    parser.add_argument("--requests", type=int, default=100_000, help="how many")
    parser.add_argument("--seed", type=int, default=1, help="which")
    parser.add_argument("--home", help="of a stack that stays; default: one of its own")
    asked = parser.parse_args(given)
    end_as_by_ctrl_c()
    home = Path(asked.home or tempfile.mkdtemp(prefix="tideline-differential-"))
    home.mkdir(parents=True, exist_ok=True)
    home.chmod(0o755)
    stack = Stack.up(home, brokers=3, parts=PARTS)
    try:
        with machine_on(stack) as machine:
            report = machine.run(asked.seed, asked.requests)
        print(report.text())
    finally:
        if asked.home is None:
            Stack.take_down(home)
    if asked.home is None and not report.found:
        Stack.purge(home)
    return 1 if report.found else 0


if __name__ == "__main__":
    sys.exit(main())
