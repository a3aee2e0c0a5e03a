"""Looks, configs, proofs and the cleaning up behind a switch of tiered storage."""

from __future__ import annotations

from dataclasses import replace
from typing import Any
from unittest.mock import AsyncMock, Mock
from uuid import UUID

import pytest
from temporalio.client import WorkflowExecutionStatus
from temporalio.exceptions import ApplicationError
from temporalio.testing import ActivityEnvironment

from activities import configs
from activities.configs import offsets_proven_for_roll
from activities.tiered_storage import (
    finish_remote_deletion,
    prove_tiered_again,
    review_tiered_storage,
    set_tiered_storage,
)
from tests.unit.activities.world import LOG, TOPIC, World
from tideline.control_plane.model import TopicStatus
from tideline.domain import failures
from tideline.domain.ids import TopicIdPartition
from tideline.domain.migration import MigrationState
from tideline.domain.remote_log import RemoteSegment
from tideline.domain.tiered_storage import HELD, NOT_COMPACTED, SWITCHED_OFF, LocalRetention
from tideline.domain.tiered_storage_change import (
    ConfigsToSet,
    DeletionLook,
    Proof,
    Review,
    ReviewRequest,
    TieredStorageInput,
)
from tideline.kafka.errors import KafkaUnavailable
from tideline.kafka.observer import TopicLayout
from tideline.migration import tiered_storage
from tideline.migration.preflight import _claimed_not_there


@pytest.fixture
def classic(world: World) -> World:
    """The topic is no business of Tideline's."""
    world.plane.status = TopicStatus.ABORTED
    world.kafka.local_starts = dict.fromkeys((1, 2, 3), 40)
    return world


def off(world: World) -> None:
    world.kafka.own_configs["remote.storage.enable"] = "false"


async def review(world: World, target: str, **given: Any) -> Review:
    request = ReviewRequest(TOPIC, TieredStorageInput("orders", target, **given))
    return await review_tiered_storage(world.services, request)


async def error_of(call: Any) -> ApplicationError:
    with pytest.raises(ApplicationError) as raised:
        await call
    return raised.value


async def test_a_review_tells_the_state_and_what_the_user_has(classic: World) -> None:
    classic.kafka.own_configs = {"local.retention.ms": "5", "retention.ms": "10"}
    found = await review(classic, "read-only")
    assert found == Review("enabled", LocalRetention("5", None))
    off(classic)
    assert (await review(classic, "disabled")).state == "deleting"
    classic.store.found, classic.store.listing = [], {}
    assert (await review(classic, "disabled")).state == "disabled"


async def test_a_compacted_topic_is_refused_in_kafkas_words_before_anything_is_sent(
    classic: World,
) -> None:
    off(classic)
    classic.kafka.own_configs["cleanup.policy"] = "compact"
    error = await error_of(review(classic, "enabled"))
    assert (error.type, error.non_retryable) == (failures.REFUSED, True)
    assert NOT_COMPACTED in error.message
    assert classic.kafka.done == []


async def test_a_local_retention_above_the_total_is_refused_in_kafkas_words(
    classic: World,
) -> None:
    classic.kafka.own_configs["retention.ms"] = "10"
    error = await error_of(review(classic, "enabled", local_retention_ms=11))
    assert "Value must not be more than retention.ms property value: 10" in error.message


async def test_brokers_without_tiered_storage_enable_nothing(classic: World) -> None:
    off(classic)
    classic.kafka.broker_configs["remote.log.storage.system.enable"] = "false"
    assert SWITCHED_OFF in (await error_of(review(classic, "enabled"))).message


@pytest.mark.parametrize(
    ("state", "target", "instead"),
    [
        (MigrationState.HYBRID, "disabled", "delete the records up to B0 first"),
        (MigrationState.HYBRID, "read-only", "`tideline tiering pause TOPIC`"),
        (MigrationState.HYBRID, "enabled", "`tideline status TOPIC`"),
        (MigrationState.MIGRATING, "read-only", "leave it false"),
        (MigrationState.DISKLESS_ONLY, "enabled", "docs/tiering.md"),
    ],
)
async def test_a_topic_with_a_prefix_is_refused_with_what_to_do_instead(
    world: World, state: MigrationState, target: str, instead: str
) -> None:
    boundary = -1 if state is MigrationState.MIGRATING else 100
    if state is MigrationState.DISKLESS_ONLY:
        boundary = 0
    world.plane.row = replace(world.plane.row, state=state, boundary=boundary)
    error = await error_of(review(world, target))
    assert error.type == failures.REFUSED
    assert instead in error.message


