"""From what was observed to the proof: each check is computed, none assumed."""

from __future__ import annotations

import statistics
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from tideline.control_plane.model import PartitionMigrationStatus
from tideline.demo.history import count_rewritten, usage_by_partition
from tideline.demo.ledger import Ledger, PartitionVerdict, WritePause, write_pause
from tideline.demo.report import Check, PartitionProof, Proof
from tideline.domain.messages import TopicRef
from tideline.domain.migration import PHASE_ORDER, MigrationState, Phase
from tideline.object_store.client import ObjectEntry

MEASURED_PRODUCER = "librdkafka"


@dataclass(frozen=True, slots=True)
class Evidence:
    ref: TopicRef
    machine: str
    ledger: Ledger
    statuses: Sequence[PartitionMigrationStatus]
    before: Mapping[str, ObjectEntry]
    after: Mapping[str, ObjectEntry]
    tiered_before: Mapping[int, int]
    resets: Sequence[str]
    caught_up: bool
    configs: Mapping[str, str | None]
    wal_objects: tuple[int, int]
    """Number and bytes."""
    workflow_url: str


def prove(evidence: Evidence) -> Proof:
    ref, ledger = evidence.ref, evidence.ledger
    statuses = sorted(evidence.statuses, key=lambda status: status.log.partition)
    verdicts = {p: ledger.verdict(p) for p in range(ref.partitions)}
    pauses = {s.log.partition: _pause(ledger, s) for s in statuses}
    usage = usage_by_partition(evidence.after.values())
    rows = []
    for status in statuses:
        partition = status.log.partition
        pause, tiered = pauses[partition], usage.get(partition)
        rows.append(
            PartitionProof(
                partition=partition,
                boundary=status.boundary,
                leader_epoch=status.boundary_epoch,
                state=status.state,
                acknowledged=verdicts[partition].acknowledged,
                consumed=verdicts[partition].consumed,
                pause_ms=pause.pause_ms if pause else None,
                raw_gap_ms=pause.raw_gap_ms if pause else None,
                tiered_segments=tiered.segments if tiered else 0,
                tiered_bytes=tiered.bytes if tiered else 0,
                suffix_records=status.high_watermark - status.boundary,
            )
        )
    suffix_latency = [
        ack.latency_ms
        for status in statuses
        for ack in ledger.acknowledgements(status.log.partition)
        if ack.offset >= status.boundary and ack.latency_ms > 0
    ]
    return Proof(
        topic=ref.topic,
        machine=evidence.machine,
        workflow_id=ref.workflow_id,
        workflow_url=evidence.workflow_url,
        rows=rows,
        checks=list(_checks(evidence, statuses, verdicts)),
        phase_ms=phase_durations(statuses),
        storage=_storage(evidence, statuses),
        steady_latency_ms=statistics.median(suffix_latency) if suffix_latency else 0.0,
    )


def _pause(ledger: Ledger, status: PartitionMigrationStatus) -> WritePause | None:
    partition = status.log.partition
    measured = [
        ack
        for ack in ledger.acknowledgements(partition)
        if ack.record_id.startswith(f"{MEASURED_PRODUCER}/")
    ]
    return write_pause(partition, measured, status.boundary) if measured else None


def phase_durations(statuses: Iterable[PartitionMigrationStatus]) -> dict[str, list[float]]:
    """Milliseconds by phase, and from the start of quiesce to the end of persist."""
    found: dict[str, list[float]] = defaultdict(list)
    for status in statuses:
        by_phase = {record.phase: record for record in status.phases}
        quiesce = by_phase.get(Phase.QUIESCE)
        persist = by_phase.get(Phase.SEED_AND_PERSIST)
        if quiesce and persist and persist.ended_at:
            span = persist.ended_at - quiesce.started_at
            found["quiesce to B0 visible"].append(span.total_seconds() * 1000)
        for phase in PHASE_ORDER:
            record = by_phase.get(phase)
            if record and record.ended_at:
                span = record.ended_at - record.started_at
                found[f"phase {phase}"].append(span.total_seconds() * 1000)
    return dict(found)


