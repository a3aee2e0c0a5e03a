"""What the watches call a finding."""

from __future__ import annotations

import pytest

from tideline.domain.broker_defaults import BrokerDefaults
from tideline.domain.topic_configs import TopicLimits
from tideline.domain.watched import (
    Finding,
    FindingKind,
    WatchedPartition,
    config_findings,
    defaults_compared,
    log_end_findings,
)

HYBRID = WatchedPartition(3, partly_in_kafka=True, boundary=100, prefix_end=100)
LIMITS = TopicLimits("CreateTime", 1_000)
IN_KAFKA = {
    "remote.storage.enable": "true",
    "remote.log.delete.on.disable": "false",
    "cleanup.policy": "delete",
    "compression.type": "producer",
    "message.timestamp.type": "CreateTime",
    "message.timestamp.before.max.ms": str(2**63 - 1),
    "message.timestamp.after.max.ms": "3600000",
    "max.message.bytes": "78",
}


def kinds(row: WatchedPartition, **ends: int) -> list[FindingKind]:
    return [f.kind for f in log_end_findings(row, {int(n[1:]): end for n, end in ends.items()})]


def test_every_replica_ends_at_b0() -> None:
    assert kinds(HYBRID, n1=100, n2=100) == []
    assert kinds(HYBRID, n1=100, n2=101) == [FindingKind.TAIL]
    assert kinds(HYBRID, n1=100, n2=99) == [FindingKind.SHORT]
    assert kinds(HYBRID, n1=102, n2=99) == [FindingKind.TAIL, FindingKind.SHORT]


def test_a_tail_says_how_far_it_goes_and_where() -> None:
    (tail,) = log_end_findings(HYBRID, {1: 105, 2: 100, 3: 103})
    assert tail == Finding(
        FindingKind.TAIL, "3", {"boundary": 100, "log_ends": {"1": 105, "3": 103}, "offsets": 5}
    )


def test_before_b0_nothing_is_compared() -> None:
    pending = WatchedPartition(3, partly_in_kafka=True, boundary=-1, prefix_end=-1)
    assert kinds(pending, n1=7) == []


def test_a_gap_that_an_operator_accepted_and_a_prefix_that_is_gone_are_not_missed() -> None:
    accepted = WatchedPartition(3, partly_in_kafka=True, boundary=100, prefix_end=90)
    assert kinds(accepted, n1=90) == []
    assert kinds(accepted, n1=89) == [FindingKind.SHORT]
    gone = WatchedPartition(3, partly_in_kafka=False, boundary=100, prefix_end=100)
    assert kinds(gone, n1=0) == []
    assert kinds(gone, n1=101) == [FindingKind.TAIL]


def found(row: WatchedPartition = HYBRID, **changes: str) -> dict[str, object]:
    effective = IN_KAFKA | {key.replace("_", "."): value for key, value in changes.items()}
    held = {"max.message.bytes": "78"}
    findings = config_findings([row], held, LIMITS, effective, effective)
    return {f.subject: f.detail["in_kafka"] for f in findings}


def test_kafka_as_it_should_be_is_no_finding() -> None:
    assert found() == {}


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("max_message_bytes", "1000000"),
        ("remote_storage_enable", "false"),
        ("remote_log_delete_on_disable", "true"),
        ("cleanup_policy", "compact"),
        ("compression_type", "zstd"),
        ("message_timestamp_type", "LogAppendTime"),
        ("message_timestamp_after_max_ms", "1"),
    ],
)
def test_what_was_changed_past_the_gateways_is_found(key: str, value: str) -> None:
    assert found(**{key: value}) == {key.replace("_", "."): value}


def test_limits_of_a_topic_that_has_not_crossed_are_kafkas_own() -> None:
    pending = WatchedPartition(3, partly_in_kafka=True, boundary=-1, prefix_end=-1)
    assert found(pending, message_timestamp_type="LogAppendTime") == {}
    assert "remote.storage.enable" in found(pending, remote_storage_enable="false")


def test_a_topic_born_diskless_may_be_without_remote_storage_and_not_compacted() -> None:
    born = WatchedPartition(3, partly_in_kafka=False, boundary=0, prefix_end=0)
    assert found(born, remote_storage_enable="false") == {}
    assert found(born, cleanup_policy="compact") == {"cleanup.policy": "compact"}
    assert found(born, remote_log_delete_on_disable="true") == {}


def by_default(*largest: str, users: dict[str, str | None] | None = None, own: str = "") -> object:
    """``largest``: what brokers take by default."""
    defaults = BrokerDefaults({n: {"max.message.bytes": v} for n, v in enumerate(largest)})
    changed, found = defaults_compared(users or {}, LIMITS, {own}, defaults)
    return [(c.enforced, c.default) for c in changed] or [f.detail for f in found]


def test_a_default_is_compared_where_the_user_sets_none() -> None:
    key = "max.message.bytes"
    assert by_default("1000", "1000") == []
    assert by_default("7", "7") == [("1000", "7")]
    assert by_default("7", "7", own=key) == []
    assert by_default("7", "7", users={key: "1000"}) == []
    assert by_default("7", "7", users={key: None}, own=key) == [("1000", "7")]
    differ = "brokers have different defaults of max.message.bytes: 7 on broker 0, 8 on broker 1"
    assert by_default("7", "8") == [{"wanted": "1000", "why": differ}]


def test_a_limit_that_the_topic_does_not_set_was_not_changed_past_the_gateways() -> None:
    effective = IN_KAFKA | {"message.timestamp.type": "LogAppendTime"}
    held = {"max.message.bytes": "78"}
    assert config_findings([HYBRID], held, LIMITS, held, effective) == []
