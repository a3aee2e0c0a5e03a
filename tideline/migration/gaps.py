"""A log gap ``[log end, B0)``, as an unclean election leaves it, and giving it up.

Only what nobody holds is given up: every replica must answer, also one that is not in sync, and
every remote segment whose log object is in the bucket counts, whichever leader copied it.
"""

from __future__ import annotations

from uuid import UUID

from tideline.domain.ids import TopicIdPartition
from tideline.domain.operator_choices import GapOutcome, GapRequest
from tideline.domain.remote_log import RemoteSegment, SegmentState
from tideline.errors import RefusedError
from tideline.kafka.observer import OffsetSpec, PartitionLayout
from tideline.migration.connections import WorkerServices

_PERHAPS_THERE = (SegmentState.COPY_SEGMENT_STARTED, SegmentState.COPY_SEGMENT_FINISHED)


class GapKept(RefusedError):
    """Somebody holds a part of the range, or perhaps does: it is not given up."""


async def give_up_gap(services: WorkerServices, request: GapRequest) -> GapOutcome:
    """Ask everybody who might hold a part of ``[first, end)``, then let Postgres decide.

    Raises :class:`GapKept` naming replicas and segments, the refusals of
    ``ControlPlane.accept_gap``, and errors of the adapters.
    """
    topic, number = request.ref.topic, request.partition
    log = TopicIdPartition(UUID(request.ref.topic_id), number)
    name = f"{topic}-{number}"
    row = await services.control_plane.tracked_partition(log.topic_id, number)
    if row is None:
        raise RefusedError(f"{name} is not tracked: `tideline status {topic}` tells what it is")
    found = await services.observer.topic(topic)
    if found is None or found.topic_id != log.topic_id or number not in found.partitions:
        raise RefusedError(f"Kafka has no {name} with topic id {log.topic_id}: nothing to give up")
    layout = found.partitions[number]
    ends = await _log_ends(services, request, layout)
    held = await _held_by_segments(services, topic, log)
    kept = [s for s in held if s.start_offset < request.end and s.end_offset >= request.first]
    if kept:
        shown = ", ".join(f"{s.segment_id} ({s.start_offset} to {s.end_offset})" for s in kept[:10])
        raise GapKept(
            f"{name}: {request.first} to {request.end - 1} is not lost, remote segments hold a "
            f"part of it: {shown}. Name only what lies behind them"
        )
    remote_end = max((s.end_offset + 1 for s in held if s.end_offset < request.end), default=-1)
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
        {"log_ends": log_ends, "remote_end": remote_end},
    )
    return GapOutcome(number, request.first, request.end, layout.leader_epoch, log_ends, remote_end)


async def _log_ends(
    services: WorkerServices, request: GapRequest, layout: PartitionLayout
) -> dict[int, int]:
    """Of every replica, none of them past the range's beginning."""
    name = f"{request.ref.topic}-{request.partition}"
    if layout.leader < 0:
        raise GapKept(f"{name} has no leader: elect one, then its log end can be compared")
    answers = await services.observer.on_replicas(request.ref.topic, layout, OffsetSpec.LATEST)
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


async def _held_by_segments(
    services: WorkerServices, topic: str, log: TopicIdPartition
) -> list[RemoteSegment]:
    """Segments whose log object is there, also those of a deposed leader."""
    objects = await services.inventory.objects(topic, log)
    segments = await services.remote_log.segments(log)
    return [
        segment
        for segment in segments
        if segment.state in _PERHAPS_THERE
        and (there := objects.get(segment.segment_id)) is not None
        and there.log_bytes is not None
    ]
