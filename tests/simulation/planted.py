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


UNSEEN: dict[str, str] = {
    "new witnesses": "who has registered since the closing has read of it before it serves "
    "(`Lease._renew`), so it forwards nothing to be told; and B0 waits for its acknowledgement and "
    "lies past what that tells (`Partition._assert_may_set`)",
    "served before it has learned": "who has registered since a closing is no witness of it, so "
    "nothing of Kafka is told until B0 is known (`Standing.confirms`), and a barrier waits for its "
    "acknowledgement, which comes when it has read; a process that starts accepts nobody before "
    "(`TrackingSync.start`)",
    "scan without the newest batch (F1)": "what is scanned has a hole only if Kafka loses "
    "replicated records between the scan and the pause and has given their offsets again by then, "
    "since a tail that ends past the log's end is not gone on with (`TailScanner._kept`): no "
    "schedule does that",
}
"""Why the schedules do not show a bug, by its name."""
