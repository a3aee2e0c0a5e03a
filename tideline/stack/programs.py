"""What a part tells the supervisor about its process."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

MARKER = "TIDELINE_STACK"
"""Environment variable of each process of a stack: the home's id."""

PROGRAM_MARKER = "TIDELINE_STACK_PROGRAM"
"""Environment variable: which part of the stack a process is."""


@dataclass(frozen=True)
class Program:
    """One supervised process."""

    name: str
    command: tuple[str, ...]
    log: Path
    """Where stdout and stderr go; rolled by the supervisor."""
    environment: Mapping[str, str] = field(default_factory=dict, repr=False)
    stop_signal: str = "TERM"
    stop_wait_s: int = 4
    """Then SIGKILL."""
    log_max_bytes: int = 10_000_000
    log_backups: int = 2
    main_log: Path | None = None
    """The file worth reading when the process writes its own log elsewhere."""

    @property
    def readable_log(self) -> Path:
        return self.main_log or self.log
