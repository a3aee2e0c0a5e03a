"""A change of a tracked topic's configs is refused with the reason, or enforced."""

from __future__ import annotations

import pytest

from tests.unit.gateway.fakes import tracked_row
from tideline.control_plane.model import TrackedPartition
from tideline.domain.config_changes import items, limits_of, problem_with_change, situation_of

MIGRATING, HYBRID = tracked_row(), tracked_row(boundary=100)
BORN = tracked_row(boundary=0)
PREFIX_GONE = tracked_row(boundary=100, prefix_gone=True)
"""The last two have merged segments, so that their state is HYBRID."""

BEFORE = {
    "remote.storage.enable": "true",
    "remote.log.copy.disable": "false",
    "cleanup.policy": "delete",
    "compression.type": "producer",
    "retention.ms": "1000",
    "retention.bytes": "-1",
    "local.retention.ms": "-2",
    "local.retention.bytes": "-2",
    "max.message.bytes": "1000000",
    "message.timestamp.type": "CreateTime",
}


def problem(row: TrackedPartition, before: dict[str, str] | None = None, **to: str) -> str | None:
    situation = situation_of([row], BEFORE | (before or {}))
    changes = {key.replace("_", "."): value for key, value in to.items()}
    return problem_with_change({**situation.before, **changes}, situation, changes)


@pytest.mark.parametrize("row", [MIGRATING, HYBRID])
def test_tiered_storage_stays_on_while_a_prefix_is_in_it(row: TrackedPartition) -> None:
    refused = problem(row, remote_storage_enable="false")
    assert refused is not None
    assert refused.startswith("remote.storage.enable=false: ")
    assert "tideline abort" in refused


@pytest.mark.parametrize("row", [BORN, PREFIX_GONE])
def test_a_topic_without_a_prefix_may_be_taken_off_tiered_storage(row: TrackedPartition) -> None:
    """Also where Tideline archives it: that is not Kafka's tiered storage."""
    assert problem(row, remote_storage_enable="false") is None
    assert problem(row, remote_log_delete_on_disable="true") is None


def test_one_partition_with_a_prefix_keeps_the_topic_on_tiered_storage() -> None:
    situation = situation_of([BORN, HYBRID, PREFIX_GONE], BEFORE)
    after = BEFORE | {"remote.storage.enable": "false"}
    assert problem_with_change(after, situation, ["remote.storage.enable"]) is not None


@pytest.mark.parametrize("row", [MIGRATING, HYBRID])
def test_the_policy_of_deletion_stays_off_while_there_is_a_prefix(row: TrackedPartition) -> None:
    """It is what makes Kafka refuse to be switched off together with all that is tiered."""
    refused = problem(row, remote_log_delete_on_disable="true")
    assert refused is not None
    assert "leave it false" in refused
    on = {"remote.log.delete.on.disable": "true"}
    assert problem(row, on, remote_log_delete_on_disable="false") is None


def test_copying_is_ended_by_tideline_and_archiving_by_its_own_verb() -> None:
    migrating = problem(MIGRATING, remote_log_copy_disable="true")
    hybrid = problem(HYBRID, remote_log_copy_disable="TRUE")
    assert migrating is not None
    assert "must reach remote storage" in migrating
    assert hybrid is not None
    assert "tideline tiering pause" in hybrid


@pytest.mark.parametrize("policy", ["compact", "delete,compact", "compact , delete"])
def test_diskless_data_is_not_compacted(policy: str) -> None:
    assert problem(BORN, cleanup_policy=policy)


def test_batches_are_not_compressed_anew() -> None:
    assert problem(HYBRID, compression_type="zstd")
    assert problem(HYBRID, {"compression.type": "lz4"}, compression_type="producer")\
        is None  # fmt: skip


@pytest.mark.parametrize(
    ("local", "total", "refused"),
    [
        ("2000", "1000", True),
        ("1000", "1000", False),
        ("-1", "1000", True),
        ("-2", "1000", False),
        ("2000", "-1", False),
        ("-1", "-1", False),
    ],
)
def test_nothing_is_kept_locally_for_longer_than_at_all(
    local: str, total: str, refused: bool
) -> None:
    for unit in ("ms", "bytes"):
        changes = {f"local_retention_{unit}": local, f"retention_{unit}": total}
        assert bool(problem(HYBRID, **changes)) is refused
    only_total = problem(HYBRID, {"local.retention.ms": local}, retention_ms=total)
    if BEFORE["retention.ms"] != total:
        assert bool(only_total) is refused


@pytest.mark.parametrize(
    ("lag", "local", "total", "refused"),
    [
        ("5", "5", "9", False),
        ("6", "5", "9", True),
        ("9", "-2", "9", False),
        ("10", "-2", "9", True),
        ("10", "-2", "-1", False),
        ("-1", "5", "9", False),
        ("0", "0", "9", False),
    ],
)
def test_nothing_is_held_back_for_longer_than_it_is_kept_locally(
    lag: str, local: str, total: str, refused: bool
) -> None:
    """Kafka's rule (KIP-1241), which it cannot check while it has Tideline's values."""
    for unit in ("ms", "bytes"):
        held = {f"remote_copy_lag_{unit}": lag}
        kept = {f"local_retention_{unit}": local, f"retention_{unit}": total}
        assert bool(problem(HYBRID, **held, **kept)) is refused
        before = {key.replace("_", "."): value for key, value in held.items()}
        lowered = problem(HYBRID, before, **kept)
        assert lowered is None or "remote.copy.lag" in lowered
        assert bool(lowered) is refused


def test_a_value_that_was_there_before_is_not_judged() -> None:
    """A client that writes back all that it read changes nothing."""
    before = {"cleanup.policy": "compact", "remote.log.copy.disable": "true"}
    same = {key.replace(".", "_"): value for key, value in before.items()}
    assert problem(HYBRID, before, **same) is None


def test_limits_are_taken_over_as_the_control_plane_names_them() -> None:
    after = {
        "max.message.bytes": "7",
        "message.timestamp.type": "LogAppendTime",
        "message.timestamp.before.max.ms": "8",
        "message.timestamp.after.max.ms": "9",
        "retention.ms": "10",
    }
    assert limits_of(after, after) == {
        "max_message_bytes": 7,
        "timestamp_type": "LogAppendTime",
        "timestamp_before_max_ms": 8,
        "timestamp_after_max_ms": 9,
    }
    assert limits_of(after, ["retention.ms"]) == {}


def test_a_list_is_read_as_kafka_reads_it() -> None:
    assert items(" delete, compact,") == ["delete", "compact"]
    assert items(None) == []
