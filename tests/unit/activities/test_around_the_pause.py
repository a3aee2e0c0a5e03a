"""Drain before the pause; zombies and readiness after it; tracking around it all."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, cast
from uuid import UUID

import pytest
from temporalio.client import WorkflowExecutionStatus
from temporalio.exceptions import ApplicationError
from temporalio.service import RPCError, RPCStatusCode

from activities import topic
from activities.attempt import rounds
from activities.drain_transactions import drain_transactions
from activities.following import follow_topic_migration
from activities.quiesce import quiesce
from activities.readiness import readiness
from activities.topic import (
    abort_migration,
    await_tracking,
    begin_tracking,
    observe_partition,
    reopen_partition,
    resolve_topic,
    tell_of_growth,
)
from activities.validate import validate_partition
from activities.zombie_cleanup import zombie_cleanup
from tests.unit.activities.world import LOG, REF, TOPIC, TOPIC_ID, World, gateway, record_batch
from tideline.control_plane.errors import ControlPlaneUnavailable, UnknownTopic
from tideline.control_plane.model import (
    BarrierEntry,
    TopicStatus,
    TrackedPartition,
    TrackingKind,
)
from tideline.domain import failures
from tideline.domain.coverage import SegmentObjects
from tideline.domain.ids import TopicPartition
from tideline.domain.messages import (
    TOPIC_WORKFLOW,
    Followed,
    GrowthFound,
    JoinRequest,
    TopicMigrationInput,
    TopicOutcome,
    TopicStep,
)
from tideline.domain.migration import MigrationState, Phase, PhaseStatus
from tideline.domain.options import MigrationOptions, OpenTransactionsPolicy
from tideline.domain.transactions import CoordinatorTransaction
from tideline.kafka.topic_observer import ActiveProducer, ConfigEntry
from workflows.topic_run import REFUSALS


async def failure_of(call: Any) -> ApplicationError:
    with pytest.raises(ApplicationError) as raised:
        await call
    assert raised.value.__cause__ is not raised.value, "it crosses Temporal with its causes"
    return raised.value


def open_transaction(state: str = "Ongoing") -> CoordinatorTransaction:
    return CoordinatorTransaction(
        "pay", 7, 0, state, 42, 60_000, frozenset({TopicPartition("orders", 0)})
    )


OPEN = ActiveProducer(7, 0, 3, 5, 2, transaction_start=90)
ABORT = {"open_transactions": OpenTransactionsPolicy.ABORT, "drain_deadline_ms": 0}
STEP = TopicStep(TOPIC, MigrationOptions())
EMPTY = TopicStep(replace(TOPIC, partitions=0), MigrationOptions())


async def test_a_drained_partition_is_warmed_up_for_its_pause(world: World) -> None:
    await drain_transactions(world.services, world.given())
    assert world.services.cached[LOG].layout.leader == 1
    status, evidence, _ = await world.recorded(Phase.DRAIN_TRANSACTIONS)
    assert (status, evidence["open_transactions"]) == (PhaseStatus.DONE, 0)


async def test_an_open_transaction_is_waited_for_and_named(world: World) -> None:
    world.kafka.active, world.kafka.transactions = [OPEN], [open_transaction()]
    error = await failure_of(drain_transactions(world.services, world.given()))
    assert (error.type, error.non_retryable) == (failures.WAITING, False)
    status, _, reason = await world.recorded(Phase.DRAIN_TRANSACTIONS)
    assert status is PhaseStatus.WAITING
    assert reason is not None
    assert '"pay"' in reason
    assert "producer 7" in reason
    assert world.kafka.done == []


async def test_past_the_deadline_it_is_aborted_if_the_operator_chose_so(world: World) -> None:
    world.kafka.active, world.kafka.transactions = [OPEN], [open_transaction()]
    world.services.wait_bound_ms = 2_000
    await drain_transactions(world.services, world.given(options=ABORT))
    assert world.kafka.done == ["fence pay"]


async def test_a_hanging_one_gets_an_abort_marker(world: World) -> None:
    world.kafka.active = [OPEN]
    world.services.wait_bound_ms = 2_000
    await drain_transactions(world.services, world.given(options=ABORT))
    assert world.kafka.done == ["marker 7"]


async def test_a_prepared_one_is_left_to_end_by_itself(world: World) -> None:
    world.kafka.transactions = [open_transaction("PrepareCommit")]
    await failure_of(drain_transactions(world.services, world.given(options=ABORT)))
    assert world.kafka.done == []


async def test_a_partition_out_of_sync_is_waited_for(world: World) -> None:
    world.kafka.layout = replace(world.kafka.layout, in_sync=(1, 2))
    error = await failure_of(validate_partition(world.services, world.given()))
    assert error.type == failures.WAITING
    assert "[3]" in error.message


async def test_a_topic_created_again_under_the_name_is_another_topic(world: World) -> None:
    world.kafka.topic_id = UUID(int=2)
    error = await failure_of(validate_partition(world.services, world.given()))
    assert (error.type, error.non_retryable) == (failures.TOPIC_CHANGED, True)


def crossed(world: World) -> Any:
    if world.plane.row.boundary < 0:
        hybrid(world, 100)
    return world.given(generation=1, boundary=100, leader_epoch=5)


async def test_replicas_that_all_end_at_the_boundary_are_clean(world: World) -> None:
    await zombie_cleanup(world.services, crossed(world))
    _, evidence, _ = await world.recorded(Phase.ZOMBIE_CLEANUP)
    assert evidence["divergent_tail"] is None


async def test_a_zombies_tail_is_exported_and_reported(world: World) -> None:
    world.kafka.ends = dict.fromkeys((1, 2, 3), 102)
    world.kafka.watermarks = dict.fromkeys((1, 2, 3), 102)
    world.kafka.tail_bytes = record_batch(100, 2)
    await zombie_cleanup(world.services, crossed(world))
    ((key, data),) = world.store.exported.items()
    assert key.startswith("forensics/orders-")
    assert data == world.kafka.tail_bytes
    _, evidence, _ = await world.recorded(Phase.ZOMBIE_CLEANUP)
    assert evidence["divergent_tail"]["exported_to"] == 102


async def test_leadership_moves_away_from_a_log_gap(world: World) -> None:
    world.services.wait_bound_ms = 2_000
    world.kafka.ends[1] = world.kafka.watermarks[1] = 80
    await zombie_cleanup(world.services, crossed(world))
    assert world.kafka.done == ["elect 2"]
    _, evidence, _ = await world.recorded(Phase.ZOMBIE_CLEANUP)
    assert evidence["leader_moved"] == {"from": 1, "to": 2}


async def test_a_reassignment_is_not_replaced_by_a_move_of_the_leader(world: World) -> None:
    """To move it the replicas are put in another order, which would end what somebody began."""
    world.services.wait_bound_ms = 4_000
    world.kafka.moving = {0}
    world.kafka.watermarks[3] = 80
    error = await failure_of(zombie_cleanup(world.services, crossed(world)))
    assert error.type == failures.WAITING
    assert "being reassigned" in error.message
    world.kafka.ends[1] = 80
    error = await failure_of(zombie_cleanup(world.services, crossed(world)))
    assert "being reassigned" in error.message
    assert world.kafka.done == []
    world.kafka.moving = set()
    await zombie_cleanup(world.services, crossed(world))
    assert world.kafka.done == ["elect 2"]


async def test_a_gap_that_nobody_can_close_is_waited_for_with_its_reason(world: World) -> None:
    world.kafka.ends = dict.fromkeys((1, 2, 3), 80)
    error = await failure_of(zombie_cleanup(world.services, crossed(world)))
    assert error.type == failures.WAITING
    assert "no in-sync replica" in error.message


async def test_a_stale_high_watermark_is_waited_for(world: World) -> None:
    world.kafka.watermarks[3] = 80
    error = await failure_of(zombie_cleanup(world.services, crossed(world)))
    assert error.type == failures.WAITING
    assert world.kafka.done == []


def hybrid(world: World, high_watermark: int) -> None:
    """B0 is 100 and stands in Postgres."""
    world.plane.row = replace(
        world.plane.row, state=MigrationState.HYBRID, boundary=100, high_watermark=high_watermark
    )


@pytest.mark.parametrize("phase", [zombie_cleanup, readiness])
async def test_a_boundary_below_the_log_start_is_reset_while_the_suffix_is_empty(
    world: World, phase: Any
) -> None:
    world.kafka.log_start = 120
    world.kafka.layout = replace(world.kafka.layout, leader_epoch=9)
    hybrid(world, 100)
    error = await failure_of(phase(world.services, crossed(world)))
    assert error.type == failures.BOUNDARY_RESET
    assert world.plane.row.state is MigrationState.MIGRATING
    assert (world.plane.row.boundary, world.plane.row.boundary_epoch) == (-1, 9)


@pytest.mark.parametrize("phase", [zombie_cleanup, readiness])
async def test_a_leader_of_before_the_boundary_resets_nothing_and_the_next_one_is_asked(
    world: World, phase: Any
) -> None:
    world.kafka.log_start = 120
    hybrid(world, 100)
    world.plane.row = replace(world.plane.row, boundary_epoch=9)
    world.kafka.layout = replace(world.kafka.layout, leader_epoch=8)
    error = await failure_of(phase(world.services, crossed(world)))
    assert error.type == failures.WAITING
    assert "leader epoch 8" in error.message
    assert world.plane.row.boundary == 100


@pytest.mark.parametrize("phase", [zombie_cleanup, readiness])
async def test_a_boundary_that_was_reset_by_an_attempt_whose_answer_was_lost_is_told_again(
    world: World, phase: Any
) -> None:
    """It would be taken for one whose prefix has expired."""
    world.kafka.log_start = 120
    hybrid(world, 100)
    given = crossed(world)
    await failure_of(phase(world.services, given))
    error = await failure_of(phase(world.services, given))
    assert error.type == failures.BOUNDARY_RESET
    assert "B0 = 100 was unset before" in error.message


async def gone(world: World, phase: Any, log_start: int, high_watermark: int) -> MigrationState:
    """The state once ``phase`` has found Kafka's log to start at ``log_start``."""
    world.kafka.log_start = log_start
    world.kafka.ends = world.kafka.watermarks = dict.fromkeys((1, 2, 3), log_start)
    hybrid(world, high_watermark)
    await phase(world.services, crossed(world))
    assert world.plane.row.boundary == 100
    return world.plane.row.state


