"""The reconciler follows Postgres and gives back exactly what the user had."""

from __future__ import annotations

from dataclasses import replace
from typing import Any
from uuid import UUID

import pytest
from temporalio.exceptions import ApplicationError

from activities import configs
from activities.configs import offsets_proven_for_roll, reconcile_configs
from tests.unit.activities.world import TOPIC, World
from tideline.control_plane.model import TopicStatus
from tideline.domain import failures
from tideline.domain.messages import ConfigStage, ConfigStep, PartitionRef
from tideline.domain.options import Durability, MigrationOptions
from tideline.domain.remote_log import SegmentState
from tideline.kafka.topic_observer import ConfigEntry
from tideline.migration.connections import Proof, ProofsForRoll, monotonic_ms
from workflows.topic_run import PROVING_BOUND_S


def step(stage: ConfigStage) -> ConfigStep:
    return ConfigStep(TOPIC, MigrationOptions(), stage)


async def reach(world: World, *stages: ConfigStage) -> None:
    for stage in stages:
        if stage is ConfigStage.CROSSED:
            world.plane.row = replace(world.plane.row, boundary=100)
        if stage is ConfigStage.FROZEN:
            world.plane.row = replace(world.plane.row, ready=True)
        await reconcile_configs(world.services, step(stage))


async def refused(call: Any) -> ApplicationError:
    with pytest.raises(ApplicationError) as raised:
        await call
    return raised.value


BEFORE = {"retention.bytes": "5000", "segment.bytes": "1048576", "flush.messages": "9"}


async def test_an_abort_leaves_the_configs_as_they_were(world: World) -> None:
    world.kafka.own_configs = dict(BEFORE)
    await reach(world, ConfigStage.TRACKED, ConfigStage.ARMED)
    assert world.kafka.own_configs != BEFORE
    world.plane.status = TopicStatus.ABORTED
    await reach(world, ConfigStage.RESTORED)
    assert world.kafka.own_configs == BEFORE
    assert world.plane.overrides == {}


async def test_a_key_that_was_unset_becomes_unset_again(world: World) -> None:
    await reach(world, ConfigStage.TRACKED, ConfigStage.ARMED)
    world.plane.status = TopicStatus.ABORTED
    await reach(world, ConfigStage.RESTORED)
    assert world.kafka.own_configs == {}


async def test_a_whole_migration_ends_frozen_and_sealed(world: World) -> None:
    world.kafka.own_configs = {"flush.messages": "9"}
    await reach(
        world,
        ConfigStage.TRACKED,
        ConfigStage.ARMED,
        ConfigStage.CROSSED,
        ConfigStage.ROLLING,
        ConfigStage.FROZEN,
    )
    assert world.kafka.own_configs == {
        "retention.bytes": "-1",
        "flush.messages": "9",
        "remote.log.copy.disable": "true",
        "local.retention.bytes": "-2",
        "local.retention.ms": "-2",
        "max.message.bytes": "78",
    }


LAGS = {"remote.copy.lag.ms": "3600000", "remote.copy.lag.bytes": "-1"}


async def test_nothing_is_held_back_from_remote_storage_and_the_users_lag_comes_back(
    world: World,
) -> None:
    """KIP-1241, where brokers show the keys: 4.4 and later."""
    world.kafka.own_configs = {"remote.copy.lag.ms": "3600000"}
    world.kafka.defaults = {"remote.copy.lag.bytes": "-1"}
    await reach(world, ConfigStage.TRACKED, ConfigStage.ARMED)
    assert "remote.copy.lag.bytes" not in world.kafka.own_configs
    for stage in (ConfigStage.CROSSED, ConfigStage.ROLLING):
        await reach(world, stage)
        assert world.kafka.own_configs["remote.copy.lag.ms"] == "0"
        assert world.kafka.own_configs["remote.copy.lag.bytes"] == "0"
    await reach(world, ConfigStage.FROZEN)
    assert world.kafka.own_configs["remote.copy.lag.ms"] == "3600000"
    assert "remote.copy.lag.bytes" not in world.kafka.own_configs
    assert not LAGS.keys() & world.plane.overrides.keys()


async def test_a_lag_is_not_written_while_one_broker_does_not_know_it(world: World) -> None:
    tiered = {"remote.storage.enable": ConfigEntry("true", True)}
    held = {
        "retention.bytes": ConfigEntry("-1", True),
        "max.message.bytes": ConfigEntry("78", True),
    }
    lags = {key: ConfigEntry(value, False) for key, value in LAGS.items()}
    await reach(world, ConfigStage.TRACKED)
    world.kafka.views = [tiered | held | lags, tiered | held]
    world.kafka.done.clear()
    await reach(world, ConfigStage.CROSSED)
    assert not [done for done in world.kafka.done if "lag" in done]
    assert not LAGS.keys() & world.plane.overrides.keys()


