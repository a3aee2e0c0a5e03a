"""Phase 2: wait until no transaction is open on the partition, while appends go on.

Gateways refuse new transactions on the topic since tracking, so what is open is all there is.
At its end the phase warms the partition up for the write pause that follows.
"""

from __future__ import annotations

import time

from activities.attempt import PhaseEvidence, phase_evidence, rounds, waiting
from activities.prefetch import prefetch
from tideline.domain.ids import TopicPartition
from tideline.domain.messages import PhaseInput
from tideline.domain.migration import Phase
from tideline.domain.options import OpenTransactionsPolicy
from tideline.domain.transactions import Blocker, Remedy, blockers, remedy
from tideline.migration.connections import WorkerServices

OBSERVE_EVERY_MS = 250.0


async def drain_transactions(services: WorkerServices, given: PhaseInput) -> None:
    """Return when the partition is drained. Fails as Waiting, with the reason, at its bound.

    Past the operator's deadline (counted from the phase's first recorded attempt) ongoing
    transactions are aborted if the options say so.
    """
    partition = TopicPartition(given.ref.topic, given.ref.partition)
    why = ""
    async with phase_evidence(services, given, Phase.DRAIN_TRANSACTIONS) as evidence:
        since = await _first_attempt_ms(services, given)
        deadline = since + given.options.drain_deadline_ms
        abort = given.options.open_transactions is OpenTransactionsPolicy.ABORT
        aborted: list[str] = []
        async for number in rounds(services.wait_bound_ms, OBSERVE_EVERY_MS):
            leader = (
                await services.observer.partition(partition.topic, partition.partition)
            ).leader
            found = await _observe(services, partition, leader)
            if not found:
                observation = await prefetch(services, given.ref)
                evidence.observed |= {
                    "open_transactions": 0,
                    "aborted": aborted,
                    "leader": observation.layout.leader,
                    "high_watermark": observation.scanned_end,
                }
                return
            passed = time.time() * 1000 >= deadline
            for blocker in found:
                action = remedy(blocker, deadline_passed=passed, abort_allowed=abort)
                if await _act(services, partition, leader, blocker, action):
                    aborted.append(blocker.describe())
            why = _reason(found, passed=passed, abort=abort)
            if number:
                await _record(evidence, found, aborted, why)
        raise waiting(why)


async def _first_attempt_ms(services: WorkerServices, given: PhaseInput) -> float:
    for status in await services.control_plane.migration_status(given.ref.topic):
        if status.log == given.ref.log:
            for phase in status.phases:
                if phase.phase is Phase.DRAIN_TRANSACTIONS:
                    return phase.started_at.timestamp() * 1000
    return time.time() * 1000


async def _observe(
    services: WorkerServices, partition: TopicPartition, leader: int
) -> tuple[Blocker, ...]:
    """The leader before, the coordinators, the leader after (domain/transactions.py says why)."""
    before = await services.topics.producers(partition.topic, partition.partition, leader)
    transactions = await services.topics.open_transactions()
    after = await services.topics.producers(partition.topic, partition.partition, leader)
    return blockers(
        partition,
        (p.open() for p in before if p.transaction_start >= 0),
        transactions,
        (p.open() for p in after if p.transaction_start >= 0),
    )


async def _act(
    services: WorkerServices,
    partition: TopicPartition,
    leader: int,
    blocker: Blocker,
    action: Remedy,
) -> bool:
    if action is Remedy.FENCE and blocker.transactional_id is not None:
        return await services.admin.fence_transaction(blocker.transactional_id)
    if action is Remedy.WRITE_ABORT_MARKER:
        await services.admin.write_abort_marker(partition, leader, blocker)
        return True
    return False


def _reason(found: tuple[Blocker, ...], *, passed: bool, abort: bool) -> str:
    described = "; ".join(blocker.describe() for blocker in found[:3])
    more = f" and {len(found) - 3} more" if len(found) > 3 else ""
    if passed and abort:
        return f"{described}{more}; being aborted"
    if passed:
        return f"{described}{more}; end it, or migrate with open transactions aborted"
    return f"{described}{more}"


async def _record(
    evidence: PhaseEvidence, found: tuple[Blocker, ...], aborted: list[str], why: str
) -> None:
    evidence.observed |= {"open_transactions": len(found), "aborted": aborted}
    await evidence.waiting(why)
