"""What the C library's allocator does with memory that large frames gave back.

By glibc's own rules it goes back to the kernel as soon as a few megabytes are free, and the next
frame of a megabyte gets its pages anew, one fault for every 4 KiB: two thirds of what such a frame
cost. The memory that is kept instead is bounded, and small beside the bound on what frames hold.
"""

from __future__ import annotations

import ctypes

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