async def test_a_boundary_that_is_reset_opens_the_classic_log_again(world: World) -> None:
    await reach(world, ConfigStage.TRACKED, ConfigStage.ARMED, ConfigStage.CROSSED)
    assert world.kafka.own_configs["max.message.bytes"] == "78"
    world.plane.row = replace(world.plane.row, boundary=-1)
    await reach(world, ConfigStage.TRACKED)
    assert world.kafka.own_configs == {"retention.bytes": "-1"}


async def test_the_seal_is_not_written_to_another_topic_of_the_name(world: World) -> None:
    """The tracked one was deleted past the gateways, and one was created under its name."""
    await reach(world, ConfigStage.TRACKED)
    world.kafka.topic_id = UUID(int=77)
    world.kafka.done.clear()
    world.plane.row = replace(world.plane.row, boundary=100)
    error = await refused(reconcile_configs(world.services, step(ConfigStage.CROSSED)))
    assert error.type == failures.TOPIC_CHANGED
    assert world.kafka.done == []


async def test_a_stage_that_holds_already_writes_nothing(world: World) -> None:
    await reach(world, ConfigStage.TRACKED)
    world.kafka.done.clear()
    await reach(world, ConfigStage.TRACKED)
    assert world.kafka.done == []


async def test_a_users_value_set_while_held_is_what_an_abort_restores(world: World) -> None:
    await reach(world, ConfigStage.TRACKED)
    held = world.plane.overrides["retention.bytes"]
    world.plane.overrides["retention.bytes"] = replace(held, user_value="77")
    world.plane.status = TopicStatus.ABORTED
    await reach(world, ConfigStage.RESTORED)
    assert world.kafka.own_configs == {"retention.bytes": "77"}


async def test_an_attempt_that_wakes_after_the_freeze_undoes_nothing(world: World) -> None:
    await reach(
        world,
        ConfigStage.TRACKED,
        ConfigStage.ARMED,
        ConfigStage.CROSSED,
        ConfigStage.ROLLING,
        ConfigStage.FROZEN,
    )
    frozen = dict(world.kafka.own_configs)
    for stage in (ConfigStage.TRACKED, ConfigStage.ARMED, ConfigStage.ROLLING):
        error = await refused(reconcile_configs(world.services, step(stage)))
        assert (error.type, error.non_retryable) == (failures.STALE_STAGE, True)
    assert world.kafka.own_configs == frozen


async def test_an_attempt_that_stalls_between_its_reads_is_refused_before_it_writes(
    world: World,
) -> None:
    """The topic crosses while the attempt that arms it is asleep."""
    await reach(world, ConfigStage.TRACKED)
    impose = world.plane.override_config

    async def stalled(*arguments: Any) -> None:
        await impose(*arguments)
        world.plane.row = replace(world.plane.row, boundary=100)

    world.plane.override_config = stalled  # type: ignore[method-assign]
    world.kafka.done.clear()
    error = await refused(reconcile_configs(world.services, step(ConfigStage.ARMED)))
    assert error.type == failures.STALE_STAGE
    assert world.kafka.done == []


async def test_a_change_by_the_user_while_a_key_is_let_go_of_reaches_kafka(world: World) -> None:
    """The abort has put the older value into Kafka, and was about to forget the newer one."""
    world.kafka.own_configs = {"retention.bytes": "5000"}
    await reach(world, ConfigStage.TRACKED)
    release = world.plane.release_config

    async def overtaken(topic_id: UUID, key: str, user_value: str | None, *of: Any) -> bool:
        if user_value == "5000":
            await world.plane.update_user_config(topic_id, key, "6000")
        return await release(topic_id, key, user_value, *of)

    world.plane.release_config = overtaken  # type: ignore[method-assign]
    world.plane.status = TopicStatus.ABORTED
    await reach(world, ConfigStage.RESTORED)
    assert world.kafka.own_configs == {"retention.bytes": "6000"}
    assert world.plane.overrides == {}


async def test_a_crash_before_the_key_is_let_go_forgets_nothing(world: World) -> None:
    world.kafka.own_configs = {"flush.messages": "9"}
    await reach(world, ConfigStage.TRACKED, ConfigStage.ARMED)
    release = world.plane.release_config

    async def crash(*_: Any) -> None:
        raise RuntimeError("killed")

    world.plane.release_config = crash  # type: ignore[method-assign]
    with pytest.raises(RuntimeError):
        await reach(world, ConfigStage.CROSSED)
    world.plane.release_config = release  # type: ignore[method-assign]
    await reach(world, ConfigStage.CROSSED)
    assert world.kafka.own_configs == {
        "flush.messages": "9",
        "retention.bytes": "-1",
        "max.message.bytes": "78",
    }


