"""Produce to tracked partitions, through every state of a migration."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from kio.schema.errors import ErrorCode

from tests.support.waiting import lasts_async, within
from tests.unit.gateway.fakes import LOG, TOPIC, record_batch, tracked_row, until
from tests.unit.gateway.tracked_bench import (
    FakeConnection,
    TrackedBench,
    acknowledging,
    leased,
    outcomes,
    produce,
)
from tideline.control_plane.model import CommitError, ConfigOverride, TrackedPartition
from tideline.gateway.context import ApiKey

ME = (TOPIC, 0)
BATCH = record_batch(2)
PENDING = tracked_row(generation=1)
QUIESCING = tracked_row(generation=2, quiesced=True)
SUFFIX = tracked_row(generation=2, boundary=100, boundary_epoch=7)


@pytest.fixture
async def bench(tmp_path: Path) -> AsyncIterator[TrackedBench]:
    async with leased(tmp_path) as made:
        made.client.broker[ApiKey.PRODUCE] = acknowledging(40)
        yield made


async def test_other_topics_pass_as_they_came(bench: TrackedBench) -> None:
    bench.show(SUFFIX)
    response = await bench.ask(produce(("classic", 0, BATCH)))
    assert outcomes(response) == {("classic", 0): ("none", 40)}
    await bench.ask(produce(("classic", 0, BATCH), acks=0))
    assert len(bench.client.unanswered) == 1


async def test_pending_is_forwarded_and_told_and_noted(bench: TrackedBench) -> None:
    bench.show(PENDING)
    response = await bench.ask(produce((TOPIC, 0, BATCH)))
    assert outcomes(response) == {ME: ("none", 40)}
    fence = bench.parts.fences.of(LOG)
    assert (fence.highest_acknowledged, fence.in_flight) == (41, 0)


async def test_of_a_partition_that_is_named_twice_the_last_batch_is_stored_and_noted(
    bench: TrackedBench,
) -> None:
    """As with Kafka, which answers once. By the end of the other one no B0 could be set."""
    bench.show(PENDING)
    response = await bench.ask(produce((TOPIC, 0, record_batch(1000)), (TOPIC, 0, BATCH)))
    ((told,),) = (topic.partition_responses for topic in response.responses)
    assert (told.error_code, told.base_offset) == (ErrorCode.none, 40)
    assert bench.parts.fences.of(LOG).highest_acknowledged == 41


async def test_in_the_suffix_the_last_batch_of_a_partition_that_is_named_twice_is_stored(
    bench: TrackedBench,
) -> None:
    bench.show(SUFFIX)
    await bench.ask(produce((TOPIC, 0, record_batch(1000)), (TOPIC, 0, BATCH)))
    answer = await bench.ask(produce((TOPIC, 0, record_batch(1))))
    assert outcomes(answer)[TOPIC, 0] == ("none", 102)


async def test_an_error_of_kafka_is_told_and_not_noted(bench: TrackedBench) -> None:
    bench.show(PENDING)
    bench.client.broker[ApiKey.PRODUCE] = acknowledging(0, ErrorCode.not_leader_or_follower)
    response = await bench.ask(produce((TOPIC, 0, BATCH)))
    assert outcomes(response) == {ME: ("not_leader_or_follower", -1)}
    assert bench.parts.fences.of(LOG).highest_acknowledged == -1


SEAL = {"max.message.bytes": ConfigOverride("max.message.bytes", "78", None)}


@pytest.mark.parametrize(
    ("held", "limit", "told"),
    [
        (SEAL, len(BATCH), "request_timed_out"),
        (SEAL, len(BATCH) - 1, "message_too_large"),
        ({}, len(BATCH), "message_too_large"),
    ],
    ids=["the seal", "the topic's own limit", "nothing is held"],
)
async def test_what_a_sealed_log_refuses_of_a_partition_without_b0_is_sent_again(
    bench: TrackedBench, held: dict[str, ConfigOverride], limit: int, told: str
) -> None:
    """Its B0 was reset: it takes classic produces again once the log is open, and nothing that ends
    a producer's retries was the topic's own word."""
    bench.show(PENDING, overrides=held, max_message_bytes=limit)
    bench.client.broker[ApiKey.PRODUCE] = acknowledging(0, ErrorCode.message_too_large)
    response = await bench.ask(produce((TOPIC, 0, BATCH)))
    assert outcomes(response) == {ME: (told, -1)}
    fence = bench.parts.fences.of(LOG)
    assert (fence.highest_acknowledged, fence.in_flight) == (-1, 0)


async def test_a_quiesce_waits_for_what_is_under_way_to_whichever_broker(
    bench: TrackedBench,
) -> None:
    """Schedule 29: the acknowledgement is this process's, whoever it stands in for."""
    bench.show(PENDING)
    held: dict[int, asyncio.Future[object]] = {}
    asked = []
    for node in (1, 2):
        client = FakeConnection(broker_id=node)
        answer: asyncio.Future[object] = asyncio.get_running_loop().create_future()
        held[node] = answer
        client.broker[ApiKey.PRODUCE] = lambda _, answer=answer: answer
        asked.append((client, asyncio.ensure_future(bench.ask(produce((TOPIC, 0, BATCH)), client))))
    await until(lambda: all(client.forwarded for client, _ in asked))
    bench.show(QUIESCING)
    held[1].set_result(acknowledging(40)(asked[0][0].forwarded[0]))
    await lasts_async("the other is waited for", lambda: not bench.plane.quiesce_acks, 0.05)
    held[2].set_result(acknowledging(42)(asked[1][0].forwarded[0]))
    await until(lambda: bench.plane.quiesce_acks)
    assert bench.plane.quiesce_acks[0]["highest"] == 43
    for _, answer in asked:
        assert outcomes(await answer)[ME][0] == "none"