async def test_a_topic_without_a_prefix_may_let_go_of_tiered_storage(world: World) -> None:
    """Nothing of a topic that was born diskless is in Kafka's log."""
    world.plane.row = replace(world.plane.row, state=MigrationState.DISKLESS_ONLY, boundary=0)
    assert (await review(world, "disabled")).state == "enabled"


async def test_configs_are_set_in_one_request_and_once(classic: World) -> None:
    wanted = ConfigsToSet(TOPIC, {"remote.log.copy.disable": "true", **HELD})
    await set_tiered_storage(classic.services, wanted)
    await set_tiered_storage(classic.services, wanted)
    assert len(classic.kafka.done) == 1
    assert dict(HELD).items() <= classic.kafka.own_configs.items()


async def test_what_kafka_would_refuse_is_not_sent(classic: World) -> None:
    wanted = ConfigsToSet(TOPIC, {"remote.storage.enable": "false"})
    error = await error_of(set_tiered_storage(classic.services, wanted))
    assert "It is invalid to disable remote storage without deleting" in error.message
    assert classic.kafka.done == []


async def test_configs_are_not_set_on_another_topic_of_the_name(classic: World) -> None:
    classic.kafka.topic_id = UUID(int=77)
    wanted = ConfigsToSet(TOPIC, {"remote.log.copy.disable": "true", **HELD})
    error = await error_of(set_tiered_storage(classic.services, wanted))
    assert error.type == failures.TOPIC_CHANGED
    assert classic.kafka.done == []


