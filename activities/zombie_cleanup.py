"""Phase 6: look at every replica's log end against B0 and deal with what does not fit.

Above B0: a divergent tail, written by a zombie. It was never acknowledged and is never served;
stock Kafka cannot truncate it, so it is exported for forensics and reported. Below B0: a log gap;
leadership moves to a replica that reaches B0, and gateways refuse ``[LEO, B0)`` meanwhile. A log
start past B0: the boundary points to nothing any more (seed 000, "Local Log Reconciliation"). A
log start at or past B0 under a live suffix: the prefix is gone, the partition is diskless only.
"""

from __future__ import annotations

from dataclasses import dataclass

import structlog

from activities.attempt import (
    PhaseEvidence,
    failure,
    heartbeat,
    phase_evidence,
    rounds,
    wait_bound_ms,
    waiting,
)
from tideline.control_plane.errors import StaleLeaderEpoch
from tideline.domain import failures
from tideline.domain.ids import TopicPartition
from tideline.domain.log_gap import in_words
from tideline.domain.messages import PhaseInput
from tideline.domain.migration import UNDEFINED_OFFSET, MigrationState, Phase
from tideline.errors import TidelineError
from tideline.kafka.errors import KafkaError, KafkaUnavailable
from tideline.kafka.observer import DEBUG_CONSUMER, OffsetSpec, PartitionLayout
from tideline.migration.connections import WorkerServices
from tideline.migration.gaps import gap_below, who_holds
from tideline.migration.tails import export_tail

log = structlog.get_logger()

OBSERVE_EVERY_MS = 250.0
STALE_AFTER_ROUNDS = 12
"""A follower learns the high watermark with its next fetch, at most half a second later; one that
still lags after this many observations will not catch up by itself."""


@dataclass(slots=True)
class Survey:
    """One observation of every replica. Log ends are exclusive."""

    layout: PartitionLayout
    log_start: int
    log_ends: dict[int, int]
    silent: dict[int, str]
    watermarks: dict[int, int]

    def reaching(self, boundary: int) -> list[int]:
        """In-sync replicas that have everything below ``boundary``, the leader last."""
        nodes = [n for n in self.layout.in_sync if self.log_ends.get(n, -1) >= boundary]
        return sorted(nodes, key=lambda n: n == self.layout.leader)


async def zombie_cleanup(services: WorkerServices, given: PhaseInput) -> None:
    """Return when every replica that answers reaches B0 and tails past it are exported.

    Fails as Waiting at its bound, as BoundaryReset when B0 was unset because the log starts past
    it while the suffix is empty.
    """
    why = ""
    async with phase_evidence(services, given, Phase.ZOMBIE_CLEANUP) as evidence:
        await services.evidence.flush(given.ref.log)
        async for number in rounds(wait_bound_ms(services, in_process=0.0), OBSERVE_EVERY_MS):
            survey = await _survey(services, given)
            evidence.observed |= {
                "log_start": survey.log_start,
                "log_ends": {str(n): end for n, end in survey.log_ends.items()},
                "high_watermarks": {str(n): hw for n, hw in survey.watermarks.items()},
            }
            if survey.log_start >= given.boundary:
                await prefix_gone(services, given, survey.layout, survey.log_start, evidence)
            end = await prefix_end(services, given)
            if survey.log_start >= end and end < given.boundary:
                await prefix_gone(services, given, survey.layout, given.boundary, evidence)
            why = await _gap(services, given, survey, number, evidence, end)
            if not why:
                await _export_tail(services, given, survey, evidence)
                return
            if number:
                await evidence.waiting(why)
        raise waiting(why)


