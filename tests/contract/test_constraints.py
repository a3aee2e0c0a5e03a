"""What no function may break either: rules that are constraints of the tables."""

from __future__ import annotations

import pytest
from psycopg.errors import CheckViolation

from tests.contract.scenes import PostgresScene, batch
from tideline.domain.migration import STATE_MOVES, MigrationState


@pytest.mark.parametrize(
    ("rule", "change"),
    [
        ("no_suffix_before_boundary", "high_watermark = 5"),
        ("no_suffix_before_boundary", "max_timestamp = 5"),
        ("no_suffix_before_boundary", "suffix_start = -1, high_watermark = 0"),
        ("state_says_whether_boundary_is_set", "migration_state = 'HYBRID'"),
        (
            "state_says_whether_boundary_is_set",
            "diskless_log_start_offset = 5, diskless_log_start_epoch = 0, suffix_start = 5, "
            "high_watermark = 5",
        ),
        ("tiering_is_complete_only_with_boundary", "tiering_complete = true"),
        ("closed_quiesce_has_deadline", "quiesce = 'closed'"),
        ("closed_quiesce_has_deadline", "quiesce_deadline = now()"),
    ],
)
async def test_before_b0_a_partition_has_no_suffix(
    postgres_scene: PostgresScene, rule: str, change: str
) -> None:
    await postgres_scene.tracking_topic()
    with pytest.raises(CheckViolation, match=rule):
        postgres_scene.sql(f"UPDATE logs SET {change}")


@pytest.mark.parametrize(
    ("rule", "change"),
    [
        ("suffix_starts_at_boundary_or_later", "suffix_start = 9"),
        ("suffix_starts_up_to_high_watermark", "suffix_start = 11"),
        ("suffix_starts_up_to_high_watermark", "high_watermark = 9"),
        ("boundary_has_epoch", "diskless_log_start_epoch = -1"),
        ("seeds_lie_below_boundary", "seeds_last_offset = 10"),
        ("quiesce_ends_with_boundary", "quiesce = 'closed', quiesce_deadline = now()"),
        ("state_says_whether_boundary_is_set", "migration_state = 'MIGRATING'"),
    ],
)
async def test_from_b0_on_the_suffix_begins_there_or_later(
    postgres_scene: PostgresScene, rule: str, change: str
) -> None:
    await postgres_scene.hybrid_log(await postgres_scene.gateway(), 10)
    with pytest.raises(CheckViolation, match=rule):
        postgres_scene.sql(f"UPDATE logs SET {change}")


@pytest.mark.parametrize(
    ("rule", "change"),
    [
        ("committed_file_has_outcome", "wal_files SET outcome_errors = NULL"),
        ("live_topic_is_tracked", "topics SET tracked = false"),
        ("deleted_topic_is_not_tracked", "topics SET status = 'deleted'"),
    ],
)
async def test_a_status_has_what_it_says(
    postgres_scene: PostgresScene, rule: str, change: str
) -> None:
    _, (log,) = await postgres_scene.diskless_topic()
    await postgres_scene.commit(await postgres_scene.gateway(), batch(log))
    with pytest.raises(CheckViolation, match=rule):
        postgres_scene.sql(f"UPDATE {change}")


def test_postgres_has_the_table_of_moves_between_states(postgres_scene: PostgresScene) -> None:
    found = postgres_scene.sql("SELECT origin, target FROM tideline.state_moves()")
    moves = {(one, other) for one, others in STATE_MOVES.items() for other in others}
    assert {(MigrationState(one), MigrationState(other)) for one, other in found} == moves


async def test_a_partition_takes_no_other_step_between_states(
    postgres_scene: PostgresScene,
) -> None:
    """A log that was born diskless, without any records, could be tracked as another one."""
    await postgres_scene.diskless_topic()
    without = "diskless_log_start_offset = -1, diskless_log_start_epoch = -1, suffix_start = -1, "
    without += "high_watermark = -1, log_start_offset = -1, tiering_complete = false"
    with pytest.raises(CheckViolation, match="legal_state_move"):
        postgres_scene.sql(f"UPDATE logs SET {without}, migration_state = 'MIGRATING'")


async def test_an_aborted_partition_gets_no_boundary_by_itself(
    postgres_scene: PostgresScene,
) -> None:
    await postgres_scene.tracking_topic()
    postgres_scene.sql("UPDATE logs SET migration_state = 'TIERED_ONLY'")
    with pytest.raises(CheckViolation, match="legal_state_move"):
        postgres_scene.sql("UPDATE logs SET migration_state = 'HYBRID'")
