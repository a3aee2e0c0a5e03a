"""What of topics can be looked at now. One of which nothing can be told keeps no other from it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from uuid import UUID

from spark.table.pieces import Piece
from spark.table.plan import Plan, look, together
from spark.verify.compare import Difference
from spark.verify.verdict import Ranges
from tideline.control_plane.jobs import JobsControlPlane
from tideline.domain.coverage import OffsetRange
from tideline.domain.table import Bounds, Isolation, TableRefused, TableUnreadable
from tideline.errors import TidelineError
from tideline.settings import JobsSettings

Refused = dict[str, TidelineError]
"""Topics of which nothing is looked at, and why."""


@contextmanager
def planned(
    settings: JobsSettings, plane: JobsControlPlane, names: Sequence[str]
) -> Iterator[tuple[list[Ranges], Refused]]:
    """Topics at this moment, pinned for as long as they are looked at. What is not whole is asked
    for once more: retention moves log starts and removes segments between two questions.

    Raises as the stores do.
    """
    pins: list[UUID] = []
    try:
        found, refused = _planned(settings, names, pins, _whole)
        if refused:
            more, refused = _planned(settings, list(refused), pins, _by_partition)
            found += more
        yield found, refused
    finally:
        for pin in pins:
            plane.unpin_reads(pin)


def _planned(
    settings: JobsSettings,
    names: Sequence[str],
    pins: list[UUID],
    ranges_of: Callable[[Plan], Ranges],
) -> tuple[list[Ranges], Refused]:
    plans: list[Plan] = []
    refused: Refused = {}
    for name in names:
        try:
            plan = look(settings, name)
        except TableRefused as error:
            refused[name] = error
            continue
        plans.append(plan)
        if plan.pin is not None:
            pins.append(plan.pin)
    if plans:
        refused |= together(plans)
    found: list[Ranges] = []
    for plan in plans:
        if plan.topic not in refused:
            try:
                found.append(ranges_of(plan))
            except (TableRefused, TableUnreadable) as error:
                refused[plan.topic] = error
    return found, refused


def _whole(plan: Plan) -> Ranges:
    """Raises :class:`TableRefused`, :class:`TableUnreadable`."""
    return Ranges(plan, _pieces(plan, plan.whole))


def _by_partition(plan: Plan) -> Ranges:
    """Raises :class:`TableRefused` if partitions cannot be read, and none lacks anything."""
    pieces: list[Piece] = []
    missing: list[Difference] = []
    refused: dict[int, TableRefused] = {}
    for partition, range in plan.whole.items():
        try:
            pieces += _pieces(plan, {partition: range})
        except TableUnreadable as error:
            at = range.start if error.offset is None else error.offset
            last = at if error.last_offset is None else error.last_offset
            if plan.is_removed(partition, last):
                refused[partition] = TableRefused(f"removed while it was looked at: {error}")
            else:
                missing.append(Difference(partition, at, str(error)))
        except TableRefused as error:
            refused[partition] = error
    if refused and not missing:
        raise next(iter(refused.values()))
    left_alone = {partition: str(error) for partition, error in refused.items()}
    return Ranges(plan, pieces, missing, left_alone)


def _pieces(plan: Plan, wanted: Mapping[int, OffsetRange]) -> list[Piece]:
    return plan.pieces(wanted, Bounds(), Isolation.READ_COMMITTED, split=False)
