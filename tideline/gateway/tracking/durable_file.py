"""Files of a gateway that are there as a whole or not at all, also after the machine lost power."""

from __future__ import annotations

import os
import threading
from pathlib import Path

_ONE_AT_A_TIME = threading.Lock()
"""A thread goes on when the task that waited for it was cancelled: what it writes must be there
before what comes next is written, or the file removed."""


def replace_durably(path: Path, text: str) -> None:
    """Durable when it returns; the file there before stays until then. Raises ``OSError``, also
    when the directory is gone."""
    temporary = path.with_suffix(".tmp")
    with _ONE_AT_A_TIME:
        with open(temporary, "w", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
        _sync_directory(path.parent)


def remove_durably(path: Path) -> None:
    """It is gone for good when it returns, or was not there. Raises ``OSError``."""
    with _ONE_AT_A_TIME:
        path.unlink(missing_ok=True)
        _sync_directory(path.parent)


def _sync_directory(path: Path) -> None:
    directory = os.open(path, os.O_RDONLY)
    try:
        os.fsync(directory)
    finally:
        os.close(directory)
