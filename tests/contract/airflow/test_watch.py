"""A job starts when there is work, once for the same, and the look outlives every outage."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any
from uuid import UUID, uuid4

import pytest
from structlog.testing import capture_logs

from tests.support.waiting import within
from tideline.airflow import work
from tideline.airflow.watch import News, WorkTrigger
from tideline.airflow.work import Work
from tideline.control_plane.tiering_model import MergeCandidate, SplitWork
from tideline.domain.tiering import UNLIMITED, TieringConfig
from tideline.errors import UnreachableError
from tideline.kafka.topic_policies import TieringPolicies
from tideline.settings import JobsSettings

TOPIC = uuid4()
CONFIG = TieringConfig(
    local_retention_ms=1_000, segment_bytes=100, segment_ms=10**12, index_interval_bytes=4_096
)


def of(*items: str) -> Work:
    return Work(frozenset(items))


class Clock:
    now = 1_000.0

    def __call__(self) -> float:
        return self.now


def test_the_same_work_starts_a_run_once_and_again_when_it_is_still_there_much_later() -> None:
    clock = Clock()
    news = News(600, clock)
    assert not news.is_news(of())
    assert news.is_news(of("a"))
    assert not news.is_news(of("a"))
    clock.now += 599
    assert not news.is_news(of("a"))
    clock.now += 1
    assert news.is_news(of("a")), "its run has failed"
    assert not news.is_news(of("a"))


def test_new_work_and_work_that_is_back_start_a_run_and_less_of_it_does_not() -> None:
    news = News(600, Clock())
    assert news.is_news(of("a", "b"))
    assert not news.is_news(of("b"))
    assert news.is_news(of("b", "c"))
    assert not news.is_news(of())
    assert news.is_news(of("b"))


def test_while_a_run_is_at_work_none_is_started() -> None:
    news = News(600, Clock())
    assert not news.is_news(Work(frozenset({"a"}), at_work=True))
    assert news.is_news(of("a"))


# The trigger


class Looks:
    """What each look finds: work, or an error."""

    def __init__(self, *found: Work | Exception) -> None:
        self.left = list(found)
        self.done = asyncio.Event()
        self._loop = asyncio.get_running_loop()

    def __call__(self) -> Work:
        if not self.left:
            self._loop.call_soon_threadsafe(self.done.set)
            return of()
        found = self.left.pop(0)
        if isinstance(found, Exception):
            raise found
        return found


@asynccontextmanager
async def watching(
    monkeypatch: pytest.MonkeyPatch, *found: Work | Exception
) -> AsyncIterator[list[Any]]:
    """Payloads of a trigger that has looked so many times."""
    looks, fired = Looks(*found), list[Any]()
    monkeypatch.setattr(work, "looking", lambda job: looks)

    async def run() -> None:
        async for event in WorkTrigger("split", every_ms=1, again_ms=600_000).run():
            fired.append(event.payload)

    task = asyncio.create_task(run())
    await within("the last look", looks.done.wait(), 10)
    assert not task.done(), "it never ends by itself"
    task.cancel()
    yield fired


async def test_a_trigger_fires_once_with_how_much_there_is(monkeypatch: pytest.MonkeyPatch) -> None:
    there = Work(frozenset({"a"}), told={"partitions": 3})
    async with watching(monkeypatch, of(), there, there, of()) as fired:
        assert fired == [{"job": "split", "partitions": 3}]


async def test_a_trigger_looks_on_while_a_store_is_away_and_after_an_error_nobody_foresaw(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    away = UnreachableError("Postgres at pg:5432 does not answer")
    with capture_logs() as logs:
        async with watching(monkeypatch, away, away, RuntimeError("?"), of("a")) as fired:
            assert fired == [{"job": "split"}]
    said = [entry for entry in logs if "no look for work" in entry["event"]]
    assert len(said) == 2, "an outage is told once"
    assert "pg:5432" in str(said[0])


def test_another_triggerer_can_go_on_with_it() -> None:
    trigger = WorkTrigger("merge", 300_000, 600_000)
    path, arguments = trigger.serialize()
    assert WorkTrigger(**arguments).serialize() == (path, arguments)


# What it asks


class Plane:
    """The control plane of the jobs, with answers."""

    def __init__(self) -> None:
        self.split = SplitWork(0, 0, None, None)
        self.candidates: list[MergeCandidate] = []
        self.cutoffs: list[dict[UUID, int]] = []

    def __call__(self, settings: JobsSettings, application_name: str) -> Plane:
        assert application_name == "tideline-airflow-work"
        return self

    def close(self) -> None: ...

    def split_work(self, cutoffs: dict[UUID, int]) -> SplitWork:
        self.cutoffs.append(cutoffs)
        return self.split

    def merge_candidates(self) -> list[MergeCandidate]:
        return self.candidates


@pytest.fixture
def jobs(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Plane:
    made = Plane()
    file = tmp_path / "jobs.env"
    file.write_text(
        "TIDELINE_POSTGRES_DSN=postgresql://jobs@pg/tideline\nTIDELINE_KAFKA_BOOTSTRAP=kafka:9092\n"
        "TIDELINE_TIERING_MIN_SEGMENT_BYTES=50\n"
    )
    monkeypatch.setenv("TIDELINE_AIRFLOW_JOBS_CONFIG", str(file))
    monkeypatch.setattr(work, "JobsControlPlane", made)
    monkeypatch.setattr(work, "suffix_topics", lambda _: [])
    return made


def policies(monkeypatch: pytest.MonkeyPatch) -> Callable[[], int]:
    """How often Kafka was asked."""
    asked = 0

    def read(settings: JobsSettings, topics: object) -> TieringPolicies:
        nonlocal asked
        asked += 1
        assert settings.postgres_dsn.get_secret_value() == "postgresql://jobs@pg/tideline"
        return TieringPolicies({TOPIC: CONFIG})

    monkeypatch.setattr(work, "read_tiering_policies", read)
    return lambda: asked


def candidate(
    log_id: int, size: int, *, begun: bool = False, topic: UUID = TOPIC
) -> MergeCandidate:
    return MergeCandidate(
        "orders", topic, 0, log_id, 10, 19, size, 1, 1, 2**60, 0, False, (uuid4(),) if begun else ()
    )


def test_split_has_work_when_a_batch_is_old_enough_and_none_while_a_run_splits(
    jobs: Plane, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = policies(monkeypatch)
    look = work.looking("split")
    assert look() == Work()
    jobs.split = SplitWork(0, 4, 7, 123)
    assert look() == Work(frozenset({"7:123"}), told={"partitions": 4, "oldest_ms": 123})
    jobs.split = SplitWork(2, 0, None, None)
    assert look() == Work(at_work=True)
    assert set(jobs.cutoffs[0]) == {TOPIC}
    assert asked() == 1, "Kafka is asked every few minutes only"


def test_a_config_that_has_changed_counts_at_a_look_after_five_minutes(
    jobs: Plane, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock, config = Clock(), replace(CONFIG, local_retention_ms=UNLIMITED)
    monkeypatch.setattr(work, "read_tiering_policies", lambda *_: TieringPolicies({TOPIC: config}))
    look = work._SplitLook(clock)
    look()
    config = CONFIG
    for later_s in (299, 1):
        clock.now += later_s
        look()
    assert [set(cutoffs) for cutoffs in jobs.cutoffs] == [set(), set(), {TOPIC}]


def test_merge_has_work_when_a_partition_has_enough_for_a_segment(
    jobs: Plane, monkeypatch: pytest.MonkeyPatch
) -> None:
    policies(monkeypatch)
    look = work.looking("merge")
    jobs.candidates = [candidate(1, 49), candidate(2, 50), candidate(3, 70, topic=uuid4())]
    assert look() == Work(frozenset({"2:10"}), told={"partitions": 1, "bytes": 50})
    jobs.candidates.append(candidate(4, 60, begun=True))
    assert look() == Work(at_work=True)
