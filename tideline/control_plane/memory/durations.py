"""How long phases took, as ``phase_durations`` of infra/postgres/functions/phases.sql tells it."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from datetime import datetime, timedelta
from uuid import UUID

from tideline.control_plane.memory.partition import Partition
from tideline.control_plane.model import PhaseRecord
from tideline.domain.estimate import Span, StepDuration
from tideline.domain.migration import Phase, PhaseStatus


def phase_durations(partitions: Iterable[Partition], newest: int) -> list[StepDuration]:
    """Of the ``newest`` that have crossed, by the name of the step."""
    crossed = [
        (boundary_at, number, partition)
        for number, partition in enumerate(partitions)
        if (boundary_at := _ended(partition, Phase.SEED_AND_PERSIST)) is not None
    ]
    looked_at = [
        (at, p) for at, _, p in sorted(crossed, key=lambda c: c[:2], reverse=True)[:newest]
    ]
    took: dict[str, list[float]] = defaultdict(list)
    for boundary_at, partition in looked_at:
        for step, lasted in _steps(partition, boundary_at):
            took[step].append(lasted.total_seconds())
    for lasted in _tiering(looked_at):
        took[Span.TIERING].append(lasted.total_seconds())
    return [
        StepDuration(str(step), len(found), percentile(found, 0.5), percentile(found, 0.9))
        for step, found in sorted(took.items())
    ]


def percentile(found: Sequence[float], fraction: float) -> float:
    """Between the two nearest values, as ``percentile_cont`` does."""
    ordered = sorted(found)
    place = fraction * (len(ordered) - 1)
    below = int(place)
    above = min(below + 1, len(ordered) - 1)
    return ordered[below] + (ordered[above] - ordered[below]) * (place - below)


def _done(partition: Partition) -> dict[Phase, PhaseRecord]:
    return {p: r for p, r in partition.phases.items() if r.status is PhaseStatus.DONE}


def _ended(partition: Partition, phase: Phase) -> datetime | None:
    record = _done(partition).get(phase)
    return None if record is None else record.ended_at


def _steps(partition: Partition, boundary_at: datetime) -> Iterator[tuple[str, timedelta]]:
    done = _done(partition)
    for phase, record in done.items():
        assert record.ended_at is not None  # what is done has ended
        yield phase, record.ended_at - record.started_at
    for span, first in (
        (Span.CROSSING, Phase.DRAIN_TRANSACTIONS),
        (Span.WRITE_PAUSE, Phase.QUIESCE),
    ):
        if first in done:
            yield span, boundary_at - done[first].started_at


def _tiering(looked_at: Sequence[tuple[datetime, Partition]]) -> Iterator[timedelta]:
    """Of each topic with a prefix all of whose partitions among these are ready."""
    topics: dict[UUID, list[tuple[datetime, datetime | None]]] = defaultdict(list)
    with_prefix = {p.log.topic_id for _, p in looked_at if p.boundary != 0}
    for boundary_at, partition in looked_at:
        ready_at = _ended(partition, Phase.READINESS)
        topics[partition.log.topic_id].append((boundary_at, ready_at))
    for topic_id, times in topics.items():
        if topic_id not in with_prefix:
            continue
        ready = [at for _, at in times if at is not None]
        last_boundary = max(boundary_at for boundary_at, _ in times)
        if len(ready) == len(times) and max(ready) >= last_boundary:
            yield max(ready) - last_boundary