async def _survey(services: WorkerServices, given: PhaseInput) -> Survey:
    topic, partition = given.ref.topic, given.ref.partition
    layout = await services.observer.partition(topic, partition, topic_id=given.ref.log.topic_id)
    answers = await services.observer.on_replicas(topic, layout, OffsetSpec.LATEST)
    ends = {node: end for node, end in answers.items() if isinstance(end, int)}
    silent = {node: why for node, why in answers.items() if isinstance(why, str)}
    log_start = 0
    if layout.leader in ends:
        start = await services.observer.offset(
            topic, partition, OffsetSpec.EARLIEST, node=layout.leader, replica_id=DEBUG_CONSUMER
        )
        log_start = start.offset
    watermarks = {}
    for node, end in ends.items():
        try:
            piece = await services.reader.fetch(
                topic, partition, min(end, given.boundary), node=node, max_bytes=1
            )
            watermarks[node] = piece.high_watermark
        except KafkaError as error:
            # A follower below this offset's watermark calls it out of range: it has not got it.
            log.debug("watermark_unknown", node=node, why=str(error))
            watermarks[node] = -1
        except KafkaUnavailable as error:
            silent[node] = str(error)
    return Survey(layout, log_start, ends, silent, watermarks)


async def _gap(
    services: WorkerServices,
    given: PhaseInput,
    survey: Survey,
    number: int,
    evidence: PhaseEvidence,
    boundary: int,
) -> str:
    """Why the replicas do not all reach ``boundary`` (B0, or an accepted gap before it) yet, after
    doing what can be done; empty if they do."""
    leader = survey.layout.leader
    if leader not in survey.log_ends:
        return f"the leader {leader} does not answer: {survey.silent.get(leader, 'none elected')}"
    short = {n: end for n, end in survey.log_ends.items() if end < boundary}
    stale = {
        n: hw
        for n, hw in survey.watermarks.items()
        if n not in short and hw < boundary and survey.log_ends.get(n, -1) >= boundary
    }
    if leader in short:
        return await _move_leader(services, given, survey, evidence, boundary, avoid=leader)
    if short:
        return f"replicas {sorted(short)} do not reach B0 = {boundary} yet: {short}"
    if stale and number >= STALE_AFTER_ROUNDS:
        # A leader change makes every replica's watermark known again (docs/kafka.md).
        return await _move_leader(services, given, survey, evidence, boundary, avoid=leader)
    if stale:
        return f"replicas {sorted(stale)} know a high watermark below B0 = {boundary}: {stale}"
    return ""


async def _move_leader(
    services: WorkerServices,
    given: PhaseInput,
    survey: Survey,
    evidence: PhaseEvidence,
    boundary: int,
    *,
    avoid: int,
) -> str:
    target = next((n for n in survey.reaching(boundary) if n != avoid), None)
    if target is None:
        return await _nobody_reaches(services, given, survey, evidence, boundary, avoid)
    partition = TopicPartition(given.ref.topic, given.ref.partition)
    if await services.topics.reassigning(partition.topic, [partition.partition]):
        # Another order of the replicas would take its place, and keep those that were to go.
        return (
            f"log gap or stale high watermark at {avoid}, and the partition is being reassigned: "
            f"leadership moves to {target} once that is done or taken back"
        )
    others = [n for n in survey.layout.replicas if n != target]
    await services.admin.reorder_replicas(partition, [target, *others])
    await services.admin.elect_preferred(partition)
    evidence.observed |= {"leader_moved": {"from": avoid, "to": target}}
    return f"log gap or stale high watermark at {avoid}: leadership is moving to {target}"


