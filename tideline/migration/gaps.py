"""A log gap ``[log end, B0)``, as an unclean election leaves it: who holds what, and giving it up.

Only what nobody holds is given up: every replica must answer, also one that is not in sync, and
every remote segment whose log object is in the bucket counts, whichever leader copied it, until
its objects have been copied to where no broker deletes them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from uuid import UUID

from tideline.control_plane.model import TrackedPartition
from tideline.domain.coverage import OffsetRange
from tideline.domain.ids import TopicIdPartition
from tideline.domain.log_gap import GapPart, holders, is_copied, parts_of
from tideline.domain.messages import TopicRef
from tideline.domain.operator_choices import GapOutcome, GapRequest
from tideline.domain.remote_log import RemoteSegment
from tideline.errors import RefusedError
from tideline.kafka.observer import OffsetSpec, PartitionLayout
from tideline.migration.connections import WorkerServices
from tideline.object_store.inventory import KeptSegments


@dataclass(frozen=True, slots=True)
class LogGap:
    """A partition no replica of which reaches the end of what Kafka must hold."""

    partition: int
    parts: tuple[GapPart, ...]
    """The whole of it, in order."""
    log_ends: dict[str, int]
    """Of each replica that answers, by node id, exclusive."""
    silent: dict[str, str] = field(default_factory=dict)
    """Replicas that do not answer, and why: they may reach it."""


class GapKept(RefusedError):
    """Somebody holds a part of the range, or perhaps does: it is not given up."""


async def give_up_gap(services: WorkerServices, ref: TopicRef, request: GapRequest) -> GapOutcome:
    """Ask everybody who might hold a part of ``[first, end)``, then let Postgres decide.

    Raises :class:`GapKept` naming replicas and segments, the refusals of
    ``ControlPlane.accept_gap``, and errors of the adapters.
    """
    topic, number = ref.topic, request.partition
    log = TopicIdPartition(UUID(ref.topic_id), number)
    name = f"{topic}-{number}"
    row, layout = await _tracked(services, topic, log)
    ends = await _log_ends(services, topic, request, layout)
    look = await _look_at_segments(services, topic, log)
    asked = OffsetRange(request.first, request.end)
    within = [s for s in look.held if OffsetRange(s.start_offset, s.end_offset + 1).clip(asked)]
    kept = sorted(str(s.segment_id) for s in within if s.segment_id in look.kept)
    if not_kept := [s for s in within if s.segment_id not in look.kept]:
        shown = ", ".join(
            f"{s.segment_id} ({s.start_offset} to {s.end_offset})" for s in not_kept[:10]
        )
        raise GapKept(
            f"{name}: {request.first} to {request.end - 1} is not lost, remote segments hold a "
            f"part of it: {shown}. Name only what lies behind them, or keep copies of them first: "
            f"`tideline gap keep {topic} {number}`"
        )
    below = [s.end_offset + 1 for s in look.held if s.end_offset < request.end]
    remote_end = max(below, default=-1)
    known_to = max(*ends.values(), remote_end)
    if request.first > known_to:
        raise RefusedError(
            f"{name}: nobody holds {known_to} to {request.first - 1} either: name the whole range, "
            f"from {known_to} to {request.end}"
        )
    again = await services.observer.partition(topic, number)
    if (again.leader, again.leader_epoch) != (layout.leader, layout.leader_epoch):
        raise RefusedError(
            f"{name}: its leader moved from {layout.leader} to {again.leader} meanwhile: try again"
        )
    log_ends = {str(node): end for node, end in sorted(ends.items())}
    await services.control_plane.accept_gap(
        log,
        row.generation,
        layout.leader_epoch,
        request.first,
        request.end,
        request.decider.by,
        request.decider.why,
        {"log_ends": log_ends, "remote_end": remote_end} | ({"kept": kept} if kept else {}),
    )
    return GapOutcome(number, request.first, request.end, layout.leader_epoch, log_ends, remote_end)


async def find_gap(services: WorkerServices, topic: str, log: TopicIdPartition) -> LogGap | None:
    """The log gap of one partition, if no replica that answers reaches what Kafka must hold.

    Raises ``RefusedError`` for a partition that is not tracked, and errors of the adapters.
    """
    row, layout = await _tracked(services, topic, log)
    if row.boundary < 0:
        return None
    answers = await services.observer.on_replicas(topic, layout, OffsetSpec.LATEST)
    ends = {str(node): end for node, end in sorted(answers.items()) if isinstance(end, int)}
    silent = {str(node): why for node, why in sorted(answers.items()) if isinstance(why, str)}
    gap = gap_below(row.prefix_end, ends)
    if gap is None:
        return None
    return LogGap(log.partition, await who_holds(services, topic, log, gap), ends, silent)


def gap_below(prefix_end: int, ends: Mapping[str, int]) -> OffsetRange | None:
    """What lies between the furthest of the log ends and ``prefix_end``; nothing without ends."""
    furthest = max(ends.values(), default=prefix_end)
    return OffsetRange(furthest, prefix_end) if furthest < prefix_end else None


async def who_holds(
    services: WorkerServices, topic: str, log: TopicIdPartition, gap: OffsetRange
) -> tuple[GapPart, ...]:
    """The parts of ``gap``, each with the remote segments that hold it. Raises errors of the
    adapters."""
    look = await _look_at_segments(services, topic, log)
    return parts_of(gap, look.held, look.kept)


async def keep_gap(services: WorkerServices, topic: str, log: TopicIdPartition) -> KeptSegments:
    """Copy what remote segments hold of the partition's gap to where no broker deletes it.

    Raises ``RefusedError`` where there is nothing to keep, ``ObjectMissing`` when a broker deletes
    an object meanwhile, and errors of the adapters. Repeated, it copies only what is missing.
    """
    gap = await find_gap(services, topic, log)
    segments = {s for part in gap.parts for s in part.held_by} if gap else set()
    if not segments:
        raise RefusedError(
            f"{topic}-{log.partition}: no remote segment holds a part of a log gap: nothing to keep"
        )
    return await services.inventory.keep(topic, log, segments)


async def _tracked(
    services: WorkerServices, topic: str, log: TopicIdPartition
) -> tuple[TrackedPartition, PartitionLayout]:
    name = f"{topic}-{log.partition}"
    row = await services.control_plane.tracked_partition(log.topic_id, log.partition)
    if row is None:
        raise RefusedError(f"{name} is not tracked: `tideline status {topic}` tells what it is")
    found = await services.observer.topic(topic)
    if found is None or found.topic_id != log.topic_id or log.partition not in found.partitions:
        raise RefusedError(f"Kafka has no {name} with topic id {log.topic_id}: nothing to give up")
    return row, found.partitions[log.partition]


async def _log_ends(
    services: WorkerServices, topic: str, request: GapRequest, layout: PartitionLayout
) -> dict[int, int]:
    """Of every replica, none of them past the range's beginning."""
    name = f"{topic}-{request.partition}"
    if layout.leader < 0:
        raise GapKept(f"{name} has no leader: elect one, then its log end can be compared")
    answers = await services.observer.on_replicas(topic, layout, OffsetSpec.LATEST)
    silent = {n: answers.get(n, "no answer") for n in layout.replicas}
    silent = {n: why for n, why in silent.items() if not isinstance(why, int)}
    if silent:
        raise GapKept(
            f"{name}: replica {', '.join(map(str, sorted(silent)))} does not answer and perhaps "
            f"holds the range ({next(iter(silent.values()))}): bring it back, or reassign the "
            "partition away from it if its disk is lost"
        )
    ends = {n: end for n, end in answers.items() if isinstance(end, int)}
    holding = {n: end for n, end in ends.items() if end > request.first}
    if holding:
        raise GapKept(
            f"{name}: {request.first} to {request.end - 1} is not lost, replicas hold a part of "
            f"it; log ends are {holding}. Name only what lies behind them, or elect such a replica"
        )
    return ends


@dataclass(frozen=True, slots=True)
class _Segments:
    held: list[RemoteSegment]
    kept: frozenset[UUID]
    """Those of them that have been copied whole."""


async def _look_at_segments(
    services: WorkerServices, topic: str, log: TopicIdPartition
) -> _Segments:
    objects = await services.inventory.objects(topic, log)
    held = holders(await services.remote_log.segments(log), objects)
    copies = await services.inventory.copies(topic, log) if held else {}
    kept = {
        s.segment_id for s in held if is_copied(objects[s.segment_id], copies.get(s.segment_id))
    }
    return _Segments(held, frozenset(kept))
