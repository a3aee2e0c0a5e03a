"""Memory that a large frame gave back is there for the next one."""

from __future__ import annotations

import resource
import subprocess
import sys

from prometheus_client import REGISTRY, generate_latest
from prometheus_client.parser import text_string_to_metric_families

from tests.support.waiting import HANGS_S
from tideline.gateway.allocator import note_memory

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
        [sys.executable, "-c", _FRAMES], capture_output=True, text=True, check=True, timeout=HANGS_S
    )
    pages = 50 * 3 * 1_050_000 // resource.getpagesize()
    assert int(found.stdout) < pages / 20


_COLLECTED = """
import gc, weakref
from tideline.gateway.allocator import keep_what_is_loaded

thresholds = gc.get_threshold()
keep_what_is_loaded()
assert gc.get_freeze_count() > 10_000
assert gc.get_threshold() == thresholds
assert gc.isenabled()

class Knot:
    def __init__(self):
        self.itself = self

left = weakref.ref(Knot())
looked_at = len(gc.get_objects())
gc.collect()
assert left() is None
print(looked_at)
"""


def test_what_is_loaded_is_not_collected_any_more_and_what_comes_later_is_as_often() -> None:
    found = subprocess.run(
        [sys.executable, "-c", _COLLECTED],
        capture_output=True,
        text=True,
        check=True,
        timeout=HANGS_S,
    )
    assert int(found.stdout) < 1_000


_HEAP = """
from tideline.gateway.allocator import heap, keep_freed_memory

assert keep_freed_memory()
before = heap()
held = [bytearray(1_050_000) for _ in range(20)]
with_frames = heap()
del held
after = heap()
print(with_frames.used_bytes - before.used_bytes, after.used_bytes - before.used_bytes,
      after.free_bytes - before.free_bytes)
"""


def test_what_is_kept_of_frames_is_told_apart_from_what_is_used() -> None:
    found = subprocess.run(
        [sys.executable, "-c", _HEAP], capture_output=True, text=True, check=True, timeout=HANGS_S
    )
    with_frames, used, free = map(int, found.stdout.split())
    frames = 20 * 1_050_000
    assert with_frames >= frames
    assert used < frames / 20
    assert free > frames * 0.9


def test_a_scrape_tells_of_the_heap_and_of_objects() -> None:
    note_memory()
    page = generate_latest(REGISTRY).decode()
    told = {
        (sample.name, sample.labels.get("state")): sample.value
        for family in text_string_to_metric_families(page)
        for sample in family.samples
    }
    assert told["inkless_gateway_python_blocks", None] > 10_000
    assert told["inkless_gateway_heap_bytes", "used"] > 1_000_000
    assert told["inkless_gateway_heap_bytes", "free"] >= 0