def _checks(
    evidence: Evidence,
    statuses: Sequence[PartitionMigrationStatus],
    verdicts: Mapping[int, PartitionVerdict],
) -> Iterable[Check]:
    ref, ledger = evidence.ref, evidence.ledger
    crossed = [s for s in statuses if s.boundary >= 0]
    yield Check(
        "every partition has its boundary",
        len(crossed) == ref.partitions
        and all(s.state in (MigrationState.HYBRID, MigrationState.DISKLESS_ONLY) for s in crossed),
        f"B0 persisted for {len(crossed)} of {ref.partitions} partitions",
    )
    yield Check(
        "the prefix is remotely readable up to B0 - 1",
        all(s.tiering_complete for s in statuses),
        f"tieringComplete on {sum(s.tiering_complete for s in statuses)} of {len(statuses)}",
    )
    acknowledged, consumed = ledger.counts()
    lost = [x for v in verdicts.values() for x in (*v.lost, *v.misplaced)]
    yield Check(
        "consumed = acknowledged",
        evidence.caught_up and not lost and not any(v.gaps for v in verdicts.values()),
        f"{acknowledged} acknowledged, {consumed} consumed, {len(lost)} lost or misplaced, "
        f"{sum(len(v.gaps) for v in verdicts.values())} gaps {lost[:3] or ''}".strip(),
    )
    yield _none("no duplicate", [x for v in verdicts.values() for x in v.duplicated])
    yield _none("order kept per producer", [x for v in verdicts.values() for x in v.reordered])
    sent_back = sum(v.sent_back for v in verdicts.values())
    yield Check(
        "no consumer was sent back or reset",
        sent_back == 0 and not evidence.resets,
        f"{sent_back} steps back, {len(evidence.resets)} resets",
    )
    yield _none("no record was refused to a producer", ledger.failures)
    both = sum(
        1
        for s in crossed
        if any(0 <= a.offset < s.boundary for a in ledger.acknowledgements(s.log.partition))
        and any(a.offset >= s.boundary for a in ledger.acknowledgements(s.log.partition))
    )
    yield Check(
        "producers wrote on both sides of B0",
        both == ref.partitions,
        f"{both} of {ref.partitions} partitions",
    )
    rewritten = count_rewritten(evidence.before, evidence.after, evidence.tiered_before)
    yield Check(
        "history rewritten: 0 bytes",
        rewritten.total == 0,
        f"{rewritten.total} bytes of {rewritten.bytes_before} in {rewritten.objects_before} "
        "objects changed, vanished or were copied",
    )
    yield Check(
        "the topic says so",
        evidence.configs.get("diskless.enable") == "true"
        and evidence.configs.get("diskless.migration.state") in ("HYBRID", "DISKLESS_ONLY"),
        f"diskless.enable={evidence.configs.get('diskless.enable')}, "
        f"diskless.migration.state={evidence.configs.get('diskless.migration.state')}",
    )


def _none(name: str, found: Sequence[str]) -> Check:
    return Check(name, not found, f"{len(found)} found {list(found[:3]) or ''}".strip())


def _storage(
    evidence: Evidence, statuses: Sequence[PartitionMigrationStatus]
) -> dict[str, str | int]:
    tiered = usage_by_partition(evidence.after.values()).values()
    objects, size = evidence.wal_objects
    return {
        "prefix (tiered, below B0): segments": sum(u.segments for u in tiered),
        "prefix (tiered, below B0): bytes": sum(u.bytes for u in tiered),
        "suffix (diskless, from B0 on): WAL objects": objects,
        "suffix (diskless, from B0 on): bytes": size,
        "suffix: records": sum(s.high_watermark - s.boundary for s in statuses),
    }