async def test_a_write_that_brokers_do_not_show_is_waited_for(
    classic: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(configs, "SETTLE_S", 0.0)
    classic.kafka.ignore_writes = True
    wanted = ConfigsToSet(TOPIC, {"remote.log.copy.disable": "true", **HELD})
    assert (await error_of(set_tiered_storage(classic.services, wanted))).type == failures.WAITING


async def test_a_switch_makes_older_proofs_void(classic: World) -> None:
    await offsets_proven_for_roll(classic.services, TOPIC)
    assert classic.services.proofs.of(LOG, None) is not None
    await set_tiered_storage(classic.services, ConfigsToSet(TOPIC, dict(HELD)))
    assert classic.services.proofs.of(LOG, None) is None


@pytest.mark.parametrize("status", WorkflowExecutionStatus)
async def test_an_attempt_that_slept_over_the_end_of_its_run_writes_no_configs(
    classic: World, status: WorkflowExecutionStatus
) -> None:
    """It was terminated, and what resumed it has given the user's local retention back by now."""
    classic.kafka.own_configs = {"local.retention.ms": "3600000"}
    environment = ActivityEnvironment()
    asked: list[tuple[str, str | None]] = []

    def handle(workflow_id: str, *, run_id: str | None) -> Mock:
        asked.append((workflow_id, run_id))
        return Mock(describe=AsyncMock(return_value=Mock(status=status)))

    classic.services.temporal = Mock(get_workflow_handle=handle)
    late = environment.run(set_tiered_storage, classic.services, ConfigsToSet(TOPIC, dict(HELD)))
    if status is WorkflowExecutionStatus.RUNNING:
        await late
    else:
        assert (await error_of(late)).type == failures.REFUSED
        assert classic.kafka.own_configs == {"local.retention.ms": "3600000"}
    assert set(asked) == {(environment.info.workflow_id, environment.info.workflow_run_id)}


class TestTheProof:
    @pytest.fixture(autouse=True)
    def held(self, classic: World) -> None:
        classic.kafka.own_configs |= HELD

    async def test_what_is_tiered_and_there_is_proven(self, classic: World) -> None:
        assert await prove_tiered_again(classic.services, TOPIC) == Proof()

    async def test_a_stale_highest_tiered_offset_is_waited_out(self, classic: World) -> None:
        classic.store.found = []
        error = await error_of(prove_tiered_again(classic.services, TOPIC))
        assert error.type == failures.WAITING
        assert "offsets up to 99 are in remote storage, but" in error.message
        classic.kafka.log_start = 100
        classic.kafka.local_starts = dict.fromkeys((1, 2, 3), 100)
        assert await prove_tiered_again(classic.services, TOPIC) == Proof()

    async def test_what_expired_and_was_never_uploaded_leaves_the_log(self, classic: World) -> None:
        """Or consumers that begin at the first offset would be sent back to it for ever."""
        classic.store.found = []
        classic.kafka.local_starts = {1: 60, 2: 60, 3: 50}
        error = await error_of(prove_tiered_again(classic.services, TOPIC))
        assert error.type == failures.WAITING
        assert classic.kafka.log_start == 50
        classic.kafka.local_starts = dict.fromkeys((1, 2, 3), 100)
        assert await prove_tiered_again(classic.services, TOPIC) == Proof()
        assert classic.kafka.log_start == 100

    async def test_what_kafka_has_in_remote_storage_stays_in_the_log(self, classic: World) -> None:
        """Also when its objects cannot be found: a bucket that is not read is not empty."""
        classic.store.listing = {}
        await error_of(prove_tiered_again(classic.services, TOPIC))
        classic.kafka.local_starts = dict.fromkeys((1, 2, 3), 100)
        await prove_tiered_again(classic.services, TOPIC)
        assert classic.kafka.log_start == 0

    async def test_a_log_whose_replicas_are_not_all_asked_begins_where_it_did(
        self, classic: World
    ) -> None:
        classic.store.found, classic.kafka.silent = [], {3}
        await error_of(prove_tiered_again(classic.services, TOPIC))
        assert classic.kafka.log_start == 0

    async def test_brokers_that_do_not_say_it_yet_are_not_believed(self, classic: World) -> None:
        """Right after enabling they answer −1; Kafka's memory comes back with the first task."""
        classic.store.found, classic.store.once = [], {5: 99}
        classic.kafka.highest_tiered = -1
        error = await error_of(prove_tiered_again(classic.services, TOPIC))
        assert "offsets up to 99" in error.message

    async def test_a_replica_that_is_silent_may_claim_more(self, classic: World) -> None:
        classic.kafka.silent = {3}
        error = await error_of(prove_tiered_again(classic.services, TOPIC))
        assert "replica 3 does not answer" in error.message

    async def test_nothing_is_proven_when_somebody_let_go_of_the_hold(self, classic: World) -> None:
        classic.kafka.own_configs["local.retention.ms"] = "7"
        proof = await prove_tiered_again(classic.services, TOPIC)
        assert proof == Proof(LocalRetention("7", "-2"))

    async def test_the_hold_is_not_let_go_of_by_an_older_proof(self, classic: World) -> None:
        """The worker was away since, and somebody turned tiered storage off and on under it."""
        assert await prove_tiered_again(classic.services, TOPIC) == Proof()
        classic.store.found = []
        release = ConfigsToSet(TOPIC, {"local.retention.ms": "5", "local.retention.bytes": None})
        error = await error_of(set_tiered_storage(classic.services, release))
        assert error.type == failures.WAITING
        assert HELD.items() <= classic.kafka.own_configs.items()
        off(classic)
        assert "by hand" in (await error_of(set_tiered_storage(classic.services, release))).message
        classic.kafka.own_configs["remote.storage.enable"] = "true"
        classic.kafka.log_start = 100
        classic.kafka.local_starts = dict.fromkeys((1, 2, 3), 100)
        await set_tiered_storage(classic.services, release)
        assert classic.kafka.own_configs["local.retention.ms"] == "5"

    async def test_a_topic_that_was_turned_off_meanwhile_ends_the_wait(
        self, classic: World
    ) -> None:
        off(classic)
        assert (await error_of(prove_tiered_again(classic.services, TOPIC))).type == (
            failures.REFUSED
        )


class TestTheDeletion:
    @pytest.fixture(autouse=True)
    def off(self, classic: World) -> None:
        off(classic)

    async def test_what_is_left_is_counted_and_left_alone(self, classic: World) -> None:
        left = await finish_remote_deletion(classic.services, DeletionLook(TOPIC))
        assert (left.segments, left.objects, left.collected) == (1, 5, 0)
        assert classic.store.listing

    async def test_what_is_left_is_collected(self, classic: World) -> None:
        classic.store.found = []
        left = await finish_remote_deletion(classic.services, DeletionLook(TOPIC, collect=True))
        assert (left.objects, left.collected) == (0, 5)
        again = await finish_remote_deletion(classic.services, DeletionLook(TOPIC, collect=True))
        assert again.collected == 0

    async def test_what_is_left_of_a_partition_that_was_added_meanwhile_is_collected(
        self, classic: World, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """A switch may wait for weeks; its input has the partitions of its start."""
        of_the_topic, keys = classic.store.objects, classic.store.keys

        async def objects(topic: str, log: TopicIdPartition) -> Any:
            return await of_the_topic(topic, log) if log.partition == 1 else {}

        async def of_the_second(topic: str, log: TopicIdPartition) -> list[str]:
            return await keys(topic, log) if log.partition == 1 else []

        monkeypatch.setattr(classic.store, "objects", objects)
        monkeypatch.setattr(classic.store, "keys", of_the_second)
        classic.store.found, classic.kafka.partitions = [], TOPIC.partitions + 1
        left = await finish_remote_deletion(classic.services, DeletionLook(TOPIC, collect=True))
        assert (left.objects, left.collected) == (0, 5)
        assert not classic.store.listing

    async def test_nothing_is_collected_of_a_topic_that_one_broker_calls_enabled(
        self, classic: World
    ) -> None:
        """It lags, or the topic was enabled by hand: its segments are in use."""
        classic.kafka.own_configs["remote.storage.enable"] = "true"
        error = await error_of(
            finish_remote_deletion(classic.services, DeletionLook(TOPIC, collect=True))
        )
        assert error.type == failures.REFUSED
        assert classic.store.listing

    async def test_a_topic_that_is_enabled_after_its_objects_were_listed_keeps_them(
        self, classic: World, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        list_keys = classic.store.keys

        async def listed(*given: Any) -> list[str]:
            found = await list_keys(*given)
            classic.kafka.own_configs["remote.storage.enable"] = "true"
            return found

        monkeypatch.setattr(classic.store, "keys", listed)
        await error_of(finish_remote_deletion(classic.services, DeletionLook(TOPIC, collect=True)))
        assert classic.store.listing


async def test_a_look_tells_state_offsets_and_what_is_not_proven(classic: World) -> None:
    found = await tiered_storage.look(classic.services, "orders")
    (partition,) = found.partitions
    assert (found.state.value, found.proven) == ("enabled", True)
    assert (partition.log_start, partition.local_start, partition.log_end) == (0, 40, 100)
    assert (partition.highest_tiered, partition.segments, partition.objects) == (99, 1, 5)
    classic.store.found = []
    found = await tiered_storage.look(classic.services, "orders")
    assert not found.proven


async def test_the_preflight_sees_a_topic_that_was_enabled_again_by_hand(
    classic: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    layout = TopicLayout("orders", UUID(int=1), False, {0: classic.kafka.layout})
    on = {"remote.storage.enable": "true"}
    assert await _claimed_not_there(classic.services, layout, on, lambda: None) == ()
    found, classic.store.found = classic.store.found, []
    (why,) = await _claimed_not_there(classic.services, layout, on, lambda: None)
    assert why.startswith("partition 0: Kafka says that offsets up to 99")

    async def segments(log: TopicIdPartition) -> tuple[RemoteSegment, ...]:
        """Retention moved the log start and took a segment, between the reading of the two."""
        looks.append(log)
        return () if len(looks) == 1 else tuple(found)

    looks: list[TopicIdPartition] = []
    monkeypatch.setattr(classic.store, "segments", segments)
    assert await _claimed_not_there(classic.services, layout, on, lambda: None) == ()


async def test_the_preflight_does_not_take_a_replica_that_is_silent_for_one_that_claims_nothing(
    classic: World,
) -> None:
    layout = TopicLayout("orders", UUID(int=1), False, {0: classic.kafka.layout})
    classic.kafka.silent = {3}
    with pytest.raises(KafkaUnavailable, match="replica 3 does not answer"):
        await _claimed_not_there(
            classic.services, layout, {"remote.storage.enable": "true"}, lambda: None
        )
