"""Memory that a large frame gave back is there for the next one."""

from __future__ import annotations

import resource
import subprocess
import sys

_FRAMES = """
import resource
from tideline.gateway.allocator import keep_freed_memory

assert keep_freed_memory()

def frames():
    for _ in range(50):
        held = [bytearray(1_050_000) for _ in range(3)]
        del held

frames()
before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
frames()
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""


def test_frames_of_a_megabyte_do_not_get_their_pages_anew() -> None:
    found = subprocess.run(
        [sys.executable, "-c", _FRAMES], capture_output=True, text=True, check=True, timeout=60
    )
    pages = 50 * 3 * 1_050_000 // resource.getpagesize()
    assert int(found.stdout) < pages / 20
