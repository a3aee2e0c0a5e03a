"""Memory that merge frees stays with the process.

A segment is made of pieces of some hundred kilobytes to 8 MiB that are taken and freed again and
again. What glibc gives back to the kernel each time comes back page by page, which costs more than
what is done with it. Other jobs let buffers grow, which is cheaper as glibc has it by itself.
"""

from __future__ import annotations

import ctypes
from contextlib import suppress

MALLOC = {-1: 512 << 20, -2: 64 << 20, -3: 32 << 20}
"""Of glibc's ``mallopt``, in bytes: what may lie free at the end of a heap (``M_TRIM_THRESHOLD``),
and before it (``M_TOP_PAD``, a heap of a thread), until it is given back, and what is no part of
a heap (``M_MMAP_THRESHOLD``, the largest that there is)."""


def keep_memory() -> None:
    """From now on, where the C library is glibc."""
    with suppress(AttributeError):
        for option, size in MALLOC.items():
            ctypes.CDLL(None).mallopt(option, size)
