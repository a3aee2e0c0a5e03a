"""Fetch sessions of clients that fetch tracked topics (KIP-227), by the protocol."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from uuid import UUID

import pytest
from kio.schema.errors import ErrorCode

from tests.support.waiting import within
from tests.unit.gateway.fakes import TOPIC, FakeClock, record_batch, tracked_row, until
from tests.unit.gateway.tracked_bench import (
    FakeConnection,
    KafkaLog,
    TrackedBench,
    fetch,
    fetched,
    leased,
    produce,
    serving,
)
from tideline.gateway.context import ApiKey
from tideline.gateway.fetch import tracked_sessions
from tideline.gateway.fetch.tracked_sessions import Told, TrackedSessions
from tideline.gateway.messages import messages
from tideline.kafka.batches import patch
from tideline.kafka.protocol import encode_request, encode_response

COUNT = 4
LOGS = [(TOPIC, partition) for partition in range(COUNT)]
NOT_FOUND = ErrorCode.fetch_session_id_not_found
WRONG_EPOCH = ErrorCode.invalid_fetch_session_epoch


@pytest.fixture
async def bench(tmp_path: Path) -> AsyncIterator[TrackedBench]:
    """Four partitions of a tracked topic, their suffixes empty from 100 on."""
    async with leased(tmp_path) as made:
        made.show(*(tracked_row(n, boundary=100, boundary_epoch=7) for n in range(COUNT)))
        yield made


async def appended(bench: TrackedBench, partition: int) -> None:
    await bench.ask(produce((TOPIC, partition, record_batch(1))))


async def full(bench: TrackedBench, session: int = 0, offset: int = 100) -> Any:
    message = fetch(*((*log, offset) for log in LOGS), session=(session, 0))
    return await bench.ask(message)


async def more(
    bench: TrackedBench, session: int, epoch: int, *asked: tuple[str, int, int], **values: Any
) -> Any:
    return await bench.ask(fetch(*asked, session=(session, epoch), **values))


async def test_only_what_is_new_is_asked_and_told(bench: TrackedBench) -> None:
    first = await full(bench)
    assert list(fetched(first)) == LOGS
    session = first.session_id
    assert session > 0
    await appended(bench, 2)
    told = await more(bench, session, 1)
    assert (told.error_code, told.session_id) == (ErrorCode.none, session)
    assert {log: row.offsets for log, row in fetched(told).items()} == {(TOPIC, 2): [100]}
    on = await more(bench, session, 2, (TOPIC, 2, 101))
    assert fetched(on) == {}
    await appended(bench, 2)
    assert fetched(await more(bench, session, 3))[TOPIC, 2].offsets == [101]


async def test_what_is_not_asked_anew_is_told_again_until_it_is(bench: TrackedBench) -> None:
    """As in Kafka: records are told for as long as the session's offset is before them."""
    session = (await full(bench)).session_id
    await appended(bench, 1)
    for epoch in (1, 2):
        assert fetched(await more(bench, session, epoch))[TOPIC, 1].offsets == [100]


async def test_a_high_watermark_that_moves_is_told_without_records(bench: TrackedBench) -> None:
    bench.client.broker[ApiKey.FETCH] = serving(dict.fromkeys(LOGS, KafkaLog(b"", 100)))
    session = (await full(bench, offset=90)).session_id
    await appended(bench, 3)
    told = fetched(await more(bench, session, 1))
    assert {log: row.high_watermark for log, row in told.items()} == {(TOPIC, 3): 101}
    assert fetched(await more(bench, session, 2)) == {}


async def test_an_error_is_told_each_time_and_that_it_is_over_too(bench: TrackedBench) -> None:
    session = (await full(bench)).session_id
    bench.plane.down = True
    for epoch in (1, 2):
        told = fetched(await more(bench, session, epoch))
        assert {row.error for row in told.values()} == {"kafka_storage_error"}
        assert list(told) == LOGS
    bench.plane.down = False
    over = fetched(await more(bench, session, 3))
    assert {row.error for row in over.values()} == {"none"}
    assert len(over) == COUNT
    assert fetched(await more(bench, session, 4)) == {}


async def test_partitions_are_added_and_forgotten(bench: TrackedBench) -> None:
    first = await bench.ask(fetch((TOPIC, 0, 100), session=(0, 0)))
    session = first.session_id
    added = await more(bench, session, 1, (TOPIC, 1, 100))
    assert list(fetched(added)) == [(TOPIC, 1)]
    message = fetch(session=(session, 2))
    api = messages(ApiKey.FETCH, 12)
    gone = api.request_part("ForgottenTopic", topic=TOPIC, partitions=(0,))
    await bench.ask(replace(message, forgotten_topics_data=(gone,)))
    await appended(bench, 0)
    await appended(bench, 1)
    assert list(fetched(await more(bench, session, 3))) == [(TOPIC, 1)]
    rest = api.request_part("ForgottenTopic", topic=TOPIC, partitions=(1,))
    empty = await bench.ask(replace(fetch(session=(session, 4)), forgotten_topics_data=(rest,)))
    assert (empty.error_code, empty.session_id, empty.responses) == (ErrorCode.none, 0, ())
    assert (await more(bench, session, 5)).error_code is NOT_FOUND


