"""Topics by state: what Postgres knows, and Kafka's tiered topics that nobody has migrated."""

from __future__ import annotations

from tideline.control_plane.model import TopicState
from tideline.domain.migration import MigrationState
from tideline.migration.by_state import TopicInState, in_state


def tracked(topic: str, state: MigrationState) -> TopicState:
    return TopicState(topic, state, 3)


KNOWN = [
    tracked("payments", MigrationState.HYBRID),
    tracked("orders", MigrationState.HYBRID),
    tracked("aborted", MigrationState.TIERED_ONLY),
]
TIERED = {"payments": 3, "clicks": 2, "aborted": 3}


def test_topics_of_a_state_come_by_name() -> None:
    found = in_state(MigrationState.HYBRID, KNOWN, {})
    assert [one.topic for one in found] == ["orders", "payments"]
    assert in_state(MigrationState.MIGRATING, KNOWN, {}) == []


def test_a_tiered_topic_that_never_migrated_is_tiered_only_unless_postgres_knows_better() -> None:
    assert in_state(MigrationState.TIERED_ONLY, KNOWN, TIERED) == [
        TopicInState("aborted", MigrationState.TIERED_ONLY, 3, tracked=True),
        TopicInState("clicks", MigrationState.TIERED_ONLY, 2, tracked=False),
    ]
    hybrid = in_state(MigrationState.HYBRID, KNOWN, TIERED)
    assert [one.topic for one in hybrid] == ["orders", "payments"]
