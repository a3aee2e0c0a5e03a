"""A change of a tracked topic's configs is refused with the reason, or enforced."""

from __future__ import annotations

import pytest

from tideline.domain.config_changes import Situation, items, limits_of, problem_with_change
from tideline.domain.migration import MigrationState

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


def problem(state: MigrationState, before: dict[str, str] | None = None, **to: str) -> str | None:
    situation = Situation(frozenset({state}), BEFORE | (before or {}))
    changes = {key.replace("_", "."): value for key, value in to.items()}
    return problem_with_change({**situation.before, **changes}, situation, changes)


@pytest.mark.parametrize("state", [MigrationState.MIGRATING, MigrationState.HYBRID])
def test_tiered_storage_stays_on_while_a_prefix_is_in_it(state: MigrationState) -> None:
    refused = problem(state, remote_storage_enable="false")
    assert refused is not None
    assert refused.startswith("remote.storage.enable=false: ")
    assert "tideline abort" in refused


def test_tiered_storage_may_go_off_once_nothing_below_b0_is_left() -> None:
    assert problem(MigrationState.DISKLESS_ONLY, remote_storage_enable="false") is None


def test_copying_is_ended_by_tideline_and_archiving_by_its_own_verb() -> None:
    migrating = problem(MigrationState.MIGRATING, remote_log_copy_disable="true")
    hybrid = problem(MigrationState.HYBRID, remote_log_copy_disable="TRUE")
    assert migrating is not None
    assert "must reach remote storage" in migrating
    assert hybrid is not None
    assert "tideline tiering pause" in hybrid


@pytest.mark.parametrize("policy", ["compact", "delete,compact", "compact , delete"])
def test_diskless_data_is_not_compacted(policy: str) -> None:
    assert problem(MigrationState.DISKLESS_ONLY, cleanup_policy=policy)


def test_batches_are_not_compressed_anew() -> None:
    assert problem(MigrationState.HYBRID, compression_type="zstd")
    assert problem(MigrationState.HYBRID, {"compression.type": "lz4"}, compression_type="producer")\
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
        assert bool(problem(MigrationState.HYBRID, **changes)) is refused
    only_total = problem(MigrationState.HYBRID, {"local.retention.ms": local}, retention_ms=total)
    if BEFORE["retention.ms"] != total:
        assert bool(only_total) is refused


def test_a_value_that_was_there_before_is_not_judged() -> None:
    """A client that writes back all that it read changes nothing."""
    before = {"cleanup.policy": "compact", "remote.log.copy.disable": "true"}
    same = {key.replace(".", "_"): value for key, value in before.items()}
    assert problem(MigrationState.HYBRID, before, **same) is None


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
