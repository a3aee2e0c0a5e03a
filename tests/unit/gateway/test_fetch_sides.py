"""Both sides of one fetch: asked at once, and neither held up by the other (seed 002.27)."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
from kio.schema.errors import ErrorCode

from tests.support.waiting import lasts_async, within
from tests.unit.gateway.fakes import LOG, TOPIC, record_batch, tracked_row, until
from tests.unit.gateway.tracked_bench import (
    Fetched,
    KafkaLog,
    Script,
    TrackedBench,
    fetch,
    fetched,
    forget_everything,
    leased,
    produce,
    serving,
)
from tideline.control_plane.model import FindBatchesRequest, FoundBatches
from tideline.gateway.context import ApiKey
from tideline.gateway.fetch import late_answers, tracked_fetch
from tideline.gateway.room import Room
from tideline.kafka.batches import patch
from tideline.kafka.errors import KafkaUnavailable

SUFFIX = tracked_row(0, boundary=100, boundary_epoch=7)
PREFIX = tracked_row(1, boundary=100, boundary_epoch=7)
IN_SUFFIX, IN_PREFIX = (TOPIC, 0), (TOPIC, 1)
BOTH = ((TOPIC, 0, 100), (TOPIC, 1, 90))
NEVER_MS = 600_000
"""A client's patience that no test waits for."""


def batch_at(base: int, payload: int = 50) -> bytes:
    batch = bytearray(record_batch(1, payload=b"x" * payload))
    patch(batch, base, 3)
    return bytes(batch)


@pytest.fixture
async def bench(tmp_path: Path) -> AsyncIterator[TrackedBench]:
    async with leased(tmp_path) as made:
        made.show(SUFFIX, PREFIX)
        made.parts.watermarks.observe(LOG, 100)
        made.client.broker[ApiKey.FETCH] = serving({IN_PREFIX: KafkaLog(batch_at(90), 100)})
        yield made


class SlowBroker:
    """Answers when the test says so, one question after the other."""

    def __init__(self, bench: TrackedBench) -> None:
        self.client = bench.client
        self.answer = bench.client.broker[ApiKey.FETCH]
        self.gate = asyncio.Event()
        bench.client.broker[ApiKey.FETCH] = self._slowly

    async def _slowly(self, request: Any) -> Any:
        await self.gate.wait()
        return self.answer(request)

    @property
    def asked(self) -> int:
        return len(self.client.forwarded)


class SlowFinding:
    """Of coordinates in Postgres."""

    def __init__(self, bench: TrackedBench) -> None:
        self.gate, self.begun, self.cancelled = asyncio.Event(), asyncio.Event(), 0
        self._find = bench.plane.find_batches
        bench.plane.find_batches = self._slowly  # type: ignore[method-assign]

    async def _slowly(self, requests: Sequence[FindBatchesRequest]) -> list[FoundBatches]:
        self.begun.set()
        try:
            await self.gate.wait()
        except asyncio.CancelledError:
            self.cancelled += 1
            raise
        return await self._find(requests)


async def appended(bench: TrackedBench, count: int = 1, payload: int = 50) -> None:
    for _ in range(count):
        await bench.ask(produce((TOPIC, 0, record_batch(1, payload=b"x" * payload))))


async def ask(bench: TrackedBench, **values: Any) -> dict[tuple[str, int], Fetched]:
    return fetched(await bench.ask(fetch(*BOTH, **values)))


def hurried(patch_: pytest.MonkeyPatch, first_answer_s: float = 1.0) -> None:
    """Who has enough waits for the other side for a moment only; a fetch after one that went
    without a side for ``first_answer_s``."""
    patch_.setattr(tracked_fetch, "FIRST_ANSWER_S", first_answer_s)
    patch_.setattr(tracked_fetch, "BESIDE_S", 0.02)


async def test_each_side_is_asked_before_the_other_has_answered(bench: TrackedBench) -> None:
    """Events, no clock: one after the other would never end."""
    await appended(bench)
    broker, finding = SlowBroker(bench), SlowFinding(bench)
    asking = asyncio.create_task(ask(bench, max_wait_ms=NEVER_MS))
    await until(lambda: broker.asked == 1 and finding.begun.is_set())
    finding.gate.set()
    broker.gate.set()
    answers = await asking
    assert answers[IN_SUFFIX].offsets == [100]
    assert answers[IN_PREFIX].offsets == [90]
    assert broker.asked == 1


