"""States, steps and configs of switching tiered storage off and on; what Kafka refuses."""

from __future__ import annotations

from itertools import product

import pytest

from tideline.domain import tiered_storage
from tideline.domain.config_changes import DELETE_ON_DISABLE
from tideline.domain.coverage import OffsetRange
from tideline.domain.tiered_storage import (
    HELD,
    NOT_COMPACTED,
    NOT_WITHOUT_DELETING,
    PATHS,
    SWITCHED_OFF,
    Configs,
    LocalRetention,
    Step,
    Target,
    TieringState,
    configs_of,
    highest_claimed,
    kafkas_refusal,
    state_of,
)

ON: Configs = {
    "remote.storage.enable": "true",
    "remote.log.copy.disable": "false",
    DELETE_ON_DISABLE: "false",
    "cleanup.policy": "delete",
    "retention.ms": "604800000",
    "retention.bytes": "-1",
    "local.retention.ms": "3600000",
    "local.retention.bytes": "-2",
}
USERS = LocalRetention("3600000", None)


def refused(before: Configs = ON, **after: str) -> str | None:
    changed = {key.replace("_", "."): value for key, value in after.items()}
    return kafkas_refusal(before, {**before, **changed})


def test_every_state_has_a_path_to_every_target() -> None:
    assert set(PATHS) == set(product(TieringState, Target))
    assert all(bool(path.steps) is not bool(path.refused) for path in PATHS.values())


@pytest.mark.parametrize(
    ("enable", "copy_disable", "left", "state"),
    [
        ("true", "false", True, TieringState.ENABLED),
        ("true", "true", True, TieringState.READ_ONLY),
        ("true", "true", False, TieringState.READ_ONLY),
        ("false", "true", False, TieringState.DISABLED),
        ("false", "false", True, TieringState.DELETING),
        (None, None, False, TieringState.DISABLED),
    ],
)
def test_the_state_follows_from_the_configs_and_from_what_is_left(
    enable: str | None, copy_disable: str | None, left: bool, state: TieringState
) -> None:
    configs = {"remote.storage.enable": enable, "remote.log.copy.disable": copy_disable}
    assert state_of(configs, anything_left=left) is state


def test_local_retention_is_released_only_after_the_proof_and_held_before_it() -> None:
    for (_, target), path in PATHS.items():
        if target is Target.ENABLED:
            assert path.steps[-3:] == (Step.HOLD, Step.PROVE, Step.RELEASE)
        else:
            assert Step.RELEASE not in path.steps


def test_enabling_waits_for_a_deletion_that_runs() -> None:
    assert PATHS[TieringState.DELETING, Target.ENABLED].steps[0] is Step.FINISH_DELETION


def test_enabling_holds_local_retention_in_the_same_request() -> None:
    configs = configs_of(Step.HOLD, USERS)
    assert configs["remote.storage.enable"] == "true"
    assert HELD.items() <= configs.items()


def test_enabling_takes_the_policy_of_deletion_back() -> None:
    """Or `remote.storage.enable=false` alone would delete everything the next time."""
    assert configs_of(Step.HOLD, USERS)[DELETE_ON_DISABLE] is None


def test_turning_off_gives_back_the_users_local_retention_if_it_was_held() -> None:
    assert "local.retention.ms" not in configs_of(Step.TURN_OFF, USERS)
    assert configs_of(Step.TURN_OFF, USERS, held=True)["local.retention.ms"] == "3600000"


def test_kafka_takes_what_every_step_sets() -> None:
    """From wherever the step is taken."""
    before = {**ON, "remote.log.copy.disable": "true", **HELD}
    for start in (ON, before, {**ON, "remote.storage.enable": "false"}):
        after: Configs = start
        for step in Step:
            changed = configs_of(step, USERS)
            before, after = after, {**after, **changed}
            if step is not Step.SET_READ_ONLY or start["remote.storage.enable"] == "true":
                assert kafkas_refusal(before, after) is None, step


def test_turning_off_without_deleting_is_refused_with_the_two_ways_out() -> None:
    assert refused(remote_storage_enable="false") == NOT_WITHOUT_DELETING
    deleting = {"remote.storage.enable": "false", DELETE_ON_DISABLE: "true"}
    assert kafkas_refusal(ON, {**ON, **deleting}) is None


def test_a_topic_that_is_off_may_stay_off_without_a_word_about_deleting() -> None:
    off = {**ON, "remote.storage.enable": "false"}
    assert kafkas_refusal(off, {**off, "retention.ms": "1"}) is None


def test_a_topic_that_was_compacted_once_may_be_enabled_and_enabled_again() -> None:
    """Seed 001: the configs of the moment are judged, and nothing of before."""
    compacted = {**ON, "remote.storage.enable": "false", "cleanup.policy": "compact"}
    assert refused(compacted, remote_storage_enable="true") == NOT_COMPACTED
    assert refused(compacted, remote_storage_enable="true", cleanup_policy="delete") is None


def test_read_only_needs_the_local_retention_at_the_total() -> None:
    message = refused(**{"remote.log.copy.disable": "true"})
    assert message is not None
    assert "the `local.retention.ms` and `retention.ms` must be set to the identical" in message
    for equal in ("-2", "604800000"):
        assert refused(remote_log_copy_disable="true", local_retention_ms=equal) is None


def test_of_two_unequal_ones_kafka_names_the_bytes() -> None:
    message = refused(remote_log_copy_disable="true", local_retention_bytes="7")
    assert message is not None
    assert "`local.retention.bytes`" in message


@pytest.mark.parametrize("policy", ["compact", "compact,delete", "delete,compact"])
def test_a_compacted_topic_is_not_enabled_again(policy: str) -> None:
    off = {**ON, "remote.storage.enable": "false", "cleanup.policy": policy}
    assert kafkas_refusal(off, {**off, "remote.storage.enable": "true"}) == NOT_COMPACTED


def test_where_the_brokers_have_no_tiered_storage_nothing_is_enabled() -> None:
    assert kafkas_refusal({}, ON, system_enabled=False) == SWITCHED_OFF


@pytest.mark.parametrize(
    ("local", "message"),
    [
        ("-1", "Invalid value -1 for configuration local.retention.ms: Value must not be -1 as "
               "retention.ms value is set as 604800000."),
        ("604800001", "Invalid value 604800001 for configuration local.retention.ms: Value must "
                      "not be more than retention.ms property value: 604800000"),
        ("604800000", None),
    ],
)  # fmt: skip
def test_no_more_is_kept_locally_than_at_all(local: str, message: str | None) -> None:
    assert refused(local_retention_ms=local) == message


def test_what_was_tiered_once_is_claimed_although_the_brokers_do_not_say_so_yet() -> None:
    lineage = {0: OffsetRange(0, 50), 2: OffsetRange(50, 2**63 - 1)}
    assert highest_claimed({1: -1, 2: -1}, {0: 49, 2: 80}, lineage) == 80
    assert highest_claimed({1: 90, 2: -1}, {2: 80}, lineage) == 90


def test_what_a_deposed_leader_tiered_is_claimed_up_to_where_the_log_has_its_epoch() -> None:
    lineage = {0: OffsetRange(0, 50), 2: OffsetRange(50, 2**63 - 1)}
    assert highest_claimed({}, {0: 70, 1: 90}, lineage) == 49
    assert highest_claimed({}, {}, lineage) == -1


def test_every_config_that_a_step_sets_is_judged() -> None:
    for step in Step:
        assert set(configs_of(step, USERS)) <= set(tiered_storage.JUDGED)
