"""What an Admin client may say about diskless topics."""

from __future__ import annotations

import pytest

from tideline.domain.admin_trigger import (
    problem_with_override,
    refusal_at_birth,
    topic_state,
    wants_diskless,
)
from tideline.domain.migration import MigrationState as State
from tideline.domain.topic_configs import MANAGED_KEYS


@pytest.mark.parametrize(("value", "meaning"), [("true", True), (" False ", False), ("TRUE", True)])
def test_the_trigger_is_a_boolean(value: str, meaning: bool) -> None:
    assert wants_diskless(value) is meaning


@pytest.mark.parametrize("value", ["", "1", "yes", None])
def test_anything_else_is_refused_with_the_remedy(value: str | None) -> None:
    with pytest.raises(ValueError, match="write true or false"):
        wants_diskless(value)


@pytest.mark.parametrize(
    ("partitions", "state"),
    [
        ([], State.TIERED_ONLY),
        ([State.TIERED_ONLY], State.TIERED_ONLY),
        ([State.MIGRATING, State.HYBRID], State.MIGRATING),
        ([State.HYBRID, State.DISKLESS_ONLY], State.HYBRID),
        ([State.DISKLESS_ONLY, State.DISKLESS_ONLY], State.DISKLESS_ONLY),
    ],
)
def test_a_topic_is_what_its_slowest_partition_is(partitions: list[State], state: State) -> None:
    assert topic_state(partitions) is state


@pytest.mark.parametrize("key", MANAGED_KEYS)
def test_every_held_config_has_a_rule_for_its_values(key: str) -> None:
    assert problem_with_override(key, "nonsense") is not None
    assert problem_with_override(key, "-3") is not None
    assert problem_with_override(key, "true" if key == "remote.log.copy.disable" else "100") is None


@pytest.mark.parametrize(
    ("name", "configs", "internal", "said"),
    [
        ("__consumer_offsets", {}, True, "Kafka's own"),
        ("t", {"cleanup.policy": "compact,delete"}, False, "cleanup.policy"),
        ("t", {"compression.type": "zstd"}, False, "compression.type"),
        ("t", {"remote.log.copy.disable": "true"}, False, "tideline tiering pause"),
    ],
)
def test_some_topics_cannot_be_born_diskless(
    name: str, configs: dict[str, str | None], internal: bool, said: str
) -> None:
    reason = refusal_at_birth(name, configs, {}, internal)
    assert reason is not None
    assert said in reason
    assert "default" not in reason


@pytest.mark.parametrize(
    ("key", "value", "remedy"),
    [("cleanup.policy", "compact", "delete"), ("compression.type", "zstd", "producer")],
)
def test_a_default_that_the_suffix_cannot_honour_is_refused_unless_the_topic_has_its_own(
    key: str, value: str, remedy: str
) -> None:
    reason = refusal_at_birth("t", {}, {key: value}, False)
    assert reason is not None
    assert reason.startswith(f"{key}={value} is the cluster's default for new topics")
    assert f"set it to {remedy} on the topic" in reason
    assert refusal_at_birth("t", {key: remedy}, {key: value}, False) is None


def test_an_ordinary_topic_can() -> None:
    given: dict[str, str | None] = {"cleanup.policy": "delete", "retention.ms": "1"}
    assert refusal_at_birth("t", given, {"compression.type": "producer"}, False) is None
