"""B0 is set and this gateway has not heard of it: what it believes is worth nothing by itself.

The view says pending, the lease looks valid, as it does after a clock stood still; Postgres knows.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from kio.schema.errors import ErrorCode

from tests.support.waiting import within
from tests.unit.gateway.fakes import LOG, TOPIC, record_batch, tracked_row, until
from tests.unit.gateway.test_tracked_offsets import LATEST, asked, deleted, ended, epoch_ends
from tests.unit.gateway.test_tracked_offsets import kafka_says as offsets_say
from tests.unit.gateway.tracked_bench import (
    FETCH_VERSION,
    KafkaLog,
    TrackedBench,
    acknowledging,
    fetch,
    fetched,
    outcomes,
    produce,
    serving,
)
from tideline.control_plane.model import TrackedPartition
from tideline.gateway.context import ApiKey
from tideline.gateway.messages import messages
from tideline.kafka.batches import patch

ME = (TOPIC, 0)
PENDING = tracked_row(generation=1)
CROSSED = tracked_row(generation=2, boundary=100, boundary_epoch=7)
SOON_MS = "1500"


@pytest.fixture
async def bench(tmp_path: Path) -> AsyncIterator[TrackedBench]:
    made = TrackedBench(tmp_path, produce_timeout_ms=SOON_MS)
    await made.lease()
    made.show(PENDING)
    yield made
    await made.close()


def cross_unheard(bench: TrackedBench) -> None:
    """In Postgres only: no notice of it has reached the gateway."""
    bench.plane.put_row(CROSSED)


def batch_at(offset: int, epoch: int) -> bytes:
    batch = bytearray(record_batch(10))
    patch(batch, offset, epoch)
    return bytes(batch)


async def read(bench: TrackedBench, offset: int, *logs: bytes, end: int, epoch: int = -1) -> Any:
    bench.client.broker[ApiKey.FETCH] = serving({ME: KafkaLog(b"".join(logs), end)})
    message = fetch((TOPIC, 0, offset))
    (topic,) = message.topics
    (row,) = topic.partitions
    api = messages(ApiKey.FETCH, FETCH_VERSION)
    assert api.version == FETCH_VERSION
    named = replace(topic, partitions=(replace(row, current_leader_epoch=epoch),))
    return fetched(await bench.ask(replace(message, topics=(named,))))[ME]


@pytest.mark.parametrize(
    "code", [ErrorCode.message_too_large, ErrorCode.out_of_order_sequence_number]
)
async def test_an_error_that_the_sealed_log_makes_is_not_told(
    bench: TrackedBench, code: ErrorCode
) -> None:
    """The suffix would take the batch: the producer sends it again."""
    cross_unheard(bench)
    bench.client.broker[ApiKey.PRODUCE] = acknowledging(0, code)
    response = await bench.ask(produce((TOPIC, 0, record_batch(2))))
    assert outcomes(response) == {ME: ("request_timed_out", -1)}


async def test_the_same_error_is_told_while_the_boundary_is_unset(bench: TrackedBench) -> None:
    bench.client.broker[ApiKey.PRODUCE] = acknowledging(0, ErrorCode.message_too_large)
    response = await bench.ask(produce((TOPIC, 0, record_batch(2))))
    assert outcomes(response) == {ME: ("message_too_large", -1)}


async def test_an_append_at_the_boundary_is_not_told_and_one_below_it_is(
    bench: TrackedBench,
) -> None:
    cross_unheard(bench)
    bench.client.broker[ApiKey.PRODUCE] = acknowledging(98)
    assert outcomes(await bench.ask(produce((TOPIC, 0, record_batch(2))))) == {ME: ("none", 98)}
    bench.client.broker[ApiKey.PRODUCE] = acknowledging(100)
    response = await bench.ask(produce((TOPIC, 0, record_batch(2))))
    assert outcomes(response) == {ME: ("request_timed_out", -1)}


async def test_a_late_append_is_not_shown(bench: TrackedBench) -> None:
    """Schedule 2."""
    assert (await read(bench, 80, batch_at(80, 3), end=90, epoch=3)).offsets == [80]
    cross_unheard(bench)
    found = await read(bench, 80, batch_at(80, 3), batch_at(100, 3), end=110, epoch=3)
    assert (found.offsets, found.high_watermark) == ([80], 90)


async def test_out_of_range_is_not_told(bench: TrackedBench) -> None:
    """Schedule 3."""
    cross_unheard(bench)
    away = KafkaLog(code=ErrorCode.offset_out_of_range)
    bench.client.broker[ApiKey.FETCH] = serving({ME: away})
    found = fetched(await bench.ask(fetch((TOPIC, 0, 150))))[ME]
    assert found.error == "not_leader_or_follower"


async def test_out_of_range_is_told_while_the_boundary_is_unset(bench: TrackedBench) -> None:
    away = KafkaLog(code=ErrorCode.offset_out_of_range)
    bench.client.broker[ApiKey.FETCH] = serving({ME: away})
    found = fetched(await bench.ask(fetch((TOPIC, 0, 150))))[ME]
    assert found.error == "offset_out_of_range"


async def test_the_end_of_an_epoch_is_not_told(bench: TrackedBench) -> None:
    """Schedule 8: a consumer at 150 in the suffix would be sent back to 100."""
    bench.client.broker[ApiKey.OFFSET_FOR_LEADER_EPOCH] = epoch_ends(7, 100)
    assert await ended(bench, 7) == ("none", 7, 100)
    cross_unheard(bench)
    assert await ended(bench, 7) == ("not_leader_or_follower", -1, -1)


async def test_the_end_of_an_epoch_is_not_told_without_a_lease(bench: TrackedBench) -> None:
    bench.client.broker[ApiKey.OFFSET_FOR_LEADER_EPOCH] = epoch_ends(7, 100)
    bench.lapse()
    assert await ended(bench, 7) == ("not_leader_or_follower", -1, -1)


async def test_no_end_of_the_log_is_told_that_was_not_confirmed(bench: TrackedBench) -> None:
    offsets_say(bench, 90)
    assert (await asked(bench, LATEST))[1] == 90
    cross_unheard(bench)
    offsets_say(bench, 101)
    assert (await asked(bench, LATEST))[0] == "not_leader_or_follower"


async def test_what_kafka_deleted_is_not_told(bench: TrackedBench) -> None:
    assert await deleted(bench, 50) == ("none", 50)
    cross_unheard(bench)
    assert await deleted(bench, 150, code="offset_out_of_range") == ("not_leader_or_follower", -1)


async def test_what_kafka_refuses_to_delete_while_its_boundary_becomes_known_is_not_told(
    bench: TrackedBench,
) -> None:
    """Offset 150 is in the suffix, of which Kafka knows nothing."""

    def cross() -> None:
        bench.show(CROSSED)

    told = await deleted(bench, 150, code="offset_out_of_range", meanwhile=cross)
    assert told == ("not_leader_or_follower", -1)


@pytest.mark.parametrize("gone", [False, True])
async def test_a_position_in_the_suffix_stays_while_its_boundary_becomes_known(
    bench: TrackedBench, gone: bool
) -> None:
    """Kafka was asked at 150 while B0 was unset; by the time of its answer the suffix has it."""
    kafka = serving({ME: KafkaLog(b"", 150)})

    def crossing(request: Any) -> Any:
        bench.show(replace(CROSSED, prefix_gone=gone))
        return kafka(request)

    bench.client.broker[ApiKey.FETCH] = crossing
    found = fetched(await bench.ask(fetch((TOPIC, 0, 150))))[ME]
    assert found.error in ("none", "not_leader_or_follower")
    assert found.offsets == []


async def test_after_an_unclean_election_nothing_newer_than_the_ceiling_is_shown(
    bench: TrackedBench,
) -> None:
    """Schedule 28: the new leader's log ended at 50, B0 = 50 was set there, and a late append of
    its epoch lies below the old ceiling."""
    batches = [batch_at(offset, 3) for offset in range(40, 100, 10)]
    assert (await read(bench, 40, *batches, end=100, epoch=3)).high_watermark == 100
    bench.plane.put_row(tracked_row(generation=2, boundary=50, boundary_epoch=4))
    found = await read(bench, 40, batch_at(40, 3), batch_at(50, 4), end=60, epoch=4)
    assert found.offsets == [40]


async def test_a_debugging_consumer_does_not_move_the_ceiling(bench: TrackedBench) -> None:
    """Replica -2 is answered the log end, which a leader change may still truncate."""
    api = messages(ApiKey.LIST_OFFSETS, 10)
    row = api.request_part("ListOffsetsPartition", partition_index=0, timestamp=LATEST)
    message = api.request(
        replica_id=-2,
        isolation_level=0,
        timeout=timedelta(seconds=5),
        topics=(api.request_part("ListOffsetsTopic", name=TOPIC, partitions=(row,)),),
    )
    offsets_say(bench, 120)
    response = await bench.ask(message)
    assert response.topics[0].partitions[0].error_code.name == "not_leader_or_follower"
    assert bench.parts.fences.of(LOG).ceiling.highest_seen == -1


async def test_a_broker_that_does_not_know_the_topic_yet_is_asked_again(
    bench: TrackedBench,
) -> None:
    """Seed 000: UNKNOWN_TOPIC_OR_PARTITION of a tracked topic is a broker that lags."""
    code = ErrorCode.unknown_topic_or_partition
    bench.client.broker[ApiKey.PRODUCE] = acknowledging(0, code)
    response = await bench.ask(produce((TOPIC, 0, record_batch(2))))
    assert outcomes(response) == {ME: ("not_leader_or_follower", -1)}
    bench.client.broker[ApiKey.FETCH] = serving({ME: KafkaLog(code=code)})
    assert fetched(await bench.ask(fetch((TOPIC, 0, 5))))[ME].error == "not_leader_or_follower"
    offsets_say(bench, -1, code="unknown_topic_or_partition")
    assert (await asked(bench, LATEST))[0] == "not_leader_or_follower"


@pytest.mark.parametrize("row", [PENDING, CROSSED], ids=["pending", "past its boundary"])
async def test_records_of_a_topic_that_a_broker_does_not_know_yet_are_deleted_later(
    bench: TrackedBench, row: TrackedPartition
) -> None:
    """An Admin client is not told that there is no such topic: it would believe it."""
    bench.show(row)
    told = await deleted(bench, 50, code="unknown_topic_or_partition")
    assert told == ("not_leader_or_follower", -1)


async def test_over_another_postgres_no_offset_is_told(bench: TrackedBench) -> None:
    """Schedule 16: it may have lost what clients were told."""
    bench.show(CROSSED)
    bench.parts.tracking.stop("another Postgres")
    assert (await asked(bench, LATEST))[0] == "kafka_storage_error"
    assert (await ended(bench, 7))[0] == "kafka_storage_error"
    assert (await deleted(bench, 10))[0] == "kafka_storage_error"


async def test_classic_topics_and_suffixes_ask_postgres_nothing(
    bench: TrackedBench, monkeypatch: pytest.MonkeyPatch
) -> None:
    questions: list[object] = []

    async def noted(*arguments: object) -> dict[Any, Any]:
        questions.append(arguments)
        return {}

    monkeypatch.setattr(bench.plane, "confirm_partitions", noted)
    bench.client.broker[ApiKey.PRODUCE] = acknowledging(40)
    bench.client.broker[ApiKey.FETCH] = serving({("classic", 0): KafkaLog(b"", 5)})
    bench.show(CROSSED)
    await bench.ask(produce(("classic", 0, record_batch(1)), (TOPIC, 0, record_batch(1))))
    await bench.ask(fetch(("classic", 0, 0), (TOPIC, 0, 100)))
    assert questions == []


async def test_a_produce_in_flight_at_the_closing_is_told_at_once(bench: TrackedBench) -> None:
    """Neither a retry nor a wait for B0: the pause must not be longer for its producers."""
    held: asyncio.Future[object] = asyncio.get_running_loop().create_future()
    bench.client.broker[ApiKey.PRODUCE] = lambda _: held
    asking = asyncio.create_task(bench.ask(produce((TOPIC, 0, record_batch(2)))))
    await until(lambda: bench.client.forwarded)
    bench.show(tracked_row(generation=2, quiesced=True))
    held.set_result(acknowledging(40)(bench.client.forwarded[0]))
    assert outcomes(await within("the answer", asking)) == {ME: ("none", 40)}
    await until(lambda: bench.plane.quiesce_acks)
    assert bench.plane.quiesce_acks[0]["highest"] == 41


@pytest.mark.parametrize("magic", [0, 1])
async def test_formats_that_have_no_leader_epoch_are_shown_while_the_boundary_is_unset(
    bench: TrackedBench, magic: int
) -> None:
    old = bytearray(batch_at(40, 3))
    old[16] = magic
    bench.client.broker[ApiKey.FETCH] = serving({ME: KafkaLog(bytes(old), 50)})
    response = await bench.ask(fetch((TOPIC, 0, 40)))
    assert response.responses[0].partitions[0].records == bytes(old)