async def _nobody_reaches(
    services: WorkerServices,
    given: PhaseInput,
    survey: Survey,
    evidence: PhaseEvidence,
    boundary: int,
    leader: int,
) -> str:
    """What is wrong, with what remote segments hold of the gap: looked up when log ends change."""
    ends = {str(n): end for n, end in sorted(survey.log_ends.items())}
    known = evidence.observed.get("log_gap")
    if not isinstance(known, dict) or known["log_ends"] != ends:
        gap = gap_below(boundary, ends)
        held = ""
        if gap is not None:
            try:
                parts = await who_holds(services, given.ref.topic, given.ref.log, gap)
                held = in_words(parts)
            except TidelineError as error:
                held = f"what remote segments hold is not known ({error})"
        known = {"log_ends": ends, "held": held}
        evidence.observed |= {"log_gap": known}
    said = f" ({known['held']})" if known["held"] else ""
    return (
        f"log gap: no in-sync replica but the leader {leader} reaches B0 = {given.boundary}; "
        f"log ends {survey.log_ends}, not answering {sorted(survey.silent)}{said}. Bring back a "
        "replica that has it, keep what remote segments hold (`tideline gap keep`), give up the "
        "rest: `tideline gap accept`"
    )


async def prefix_end(services: WorkerServices, given: PhaseInput) -> int:
    """Where what Kafka must hold ends (exclusive): B0, or a log gap that an operator gave up."""
    row = await services.control_plane.tracked_partition(
        given.ref.log.topic_id, given.ref.partition
    )
    return given.boundary if row is None or row.prefix_end < 0 else row.prefix_end


async def prefix_gone(
    services: WorkerServices,
    given: PhaseInput,
    layout: PartitionLayout,
    log_start: int,
    evidence: PhaseEvidence,
) -> None:
    """At the leader of ``layout`` Kafka's log begins at ``log_start``, at or past B0: nothing is
    left below B0.

    The partition becomes DISKLESS_ONLY. If B0 points below the log while the suffix is still
    empty, B0 is unset instead and this fails as BoundaryReset, as it does if an attempt whose
    answer was lost has unset it; as Waiting where the leader that was asked is one of before B0.
    """
    row = await services.control_plane.tracked_partition(
        given.ref.log.topic_id, given.ref.partition
    )
    if row is not None and row.boundary == UNDEFINED_OFFSET:
        why = f"B0 = {given.boundary} was unset before; migrate the partition anew"
        raise failure(failures.BOUNDARY_RESET, why)
    empty = row is not None and row.high_watermark == given.boundary
    evidence.observed |= {"prefix": "gone", "suffix_empty": empty}
    has_prefix = row is not None and row.state is MigrationState.HYBRID
    if log_start > given.boundary and empty and has_prefix:
        try:
            await services.control_plane.reset_boundary(
                given.ref.log, given.generation, layout.leader_epoch
            )
        except StaleLeaderEpoch as error:
            # Asked of a leader that was deposed before B0: whoever leads now is asked next.
            raise waiting(str(error)) from error
        raise failure(
            failures.BOUNDARY_RESET,
            f"the log starts at {log_start}, past B0 = {given.boundary}, and the suffix is "
            "empty: B0 was unset; migrate the partition anew",
        )
    await services.control_plane.advance_prefix_start(given.ref.log, log_start)


async def _export_tail(
    services: WorkerServices, given: PhaseInput, survey: Survey, evidence: PhaseEvidence
) -> None:
    """Keep a divergent tail's raw batches in the object store, as far as a broker serves them."""
    tails = {n: end for n, end in survey.log_ends.items() if end > given.boundary}
    if not tails:
        evidence.observed |= {"divergent_tail": None}
        return
    node = max(tails, key=lambda n: (survey.watermarks.get(n, -1), tails[n]))
    kept = await export_tail(
        services.reader,
        services.inventory,
        given.ref.topic,
        given.ref.log,
        (max(given.boundary, survey.log_start), min(survey.watermarks[node], tails[node])),
        node,
        heartbeat,
    )
    evidence.observed |= {
        "divergent_tail": {
            "replicas": {str(n): end for n, end in tails.items()},
            "from": given.boundary,
            "exported_to": kept.to,
            "bytes": kept.bytes,
            "sha256": kept.sha256,
            "object": kept.address,
        }
    }
    log.warning(
        "divergent_tail",
        topic=given.ref.topic,
        partition=given.ref.partition,
        boundary=given.boundary,
        log_ends=tails,
    )
