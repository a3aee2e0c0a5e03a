"""What the programs of a stack went through while a test failed, for its report.

Their files are kept on the machine where they ran; a report travels.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from pathlib import Path

from tideline.stack import Stack
from tideline.stack.startup import tail

MOST_BYTES = 500_000
"""Of what each log has grown by."""
SHOWN = 6
"""Lines of each program."""
WIDTH = 300
WORDS = re.compile(r"\b(?:WARN|ERROR|FATAL|PANIC)\b|refuses connections|listens|ended|failed")
"""What is told of a line that has no level of its own, and of one at INFO."""


class LastWords:
    """Begins with a test, and tells what was written since."""

    def __init__(self, stack: Stack) -> None:
        self._stack = stack
        self._supervisor = stack.home / "logs" / "supervisord.log"
        self._sizes = {
            log: _size(log) for log in (self._supervisor, *map(stack.log_path, stack.programs))
        }

    @classmethod
    def of(cls, stack: Stack) -> LastWords | None:
        """``None``: there are no logs. No test fails because of that."""
        try:
            return cls(stack)
        except OSError:
            return None

    def told(self) -> str:
        """How each program stands, which were started and have ended, and of their logs what is
        worth a look. Never an error: the test's own is to be seen."""
        try:
            return self._told()
        except Exception as error:
            return f"the stack does not answer: {error!r}"

    def _told(self) -> str:
        states = self._stack.status()
        lines = [f"{each.info.name}: {each.info.state}, {each.info.why}" for each in states]
        for log in self._sizes:
            written = self._written(log)
            if log == self._supervisor:
                lines += _shown(log, written, 3 * SHOWN)
            else:
                lines += _shown(log, [line for line in written if worth_a_look(line)], SHOWN)
        return "\n".join(lines)

    def _written(self, log: Path) -> list[str]:
        size, before = _size(log), self._sizes[log]
        grown = size - before if before <= size else size  # it was rolled
        return tail(log, MOST_BYTES, min(grown, MOST_BYTES))


def worth_a_look(line: str) -> bool:
    """Whether it is more than a note, or says that something begins or ends."""
    if line.startswith("{"):
        try:
            if json.loads(line).get("level") not in ("info", "debug"):
                return True
        except ValueError:
            return True
    return WORDS.search(line) is not None


def _shown(log: Path, lines: Sequence[str], most: int) -> list[str]:
    return [f"{log.name}: {line[:WIDTH]}" for line in lines[-most:]]


def _size(log: Path) -> int:
    try:
        return log.stat().st_size
    except FileNotFoundError:
        return 0
