"""A producer sends, sends again and gives up as the clients of Kafka do."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from types import SimpleNamespace
from typing import Any, cast
from uuid import UUID

import pytest
from kio.schema.errors import ErrorCode

from tests.history.operations import Outcome, Partition, Produce
from tests.simulation.clients import (
    BACKOFF_S,
    DELIVERY_S,
    QUIET_S,
    SEQUENCES,
    History,
    Producer,
    Sent,
    Style,
)
from tests.simulation.network import NetworkedLoop
from tideline.kafka.errors import KafkaUnavailable

TOPIC = UUID(int=7)


class Scripted(Producer):
    """Of a cluster that answers what the test says, when it says so."""

    def __init__(self, loop: NetworkedLoop, style: Style, every_s: float = 0.01) -> None:
        lives = cast(Any, SimpleNamespace(possible=lambda *_: [TOPIC]))
        self.history = History(loop)
        self.asked: list[tuple[int, int, int]] = []
        """(number, epoch, sequence) of every attempt."""
        self.open: list[tuple[Sent, asyncio.Future[tuple[ErrorCode, int]]]] = []
        super().__init__(
            loop, f"{style.value}-1", [], "orders", style, self.history, lives, every_s=every_s,
            by_id=False, partition=lambda topic, number: Partition(str(topic), number),
        )  # fmt: skip
        self.limit, self._patience_ms, self._bumps, self._sequence = 5, 5_000, False, 0
        self._delivery_s = DELIVERY_S

    async def find(self) -> None:
        self.connection = cast(Any, SimpleNamespace(is_closed=False, close=lambda: None))

    async def _ask_for(self, sent: Sent) -> tuple[ErrorCode, int]:
        sent.attempts += 1
        sent.ids = (TOPIC,)
        self.asked.append((sent.number, sent.epoch, sent.sequence))
        answer: asyncio.Future[tuple[ErrorCode, int]] = self.loop.create_future()
        self.open.append((sent, answer))
        return await answer

    def answer(self, code: ErrorCode = ErrorCode.none) -> None:
        """The oldest request that is not answered."""
        _, waiting = self.open.pop(0)
        waiting.set_result((code, 0 if code is ErrorCode.none else -1))

    def lose(self) -> None:
        """The connection, with every answer."""
        for _, waiting in self.open:
            waiting.set_exception(KafkaUnavailable("lost"))
        self.open.clear()

    async def full(self) -> None:
        while len(self.open) < self.limit:
            await self.busily(0.05)

    async def busily(self, seconds: float) -> None:
        for _ in range(max(1, round(seconds / 0.05))):
            self.history.stir()
            await asyncio.sleep(0.05)

    @property
    def numbers(self) -> list[int]:
        return [number for number, _, _ in self.asked]


def played(
    style: Style, play: Callable[[Scripted], Awaitable[None]], monkeypatch: pytest.MonkeyPatch
) -> Scripted:
    monkeypatch.setattr("tests.simulation.clients.RESETS", 0.0)
    loop = NetworkedLoop(1)
    asyncio.set_event_loop(loop)
    producer = Scripted(loop, style)

    async def run() -> None:
        running = asyncio.ensure_future(producer.run())
        await play(producer)
        running.cancel()

    try:
        loop.run_until_complete(run())
    finally:
        loop.finish()
        asyncio.set_event_loop(None)
    return producer


def test_the_window_slides(monkeypatch: pytest.MonkeyPatch) -> None:
    async def play(producer: Scripted) -> None:
        await producer.full()
        await producer.busily(1.0)
        assert producer.numbers == [0, 1, 2, 3, 4]
        producer.answer()
        await producer.busily(0.5)
        assert producer.numbers == [0, 1, 2, 3, 4, 5]

    played(Style.LIBRDKAFKA, play, monkeypatch)


def test_librdkafka_sends_everything_again_in_order(monkeypatch: pytest.MonkeyPatch) -> None:
    async def play(producer: Scripted) -> None:
        await producer.full()
        producer.lose()
        await producer.busily(2 * BACKOFF_S)
        assert producer.numbers[5:] == [0, 1, 2, 3, 4]

    played(Style.LIBRDKAFKA, play, monkeypatch)


def test_java_sends_the_first_again_alone_until_it_is_answered(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def play(producer: Scripted) -> None:
        await producer.full()
        producer.lose()
        await producer.busily(1.0)
        assert producer.numbers[5:] == [0]
        producer.answer()
        await producer.busily(0.3)
        assert producer.numbers[5:] == [0, 1]

    played(Style.JAVA, play, monkeypatch)


@pytest.mark.parametrize("style", [Style.JAVA, Style.LIBRDKAFKA])
def test_what_was_given_up_is_followed_by_a_new_epoch_once_nothing_is_in_flight(
    style: Style, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def play(producer: Scripted) -> None:
        await producer.full()
        await producer.busily(DELIVERY_S - 1.0)
        _, waiting = producer.open.pop(0)
        waiting.set_exception(KafkaUnavailable("lost"))
        await producer.busily(0.3)
        assert producer.numbers[5:] == [0]
        await producer.busily(2.0)
        given_up = [o for o in producer.history.operations if isinstance(o, Produce)]
        assert {produce.outcome for produce in given_up} == {Outcome.UNKNOWN}
        new = [attempt for attempt in producer.asked if attempt[0] > 4]
        assert new[0] == (5, 1, 0)

    played(style, play, monkeypatch)


def test_a_batch_behind_a_missing_one_waits_for_it(monkeypatch: pytest.MonkeyPatch) -> None:
    async def play(producer: Scripted) -> None:
        await producer.full()
        _, first = producer.open.pop(0)
        producer.answer(ErrorCode.out_of_order_sequence_number)
        await producer.busily(2 * BACKOFF_S)
        assert producer.asked[5] == producer.asked[1]
        first.set_result((ErrorCode.none, 0))

    played(Style.LIBRDKAFKA, play, monkeypatch)


def test_a_newer_librdkafka_begins_an_epoch_behind_a_missing_batch(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def play(producer: Scripted) -> None:
        producer._bumps = True
        await producer.full()
        first, *_ = producer.open
        producer.open.remove(first)
        for _ in range(4):
            producer.answer(ErrorCode.out_of_order_sequence_number)
        await producer.busily(0.5)
        assert len(producer.asked) == 5
        first[1].set_result((ErrorCode.none, 0))
        await producer.busily(0.5)
        again = producer.asked[5:9]
        assert [(number, epoch) for number, epoch, _ in again] == [(n, 1) for n in (1, 2, 3, 4)]
        assert again[0][2] == 0

    played(Style.LIBRDKAFKA, play, monkeypatch)


@pytest.mark.parametrize(("style", "epoch"), [(Style.JAVA, 1), (Style.LIBRDKAFKA, 0)])
def test_a_fatal_answer_to_the_first_batch_is_told(
    style: Style, epoch: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Java's producer goes on in its next epoch, librdkafka's is over: another one begins."""

    async def play(producer: Scripted) -> None:
        await producer.full()
        while producer.open:
            producer.answer(ErrorCode.out_of_order_sequence_number)
            await asyncio.sleep(0)
        await producer.busily(0.5)
        producer.give_up()
        told = [o.fatal for o in producer.history.operations if isinstance(o, Produce) and o.fatal]
        assert told[:1] == ["out_of_order_sequence_number"]
        assert producer.asked[5][:2] == (0, epoch)

    played(style, play, monkeypatch)


def test_sequences_go_on_with_0_behind_the_largest(monkeypatch: pytest.MonkeyPatch) -> None:
    async def play(producer: Scripted) -> None:
        producer._sequence = SEQUENCES - 3
        await producer.full()
        sequences = [sequence for _, _, sequence in producer.asked]
        assert sequences[0] == SEQUENCES - 3
        assert sequences == sorted(sequences, key=lambda s: (s + 3) % SEQUENCES)
        assert sequences[-1] < SEQUENCES // 2

    played(Style.JAVA, play, monkeypatch)


def test_a_producer_is_quiet_until_something_happens(monkeypatch: pytest.MonkeyPatch) -> None:
    async def play(producer: Scripted) -> None:
        producer._every_s = 1.0
        await asyncio.sleep(QUIET_S)
        while producer.open:
            producer.answer()
        await asyncio.sleep(30.0)
        assert len(producer.open) == 1
        producer.history.stir()
        await asyncio.sleep(0.5)
        assert len(producer.open) > 1

    played(Style.LIBRDKAFKA, play, monkeypatch)
