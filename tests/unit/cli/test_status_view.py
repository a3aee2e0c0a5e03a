"""What ``tideline status`` tells of a partition."""

from __future__ import annotations

import asyncio
import io
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID

import pytest
from rich.console import Console

from tideline.cli import status
from tideline.cli.output import age
from tideline.cli.status import on_screen, overview_tables, state_table, topic_table
from tideline.control_plane.model import PartitionMigrationStatus, PhaseRecord
from tideline.domain.ids import TopicIdPartition
from tideline.domain.messages import PartitionReport, TopicMigrationStatus
from tideline.domain.migration import PHASE_ORDER, MigrationState, Phase, PhaseStatus
from tideline.migration.by_state import TopicInState
from tideline.migration.overview import Overview, partition_row, topic_row

NOW = datetime(2026, 5, 1, 12, 0, tzinfo=UTC)


def record(phase: Phase, status: PhaseStatus, reason: str | None = None) -> PhaseRecord:
    return PhaseRecord(phase, status, 1, NOW - timedelta(seconds=90), None, reason, {})


def migration(
    *phases: PhaseRecord,
    state: MigrationState = MigrationState.MIGRATING,
    boundary: int = -1,
    complete: bool = False,
) -> PartitionMigrationStatus:
    return PartitionMigrationStatus(
        topic="orders",
        log=TopicIdPartition(UUID(int=1), 0),
        state=state,
        generation=1,
        quiesced=False,
        boundary=boundary,
        boundary_epoch=3 if boundary >= 0 else -1,
        high_watermark=boundary,
        tiering_complete=complete,
        phases=phases,
    )


def test_the_phase_shown_is_the_one_that_is_not_done_with_its_reason_and_next_step() -> None:
    row = partition_row(
        migration(
            record(Phase.VALIDATE, PhaseStatus.DONE),
            record(Phase.DRAIN_TRANSACTIONS, PhaseStatus.WAITING, "app-1 is open"),
        )
    )
    assert (row.phase, row.phase_status) == ("drain_transactions", "waiting")
    assert row.waiting_reason == "app-1 is open"
    assert row.next_step == "quiesce: park producers"
    assert row.boundary is None


def test_the_workflows_reason_is_newer_than_that_of_the_evidence() -> None:
    report = PartitionReport(0, Phase.DRAIN_TRANSACTIONS, "", waiting_reason="paused")
    row = partition_row(migration(record(Phase.VALIDATE, PhaseStatus.DONE)), report)
    assert row.waiting_reason == "paused"


def test_a_phase_that_the_workflow_holds_back_is_the_one_that_is_shown() -> None:
    report = PartitionReport(0, Phase.READINESS, "", boundary=9, waiting_reason="paused")
    row = partition_row(migration(record(Phase.ZOMBIE_CLEANUP, PhaseStatus.DONE)), report)
    assert (row.phase, row.phase_status) == ("readiness", "waiting")


def test_topics_of_a_state_are_listed_and_none_is_said() -> None:
    console = Console(record=True, width=200)
    clicks = TopicInState("clicks", MigrationState.TIERED_ONLY, 2, tracked=False)
    console.print(state_table(MigrationState.TIERED_ONLY, [clicks]))
    console.print(state_table(MigrationState.MIGRATING, []))
    shown = console.export_text()
    assert "clicks" in shown
    assert "No topic is MIGRATING." in shown


def test_b0_is_shown_with_its_leader_epoch() -> None:
    row = partition_row(migration(state=MigrationState.HYBRID, boundary=42))
    assert (row.boundary, row.leader_epoch) == (42, 3)


def test_a_hybrid_partition_has_nothing_left_to_do() -> None:
    done = [record(phase, PhaseStatus.DONE) for phase in PHASE_ORDER]
    row = partition_row(migration(*done, state=MigrationState.HYBRID, boundary=1, complete=True))
    assert row.next_step == "nothing"
    assert row.phases_done == len(PHASE_ORDER)


def test_a_topic_without_a_workflow_is_told_by_its_partitions_states() -> None:
    row = topic_row([migration(state=MigrationState.TIERED_ONLY)], None, "id", None)
    assert row.stage == "tiered only"
    assert row.partitions[0].next_step == "nothing: the topic is classic"


def test_a_topic_that_postgres_does_not_know_yet_is_told_by_its_workflow() -> None:
    status = TopicMigrationStatus("orders", "id", "validating", "", "Kafka is away", False, "track")
    row = topic_row([], status, "id", None)
    assert (row.topic, row.stage, row.waiting_reason) == ("orders", "validating", "Kafka is away")


def test_the_table_names_phase_reason_and_age() -> None:
    row = topic_row(
        [migration(record(Phase.READINESS, PhaseStatus.WAITING, "offsets 3 to 9"), boundary=9)],
        None,
        "id",
        None,
    )
    console = Console(width=200, record=True, quiet=True)
    with console.capture() as captured:
        console.quiet = False
        console.print(topic_table(row, NOW))
    text = captured.get()
    assert "readiness (waiting)" in text
    assert "offsets 3 to 9" in text
    assert "1 min 30 s" in text


def test_ages_are_told_in_one_or_two_units() -> None:
    ages = [5, 65, 3_700, 200_000]
    told = [age(NOW - timedelta(seconds=seconds), NOW) for seconds in ages]
    assert told == ["5 s", "1 min 5 s", "1 h 1 min", "2 d 7 h"]


def test_what_is_laid_out_for_a_screen_is_what_a_screen_shows_of_the_whole() -> None:
    rows = [
        topic_row([migration(record(Phase.VALIDATE, PhaseStatus.WAITING))] * n, None, "w", None)
        for n in (3, 0, 1, 7, 2, 5)
    ]
    whole = Overview(rows, ["a note"])

    def laid_out(overview: Overview) -> list[str]:
        terminal = Console(width=120, height=10, no_color=True)
        with terminal.capture() as captured:
            terminal.print(overview_tables(overview))
        return captured.get().splitlines()

    lines = laid_out(whole)
    for height in range(1, len(lines) + 3):
        seen = laid_out(on_screen(whole, height))
        assert seen[:height] == lines[:height]
        assert (len(seen) > height) == (len(lines) > height)
    assert len(on_screen(whole, 5).topics) < len(rows)


async def test_who_stops_watching_keeps_the_whole_of_what_was_seen_last(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    seen = [Overview([topic_row([migration()] * 9, None, f"w-{n}-{look}", None) for n in range(3)])
            for look in range(3)]  # fmt: skip

    class Looks:
        """The last look is interrupted."""

        async def observe(self, _: object) -> Overview:
            if not seen:
                raise asyncio.CancelledError
            return seen.pop(0)

    output = io.StringIO()
    terminal = Console(file=output, width=120, height=10, force_terminal=True, no_color=True)
    monkeypatch.setattr(status, "console", lambda: terminal)
    monkeypatch.setattr(status, "WATCH_EVERY_S", 0.0)
    looks: Any = Looks()
    with pytest.raises(asyncio.CancelledError):
        await status._watch(looks, None, seen.pop(0))
    shown = output.getvalue()
    assert [f"w-{n}-2" in shown for n in range(3)] == [True] * 3
    assert "w-2-0" not in shown, "it was below the terminal's last line"
