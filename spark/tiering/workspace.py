"""Directories for segments in the making, on the executor's own disk."""

from __future__ import annotations

import fcntl
import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

PREFIX = "tideline-merge-"
LOCK = ".in-use"


@contextmanager
def workspace(root: Path | None = None) -> Iterator[Path]:
    """An empty directory under ``root`` (default: the system's temporary directory), removed at
    the end. What a killed process left there is removed first: its lock died with it."""
    base = Path(root or tempfile.gettempdir())
    _sweep(base)
    directory = Path(tempfile.mkdtemp(prefix=PREFIX, dir=base))
    lock = os.open(directory / f"{LOCK}.new", os.O_CREAT | os.O_RDWR, 0o600)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX)
        (directory / f"{LOCK}.new").rename(directory / LOCK)  # never seen without being held
        yield directory
    finally:
        shutil.rmtree(directory, ignore_errors=True)
        os.close(lock)


def _sweep(base: Path) -> None:
    """A directory without its lock file is being made right now, or is not ours: left alone."""
    for directory in base.glob(f"{PREFIX}*"):
        with suppress(OSError):
            lock = os.open(directory / LOCK, os.O_RDWR)
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                shutil.rmtree(directory, ignore_errors=True)
            finally:
                os.close(lock)
