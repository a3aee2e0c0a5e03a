"""Which commits other gateways are told of."""

from __future__ import annotations

import asyncio

import pytest

from tests.support.waiting import within
from tests.unit.gateway.fakes import LOG, until
from tests.unit.gateway.wal_bench import OTHER, Bench
from tideline.control_plane.errors import ControlPlaneUnavailable
from tideline.control_plane.model import CommitError
from tideline.domain.ids import TopicIdPartition
from tideline.domain.pace import QUIET_S
from tideline.gateway.produce.news import CommitNews


class Plane:
    def __init__(self) -> None:
        self.told = 0
        self.down = False
        self.held = asyncio.Event()
        self.held.set()

    async def tell_of_commits(self) -> None:
        self.told += 1
        await self.held.wait()
        if self.down:
            raise ControlPlaneUnavailable("away")


async def committed(news: CommitNews, *logs: TopicIdPartition, took_s: float = 0.0) -> None:
    news.committed(logs, asyncio.get_running_loop().time() - took_s)
    for _ in range(3):
        await asyncio.sleep(0)


async def test_a_log_that_was_quiet_is_told_of_and_one_that_moves_is_not() -> None:
    plane = Plane()
    news = CommitNews(plane)
    await committed(news, LOG)
    await committed(news, LOG)
    assert plane.told == 1
    await committed(news, LOG, OTHER)
    assert plane.told == 2, "a quiet one beside one that moves"


async def test_others_may_have_seen_a_commit_as_long_ago_as_it_was_begun() -> None:
    plane = Plane()
    news = CommitNews(plane)
    await committed(news, LOG, OTHER, took_s=QUIET_S + 0.1)
    await committed(news, LOG)
    assert plane.told == 2
    assert set(news._begun) == {LOG}, "what is quiet is not kept"


async def test_what_is_committed_while_news_are_told_is_told_behind_them() -> None:
    plane = Plane()
    news = CommitNews(plane)
    plane.held.clear()
    await committed(news, LOG)
    await committed(news, OTHER)
    assert plane.told == 1
    plane.held.set()
    await until(lambda: plane.told == 2)


async def test_news_that_fail_are_lost_and_those_that_follow_are_told() -> None:
    plane = Plane()
    plane.down = True
    news = CommitNews(plane)
    await committed(news, LOG)
    await committed(news, OTHER)
    assert plane.told == 2


async def test_the_writer_tells_of_what_it_has_committed_and_not_of_what_was_refused(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    bench, told = Bench(), list[list[TopicIdPartition]]()
    monkeypatch.setattr(
        bench.writer._news, "committed", lambda logs, begun: told.append(list(logs))
    )
    bench.plane.refusals[1] = CommitError.INVALID_PRODUCER_EPOCH
    await within("the commits", asyncio.gather(bench.append(0), bench.append(0, log=OTHER)))
    await within("the refusal", bench.append(1))
    assert told == [[LOG, OTHER], []]
    await bench.writer.close(0.0)