async def test_acks_0_is_awaited_before_a_quiesce_can_be_acknowledged(
    bench: TrackedBench,
) -> None:
    """Schedule 6: forwarded as acks=1, its answer swallowed."""
    bench.show(PENDING)
    held: asyncio.Future[object] = asyncio.get_running_loop().create_future()
    bench.client.broker[ApiKey.PRODUCE] = lambda _: held
    assert await bench.ask(produce((TOPIC, 0, BATCH), acks=0)) is None
    assert [request.acks for request in bench.client.forwarded] == [1]
    bench.show(QUIESCING)
    await lasts_async("its answer is waited for", lambda: not bench.plane.quiesce_acks, 0.05)
    held.set_result(acknowledging(40)(bench.client.forwarded[0]))
    await until(lambda: bench.plane.quiesce_acks)
    assert bench.plane.quiesce_acks[0]["highest"] == 41


async def test_quiescing_parks_and_the_suffix_takes_over_in_order(bench: TrackedBench) -> None:
    bench.show(QUIESCING)
    clients = [FakeConnection() for _ in range(3)]
    asking = []
    for number in range(6):
        message = produce(
            (TOPIC, 0, record_batch(1, producer_id=number % 3, epoch=0, sequence=number // 3))
        )
        asking.append(asyncio.create_task(bench.ask(message, clients[number % 3])))
        await asyncio.sleep(0)
    await until(lambda: bench.parts.parking.waiting(LOG) == 6)
    await lasts_async("they are parked", lambda: not any(task.done() for task in asking), 0.02)
    bench.show(SUFFIX)
    answers = [outcomes(response)[ME] for response in await asyncio.gather(*asking)]
    assert sorted(answers) == [("none", 100 + number) for number in range(6)]
    assert all(answers[n] < answers[n + 3] for n in range(3)), "in the order of its connection"
    assert len(bench.plane.commits) == 1, "the first buffer goes at once, as one object"
    assert not any(client.forwarded for client in clients)


def two_in_order() -> list[Any]:
    """Produces of one batch each, of a producer that nobody knows."""
    batches = [record_batch(1, producer_id=7, epoch=0, sequence=sequence) for sequence in (5, 6)]
    return [produce((TOPIC, 0, batch)) for batch in batches]


async def refused_while_its_successor_waits(
    bench: TrackedBench, refusal: ErrorCode, first: Any, second: Any
) -> asyncio.Task[Any]:
    """Kafka refuses ``first`` when the pause has begun and ``second`` is parked, whose answer this
    is."""
    bench.show(PENDING)
    held: asyncio.Future[object] = asyncio.get_running_loop().create_future()
    bench.client.broker[ApiKey.PRODUCE] = lambda _: held
    forwarded = asyncio.create_task(bench.ask(first))
    await until(lambda: bench.client.forwarded)
    bench.show(QUIESCING)
    parked = asyncio.create_task(bench.ask(second))
    await until(lambda: bench.parts.parking.waiting(LOG))
    held.set_result(acknowledging(0, refusal)(bench.client.forwarded[0]))
    assert outcomes(await forwarded)[ME][0] != "none"
    return parked


@pytest.mark.parametrize(
    "refusal",
    [
        ErrorCode.not_leader_or_follower,
        ErrorCode.not_enough_replicas,
        ErrorCode.unknown_topic_or_partition,
    ],
)
async def test_what_was_parked_behind_a_batch_that_kafka_refuses_for_now_comes_after_it(
    bench: TrackedBench, refusal: ErrorCode
) -> None:
    """Schedule 10: nobody knows the producer at B0, and whoever comes first begins."""
    first, second = two_in_order()
    parked = await refused_while_its_successor_waits(bench, refusal, first, second)
    bench.show(SUFFIX)
    assert outcomes(await parked) == {ME: ("request_timed_out", -1)}
    assert outcomes(await bench.ask(first)) == {ME: ("none", 100)}
    assert outcomes(await bench.ask(second)) == {ME: ("none", 101)}


async def test_a_batch_that_comes_again_while_its_successor_waits_goes_before_it(
    bench: TrackedBench,
) -> None:
    """A producer sends again in a tenth of a second, and a pause may last for longer."""
    first, second = two_in_order()
    refusal = ErrorCode.not_enough_replicas
    parked = await refused_while_its_successor_waits(bench, refusal, first, second)
    assert outcomes(await parked) == {ME: ("request_timed_out", -1)}, "at once"
    again = [asyncio.create_task(bench.ask(each)) for each in (first, second)]
    await until(lambda: bench.parts.parking.waiting(LOG) == 2)
    bench.show(SUFFIX)
    assert [outcomes(await one)[ME] for one in again] == [("none", 100), ("none", 101)]


async def test_what_comes_behind_a_batch_that_was_refused_for_now_waits_for_it(
    bench: TrackedBench,
) -> None:
    """The partition was not known yet, and is, between two that were pipelined."""
    first, second = two_in_order()
    bench.show(tracked_row(1))
    assert outcomes(await bench.ask(first)) == {ME: ("not_leader_or_follower", -1)}
    bench.show(SUFFIX)
    assert outcomes(await bench.ask(second)) == {ME: ("request_timed_out", -1)}
    assert outcomes(await bench.ask(first)) == {ME: ("none", 100)}
    assert outcomes(await bench.ask(second)) == {ME: ("none", 101)}


async def test_an_abort_forwards_what_was_parked(bench: TrackedBench) -> None:
    """Schedule 13: and so does the end of a quiesce whose worker died."""
    bench.show(QUIESCING)
    asking = asyncio.create_task(bench.ask(produce((TOPIC, 0, BATCH))))
    await until(lambda: bench.parts.parking.waiting(LOG))
    assert not bench.client.forwarded
    bench.show(tracked_row(generation=2, quiesced=False))
    assert outcomes(await asking) == {ME: ("none", 40)}


async def test_parking_ends_with_a_retriable_error_at_its_bound(tmp_path: Path) -> None:
    bench = TrackedBench(tmp_path, gateway_park_max_ms="100")
    await bench.lease()
    bench.show(QUIESCING)
    first = asyncio.create_task(bench.ask(produce((TOPIC, 0, BATCH))))
    await asyncio.sleep(0)
    second = asyncio.create_task(bench.ask(produce((TOPIC, 0, BATCH))))
    assert outcomes(await first) == outcomes(await second) == {ME: ("request_timed_out", -1)}
    await bench.close()


async def test_without_a_lease_nothing_is_forwarded_until_it_is_back(
    bench: TrackedBench,
) -> None:
    bench.show(PENDING)
    bench.lapse()
    asking = asyncio.create_task(bench.ask(produce((TOPIC, 0, BATCH))))
    await lasts_async("the lease is waited for", lambda: not bench.client.forwarded, 0.02)
    await bench.lease()
    assert outcomes(await asking) == {ME: ("none", 40)}


async def test_a_gateway_that_slept_through_its_fence_does_not_acknowledge(
    bench: TrackedBench,
) -> None:
    """Schedule 1: forward, pause, fence, B0 read; the broker appends at B0; wake and renew."""
    bench.show(PENDING)
    held: asyncio.Future[object] = asyncio.get_running_loop().create_future()
    bench.client.broker[ApiKey.PRODUCE] = lambda _: held
    asking = asyncio.create_task(bench.ask(produce((TOPIC, 0, BATCH))))
    await until(lambda: bench.client.forwarded)
    bench.plane.fence(bench.parts.lease.incarnation)
    await bench.lease()
    await bench.lease()
    assert bench.parts.tracking.lease_valid()
    held.set_result(acknowledging(100)(bench.client.forwarded[0]))
    assert await asking is None
    assert "was fenced" in bench.client.closed[0]
    assert bench.parts.fences.of(LOG).in_flight == 0


async def test_an_append_at_the_boundary_is_not_acknowledged_and_goes_to_the_suffix(
    bench: TrackedBench,
) -> None:
    """Schedules 1 and 6: Kafka has it at B0, where nobody will ever look."""
    bench.show(PENDING)
    held: asyncio.Future[object] = asyncio.get_running_loop().create_future()
    bench.client.broker[ApiKey.PRODUCE] = lambda _: held
    batch = record_batch(1, producer_id=3, epoch=0, sequence=8)
    asking = asyncio.create_task(bench.ask(produce((TOPIC, 0, batch))))
    await until(lambda: bench.client.forwarded)
    bench.lapse()
    held.set_result(acknowledging(100)(bench.client.forwarded[0]))
    await lasts_async("the lease is waited for", lambda: not asking.done(), 0.02)
    bench.show(SUFFIX)
    assert outcomes(await asking) == {ME: ("request_timed_out", -1)}
    behind = record_batch(1, producer_id=3, epoch=0, sequence=9)
    response = await bench.ask(produce((TOPIC, 0, behind)))
    assert outcomes(response) == {ME: ("request_timed_out", -1)}, "it must not overtake"
    response = await bench.ask(produce((TOPIC, 0, batch)))
    assert outcomes(response) == {ME: ("none", 100)}


async def test_a_batch_goes_to_the_suffix_at_the_next_offset(bench: TrackedBench) -> None:
    bench.show(SUFFIX)
    for expected in (100, 102):
        response = await bench.ask(produce((TOPIC, 0, BATCH)))
        assert outcomes(response) == {ME: ("none", expected)}
    assert not bench.client.forwarded


async def test_one_request_may_go_three_ways(bench: TrackedBench) -> None:
    bench.show(PENDING, tracked_row(1, boundary=7, boundary_epoch=0))
    response = await bench.ask(
        produce(("classic", 3, BATCH), (TOPIC, 0, BATCH), (TOPIC, 1, BATCH), (TOPIC, 9, BATCH)),
    )
    assert outcomes(response) == {
        ("classic", 3): ("none", 40),
        (TOPIC, 0): ("none", 40),
        (TOPIC, 1): ("none", 7),
        (TOPIC, 9): ("not_leader_or_follower", -1),
    }
    (forwarded,) = bench.client.forwarded
    assert [topic.name for topic in forwarded.topic_data] == ["classic", TOPIC]


async def test_what_a_full_buffer_parked_goes_on_when_there_is_room(
    bench: TrackedBench,
) -> None:
    bench.parts.writer._buffer_max_bytes = len(BATCH)
    bench.show(SUFFIX)
    bench.store.holds[0] = asyncio.Event()
    first = asyncio.create_task(bench.ask(produce((TOPIC, 0, BATCH))))
    await until(lambda: bench.store.puts)
    second = asyncio.create_task(bench.ask(produce((TOPIC, 0, BATCH))))
    await until(lambda: bench.parts.parking.waiting(LOG))
    bench.store.holds[0].set()
    assert outcomes(await within("the first answer", first)) == {ME: ("none", 100)}
    assert outcomes(await within("the second answer", second)) == {ME: ("none", 102)}


async def test_a_duplicate_is_answered_with_its_original_offset(bench: TrackedBench) -> None:
    bench.show(SUFFIX)
    batch = record_batch(1, producer_id=3, epoch=0, sequence=0)
    first = await bench.ask(produce((TOPIC, 0, batch)))
    assert outcomes(await bench.ask(produce((TOPIC, 0, batch)))) == outcomes(first)


async def test_a_duplicate_whose_offset_nobody_knows_is_told_none_that_a_record_could_have(
    bench: TrackedBench,
) -> None:
    """librdkafka (``rd_kafka_msgq_set_metadata``) counts on from the base offset it is given."""
    bench.show(SUFFIX)
    bench.plane.refusals[0] = CommitError.DUPLICATE_SEQUENCE_NUMBER
    batch = record_batch(5, producer_id=3, epoch=0, sequence=0)
    ((_, (told, base)),) = outcomes(await bench.ask(produce((TOPIC, 0, batch)))).items()
    assert told == "duplicate_sequence_number"
    assert all(base + place < 0 for place in range(5))


async def test_refusals_of_the_commit_are_told_in_kafkas_words(bench: TrackedBench) -> None:
    bench.show(SUFFIX)
    expected = {
        CommitError.OUT_OF_ORDER_SEQUENCE: "out_of_order_sequence_number",
        CommitError.INVALID_PRODUCER_EPOCH: "invalid_producer_epoch",
        CommitError.UNKNOWN_LOG: "not_leader_or_follower",
        CommitError.TOPIC_DELETED: "unknown_topic_or_partition",
    }
    for number, (error, told) in enumerate(expected.items()):
        bench.plane.refusals[number] = error
        batch = record_batch(1, producer_id=50 + number, epoch=0, sequence=number)
        assert outcomes(await bench.ask(produce((TOPIC, 0, batch)))) == {ME: (told, -1)}


async def test_an_idle_producer_that_returns_may_start_at_its_sequence(
    bench: TrackedBench,
) -> None:
    """Schedule 21: without state any first sequence is accepted; the gateway adds no rule."""
    bench.show(SUFFIX)
    batch = record_batch(1, producer_id=3, epoch=0, sequence=5000)
    assert outcomes(await bench.ask(produce((TOPIC, 0, batch)))) == {ME: ("none", 100)}


async def test_a_batch_that_is_damaged_or_too_large_is_refused_by_itself(
    bench: TrackedBench,
) -> None:
    bench.show(SUFFIX, tracked_row(1, boundary=0, boundary_epoch=0), max_message_bytes=200)
    response = await bench.ask(
        produce((TOPIC, 0, record_batch(payload=b"x" * 500)), (TOPIC, 1, BATCH[:-1] + b"?")),
    )
    assert outcomes(response) == {
        (TOPIC, 0): ("message_too_large", -1),
        (TOPIC, 1): ("corrupt_message", -1),
    }


async def test_postgres_away_is_a_timeout_and_the_batch_is_appended_once(
    bench: TrackedBench,
) -> None:
    bench.show(SUFFIX)
    batch = record_batch(1, producer_id=3, epoch=0, sequence=0)
    await bench.ask(produce((TOPIC, 0, record_batch())))
    bench.plane.down = True
    with bench.impatient():
        response = await bench.ask(produce((TOPIC, 0, batch)))
    assert outcomes(response) == {ME: ("request_timed_out", -1)}
    bench.plane.down = False
    await until(lambda: bench.plane.suffix(LOG).high_watermark == 102)
    assert outcomes(await bench.ask(produce((TOPIC, 0, batch)))) == {ME: ("none", 101)}
    assert bench.plane.suffix(LOG).high_watermark == 102


async def test_a_fenced_gateway_drops_what_it_has_in_the_wal(bench: TrackedBench) -> None:
    """Schedule 1: its clients send again, to the new incarnation."""
    bench.show(SUFFIX)
    bench.store.holds[0] = asyncio.Event()
    asking = asyncio.create_task(bench.ask(produce((TOPIC, 0, BATCH))))
    await until(lambda: bench.store.puts)
    bench.parts.lease.end_incarnation("told by the test")
    assert await asking is None
    assert "was fenced" in bench.client.closed[0]


@pytest.mark.parametrize("row", [PENDING, QUIESCING, SUFFIX])
async def test_a_stopped_gateway_takes_nothing(bench: TrackedBench, row: TrackedPartition) -> None:
    """Schedule 16."""
    bench.show(row)
    bench.parts.tracking.stop("another Postgres")
    response = await bench.ask(produce((TOPIC, 0, BATCH)))
    assert outcomes(response) == {ME: ("kafka_storage_error", -1)}
    assert not bench.store.puts
    assert not bench.client.forwarded


@pytest.mark.parametrize(
    ("row", "is_open", "version", "told"),
    [
        (PENDING, False, 10, "policy_violation"),
        (PENDING, False, 11, "transaction_abortable"),
        (PENDING, False, 12, "transaction_abortable"),
        (PENDING, True, 12, "none"),
        (SUFFIX, True, 10, "policy_violation"),
        (SUFFIX, True, 12, "transaction_abortable"),
    ],
)
async def test_a_new_transaction_is_refused_and_an_open_one_goes_on_until_the_boundary(
    bench: TrackedBench, row: TrackedPartition, is_open: bool, version: int, told: str
) -> None:
    bench.show(row)
    bench.transactions.open = {6} if is_open else set()
    batch = record_batch(1, producer_id=6, epoch=0, sequence=0, attributes=0x10)
    response = await bench.ask(produce((TOPIC, 0, batch), version=version))
    assert outcomes(response)[ME][0] == told


async def test_whether_a_transaction_is_open_is_asked_of_the_broker_that_the_client_is_joined_to(
    bench: TrackedBench,
) -> None:
    """The paired one does not lead what another one leads whose gateway is away."""
    bench.show(PENDING)
    bench.transactions.open = {6}
    batch = record_batch(1, producer_id=6, epoch=0, sequence=0, attributes=0x10)
    client = FakeConnection(broker_id=2)
    client.broker[ApiKey.PRODUCE] = acknowledging(40)
    response = await bench.ask(produce((TOPIC, 0, batch), version=12), client)
    assert outcomes(response)[ME][0] == "none"
    assert bench.transactions.asked == [2]


async def test_a_connection_that_ends_leaves_nothing_behind(bench: TrackedBench) -> None:
    bench.show(QUIESCING)
    asking = asyncio.create_task(bench.ask(produce((TOPIC, 0, BATCH))))
    await until(lambda: bench.parts.parking.waiting(LOG))
    asking.cancel()
    await asyncio.gather(asking, return_exceptions=True)
    assert bench.parts.parking.waiting(LOG) == 0


async def test_what_nobody_waits_for_goes_on_without_the_connection_that_it_came_on(
    bench: TrackedBench,
) -> None:
    """To the suffix. What is dropped beside it has a client that waits."""
    others = asyncio.all_tasks()

    def unanswered() -> list[asyncio.Task[object]]:
        mine = asyncio.all_tasks() - others
        return [task for task in mine if task.get_name() == "produce-acks-0"]

    bench.show(QUIESCING)
    assert await bench.ask(produce((TOPIC, 0, BATCH), acks=0)) is None
    assert len(unanswered()) == 1
    asking = asyncio.create_task(bench.ask(produce((TOPIC, 0, BATCH))))
    await until(lambda: bench.parts.parking.waiting(LOG) == 2)
    asking.cancel()
    await asyncio.gather(asking, return_exceptions=True)
    assert bench.parts.parking.waiting(LOG) == 1
    bench.show(SUFFIX)
    await until(lambda: bench.plane.suffix().high_watermark == 102)
    await until(lambda: not unanswered(), "its task, which waits for nothing else")
