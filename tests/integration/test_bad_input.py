"""Wrong input gets a clear error, and nothing is changed."""

from __future__ import annotations

import json

import pytest
from confluent_kafka import KafkaException

from tests.harness import command, migration_case
from tests.support.waiting import HANGS_S
from tideline.demo.topic import topic_configs
from tideline.errors import ExitCode
from tideline.stack import Stack


def test_an_unknown_topic_is_refused_by_name(stack: Stack) -> None:
    refused = command(stack, "migrate", "no-such-topic")
    assert refused.wait(HANGS_S) == ExitCode.REFUSED
    assert "no-such-topic" in refused.output()


@pytest.mark.parametrize(
    ("configs", "said"),
    [
        ({"cleanup.policy": "compact", "remote.storage.enable": "false"}, "cleanup.policy"),
        ({"remote.storage.enable": "false"}, "remote.storage.enable"),
    ],
    ids=["compacted", "without tiered storage"],
)
def test_an_unfit_topic_is_refused_with_rule_and_remedy(
    stack: Stack, configs: dict[str, str], said: str
) -> None:
    with migration_case(stack, name="unfit", history=10, **configs) as case:
        before = topic_configs(case.admin, case.topic)
        refused = command(stack, "migrate", case.topic)
        assert refused.wait(HANGS_S) == ExitCode.REFUSED, refused.output()
        assert said in refused.output()
        with pytest.raises(KafkaException) as by_config:
            case.trigger()
        assert said in str(by_config.value)
        assert topic_configs(case.admin, case.topic) == before
        assert case.rows("1") == []


@pytest.mark.parametrize("topic", ["__consumer_offsets", "__remote_log_metadata"])
def test_an_internal_topic_is_refused(stack: Stack, topic: str) -> None:
    refused = command(stack, "migrate", topic)
    assert refused.wait(HANGS_S) == ExitCode.REFUSED
    assert "internal" in refused.output()


def test_a_dry_run_names_every_check_and_changes_nothing(stack: Stack) -> None:
    with migration_case(stack, name="dry-run") as case:
        before = topic_configs(case.admin, case.topic)
        dry = command(stack, "preflight", case.topic, "-o", "json", wait=True)
        checks = json.loads(dry.answer())["checks"]
        assert {"name", "verdict", "remedy"} <= set(checks[0])
        assert topic_configs(case.admin, case.topic) == before
        assert case.rows("1") == []