async def test_a_session_that_is_not_known_and_an_epoch_that_is_not_due_are_refused(
    bench: TrackedBench,
) -> None:
    session = (await full(bench)).session_id
    assert (await more(bench, session + 1, 1)).error_code is NOT_FOUND
    for epoch in (1, -2):
        assert (await more(bench, 0, epoch, (TOPIC, 0, 100))).error_code is NOT_FOUND
    for epoch in (2, 7, -2):
        refused = await more(bench, session, epoch)
        assert (refused.error_code, refused.responses) == (WRONG_EPOCH, ())
    assert (await more(bench, session, 1)).error_code is ErrorCode.none
    assert (await more(bench, session, 1)).error_code is WRONG_EPOCH, "it was taken"
    assert (await more(bench, session, 2)).error_code is ErrorCode.none


async def test_a_full_fetch_replaces_the_session_that_it_names(bench: TrackedBench) -> None:
    session = (await full(bench)).session_id
    another = (await full(bench, session)).session_id
    assert another not in (0, session)
    assert (await more(bench, session, 1)).error_code is NOT_FOUND
    closed = await bench.ask(fetch((*LOGS[0], 100), session=(another, -1)))
    assert (closed.error_code, closed.session_id) == (ErrorCode.none, 0)
    assert (await more(bench, another, 1)).error_code is NOT_FOUND


async def test_a_session_outlives_its_connection(bench: TrackedBench) -> None:
    session = (await full(bench)).session_id
    answer = await bench.ask(fetch(session=(session, 1)), client=FakeConnection())
    assert answer.error_code is ErrorCode.none


async def test_every_fetch_goes_by_the_routes_of_its_moment(bench: TrackedBench) -> None:
    """Schedule 9: what a session named while it was Kafka's is the suffix's once B0 is set."""
    bench.show(*(tracked_row(n) for n in range(COUNT)))
    bench.client.broker[ApiKey.FETCH] = serving(dict.fromkeys(LOGS, KafkaLog(b"", 100)))
    session = (await full(bench)).session_id
    bench.show(*(tracked_row(n, boundary=100, boundary_epoch=7) for n in range(COUNT)))
    await appended(bench, 0)
    bench.client.forwarded.clear()
    assert fetched(await more(bench, session, 1))[TOPIC, 0].offsets == [100]
    assert not bench.client.forwarded


async def test_a_session_with_classic_topics_serves_them_too(bench: TrackedBench) -> None:
    records = bytearray(record_batch(1))
    patch(records, 5, 3)
    bench.client.broker[ApiKey.FETCH] = serving({("classic", 0): KafkaLog(bytes(records), 6)})
    first = await bench.ask(fetch((TOPIC, 0, 100), ("classic", 0, 5), session=(0, 0)))
    assert fetched(await more(bench, first.session_id, 1))["classic", 0].offsets == [5]


async def test_a_session_none_of_whose_topics_is_tracked_any_more_is_kafkas_again(
    bench: TrackedBench,
) -> None:
    session = (await full(bench)).session_id
    bench.parts.tracking.replace_named([TOPIC], [])
    assert (await more(bench, session, 1)).error_code is NOT_FOUND
    assert len(_sessions(bench)) == 0


async def test_ids_and_names_are_not_mixed_in_one_session(bench: TrackedBench) -> None:
    session = (await full(bench)).session_id
    api = messages(ApiKey.FETCH, 13)
    by_id = api.request(
        **{
            name: getattr(fetch(), name)
            for name in ("max_wait", "min_bytes", "max_bytes", "isolation_level")
        },
        session_id=session,
        session_epoch=1,
        topics=(),
        forgotten_topics_data=(),
        rack_id="",
    )
    assert (await bench.ask(by_id)).error_code is ErrorCode.fetch_session_topic_id_error


def _sessions(bench: TrackedBench) -> TrackedSessions:
    handler = bench.rules[ApiKey.FETCH].handler
    found = handler.handler.__self__.sessions  # type: ignore[attr-defined]
    assert isinstance(found, TrackedSessions)
    return found


async def test_two_fetches_of_one_session_at_once_do_not_both_speak_for_it(
    bench: TrackedBench,
) -> None:
    session = (await full(bench)).session_id
    waits = asyncio.create_task(more(bench, session, 1, max_wait_ms=600_000))
    await until(lambda: bench.parts.watermarks._waiters)
    assert (await more(bench, session, 2)).error_code is ErrorCode.none
    await appended(bench, 0)
    assert (await within("the answer", waits)).error_code is WRONG_EPOCH


# The cache by itself