@pytest.mark.parametrize("phase", [zombie_cleanup, readiness])
@pytest.mark.parametrize("log_start", [100, 120])
async def test_a_live_suffix_is_never_reset(world: World, phase: Any, log_start: int) -> None:
    """Its prefix is gone: the partition is diskless only."""
    assert await gone(world, phase, log_start, 101) is MigrationState.DISKLESS_ONLY


@pytest.mark.parametrize("phase", [zombie_cleanup, readiness])
async def test_a_log_that_starts_at_the_boundary_has_no_prefix(world: World, phase: Any) -> None:
    """Nothing points below the log, so there is nothing to reset."""
    assert await gone(world, phase, 100, 100) is MigrationState.DISKLESS_ONLY


async def test_a_diskless_partition_has_no_boundary_to_reset(world: World) -> None:
    """The log start moved on after the prefix had gone, before anything was produced."""
    world.kafka.log_start = 120
    world.kafka.ends = world.kafka.watermarks = dict.fromkeys((1, 2, 3), 120)
    hybrid(world, 100)
    world.plane.row = replace(world.plane.row, state=MigrationState.DISKLESS_ONLY)
    await zombie_cleanup(world.services, crossed(world))
    assert world.plane.row.boundary == 100


async def test_a_prefix_that_is_still_there_stays(world: World) -> None:
    world.kafka.log_start = 99
    hybrid(world, 101)
    await zombie_cleanup(world.services, crossed(world))
    assert world.plane.row.state is MigrationState.HYBRID