async def test_a_broker_that_lags_does_not_pass_for_what_the_user_had(world: World) -> None:
    world.kafka.own_configs = {"retention.bytes": "5000"}
    world.kafka.lagging = [{}]
    await reach(world, ConfigStage.TRACKED)
    assert world.plane.overrides["retention.bytes"].user_value == "5000"


async def test_a_write_that_kafka_does_not_show_is_reported(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    world.kafka.ignore_writes = True
    monkeypatch.setattr(configs, "SETTLE_S", 0.0)
    error = await refused(reconcile_configs(world.services, step(ConfigStage.TRACKED)))
    assert error.type == failures.WAITING


async def test_a_stale_highest_tiered_offset_forbids_the_roll(world: World) -> None:
    """Kafka would delete local segments that were never uploaded."""
    world.store.found = []
    world.kafka.local_starts = dict.fromkeys((1, 2, 3), 0)
    await reach(world, ConfigStage.TRACKED, ConfigStage.CROSSED)
    error = await refused(reconcile_configs(world.services, step(ConfigStage.ROLLING)))
    assert error.type == failures.WAITING
    assert "turned off and on again" in error.message
    assert "local.retention.bytes" not in world.kafka.own_configs


async def test_a_roll_before_the_boundary_needs_the_same_proof(world: World) -> None:
    """Schedule 11, where durability has the whole prefix tiered before B0."""
    world.store.found = []
    world.kafka.own_configs = {"remote.storage.enable": "true"}
    world.kafka.local_starts = dict.fromkeys((1, 2, 3), 0)
    await reach(world, ConfigStage.TRACKED)
    arming = ConfigStep(TOPIC, MigrationOptions(durability=Durability.TIERED), ConfigStage.ARMED)
    error = await refused(reconcile_configs(world.services, arming))
    assert error.type == failures.WAITING
    assert "must not be rolled" in error.message
    assert "local.retention.bytes" not in world.kafka.own_configs
    assert "local.retention.bytes" not in world.plane.overrides


async def test_a_roll_of_a_topic_that_is_not_tiered_waits_and_is_asked_again(world: World) -> None:
    """Somebody switched tiered storage off at a broker before B0; the log is sealed by now, so
    nothing else would ever roll it."""
    world.kafka.local_starts = dict.fromkeys((1, 2, 3), 0)
    await reach(world, ConfigStage.TRACKED, ConfigStage.CROSSED)
    world.kafka.own_configs["remote.storage.enable"] = "false"
    error = await refused(reconcile_configs(world.services, step(ConfigStage.ROLLING)))
    assert error.type == failures.WAITING
    assert "set remote.storage.enable=true" in error.message
    assert "local.retention.bytes" not in world.plane.overrides
    world.kafka.own_configs["remote.storage.enable"] = "true"
    await reach(world, ConfigStage.ROLLING)
    assert world.kafka.own_configs["local.retention.bytes"] == "0"


@pytest.mark.parametrize("gone", [{"boundary": 0}, {"boundary": 100, "prefix_gone": True}])
async def test_who_has_nothing_below_the_boundary_needs_no_roll(
    world: World, gone: dict[str, Any]
) -> None:
    world.kafka.own_configs = {"remote.storage.enable": "false"}
    await reach(world, ConfigStage.TRACKED)
    world.plane.row = replace(world.plane.row, **gone)
    await reconcile_configs(world.services, step(ConfigStage.ROLLING))
    assert "local.retention.bytes" not in world.kafka.own_configs
    assert world.kafka.own_configs["max.message.bytes"] == "78"


async def test_a_new_migration_after_an_abort_outlives_the_abort_that_wakes_late(
    world: World,
) -> None:
    """Schedule 12: the topic migrates again; the old attempt would give back size retention."""
    world.kafka.own_configs = {"retention.bytes": "5000"}
    await reach(world, ConfigStage.TRACKED)
    world.plane.status = TopicStatus.ABORTED
    await reach(world, ConfigStage.RESTORED)
    world.plane.status = TopicStatus.ACTIVE
    for stage in (ConfigStage.TRACKED, ConfigStage.ARMED, ConfigStage.CROSSED):
        await reach(world, stage)
        held = dict(world.kafka.own_configs)
        error = await refused(reconcile_configs(world.services, step(ConfigStage.RESTORED)))
        assert error.type == failures.STALE_STAGE
        assert world.kafka.own_configs == held
    assert held == {"retention.bytes": "-1", "max.message.bytes": "78"}


async def test_what_is_tiered_and_there_may_roll(world: World) -> None:
    world.kafka.local_starts = dict.fromkeys((1, 2, 3), 0)
    assert await offsets_proven_for_roll(world.services, TOPIC) == {"0": 100}


async def test_a_roll_is_proven_once_for_a_while(world: World) -> None:
    world.kafka.local_starts = dict.fromkeys((1, 2, 3), 0)
    await offsets_proven_for_roll(world.services, TOPIC)
    listing, world.store.listing = world.store.listing, {}
    assert await offsets_proven_for_roll(world.services, TOPIC) == {"0": 100}
    now = monotonic_ms() + ProofsForRoll.LAST_MS
    world.services.proofs._clock_ms = lambda: now
    with pytest.raises(ApplicationError, match="must not be rolled"):
        await offsets_proven_for_roll(world.services, TOPIC)
    world.store.listing = listing
    await offsets_proven_for_roll(world.services, TOPIC)


@pytest.mark.parametrize("state", [None, SegmentState.DELETE_SEGMENT_STARTED])
async def test_a_proof_falls_with_a_segment_that_it_rests_on(
    world: World, state: SegmentState | None
) -> None:
    """Tiered storage was switched off with deletion at a broker and on again, within the run: the
    highest tiered offset stays, and what lay below it is gone."""
    world.kafka.local_starts = dict.fromkeys((1, 2, 3), 0)
    await offsets_proven_for_roll(world.services, TOPIC)
    assert await offsets_proven_for_roll(world.services, TOPIC) == {"0": 100}
    assert world.store.listed == [0], "the second question looks at no object"
    world.store.found = [replace(s, state=state) for s in world.store.found if state is not None]
    with pytest.raises(ApplicationError, match="must not be rolled"):
        await offsets_proven_for_roll(world.services, TOPIC)


async def test_a_proof_falls_with_its_segments_though_others_took_their_place(
    world: World,
) -> None:
    world.kafka.local_starts = dict.fromkeys((1, 2, 3), 0)
    await offsets_proven_for_roll(world.services, TOPIC)
    world.store.found = [replace(s, segment_id=UUID(int=10)) for s in world.store.found]
    world.store.listing = {UUID(int=10): world.store.listing[UUID(int=9)]}
    assert await offsets_proven_for_roll(world.services, TOPIC) == {"0": 100}
    assert world.store.listed == [0, 0], "it was proven anew"


async def test_a_proof_stays_while_segments_expire(world: World) -> None:
    """Kafka raises the log start before it deletes: no replica has what lies below it."""
    world.kafka.local_starts = dict.fromkeys((1, 2, 3), 0)
    await offsets_proven_for_roll(world.services, TOPIC)
    world.store.found = []
    world.kafka.log_start = 100
    assert await offsets_proven_for_roll(world.services, TOPIC) == {"0": 100}
    world.kafka.log_start = 99
    with pytest.raises(ApplicationError, match="must not be rolled"):
        await offsets_proven_for_roll(world.services, TOPIC)


async def test_a_later_run_takes_no_proof_of_an_earlier_one(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It was terminated, and tiered storage was turned off and on before the topic migrates again:
    the highest tiered offset is still the one that was proven, and what lay below it is gone."""
    world.kafka.local_starts = dict.fromkeys((1, 2, 3), 0)
    monkeypatch.setattr(configs, "current_run", lambda: "first")
    await offsets_proven_for_roll(world.services, TOPIC)
    world.store.listing = {}
    await offsets_proven_for_roll(world.services, TOPIC)
    monkeypatch.setattr(configs, "current_run", lambda: "second")
    with pytest.raises(ApplicationError, match="must not be rolled"):
        await offsets_proven_for_roll(world.services, TOPIC)


async def test_a_proof_that_takes_an_attempt_to_its_bound_is_not_begun_anew_by_the_write_of_configs(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A large topic: by the time its last partition is proven the first one's proof is as old as
    an attempt may take, and the write of the configs needs them all."""
    now, proven = [0.0], list[int]()
    world.services.proofs._clock_ms = lambda: now[0]
    world.kafka.partitions = 4

    async def proving(services: Any, partition: PartitionRef, layout: Any) -> Proof:
        proven.append(partition.partition)
        now[0] += PROVING_BOUND_S * 1000 / 4
        return Proof(100, {})

    monkeypatch.setattr(configs, "_proven_for_roll", proving)
    await offsets_proven_for_roll(world.services, TOPIC)
    await offsets_proven_for_roll(world.services, TOPIC)
    assert proven == [0, 1, 2, 3]


async def test_a_topic_of_which_nothing_is_tiered_yet_may_roll(world: World) -> None:
    world.store.found = []
    world.kafka.highest_tiered = -1
    world.kafka.local_starts = dict.fromkeys((1, 2, 3), 0)
    await offsets_proven_for_roll(world.services, TOPIC)
