"""Every bug that is planted to see it found, and what became of looking for it.

Where the parts hold a promise twice (a lease, and a confirmation after the append), both are broken
by one bug: one alone is not seen from outside, which is what the second one is for. ``found.toml``
beside the plants has what ``make simulate-power`` found.
"""

from __future__ import annotations

import tomllib
from dataclasses import dataclass
from pathlib import Path

from tests.simulation.plants import acts, boundary, reads, suffix, topics, writes
from tests.simulation.plants.bug import Bug

THEMES = {
    "acts": acts.THEME.bugs,
    "boundary": boundary.THEME.bugs,
    "writes": writes.THEME.bugs,
    "suffix": suffix.THEME.bugs,
    "reads": reads.THEME.bugs,
    "topics": topics.THEME.bugs,
}
BUGS: dict[str, Bug] = {bug.name: bug for bugs in THEMES.values() for bug in bugs}
FOUND_FILE = Path(__file__).parent / "plants" / "found.toml"


@dataclass(frozen=True, slots=True)
class Found:
    """What looking for one bug led to."""

    looked: int
    """Schedules, from the first one on, the one that shows it included."""
    seed: int = -1
    """The first that shows it; -1: none of them does."""
    kind: str = ""
    text: str = ""
    """The broken promise, as the checker says it."""


def recorded() -> dict[str, Found]:
    """By the bugs' names."""
    if not FOUND_FILE.exists():
        return {}
    return {name: Found(**row) for name, row in tomllib.loads(FOUND_FILE.read_text()).items()}


UNSEEN: dict[str, str] = {}
"""Why the schedules do not show a bug, by its name."""
