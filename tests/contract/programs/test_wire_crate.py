"""The native library's own tests (``wire/src/tests``), by cargo."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

from tests.support.waiting import HANGS_S

MANIFEST = Path(__file__).parents[3] / "wire/Cargo.toml"


def test_the_native_library_passes_its_own_tests() -> None:
    command = ["cargo", "test", "--quiet", "--lib", "--locked", "--offline"]
    ran = subprocess.run(
        [*command, "--manifest-path", str(MANIFEST)],
        capture_output=True,
        text=True,
        timeout=HANGS_S,
    )
    assert ran.returncode == 0, ran.stdout[-6000:] + ran.stderr[-6000:]
    told = re.search(r"test result: ok\. (\d+) passed; 0 failed; 0 ignored", ran.stdout)
    assert told is not None, ran.stdout
    assert int(told[1]) >= 20
