"""``tideline replicas``: what is told of replicas and racks, and what a run says."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from typer.testing import CliRunner

from tests.unit.domain.test_placement import cluster
from tests.unit.domain.test_replica_spread import judged, partition
from tideline.cli import replicas
from tideline.cli.app import app
from tideline.domain.ids import TopicPartition
from tideline.errors import ExitCode, RefusedError, UsageError
from tideline.migration.replicas import Normalised, ReplicaReport

BROKERS = cluster("a", "b", "c")
FOUND = ReplicaReport(
    ("a", "b", "c"),
    (
        judged(BROKERS, partition(1, 2, 3)),
        judged(BROKERS, partition(2, partition=1)),
        judged(BROKERS, partition(1, 2, partition=2, ready=False, topic="other")),
    ),
    moving=4,
)


class Keeper:
    """Finds :data:`FOUND`, and does what it is told to have done."""

    def __init__(self, done: Normalised | None = None) -> None:
        self.done, self.asked = done, [("none", 0)]

    async def look(self, *, whole: bool) -> ReplicaReport:
        return FOUND

    async def normalise(self, topic: str | None, at_once: int, told: Any) -> Normalised:
        self.asked = [(str(topic), at_once)]
        if self.done is None:
            await asyncio.Event().wait()
        assert self.done is not None
        told(self.done.moved)
        return self.done

    async def take_back(self, topic: str) -> list[int]:
        return [1, 2]


@pytest.fixture
def keeper(monkeypatch: pytest.MonkeyPatch) -> Keeper:
    found = Keeper(Normalised({TopicPartition("t", 1): (2, 1, 3)}))

    async def look() -> ReplicaReport:
        return FOUND

    @asynccontextmanager
    async def opened() -> AsyncIterator[tuple[None, None]]:
        yield None, None

    monkeypatch.setattr(replicas, "_look", look)
    monkeypatch.setattr(replicas, "_keeper", lambda *_: found)
    monkeypatch.setattr(replicas, "load", lambda _: None)
    monkeypatch.setattr(replicas, "changing_plane", opened)
    return found


def told(*arguments: str) -> Any:
    return CliRunner().invoke(app, ["replicas", *arguments])


@pytest.mark.usefixtures("keeper")
def test_the_report_names_what_is_uneven_why_and_what_would_be_done() -> None:
    lines = told("report").output.splitlines()
    assert lines[1].split()[:5] == ["t-1", "2", "2", "2", "one"]
    assert "normalise: 2, 1, 3" in lines[1]
    assert "racks uneven" in lines[2]
    assert "not ready" in lines[2]
    assert lines[3].startswith("1 of 3 diskless partitions have one replica in each of 3 racks")
    assert "4 partitions of the cluster are being reassigned" in lines[3]
    assert "t-0" in told("report", "--all").output


@pytest.mark.usefixtures("keeper")
def test_programs_get_the_same() -> None:
    found = json.loads(told("report", "t", "-o", "json").output)
    assert (found["even"], found["moving"], found["single_topics"]) == (1, 4, 1)
    (shown,) = found["partitions"]
    assert shown["target"] == [2, 1, 3]
    assert shown["missing_racks"] == ["a", "c"]


@pytest.mark.usefixtures("keeper")
def test_a_topic_that_is_not_diskless_is_refused_by_name() -> None:
    for command in (("report", "nope"), ("normalise", "nope", "--dry-run")):
        assert isinstance(told(*command).exception, RefusedError)
    assert isinstance(told("normalise", "nope", "--run").exception, RefusedError)


def test_a_run_must_be_asked_for(keeper: Keeper) -> None:
    for options in ((), ("--run", "--dry-run")):
        assert isinstance(told("normalise", *options).exception, UsageError)
    assert "t-1 would get replicas 2, 1, 3" in told("normalise", "--dry-run").output
    assert keeper.asked == [("none", 0)]


def test_a_run_tells_what_moves_and_what_has_moved(keeper: Keeper) -> None:
    output = told("normalise", "t", "--run", "--at-once", "3").output
    assert output.splitlines() == ["t-1 is moving to 2, 1, 3", "t-1 got replicas 2, 1, 3"]
    assert keeper.asked == [("t", 3)]


def test_what_kafka_refuses_makes_a_run_fail(keeper: Keeper) -> None:
    keeper.done = Normalised({}, {TopicPartition("t", 1): "INVALID_REPLICA_ASSIGNMENT"})
    result = told("normalise", "--run")
    assert result.exit_code == ExitCode.FAILED
    assert "t-1 was refused by Kafka: INVALID_REPLICA_ASSIGNMENT" in result.output


def test_a_wait_that_ends_first_says_that_what_has_begun_goes_on(keeper: Keeper) -> None:
    keeper.done = None
    result = told("normalise", "--run", "--timeout", "0")
    assert result.exit_code == ExitCode.TIMED_OUT
    assert "what has begun goes on" in result.output


@pytest.mark.usefixtures("keeper")
def test_reassignments_are_taken_back_by_topic() -> None:
    assert told("cancel", "t").output == "t: 2 reassignments are taken back.\n"
    assert json.loads(told("cancel", "t", "-o", "json").output)["cancelled"] == [1, 2]
