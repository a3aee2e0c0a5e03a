"""A Produce that is accepted at once is accepted and answered as piece by piece."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.unit.gateway.fakes import LOG, TOPIC, record_batch, tracked_row, until
from tests.unit.gateway.tracked_bench import (
    TrackedBench,
    acknowledging,
    leased,
    outcomes,
    produce,
)
from tests.unit.kafka.test_produced import NOW, built
from tideline.control_plane.model import CommitError
from tideline.domain.ids import TopicIdPartition
from tideline.domain.pipelining import ProducerBatch
from tideline.domain.quotas import QuotaEntity, QuotaKind
from tideline.domain.topic_configs import TopicLimits
from tideline.gateway import context
from tideline.gateway.context import ApiKey, RequestContext
from tideline.gateway.produce import handler
from tideline.gateway.produce.at_once import appended_at_once
from tideline.gateway.produce.examination import (
    AT_ONCE_BYTES,
    AT_ONCE_HEADERS,
    Allowance,
    Examiner,
)
from tideline.gateway.produce.partition import header_of
from tideline.gateway.turn import TurnBudget
from tideline.gateway.unpacking import Unpacking
from tideline.kafka import records
from tideline.kafka.produced import ValidBatch
from tideline.kafka.protocol import decode_response, encode_request, parse_header

ROWS = (
    tracked_row(0, boundary=100, boundary_epoch=1),
    tracked_row(1, boundary=7, boundary_epoch=1),
    tracked_row(2),
)
GOOD = record_batch(2)
NOBODY = QuotaEntity("nobody", None)


@pytest.fixture
async def bench(tmp_path: Path) -> AsyncIterator[TrackedBench]:
    async with leased(tmp_path) as made:
        made.show(*ROWS)
        made.client.broker[ApiKey.PRODUCE] = acknowledging(40)
        yield made


@pytest.fixture
def taken(monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    """Of each produce whether it was taken at once."""
    noted: list[bool] = []

    def noting(context: RequestContext, parts: Any) -> Any:
        appended = appended_at_once(context, parts)
        noted.append(appended is not None)
        return appended

    monkeypatch.setattr(handler, "appended_at_once", noting)
    return noted


async def warmed(bench: TrackedBench) -> None:
    """The client's rights are known from here on."""
    await bench.ask(produce((TOPIC, 0, GOOD)))


async def test_what_goes_to_the_suffix_alone_is_not_decoded(
    bench: TrackedBench, monkeypatch: pytest.MonkeyPatch
) -> None:
    await warmed(bench)

    def never(*_: object) -> None:
        raise AssertionError("it was decoded")

    monkeypatch.setattr("tideline.gateway.context.decode_request", never)
    answer = await bench.ask(produce((TOPIC, 1, record_batch(3)), (TOPIC, 0, GOOD)))
    assert outcomes(answer) == {(TOPIC, 1): ("none", 7), (TOPIC, 0): ("none", 102)}


SIXTEEN_KB = record_batch(17, payload=bytes(16_000))


async def test_a_request_of_many_bytes_is_taken_at_once_if_the_library_looks_into_it(
    bench: TrackedBench, taken: list[bool], monkeypatch: pytest.MonkeyPatch
) -> None:
    await warmed(bench)
    large = record_batch(17, payload=bytes(48_000))
    both = produce((TOPIC, 0, large), (TOPIC, 1, large))
    assert set(outcomes(await bench.ask(both))) == {(TOPIC, 0), (TOPIC, 1)}
    monkeypatch.setattr("tideline.gateway.context.looked_produce", lambda *_: None)
    monkeypatch.setattr(records, "_native", lambda: None)
    answer = await bench.ask(both)
    assert outcomes(answer) == {(TOPIC, 0): ("none", 119), (TOPIC, 1): ("none", 24)}
    assert taken[1:] == [True, False]


async def test_what_the_library_finds_fine_is_refused_if_its_topic_does_not_allow_it(
    bench: TrackedBench, taken: list[bool]
) -> None:
    await warmed(bench)
    far = record_batch(1, max_timestamp=2**62)
    large = record_batch(1, payload=bytes(1_048_588 - 40))
    assert len(large) > 1_048_588
    answer = await bench.ask(produce((TOPIC, 0, far), (TOPIC, 1, large)))
    assert outcomes(answer) == {
        (TOPIC, 0): ("invalid_timestamp", -1),
        (TOPIC, 1): ("message_too_large", -1),
    }
    assert taken[1:] == [False]


