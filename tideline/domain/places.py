"""How many topics migrate at once, over all triggers: ``inkless.migration.parallel.topics``
(seed 002, 6.2).

Places go by the order in which topics first asked, and to whoever is next whether it asks right now
or not: one that has stopped asking, as a paused migration has, never stands between a free place
and those behind it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from uuid import UUID

SETTING = "TIDELINE_MIGRATION_PARALLEL_TOPICS"


@dataclass(frozen=True, slots=True)
class PlaceHolder:
    """Who has a place."""

    topic_id: UUID
    topic: str
    run: str
    """The first run of its workflow. A place is given back in its name only, so that nobody takes
    it from a later run of the same topic."""


@dataclass(frozen=True, slots=True)
class MigrationPlace:
    """What came of asking."""

    taken: bool
    before: int
    """How many wait that asked earlier."""
    doubtful: tuple[PlaceHolder, ...] = ()
    """Who has a place and was not heard of for long: named once, to one that asks, who looks."""
    places: int = field(default=0, compare=False)
    """How many there are."""


def newly_admitted(waiting: Sequence[UUID], taken: int, places: int) -> Sequence[UUID]:
    """Who gets a place now. ``waiting``: in the order in which they asked; ``taken``: places that
    are; ``places``: how many there are, perhaps fewer than before."""
    return waiting[: max(0, places - taken)]


def share_of(limit: int, before: int, topics: int) -> int:
    """Of ``limit`` partitions that may be between validation and B0 in all topics together, those
    of the topic that asked for its place after ``before`` of the ``topics`` that share them."""
    return limit // topics + (before < limit % topics)


def waiting_reason(places: int, before: int) -> str:
    """Why a migration has not begun."""
    return (
        f"waits for one of {places} places of topics that migrate at once ({SETTING}, "
        f"`tideline limits`); {before} before it"
    )