async def test_the_object_store_is_read_while_kafka_is(bench: TrackedBench) -> None:
    await appended(bench)
    forget_everything(bench)
    broker = SlowBroker(bench)
    asking = asyncio.create_task(ask(bench, max_wait_ms=NEVER_MS))
    await until(lambda: broker.asked == 1 and bench.store.gets)
    assert not asking.done()
    broker.gate.set()
    assert (await asking)[IN_SUFFIX].offsets == [100]
    assert len(bench.store.gets) == 1


async def test_a_slow_broker_does_not_hold_the_suffix_up_and_its_answer_is_not_lost(
    bench: TrackedBench, monkeypatch: pytest.MonkeyPatch
) -> None:
    hurried(monkeypatch)
    await appended(bench)
    broker = SlowBroker(bench)
    first = await ask(bench)
    assert first[IN_SUFFIX].offsets == [100]
    late = first[IN_PREFIX]
    assert (late.error, late.offsets) == ("none", [])
    assert late.high_watermark != 90, "an end where the consumer is would be an end of the log"
    again = await ask(bench)
    assert (again[IN_SUFFIX].offsets, again[IN_PREFIX].offsets) == ([100], [])
    assert broker.asked == 1, "Kafka is not asked again while it owes an answer"
    broker.gate.set()
    await until(lambda: bench.parts.room.held("answers") > 0)
    assert (await ask(bench))[IN_PREFIX].offsets == [90]
    assert broker.asked == 1
    assert bench.parts.room.held("answers") == 0


async def test_the_next_fetch_waits_for_what_the_broker_owes(
    bench: TrackedBench, monkeypatch: pytest.MonkeyPatch
) -> None:
    hurried(monkeypatch, first_answer_s=30.0)
    await appended(bench)
    broker = SlowBroker(bench)
    await ask(bench)
    asking = asyncio.create_task(ask(bench, max_wait_ms=NEVER_MS))
    await lasts_async(
        "the last one went without a side: now both have their time",
        lambda: not asking.done(),
        0.05,
    )
    broker.gate.set()
    answers = await asking
    assert (answers[IN_SUFFIX].offsets, answers[IN_PREFIX].offsets) == ([100], [90])
    assert broker.asked == 1


async def came_too_late(bench: TrackedBench, log: KafkaLog | None = None) -> SlowBroker:
    """A broker whose answer, of ``log`` if given, came after its fetch was answered; the next
    question it answers at once, with what the bench's broker has."""
    await appended(bench)
    broker = SlowBroker(bench)
    has = broker.answer
    if log is not None:
        broker.answer = serving({IN_PREFIX: log})
    kept, take = asyncio.Event(), Room.take

    def noted(room: Room, name: str, size: int) -> None:
        take(room, name, size)
        if name == "answers" and broker.gate.is_set():
            kept.set()  # a look at the room may come when it is gone again

    with mock.patch.object(Room, "take", noted):
        await ask(bench)
        broker.gate.set()
        await within("the room for the late answer", kept.wait())
    broker.answer = has
    return broker


@pytest.mark.parametrize(
    "late", [KafkaLog(b"", 100), KafkaLog(code=ErrorCode.unknown_server_error)]
)
async def test_that_there_was_nothing_is_no_answer_to_a_later_fetch(
    bench: TrackedBench, monkeypatch: pytest.MonkeyPatch, late: KafkaLog
) -> None:
    hurried(monkeypatch)
    broker = await came_too_late(bench, late)
    assert (await ask(bench))[IN_PREFIX].offsets == [90]
    assert broker.asked == 2


async def test_a_late_answer_is_not_given_to_who_asks_for_another_offset(
    bench: TrackedBench, monkeypatch: pytest.MonkeyPatch
) -> None:
    hurried(monkeypatch)
    broker = await came_too_late(bench)
    broker.answer = serving({IN_PREFIX: KafkaLog(batch_at(80), 100)})
    found = fetched(await bench.ask(fetch((TOPIC, 0, 100), (TOPIC, 1, 80))))
    assert found[IN_PREFIX].offsets == [80]
    assert broker.asked == 2