def asking(count: int, epoch: int = 0, *, topic: Any = "t") -> Any:
    rows = tuple(SimpleNamespace(partition=n) for n in range(count))
    return SimpleNamespace(
        topics=(SimpleNamespace(name=topic, partitions=rows),),
        session_epoch=epoch,
        forgotten_topics_data=(),
        __version__=12,
    )


class Cache:
    def __init__(self) -> None:
        self.clock = FakeClock()
        self.sessions = TrackedSessions(self.clock)

    def open(self, size: int, topic: Any = "t") -> int:
        return self.sessions.opening(asking(size, topic=topic))([])[1]

    def go_on(self, session_id: int, size: int = 0, epoch: int = 1) -> Told | Any:
        session = self.sessions.find(session_id)
        assert session is not None
        found = self.sessions.going_on(session, asking(size, epoch))
        return found([]) if callable(found) else found

    def lives(self, *ids: int) -> list[bool]:
        return [self.sessions.find(one) is not None for one in ids]


@pytest.fixture
def cache(monkeypatch: pytest.MonkeyPatch) -> Cache:
    monkeypatch.setattr(tracked_sessions, "SLOTS", 3)
    monkeypatch.setattr(tracked_sessions, "PARTITIONS", 20)
    monkeypatch.setattr(tracked_sessions, "LARGEST_SESSION", 12)
    return Cache()


def test_without_a_slot_a_client_gets_no_session_for_as_long_as_the_others_are_young(
    cache: Cache,
) -> None:
    ids = [cache.open(1) for _ in range(3)]
    assert cache.open(5) == 0
    cache.clock.now += 60
    assert cache.open(5) == 0
    assert all(cache.lives(*ids))


def test_who_has_not_come_for_two_minutes_gives_way(cache: Cache) -> None:
    first, second, third = (cache.open(1) for _ in range(3))
    cache.clock.now += 60
    cache.go_on(first)
    cache.go_on(third)
    cache.clock.now += 61
    assert cache.open(1) > 0
    assert cache.lives(first, second, third) == [True, False, True]


def test_an_old_smaller_session_gives_way_to_a_larger_one_and_not_to_one_of_its_size(
    cache: Cache,
) -> None:
    first, second, third = cache.open(3), cache.open(2), cache.open(4)
    cache.clock.now += 60
    for epoch in (1, 2):
        for one in (first, second, third):
            cache.go_on(one, epoch=epoch)
        cache.clock.now += 61
    assert cache.open(2) == 0
    assert cache.open(3) > 0
    assert cache.lives(first, second, third) == [True, False, True]


def test_partitions_are_bounded_over_all_sessions(cache: Cache) -> None:
    assert cache.open(13) == 0, "more than one session may have"
    first = cache.open(12)
    assert cache.open(9) == 0
    second = cache.open(8)
    assert cache.sessions.partitions == 20
    assert cache.go_on(second, 9) == tracked_sessions.KafkaErrorCode.FETCH_SESSION_ID_NOT_FOUND
    assert (cache.lives(first, second), cache.sessions.partitions) == ([True, False], 12)


def test_a_session_that_grows_past_what_one_may_have_ends(cache: Cache) -> None:
    first = cache.open(2)
    assert cache.go_on(first, 13) == tracked_sessions.KafkaErrorCode.FETCH_SESSION_ID_NOT_FOUND
    assert cache.sessions.partitions == 0


def test_names_that_kafka_has_no_topic_of_are_not_kept(cache: Cache) -> None:
    assert cache.open(1, "x" * 250) == 0
    assert cache.open(1, None) == 0
    assert cache.open(1, "x" * 249) > 0
    assert cache.open(1, UUID(int=5)) > 0


def test_an_epoch_begins_anew_at_one(cache: Cache) -> None:
    session = cache.sessions.find(cache.open(1))
    assert session is not None
    session.epoch = tracked_sessions.LAST_EPOCH
    cache.go_on(session.id, epoch=tracked_sessions.LAST_EPOCH)
    assert session.epoch == 1


async def test_thousands_of_partitions_are_asked_for_by_a_request_that_names_none(
    bench: TrackedBench,
) -> None:
    """Counted bytes: what sessions are for."""
    count = 2_000
    bench.show(*(tracked_row(n, boundary=0, boundary_epoch=0) for n in range(count)))
    sizes: list[tuple[int, int]] = []

    async def sized(message: Any) -> Any:
        answer = await bench.ask(message)
        sizes.append((len(encode_request(message, 1, "c")), len(encode_response(answer, 1))))
        return answer

    wanted = [(TOPIC, n, 0) for n in range(count)]
    session = (await sized(fetch(*wanted, session=(0, 0)))).session_id
    await sized(fetch(session=(session, 1)))
    (asked, told), (asked_on, told_on) = sizes
    assert asked > 20 * count
    assert told > 20 * count
    assert asked_on < 100
    assert told_on < 100