async def test_what_is_compressed_is_looked_into_by_python_beside_what_is_not(
    bench: TrackedBench, taken: list[bool]
) -> None:
    await warmed(bench)
    packed = built([(NOW, None, b"value", [])], 1)
    small = produce((TOPIC, 0, GOOD), (TOPIC, 1, packed))
    assert outcomes(await bench.ask(small)) == {(TOPIC, 0): ("none", 102), (TOPIC, 1): ("none", 7)}
    bomb = built([(NOW, None, bytes(60_000_000), [])], 1)
    assert len(bomb) < AT_ONCE_BYTES
    judged = bench.parts.examiner._judged
    seen: list[threading.Thread] = []

    def noting(*arguments: Any) -> Any:
        seen.append(threading.current_thread())
        return judged(*arguments)

    bench.parts.examiner._judged = noting  # type: ignore[method-assign]
    answer = await bench.ask(produce((TOPIC, 0, GOOD), (TOPIC, 1, bomb)))
    assert outcomes(answer) == {(TOPIC, 0): ("none", 104), (TOPIC, 1): ("none", 8)}
    assert seen[-1] is not threading.main_thread(), "the loop unpacks no more than a little"
    assert taken[1:] == [True, False]


async def test_rights_that_are_not_known_yet_are_asked_for_first(
    bench: TrackedBench, taken: list[bool]
) -> None:
    for _ in range(2):
        await bench.ask(produce((TOPIC, 0, GOOD)))
    assert taken == [False, True]
    assert len(bench.client.asked) == 1


async def test_a_retry_of_a_batch_gets_the_offset_of_its_original(
    bench: TrackedBench, taken: list[bool]
) -> None:
    await warmed(bench)
    batch = record_batch(1, producer_id=3, epoch=0, sequence=0)
    first = await bench.ask(produce((TOPIC, 0, batch)))
    assert outcomes(await bench.ask(produce((TOPIC, 0, batch)))) == outcomes(first)
    assert taken[1:] == [True, True]


async def test_what_was_sent_behind_a_failed_batch_is_refused_until_that_comes_again(
    bench: TrackedBench, taken: list[bool]
) -> None:
    await warmed(bench)
    one, two = (record_batch(1, producer_id=3, epoch=0, sequence=n) for n in range(2))
    bench.parts.refused.refuse((LOG, bench.client), ProducerBatch(3, 0, 0))
    assert outcomes(await bench.ask(produce((TOPIC, 0, two)))) == {
        (TOPIC, 0): ("request_timed_out", -1)
    }
    assert outcomes(await bench.ask(produce((TOPIC, 0, one)))) == {(TOPIC, 0): ("none", 102)}
    assert outcomes(await bench.ask(produce((TOPIC, 0, two)))) == {(TOPIC, 0): ("none", 103)}
    assert taken[1:] == [False, True, True]


async def test_a_request_that_would_fill_the_buffer_is_parked_from_there_on(
    bench: TrackedBench, taken: list[bool]
) -> None:
    await warmed(bench)
    bench.parts.writer._buffer_max_bytes = len(GOOD)
    bench.store.holds[len(bench.store.puts)] = hold = asyncio.Event()
    asking = asyncio.create_task(bench.ask(produce((TOPIC, 0, GOOD), (TOPIC, 1, GOOD))))
    await until(lambda: bench.parts.parking.waiting(TopicIdPartition(LOG.topic_id, 1)))
    hold.set()
    assert outcomes(await asking) == {(TOPIC, 0): ("none", 102), (TOPIC, 1): ("none", 7)}
    assert taken[1:] == [False]


async def test_a_fence_while_it_is_under_way_ends_the_connection_without_an_answer(
    bench: TrackedBench, taken: list[bool]
) -> None:
    """Schedule 1: it may or may not be committed, and its client is told neither."""
    await warmed(bench)
    bench.store.holds[len(bench.store.puts)] = asyncio.Event()
    puts = len(bench.store.puts)
    asking = asyncio.create_task(bench.ask(produce((TOPIC, 0, GOOD))))
    await until(lambda: len(bench.store.puts) > puts)
    bench.parts.lease.end_incarnation("fenced in this test")
    assert await asking is None
    assert len(bench.client.closed) == 1
    assert taken[1:] == [True]


async def test_an_incarnation_that_is_not_registered_yet_takes_nothing(
    bench: TrackedBench, taken: list[bool]
) -> None:
    """As after a restart, or a fence."""
    await warmed(bench)
    bench.plane.fence(bench.parts.lease.incarnation)
    bench.parts.lease.end_incarnation("fenced in this test")
    asking = asyncio.create_task(bench.ask(produce((TOPIC, 0, GOOD))))
    await until(lambda: bench.parts.parking.waiting(LOG))
    await bench.lease()
    assert outcomes(await asking) == {(TOPIC, 0): ("none", 102)}
    assert taken[1:] == [False]