async def test_a_late_answer_is_kept_for_a_while_and_only_where_there_is_room(
    bench: TrackedBench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(late_answers, "KEPT_S", 0.01)
    hurried(monkeypatch)
    broker = await came_too_late(bench)
    await until(lambda: bench.parts.room.held("answers") == 0)
    assert (await ask(bench))[IN_PREFIX].offsets == [90]
    assert broker.asked == 2


async def test_a_slow_postgres_does_not_hold_the_prefix_up(
    bench: TrackedBench, monkeypatch: pytest.MonkeyPatch
) -> None:
    hurried(monkeypatch)
    await appended(bench)
    finding = SlowFinding(bench)
    first = await ask(bench)
    assert first[IN_PREFIX].offsets == [90]
    assert (first[IN_SUFFIX].error, first[IN_SUFFIX].offsets) == ("none", [])
    assert finding.cancelled == 1
    finding.gate.set()
    assert (await ask(bench))[IN_SUFFIX].offsets == [100]


async def test_a_slow_object_store_does_not_hold_the_prefix_up_and_is_read_once(
    bench: TrackedBench, monkeypatch: pytest.MonkeyPatch
) -> None:
    hurried(monkeypatch)
    await appended(bench)
    forget_everything(bench)
    gate, get = asyncio.Event(), bench.store.get

    async def slowly(*args: Any, **named: Any) -> bytes:
        body = await get(*args, **named)
        await gate.wait()
        return body

    monkeypatch.setattr(bench.store, "get", slowly)
    first = await ask(bench)
    assert (first[IN_PREFIX].offsets, first[IN_SUFFIX].offsets) == ([90], [])
    gate.set()
    assert (await ask(bench))[IN_SUFFIX].offsets == [100]
    assert len(bench.store.gets) == 1
    assert bench.parts.room.held("answers") == 0


async def test_a_broker_that_fails_ends_the_question_to_the_suffix(bench: TrackedBench) -> None:
    finding = SlowFinding(bench)

    async def dies(_: Any) -> Any:
        await finding.begun.wait()
        raise KafkaUnavailable("the broker is gone")

    bench.client.broker[ApiKey.FETCH] = dies
    with pytest.raises(KafkaUnavailable):
        await ask(bench, max_wait_ms=NEVER_MS)
    assert finding.cancelled == 1


async def test_a_client_that_goes_away_ends_both_questions(bench: TrackedBench) -> None:
    broker, finding = SlowBroker(bench), SlowFinding(bench)
    asking = asyncio.create_task(ask(bench, max_wait_ms=NEVER_MS))
    await until(lambda: broker.asked and finding.begun.is_set())
    asking.cancel()
    with pytest.raises(asyncio.CancelledError):
        await asking
    assert finding.cancelled == 1
    left = [task for task in asyncio.all_tasks() if task.get_name().startswith("fetch-")]
    assert left == []


async def test_a_commit_wakes_a_fetch_that_kafka_holds(bench: TrackedBench) -> None:
    empty, answered = serving({IN_PREFIX: KafkaLog(b"", 100)}), []

    def answering(request: Any) -> Any:
        answered.append(request)
        return empty(request)

    bench.client.broker[ApiKey.FETCH] = answering
    asking = asyncio.create_task(ask(bench, max_wait_ms=NEVER_MS))
    await until(lambda: answered)  # it is asked a turn of the loop after it is sent to
    broker = SlowBroker(bench)
    before = broker.asked
    await until(lambda: broker.asked > before)
    await appended(bench)
    answers = await within("the answer", asking)
    assert answers[IN_SUFFIX].offsets == [100]
    broker.gate.set()


async def test_records_of_kafka_wake_a_fetch_that_waits_for_a_commit(bench: TrackedBench) -> None:
    good = bench.client.broker[ApiKey.FETCH]
    bench.client.broker[ApiKey.FETCH] = serving({IN_PREFIX: KafkaLog(b"", 100)})
    asking = asyncio.create_task(ask(bench, max_wait_ms=NEVER_MS))
    await until(lambda: len(bench.client.forwarded) > 1)
    bench.client.broker[ApiKey.FETCH] = good
    assert (await within("the answer", asking))[IN_PREFIX].offsets == [90]


async def test_the_bytes_of_both_sides_count_together(bench: TrackedBench) -> None:
    await appended(bench)
    classic = {IN_PREFIX: KafkaLog(b"", 100), ("classic", 0): KafkaLog(batch_at(5), 15)}
    bench.client.broker[ApiKey.FETCH] = serving(classic)
    one = len(batch_at(5))

    async def both(min_bytes: int) -> dict[tuple[str, int], Fetched]:
        message = fetch(
            (TOPIC, 0, 100), ("classic", 0, 5), max_wait_ms=NEVER_MS, min_bytes=min_bytes
        )
        return fetched(await bench.ask(message))

    answers = await within("the answer", both(2 * one))
    assert (answers[IN_SUFFIX].offsets, answers["classic", 0].offsets) == ([100], [5])
    asking = asyncio.create_task(both(2 * one + 1))
    await until(lambda: len(bench.client.forwarded) > 2)
    assert not asking.done()
    await appended(bench)
    assert (await within("the answer", asking))[IN_SUFFIX].offsets == [100, 101]


@pytest.mark.parametrize("fits", [0, 1, 2, 3])
async def test_what_both_sides_have_fits_into_max_bytes(bench: TrackedBench, fits: int) -> None:
    """In the order of the request, in which the suffix is first; of an answer that has none one
    batch, however large."""
    await appended(bench, 3)
    one = len(batch_at(90))
    answers = await ask(bench, max_bytes=one + fits * one)
    assert answers[IN_SUFFIX].offsets == [100, 101, 102][: 1 + fits]
    assert answers[IN_PREFIX].offsets == ([90] if fits == 3 else [])
    bench.client.broker[ApiKey.FETCH] = serving({IN_PREFIX: KafkaLog(b"", 100)})
    alone = await ask(bench, max_bytes=10)
    assert (alone[IN_PREFIX].offsets, alone[IN_SUFFIX].offsets) == ([], [100])


async def test_much_of_kafka_is_shortened_to_whole_batches_beside_the_event_loop(
    bench: TrackedBench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tracked_fetch, "WALKED_AT_ONCE_BYTES", 0)
    threads, whole = [], tracked_fetch.choose

    def noted(*arguments: Any) -> Any:
        threads.append(threading.current_thread())
        return whole(*arguments)

    await appended(bench)
    log = KafkaLog(batch_at(90) + batch_at(91) + batch_at(92), 100)
    bench.client.broker[ApiKey.FETCH] = serving({IN_PREFIX: log})
    monkeypatch.setattr(tracked_fetch, "choose", noted)
    answers = await ask(bench, max_bytes=4 * len(batch_at(90)) - 1)
    assert (answers[IN_SUFFIX].offsets, answers[IN_PREFIX].offsets) == ([100], [90, 91])
    assert threads[-1] is not threading.main_thread()


async def test_as_much_of_the_suffix_is_read_as_there_is_room_for_and_one_batch_in_any_case(
    bench: TrackedBench,
) -> None:
    await appended(bench, 3)
    room, one = bench.parts.room, len(batch_at(100))
    for fits, offsets in ((0, [100]), (2, [100, 101]), (3, [100, 101, 102])):
        taken = room.left - fits * one
        room.take("requests", taken)
        alone = fetched(await bench.ask(fetch((TOPIC, 0, 100))))
        room.give("requests", taken)
        assert alone[IN_SUFFIX].offsets == offsets


async def test_a_partition_whose_boundary_becomes_known_goes_over_in_the_middle_of_a_wait(
    bench: TrackedBench,
) -> None:
    """Schedule 9: both sides wait, and the one that Kafka had is the suffix's now."""
    bench.show(SUFFIX, tracked_row(1))
    bench.client.broker[ApiKey.FETCH] = serving({IN_PREFIX: KafkaLog(b"", 100)})
    asking = asyncio.create_task(
        bench.ask(fetch((TOPIC, 0, 100), (TOPIC, 1, 100), max_wait_ms=NEVER_MS))
    )
    await until(lambda: len(bench.client.forwarded) > 1)
    bench.show(SUFFIX, PREFIX)
    await bench.ask(produce((TOPIC, 1, record_batch(1))))
    assert fetched(await within("the answer", asking))[IN_PREFIX].offsets == [100]


async def test_records_of_kafka_wake_a_fetch_whose_first_look_at_the_suffix_is_not_over(
    bench: TrackedBench,
) -> None:
    good = bench.client.broker[ApiKey.FETCH]
    bench.client.broker[ApiKey.FETCH] = serving({IN_PREFIX: KafkaLog(b"", 100)})
    finding = SlowFinding(bench)
    asking = asyncio.create_task(ask(bench, max_wait_ms=NEVER_MS))
    await until(lambda: len(bench.client.forwarded) > 1)
    bench.client.broker[ApiKey.FETCH] = good
    answers = await within("the answer", asking)
    assert (answers[IN_PREFIX].offsets, answers[IN_SUFFIX].offsets) == ([90], [])
    assert finding.cancelled == 1


async def test_what_was_read_is_not_held_while_a_client_waits_for_more(bench: TrackedBench) -> None:
    await appended(bench)
    bench.client.broker[ApiKey.FETCH] = serving({IN_PREFIX: KafkaLog(b"", 100)})
    four = 4 * len(batch_at(100))
    asking = asyncio.create_task(ask(bench, max_wait_ms=NEVER_MS, min_bytes=four))
    await until(lambda: len(bench.client.forwarded) > 1)
    assert bench.parts.room.held("answers") == 0
    await appended(bench, 3)
    assert (await within("the answer", asking))[IN_SUFFIX].offsets == [100, 101, 102, 103]


CLASSIC = serving({("classic", 0): KafkaLog(batch_at(90), 100)})


async def ask_for_more(
    bench: TrackedBench, broker: Script = CLASSIC
) -> dict[tuple[str, int], Fetched]:
    """Of a classic partition beside one of the suffix, for more bytes than there will be."""
    bench.client.broker[ApiKey.FETCH] = broker
    message = fetch((TOPIC, 0, 100), ("classic", 0, 90), max_wait_ms=NEVER_MS, min_bytes=10_000)
    return fetched(await bench.ask(message))


async def test_records_of_kafka_are_held_in_the_room_while_a_client_waits_for_more(
    bench: TrackedBench,
) -> None:
    room, size = bench.parts.room, len(batch_at(90))
    asking = asyncio.create_task(ask_for_more(bench))
    await until(lambda: room.held("answers") == size)
    assert not asking.done()
    rest = room.left + 1
    room.take("requests", rest)
    answers = await within("the answer", asking)
    assert answers["classic", 0].offsets == [90], "a full room waits for nobody"
    room.give("requests", rest)
    assert room.held("answers") == 0


async def test_records_of_kafka_that_nobody_waits_for_any_more_leave_the_room(
    bench: TrackedBench,
) -> None:
    room = bench.parts.room
    answered: list[Any] = []

    async def once(request: Any) -> Any:
        """An answer that is under way when its client leaves is kept for the next fetch."""
        answered.append(request)
        if len(answered) > 1:
            await asyncio.Event().wait()
        return CLASSIC(request)

    asking = asyncio.create_task(ask_for_more(bench, once))
    await until(lambda: room.held("answers") > 0)
    asking.cancel()
    await asyncio.gather(asking, return_exceptions=True)
    assert room.held("answers") == 0


async def test_kafka_is_not_asked_to_wait_for_a_client_that_does_not(bench: TrackedBench) -> None:
    bench.client.broker[ApiKey.FETCH] = serving({IN_PREFIX: KafkaLog(b"", 100)})
    finding = SlowFinding(bench)
    asking = asyncio.create_task(ask(bench))
    await finding.begun.wait()
    finding.gate.set()
    await asking
    assert [request.max_wait.total_seconds() for request in bench.client.forwarded] == [0.0]
