"""The reports of many partitions as columns, and back: a tenth of the bytes, and of the time that
Temporal's converter takes for them."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence

from tideline.domain.messages import (
    PartitionColumns,
    PartitionReport,
    TopicMigrationStatus,
    WaitsFor,
)

ROOM_FOR_REASONS = 400_000
"""Bytes of all reasons together, about as JSON writes them."""
_WAITS = list(WaitsFor)


def packed(reports: Sequence[PartitionReport]) -> PartitionColumns:
    """``reports``: of partitions 0, 1, 2 … in this order."""
    reasons = dict(_reasons(reports))
    phases = list(dict.fromkeys(report.phase for report in reports))
    place = {phase: number for number, phase in enumerate(phases)}
    return PartitionColumns(
        phases=phases,
        phase=[place[report.phase] for report in reports],
        since=[report.since for report in reports],
        boundary=[report.boundary for report in reports],
        leader_epoch=[report.leader_epoch for report in reports],
        waits_for=[_WAITS.index(report.waits_for) for report in reports],
        round=[report.round for report in reports],
        reasons=reasons,
        waits={str(r.partition): r.waits for r in reports if str(r.partition) in reasons},
        rests=[report.partition for report in reports if report.rests],
    )


def unpacked(columns: PartitionColumns) -> list[PartitionReport]:
    """What was packed, without the reasons for which there was no room."""
    rows = zip(
        columns.phase, columns.since, columns.boundary, columns.leader_epoch,
        columns.waits_for, columns.round, strict=True,
    )  # fmt: skip
    rests = frozenset(columns.rests)
    return [
        PartitionReport(
            partition,
            columns.phases[phase],
            since,
            boundary,
            leader_epoch,
            _WAITS[waits_for],
            columns.reasons.get(str(partition), ""),
            round_,
            partition in rests,
            waits=columns.waits.get(str(partition), ""),
        )
        for partition, (phase, since, boundary, leader_epoch, waits_for, round_) in enumerate(rows)
    ]


def reports_of(status: TopicMigrationStatus) -> list[PartitionReport]:
    """However the topic's workflow has sent them."""
    return status.partitions if status.columns is None else unpacked(status.columns)


def _reasons(reports: Iterable[PartitionReport]) -> Iterable[tuple[str, str]]:
    room = ROOM_FOR_REASONS
    for report in reports:
        if report.waiting_reason:
            room -= len(json.dumps(report.waiting_reason))
            if room < 0:
                return
            yield str(report.partition), report.waiting_reason
