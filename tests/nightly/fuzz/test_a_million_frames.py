"""A running gateway among hostile clients (docs/hostile-clients.md)."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.waiting import HANGS_S, exited, stopped

pytestmark = pytest.mark.timeout(1800)

FRAMES = 1_000_000
SEED = 2
AT_MOST_S = 600
"""Of sending. A machine that others use sends fewer in that time."""


def test_a_gateway_keeps_its_promises_among_hostile_clients(tmp_path: Path) -> None:
    written = tmp_path / "fuzz.log"
    attack = ["--frames", f"{FRAMES}", "--seconds", f"{AT_MOST_S}", "--seed", f"{SEED}"]
    with written.open("w") as log:
        attacking = subprocess.Popen(
            [sys.executable, "-m", "tests.fuzz", *attack], stdout=log, stderr=log
        )
        try:
            code = exited(attacking, "the attack", AT_MOST_S + HANGS_S)
        finally:
            stopped(attacking)  # and its stack
    assert code == 0, written.read_text()