async def test_while_anybody_has_a_quota_every_request_goes_piece_by_piece(
    bench: TrackedBench, taken: list[bool]
) -> None:
    """There its bytes are counted."""
    await warmed(bench)
    bench.parts.quotas.quotas = {QuotaKind.PRODUCE: {NOBODY: 1.0}}
    assert outcomes(await bench.ask(produce((TOPIC, 0, GOOD)))) == {(TOPIC, 0): ("none", 102)}
    assert taken[1:] == [False]


async def test_when_a_turn_of_the_loop_has_looked_long_enough_a_large_request_goes_piece_by_piece(
    bench: TrackedBench, taken: list[bool], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Clients choose what a look takes, and how many come in one turn: the lease is renewed in the
    next."""
    await warmed(bench)
    spent = TurnBudget(0.008)
    monkeypatch.setattr(context, "LOOKS_OF_A_TURN", spent)
    large = record_batch(1, payload=bytes(AT_ONCE_BYTES))
    assert outcomes(await bench.ask(produce((TOPIC, 0, large)))) == {(TOPIC, 0): ("none", 102)}
    monkeypatch.setattr(spent, "_most_s", 0.0)
    spent.spend(0.001)
    assert outcomes(await bench.ask(produce((TOPIC, 0, large)))) == {(TOPIC, 0): ("none", 103)}
    assert taken[1:] == [True, False]


def test_what_the_library_looked_into_is_taken_off_what_may_still_be_read_at_once() -> None:
    examiner, allowance = Examiner(Unpacking(), lambda: NOW), Allowance()
    half = built([(NOW, None, b"", [("k", None)] * (AT_ONCE_HEADERS // 2 + 1))])
    header = header_of(half)
    assert header is not None
    limits = TopicLimits("CreateTime", len(half))
    first, second = (examiner.within(half, header, limits, 9, allowance) for _ in range(2))
    assert isinstance(first, ValidBatch)
    assert second is None


@pytest.mark.parametrize("native", [True, False])
async def test_of_a_request_that_waits_after_all_its_records_are_not_held_twice(
    bench: TrackedBench, monkeypatch: pytest.MonkeyPatch, native: bool
) -> None:
    if not native:
        monkeypatch.setattr("tideline.gateway.context.looked_produce", lambda *_: None)
        monkeypatch.setattr(records, "_native", lambda: None)
    await warmed(bench)
    bench.plane.fence(bench.parts.lease.incarnation)
    bench.parts.lease.end_incarnation("fenced in this test")
    frame = encode_request(produce((TOPIC, 0, GOOD)), 5, "a client")
    asked = RequestContext(parse_header(frame), frame, bench.client)
    asking = asyncio.ensure_future(bench.rules[ApiKey.PRODUCE].handler(asked))
    await until(lambda: bench.parts.parking.waiting(LOG))
    assert asked._walked is None
    assert asked._looked is None
    await bench.lease()
    assert await asking is not None


async def test_a_gateway_that_was_stopped_takes_nothing(
    bench: TrackedBench, taken: list[bool]
) -> None:
    """Schedule 16."""
    await warmed(bench)
    bench.parts.tracking.stop("another Postgres, in this test")
    answer = await bench.ask(produce((TOPIC, 0, GOOD)))
    assert outcomes(answer) == {(TOPIC, 0): ("kafka_storage_error", -1)}
    assert taken[1:] == [False]


async def test_a_topic_that_is_deleted_while_it_is_under_way_is_told_gone(
    bench: TrackedBench, taken: list[bool]
) -> None:
    await warmed(bench)
    batch = record_batch(1, producer_id=3, epoch=0, sequence=9)
    bench.plane.refusals[9] = CommitError.TOPIC_DELETED
    assert outcomes(await bench.ask(produce((TOPIC, 0, batch)))) == {
        (TOPIC, 0): ("unknown_topic_or_partition", -1)
    }
    bench.parts.tracking.bury([LOG.topic_id])
    bench.parts.tracking.replace_all([])
    answer = await bench.ask(produce((TOPIC, 0, batch)))
    assert outcomes(answer) == {(TOPIC, 0): ("none", 40)}, "the name is Kafka's again"
    assert taken[1:] == [True, False]


async def test_an_upload_that_fails_is_told_with_its_reason_and_holds_back_what_follows(
    bench: TrackedBench, taken: list[bool], monkeypatch: pytest.MonkeyPatch
) -> None:
    await warmed(bench)
    monkeypatch.setattr(bench.parts.writer, "_upload_patience_s", 0.01)
    bench.store.down = True
    one, two = (record_batch(1, producer_id=3, epoch=0, sequence=n) for n in range(2))
    answer = await bench.ask(produce((TOPIC, 0, one), version=12))
    ((row,),) = (topic.partition_responses for topic in answer.responses)
    assert row.error_code.name == "request_timed_out"
    assert "the store is down" in row.error_message
    bench.store.down = False
    assert outcomes(await bench.ask(produce((TOPIC, 0, two)))) == {
        (TOPIC, 0): ("request_timed_out", -1)
    }
    assert taken[1:] == [True, False]


async def test_a_client_that_has_gone_away_has_its_batch_appended_all_the_same(
    bench: TrackedBench, taken: list[bool]
) -> None:
    await warmed(bench)
    bench.store.holds[len(bench.store.puts)] = hold = asyncio.Event()
    puts = len(bench.store.puts)
    asking = asyncio.create_task(bench.ask(produce((TOPIC, 0, GOOD))))
    await until(lambda: len(bench.store.puts) > puts)
    asking.cancel()
    await asyncio.gather(asking, return_exceptions=True)
    hold.set()
    await until(lambda: bench.plane.suffix(LOG).high_watermark == 104)
    assert taken[1:] == [True]
    assert bench.parts.writer.unfinished_bytes == 0


async def test_who_waits_for_longer_than_the_gateway_is_told_to_send_again(
    bench: TrackedBench, taken: list[bool]
) -> None:
    await warmed(bench)
    bench.plane.down = True
    batch = record_batch(1, producer_id=3, epoch=0, sequence=0)
    with bench.impatient():
        assert outcomes(await bench.ask(produce((TOPIC, 0, batch)))) == {
            (TOPIC, 0): ("request_timed_out", -1)
        }
    bench.plane.down = False
    await until(lambda: bench.plane.suffix(LOG).high_watermark == 103)
    assert outcomes(await bench.ask(produce((TOPIC, 0, batch)))) == {(TOPIC, 0): ("none", 102)}
    assert taken[1:] == [True, True]


BATCHES = (
    GOOD,
    *(record_batch(1, producer_id=3, epoch=0, sequence=n) for n in range(3)),
    record_batch(1, producer_id=3, epoch=1, sequence=0),
    record_batch(1, producer_id=4, epoch=0, sequence=0, attributes=0x10),
    record_batch(2, attributes=8),
    record_batch(2, max_timestamp=2**62),
    record_batch(2_001),
    GOOD + GOOD,
    GOOD[:-1] + b"?",
    SIXTEEN_KB,
    record_batch(1, payload=bytes(70_000)),
    built([(NOW, None, bytes(1_000), [])], 1),
    built([(NOW, None, bytes(300_000), [])], 4),
    GOOD[:40],
    b"",
)
PARTS = st.tuples(st.sampled_from([0, 1, 2, 9]), st.sampled_from(BATCHES))
REQUESTS = st.tuples(
    st.lists(PARTS, min_size=1, max_size=4),
    st.sampled_from([-1, 1, 2]),
    st.sampled_from([3, 8, 12, 13]),
)


async def _told(directory: Path, requests: list[Any]) -> tuple[list[Any], Any]:
    """What is answered to ``requests``, one after the other, and what the suffix has then."""
    async with leased(directory) as bench:
        bench.show(*ROWS)
        bench.client.broker[ApiKey.PRODUCE] = acknowledging(40)
        bench.parts.examiner.now_ms = lambda: NOW  # a refusal says which times are allowed
        await warmed(bench)
        told = []
        for parts, acks, version in requests:
            topic = TOPIC if version < 13 else LOG.topic_id
            named = ((topic, partition, batch) for partition, batch in parts)
            message = produce(*named, acks=acks, version=version)
            frame = encode_request(message, 5, "a client")
            context = RequestContext(parse_header(frame), frame, bench.client)
            answer = await bench.rules[ApiKey.PRODUCE].handler(context)
            told.append(None if answer is None else decode_response(answer, 0, version))
        kept = [
            (b.base_offset, b.last_offset)
            for partition in (0, 1)
            for b in bench.plane.suffix(TopicIdPartition(LOG.topic_id, partition)).batches
        ]
        return told, kept


@settings(
    max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(requests=st.lists(REQUESTS, min_size=1, max_size=5))
def test_all_ways_take_the_same_and_tell_the_same(
    tmp_path_factory: pytest.TempPathFactory, requests: list[Any]
) -> None:
    ways = []
    for native in (True, False):
        for at_once in (True, False):
            with pytest.MonkeyPatch.context() as patch:
                if not native:
                    patch.setattr("tideline.gateway.context.looked_produce", lambda *_: None)
                    patch.setattr(records, "_native", lambda: None)
                if not at_once:
                    patch.setattr(handler, "appended_at_once", lambda *_: None)
                ways.append(asyncio.run(_told(tmp_path_factory.mktemp("way"), requests)))
    assert all(way == ways[0] for way in ways)
