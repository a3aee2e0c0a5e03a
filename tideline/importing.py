"""How a process loads what it runs."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def kept() -> Iterator[None]:
    """Of what is imported meanwhile: it lives as long as the process. Python's garbage collector,
    which would go through it several times while it comes, takes an eighth of a command's start."""
    collects = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        gc.freeze()
        if collects:
            gc.enable()
