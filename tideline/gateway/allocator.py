"""What the C library's allocator does with memory that large frames gave back, and Python's
collector with what is there for good.

By glibc's own rules it goes back to the kernel as soon as a few megabytes are free, and the next
frame of a megabyte gets its pages anew, one fault for every 4 KiB: two thirds of what such a frame
cost. The memory that is kept instead is bounded, and small beside the bound on what frames hold.
"""

from __future__ import annotations

import ctypes
import gc
import sys
from dataclasses import dataclass
from functools import partial

from tideline.gateway.metrics import HEAP_BYTES, OBJECTS

_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3
"""``M_TRIM_THRESHOLD`` and ``M_MMAP_THRESHOLD`` of ``malloc.h``."""
KEPT_BYTES = 64 * 1024 * 1024
"""Free memory at the end of the heap up to which none is given back."""
MAPPED_BYTES = 32 * 1024 * 1024
"""What is larger is mapped by itself and given back at once: the most that glibc allows."""


def keep_freed_memory() -> bool:
    """For this process; ``False`` where the C library has no such setting, and nothing changes."""
    set_option = getattr(ctypes.CDLL(None), "mallopt", None)
    if set_option is None:
        return False
    mapped = set_option(_MMAP_THRESHOLD, MAPPED_BYTES)
    return bool(mapped and set_option(_TRIM_THRESHOLD, KEPT_BYTES))


def keep_what_is_loaded() -> None:
    """What there is now stays for as long as the process does: the collector of cycles looks at it
    no more, which took 0.1 s of the event loop each time. At all else it looks as often as
    before."""
    gc.collect()
    gc.freeze()


class _Mallinfo2(ctypes.Structure):
    """``struct mallinfo2`` of ``malloc.h``."""

    _fields_ = tuple(
        (name, ctypes.c_size_t)
        for name in (
            "arena", "ordblks", "smblks", "hblks", "hblkhd", "usmblks", "fsmblks", "uordblks",
            "fordblks", "keepcost",
        )
    )  # fmt: skip


@dataclass(frozen=True, slots=True)
class Heap:
    """Of this process, by the C library; memory of small Python objects lies outside of it."""

    used_bytes: int
    free_bytes: int
    """Given back by the program and kept for what comes next: what large frames once needed."""


def heap() -> Heap | None:
    """``None`` where the C library does not tell (glibc does since 2.33)."""
    mallinfo2 = getattr(ctypes.CDLL(None), "mallinfo2", None)
    if mallinfo2 is None:
        return None
    mallinfo2.restype = _Mallinfo2
    told = mallinfo2()
    return Heap(told.uordblks + told.hblkhd, told.fordblks)


def note_memory() -> None:
    """Metrics of what this process needs, apart from what its allocator keeps: a scrape asks."""
    OBJECTS.set_function(lambda: float(sys.getallocatedblocks()))
    if heap() is None:
        return
    for state in ("used", "free"):
        HEAP_BYTES.labels(state).set_function(partial(_heap_bytes, f"{state}_bytes"))


def _heap_bytes(of: str) -> float:
    return float(getattr(heap(), of, 0))
