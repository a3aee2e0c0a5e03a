"""Topic configs follow the stage that Postgres allows, and go back exactly."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tideline.domain.messages import ConfigStage
from tideline.domain.options import Durability
from tideline.domain.topic_configs import (
    MANAGED_KEYS,
    ConfigChange,
    TopicProgress,
    desired,
    differences,
    refusal,
)

BEGUN = TopicProgress(False, partitions=3, crossed=0, ready=0, overrides={}, tiered=True)
CROSSED = replace(BEGUN, crossed=3)
READY = replace(CROSSED, ready=3)
ABORTED = replace(BEGUN, aborted=True)
FSYNCED = Durability.FSYNCED


def test_size_retention_is_taken_over_from_tracking_on() -> None:
    assert desired(ConfigStage.TRACKED, BEGUN, FSYNCED) == {"retention.bytes": "-1"}


def test_each_append_is_flushed_only_where_durability_asks_for_it() -> None:
    assert desired(ConfigStage.ARMED, BEGUN, FSYNCED)["flush.messages"] == "1"
    assert "flush.messages" not in desired(ConfigStage.ARMED, BEGUN, Durability.REPLICATED)


def test_a_prefix_that_must_be_tiered_first_is_rolled_before_the_boundary() -> None:
    overrides = desired(ConfigStage.ARMED, BEGUN, Durability.TIERED)
    assert overrides["local.retention.bytes"] == "0"
    assert "local.retention.bytes" not in desired(ConfigStage.ARMED, BEGUN, FSYNCED)


def test_a_migration_that_begins_anew_after_a_reset_lets_the_freeze_go() -> None:
    frozen = replace(BEGUN, overrides=desired(ConfigStage.FROZEN, READY, FSYNCED))
    assert desired(ConfigStage.TRACKED, frozen, FSYNCED) == {"retention.bytes": "-1"}


def test_flushing_ends_when_all_have_crossed_and_the_classic_log_is_sealed() -> None:
    armed = replace(CROSSED, overrides={"retention.bytes": "-1", "flush.messages": "1"})
    assert desired(ConfigStage.CROSSED, armed, FSYNCED) == {
        "retention.bytes": "-1",
        "max.message.bytes": "78",
    }


@pytest.mark.parametrize("stage", [ConfigStage.TRACKED, ConfigStage.ARMED, ConfigStage.RESTORED])
def test_nothing_is_sealed_while_a_partition_takes_classic_produces(stage: ConfigStage) -> None:
    sealed = replace(BEGUN, crossed=2, overrides={"max.message.bytes": "78"})
    assert "max.message.bytes" not in desired(stage, sealed, FSYNCED)


LAGS = {"remote.copy.lag.ms": "0", "remote.copy.lag.bytes": "0"}


@pytest.mark.parametrize("durability", list(Durability))
def test_nothing_is_held_back_from_remote_storage_from_the_seal_to_the_freeze(
    durability: Durability,
) -> None:
    """KIP-1241. Kafka also refuses a positive lag in bytes beside ``local.retention.bytes=0``."""
    shows = replace(CROSSED, shows_copy_lag=True)
    for stage in (ConfigStage.CROSSED, ConfigStage.ROLLING):
        assert LAGS.items() <= desired(stage, shows, durability).items()
    at_the_freeze = desired(ConfigStage.FROZEN, replace(shows, ready=3), durability)
    assert not LAGS.keys() & at_the_freeze.keys(), "the user has his own again"
    armed = desired(ConfigStage.ARMED, replace(BEGUN, shows_copy_lag=True), durability)
    assert (LAGS.keys() <= armed.keys()) is (durability is Durability.TIERED)
    assert ("local.retention.bytes" in armed) is (durability is Durability.TIERED)
    again = replace(BEGUN, shows_copy_lag=True, overrides=armed)
    assert desired(ConfigStage.TRACKED, again, durability) == armed


def test_a_lag_is_written_neither_to_brokers_without_it_nor_to_a_topic_that_is_not_tiered() -> None:
    for progress in (CROSSED, replace(CROSSED, shows_copy_lag=True, tiered=False)):
        for stage in (ConfigStage.CROSSED, ConfigStage.ROLLING, ConfigStage.FROZEN):
            assert not LAGS.keys() & desired(stage, progress, FSYNCED).keys()


def test_the_roll_is_by_local_retention() -> None:
    assert desired(ConfigStage.ROLLING, CROSSED, FSYNCED)["local.retention.bytes"] == "0"


def test_the_freeze_stops_copying_and_seals_the_classic_log() -> None:
    assert desired(ConfigStage.FROZEN, READY, FSYNCED) == {
        "retention.bytes": "-1",
        "remote.log.copy.disable": "true",
        "local.retention.bytes": "-2",
        "local.retention.ms": "-2",
        "max.message.bytes": "78",
    }


def test_a_topic_that_is_not_tiered_is_only_sealed() -> None:
    plain = replace(READY, tiered=False)
    overrides = desired(ConfigStage.FROZEN, plain, FSYNCED)
    assert overrides == {"retention.bytes": "-1", "max.message.bytes": "78"}
    assert "local.retention.bytes" not in desired(ConfigStage.ROLLING, plain, FSYNCED)


def test_an_earlier_stage_that_runs_again_keeps_what_a_later_one_overrode() -> None:
    armed = replace(BEGUN, overrides={"flush.messages": "1"})
    assert desired(ConfigStage.TRACKED, armed, FSYNCED)["flush.messages"] == "1"
    rolling = replace(CROSSED, overrides={"local.retention.bytes": "0"})
    assert desired(ConfigStage.CROSSED, rolling, FSYNCED)["local.retention.bytes"] == "0"


@pytest.mark.parametrize(
    ("stage", "progress"),
    [
        (ConfigStage.RESTORED, BEGUN),
        (ConfigStage.RESTORED, replace(BEGUN, crossed=1)),
        (ConfigStage.TRACKED, CROSSED),
        (ConfigStage.ARMED, CROSSED),
        (ConfigStage.ARMED, ABORTED),
        (ConfigStage.FROZEN, ABORTED),
        (ConfigStage.CROSSED, replace(BEGUN, crossed=2)),
        (ConfigStage.ROLLING, replace(BEGUN, crossed=2)),
        (ConfigStage.ROLLING, replace(READY, overrides={"remote.log.copy.disable": "true"})),
        (ConfigStage.FROZEN, replace(CROSSED, ready=2)),
    ],
)
def test_a_stage_that_postgres_does_not_allow_is_refused_with_its_reason(
    stage: ConfigStage, progress: TopicProgress
) -> None:
    assert refusal(stage, progress)


@pytest.mark.parametrize(
    ("stage", "progress"),
    [
        (ConfigStage.TRACKED, BEGUN),
        (ConfigStage.ARMED, replace(BEGUN, crossed=2)),
        (ConfigStage.CROSSED, CROSSED),
        (ConfigStage.ROLLING, CROSSED),
        (ConfigStage.ROLLING, replace(READY, overrides={"max.message.bytes": "78"})),
        (ConfigStage.FROZEN, READY),
        (ConfigStage.RESTORED, ABORTED),
    ],
)
def test_a_stage_in_its_turn_is_allowed(stage: ConfigStage, progress: TopicProgress) -> None:
    assert refusal(stage, progress) is None


def test_a_key_that_was_unset_becomes_unset_again() -> None:
    target = {"retention.bytes": None, "flush.messages": "7"}
    found = {"retention.bytes": "-1", "flush.messages": "1"}
    assert differences(target, found) == (
        ConfigChange("flush.messages", "7"),
        ConfigChange("retention.bytes", None),
    )


_values = st.one_of(st.none(), st.sampled_from(["-1", "0", "1", "1000"]))
_configs = st.fixed_dictionaries(dict.fromkeys(MANAGED_KEYS, _values))


@given(target=_configs, found=_configs)
def test_applying_the_differences_reaches_the_target(
    target: dict[str, str | None], found: dict[str, str | None]
) -> None:
    changes = differences(target, found)
    assert found | {c.key: c.value for c in changes} == target
    assert differences(target, target) == ()