async def test_a_covered_and_rolled_prefix_is_ready(world: World) -> None:
    await readiness(world.services, crossed(world))
    assert world.plane.tiering is not None
    assert world.plane.tiering[0]


async def test_an_empty_prefix_is_ready_without_any_segment(world: World) -> None:
    world.store.found = []
    world.kafka.log_start = 100
    await readiness(world.services, crossed(world))
    assert world.plane.tiering == (True, "the prefix is empty")


async def test_a_replica_that_has_not_rolled_holds_readiness_back(world: World) -> None:
    world.kafka.local_starts[3] = 40
    error = await failure_of(readiness(world.services, crossed(world)))
    assert error.type == failures.WAITING
    assert "replica 3 has not rolled" in error.message
    assert world.plane.tiering is None


async def test_the_bucket_is_not_asked_while_replicas_have_not_rolled(world: World) -> None:
    asked: list[str] = []

    async def objects(topic: str, log: object) -> dict[UUID, SegmentObjects]:
        asked.append(topic)
        return {}

    world.kafka.local_starts[3] = 40
    world.store.objects = objects  # type: ignore[method-assign]
    await failure_of(readiness(world.services, crossed(world)))
    assert not asked


async def test_the_looks_of_a_long_wait_come_farther_and_farther_apart(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    slept: list[float] = []

    async def sleep(seconds: float) -> None:
        slept.append(seconds)

    monkeypatch.setattr("activities.attempt.asyncio.sleep", sleep)
    async for number in rounds(60_000, 1_000, growth=2, at_most_ms=5_000):
        if number == 5:
            break
    assert slept == [1, 2, 4, 5, 5]


async def test_a_short_object_holds_readiness_back(world: World) -> None:
    world.store.listing = {UUID(int=9): SegmentObjects(3)}
    error = await failure_of(readiness(world.services, crossed(world)))
    assert "3 bytes instead of 10" in error.message


async def test_tracking_waits_for_the_gateway_that_has_not_acknowledged(world: World) -> None:
    world.plane.status = TopicStatus.TRACKING
    world.plane.tracked_by(BarrierEntry(gateway(1), True), BarrierEntry(gateway(2), False))
    error = await failure_of(await_tracking(world.services, STEP))
    assert error.type == failures.WAITING
    assert "gateway 2" in error.message
    assert world.plane.status is TopicStatus.TRACKING
    world.plane.tracked_by(BarrierEntry(gateway(1), True), BarrierEntry(gateway(2), True))
    await await_tracking(world.services, STEP)
    assert world.plane.status is TopicStatus.ACTIVE


async def test_tracking_waits_for_an_incarnation_that_may_still_run_and_says_what_to_do(
    world: World,
) -> None:
    """Schedule 24."""
    world.plane.status = TopicStatus.TRACKING
    twin = replace(gateway(2), incarnation=UUID(int=7))
    world.plane.tracked_by(BarrierEntry(gateway(2), True))
    world.plane.gateways.ended[twin.incarnation] = twin
    error = await failure_of(await_tracking(world.services, STEP))
    assert error.type == failures.WAITING
    assert f"incarnation {twin.incarnation} of gateway 2 at 127.0.0.1:19192" in error.message
    assert f"`tideline gateway account 2 {twin.incarnation} --gone`" in error.message
    assert "retire" not in error.message


async def test_a_topic_that_was_deleted_is_not_waited_for_and_its_name_is_not_activated(
    world: World,
) -> None:
    world.plane.status = TopicStatus.TRACKING
    world.plane.tracked_by(BarrierEntry(gateway(1), False))
    await world.plane.delete_topic(TOPIC_ID)
    error = await failure_of(await_tracking(world.services, STEP))
    assert (error.type, error.non_retryable) == (failures.UNKNOWN_TOPIC, True)
    # Another topic of the name is being born, and every gateway has heard of it.
    born = TrackingKind.BORN_DISKLESS
    await world.plane.begin_tracking(TOPIC.topic, None, born, 1, "CreateTime", 1_000)
    world.plane.topics.rows[-1].acknowledged[1] = gateway(1).incarnation
    error = await failure_of(await_tracking(world.services, STEP))
    assert error.type == failures.UNKNOWN_TOPIC
    tracked = await world.plane.tracked_topic(TOPIC.topic)
    assert tracked is not None
    assert tracked.status is TopicStatus.TRACKING


async def test_a_topic_that_postgres_knows_nothing_of_any_more_is_not_taken_for_a_deleted_one(
    world: World,
) -> None:
    """A history was begun that lacks that it is tracked. Kafka has it: it is tracked again."""
    given = world.given()
    world.plane.topics.rows.clear()
    for attempt in (
        validate_partition(world.services, given),
        drain_transactions(world.services, given),
        quiesce(world.services, given),
        await_tracking(world.services, STEP),
    ):
        error = await failure_of(attempt)
        assert (error.type, error.non_retryable) == (failures.UNTRACKED, True)
    assert (await observe_partition(world.services, REF)).why == "untracked"
    assert (await reopen_partition(world.services, given)).why == "untracked"
    await begin_tracking(world.services, STEP)
    await validate_partition(world.services, given)
    await world.plane.delete_topic(TOPIC_ID)
    assert (await observe_partition(world.services, REF)).why == "deleted"
    error = await failure_of(quiesce(world.services, given))
    assert error.type == failures.UNKNOWN_TOPIC
    error = await failure_of(begin_tracking(world.services, STEP))
    assert error.type == failures.UNKNOWN_TOPIC


async def test_a_topic_that_is_gone_from_postgres_while_it_begins_to_be_tracked_is_begun_again(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def gone(topic_id: UUID, **limits: Any) -> None:
        raise UnknownTopic("orders")

    world.plane.status = TopicStatus.TRACKING
    monkeypatch.setattr(world.plane, "update_topic_limits", gone)
    error = await failure_of(begin_tracking(world.services, STEP))
    assert error.type == failures.UNTRACKED
    assert error.type not in REFUSALS, "the workflow tries again"


async def test_a_gateway_that_registers_before_the_topic_is_activated_is_waited_for(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    world.plane.status = TopicStatus.TRACKING
    world.plane.tracked_by(BarrierEntry(gateway(1), True))
    count, late = world.kafka.partition_count, [BarrierEntry(gateway(2), False)]

    async def meanwhile(topic_id: UUID) -> int:
        world.plane.tracked_by(*late)
        late.clear()
        return await count(topic_id)

    monkeypatch.setattr(world.kafka, "partition_count", meanwhile)
    error = await failure_of(await_tracking(world.services, STEP))
    assert (error.type, "gateway 2" in error.message) == (failures.WAITING, True)
    assert world.plane.status is TopicStatus.TRACKING


async def test_partitions_that_were_added_before_tracking_end_the_start_and_change_nothing(
    world: World,
) -> None:
    """Schedule 22: nobody would migrate them, and nobody serves a partition without a row."""
    begun = dict(vars(world.plane))
    error = await failure_of(begin_tracking(world.services, EMPTY))
    assert (error.type, error.non_retryable) == (failures.TOPIC_CHANGED, True)
    assert "had 0 partitions" in error.message
    assert "start the migration again" in error.message
    assert vars(world.plane) == begun


async def test_partitions_that_a_gateway_let_through_before_it_knew_hold_the_topic_back(
    world: World,
) -> None:
    """Schedule 22."""
    world.plane.status = TopicStatus.TRACKING
    world.plane.tracked_by(BarrierEntry(gateway(1), True))
    error = await failure_of(await_tracking(world.services, EMPTY))
    assert error.type == failures.TOPIC_CHANGED
    assert world.plane.status is TopicStatus.TRACKING


async def test_partitions_that_one_broker_does_not_know_yet_hold_the_topic_back(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Schedule 22: every broker is asked how many there are."""
    world.plane.status = TopicStatus.TRACKING
    world.plane.tracked_by(BarrierEntry(gateway(1), True))

    async def two(topic_id: UUID) -> int:
        return 2

    monkeypatch.setattr(world.kafka, "partition_count", two)
    error = await failure_of(await_tracking(world.services, STEP))
    assert error.type == failures.TOPIC_CHANGED
    assert "had 1 partitions" in error.message
    assert "has 2 now" in error.message


async def test_a_migration_takes_in_what_is_empty_when_it_ends_and_tells_of_the_rest(
    world: World,
) -> None:
    world.plane.row = replace(world.plane.row, state=MigrationState.HYBRID, boundary=100)
    assert await tell_of_growth(world.services, STEP) == GrowthFound()
    world.kafka.more_ends = {1: dict.fromkeys((1, 2, 3), 0), 2: {1: 4, 2: 4, 3: 4}}
    found = await tell_of_growth(world.services, STEP)
    assert "partition 2 (log ends by replica: 1: 4, 2: 4, 3: 4) came past the gateways" in (
        found.reason
    )
    assert {n: row.boundary for n, row in world.plane.topic.partitions.items()} == {0: 100, 1: 0}


async def test_an_abort_is_won_before_and_lost_after_the_boundary(world: World) -> None:
    assert (await abort_migration(world.services, STEP)).won
    world.plane.status = TopicStatus.ACTIVE
    world.plane.row = replace(world.plane.row, boundary=100)
    lost = await abort_migration(world.services, STEP)
    assert not lost.won
    assert "partition 0" in lost.reason


async def test_an_attempt_to_begin_that_slept_over_the_abort_of_its_run_begins_nothing(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Schedule 27: nobody would drive what it began."""
    monkeypatch.setattr(topic, "current_run", lambda: "first")
    await begin_tracking(world.services, STEP)
    assert (await abort_migration(world.services, STEP)).won
    await failure_of(begin_tracking(world.services, STEP))
    assert world.plane.status is TopicStatus.ABORTED
    monkeypatch.setattr(topic, "current_run", lambda: "second")
    await begin_tracking(world.services, STEP)
    assert world.plane.status is TopicStatus.TRACKING
    assert world.plane.topic.round == 2


async def test_an_abort_of_a_topic_that_is_not_tracked_has_nothing_to_restore(
    world: World,
) -> None:
    world.plane.refuse_abort = UnknownTopic("orders")
    decision = await abort_migration(world.services, STEP)
    assert (decision.won, decision.tracked) == (True, False)


async def test_a_partition_that_is_tracked_again_between_two_questions_is_not_taken_for_aborted(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A standby that is promoted may lack that a topic is tracked, which its workflow mends while
    a partition asks where it stands."""
    await validate_partition(world.services, world.given())
    asked = world.plane.tracked_partition
    rows = iter((None,))

    async def first_without_it(topic_id: UUID, partition: int) -> TrackedPartition | None:
        return next(rows, await asked(topic_id, partition))

    monkeypatch.setattr(world.plane, "tracked_partition", first_without_it)
    assert (await observe_partition(world.services, REF)).tracked


async def test_a_quiesce_that_is_given_up_is_reopened(world: World) -> None:
    world.plane.row = replace(world.plane.row, quiesced=True, generation=1)
    found = await reopen_partition(world.services, world.given())
    assert found.tracked
    assert not found.quiesced, "whichever attempt closed it"


async def test_an_aborted_partition_says_so(world: World) -> None:
    world.plane.row = replace(world.plane.row, state=MigrationState.TIERED_ONLY)
    assert not (await observe_partition(world.services, REF)).tracked


async def test_an_unknown_topic_is_named(world: World) -> None:
    error = await failure_of(resolve_topic(world.services, TopicMigrationInput("nowhere")))
    assert error.type == failures.UNKNOWN_TOPIC
    assert "'nowhere'" in error.message


async def test_a_topic_is_pinned_to_its_id_and_to_its_kafka_cluster(world: World) -> None:
    """So is each task about it: a worker of another cluster refuses it."""
    world.services.cluster_id = "the cluster"
    found = await resolve_topic(world.services, TopicMigrationInput("orders"))
    assert (found.topic_id, found.cluster_id) == (REF.topic_id, "the cluster")
    assert found.partition(0) == replace(REF, cluster_id="the cluster")


@pytest.mark.parametrize("status", [RPCStatusCode.NOT_FOUND, RPCStatusCode.UNAVAILABLE])
async def test_whoever_follows_a_run_that_temporal_lost_starts_or_joins_anew(
    world: World, status: RPCStatusCode
) -> None:
    class Lost:
        async def start_workflow(self, *_: object, **__: object) -> Any:
            return self

        async def describe(self, **_: object) -> Any:
            raise RPCError("no answer", status, b"")

    world.services.temporal = cast(Any, Lost())
    request = JoinRequest(TOPIC, TopicMigrationInput(TOPIC.topic))
    error = await failure_of(follow_topic_migration(world.services, request))
    assert (error.type, error.non_retryable) == (failures.UNREACHABLE, False)
    knows_none = f"Temporal knows no workflow {TOPIC.workflow_id} any more"
    lost = status is RPCStatusCode.NOT_FOUND
    assert error.message == (knows_none if lost else "Temporal: no answer")


async def test_a_migration_that_ended_while_it_was_followed_is_not_started_again(
    world: World,
) -> None:
    """It was aborted between two looks."""
    outcome = TopicOutcome(TOPIC.topic, TOPIC.topic_id, "aborted")

    class Ended:
        status = WorkflowExecutionStatus.COMPLETED
        workflow_type = TOPIC_WORKFLOW

        def get_workflow_handle(self, *_: object, **__: object) -> Any:
            return self

        async def describe(self, **_: object) -> Any:
            return self

        async def result(self) -> TopicOutcome:
            return outcome

    world.services.temporal = cast(Any, Ended())
    request = JoinRequest(TOPIC, TopicMigrationInput(TOPIC.topic), joined=True)
    assert await follow_topic_migration(world.services, request) == Followed(outcome)


async def test_the_limits_of_batches_are_set_although_the_first_attempt_lost_postgres(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    after = {"message.timestamp.after.max.ms": "9223372036854775807"}
    world.kafka.own_configs = {**after, "message.timestamp.before.max.ms": "86400000"}
    tracked = world.plane.tracked_topic

    async def away(*_: Any, **__: Any) -> None:
        raise ControlPlaneUnavailable("away")

    async def nothing(_: str) -> None:
        return None

    with monkeypatch.context() as first:
        first.setattr(world.plane, "update_topic_limits", away)
        first.setattr(world.plane, "tracked_topic", nothing)
        await failure_of(begin_tracking(world.services, STEP))
    world.plane.status = TopicStatus.TRACKING
    await begin_tracking(world.services, STEP)
    topic = await tracked("orders")
    assert topic is not None
    assert topic.timestamp_after_max_ms == 2**63 - 1
    assert topic.timestamp_before_max_ms == 86_400_000


async def test_a_limit_that_a_gateway_let_through_before_it_knew_the_topic_is_enforced(
    world: World,
) -> None:
    """It passed the change to Kafka as that of a classic topic, after the limits were read."""
    world.kafka.own_configs = {"max.message.bytes": "1000"}
    world.plane.status = TopicStatus.TRACKING
    await begin_tracking(world.services, STEP)
    world.kafka.own_configs = {
        "max.message.bytes": "3000",
        "message.timestamp.type": "LogAppendTime",
    }
    world.kafka.lagging = [await world.kafka.configs("orders")]
    world.kafka.lagging[0]["max.message.bytes"] = ConfigEntry("1000", True)
    await await_tracking(world.services, STEP)
    topic = await world.plane.tracked_topic("orders")
    assert topic is not None
    assert (topic.limits.max_message_bytes, topic.limits.timestamp_type) == (3000, "LogAppendTime")


async def test_a_seal_does_not_become_a_limit_when_tracking_is_awaited_again(world: World) -> None:
    world.kafka.own_configs = {"max.message.bytes": "78"}
    await world.plane.override_config(TOPIC_ID, "max.message.bytes", "78", "1000")
    await await_tracking(world.services, STEP)
    world.plane.row = replace(world.plane.row, boundary=100)
    await world.plane.release_config(TOPIC_ID, "max.message.bytes", "1000")
    await await_tracking(world.services, STEP)
    topic = await world.plane.tracked_topic("orders")
    assert topic is not None
    assert topic.limits.max_message_bytes == 1_000
