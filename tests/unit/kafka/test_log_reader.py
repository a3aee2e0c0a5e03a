"""What a throttled or empty answer says of a log: nothing, so the broker is asked again."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, cast

import pytest
from kio.schema.errors import ErrorCode
from kio.schema.fetch.v12 import response as rs
from kio.schema.types import ProducerId, TopicName
from kio.static.primitive import i32, i32Timedelta, i64

from tideline.kafka.errors import KafkaError
from tideline.kafka.log_reader import LogReader
from tideline.kafka.observer import milliseconds

END = 100


def answer(
    records: bytes | None,
    *,
    throttle_ms: int = 0,
    code: ErrorCode = ErrorCode.none,
    aborted: tuple[rs.AbortedTransaction, ...] = (),
) -> rs.FetchResponse:
    """``records`` ``None``: without the partition, as of a client over its quota."""
    found = rs.PartitionData(
        partition_index=i32(0),
        error_code=code,
        high_watermark=i64(END),
        last_stable_offset=i64(END),
        log_start_offset=i64(0),
        aborted_transactions=aborted,
        records=records or None,
    )
    topic = rs.FetchableTopicResponse(topic=TopicName("orders"), partitions=(found,))
    return rs.FetchResponse(
        throttle_time=i32Timedelta.parse(milliseconds(throttle_ms)),
        error_code=ErrorCode.none,
        session_id=i32(0),
        responses=() if records is None else (topic,),
    )


class Broker:
    """Stands for a cluster and its connection: gives its answers in order."""

    def __init__(self, *answers: rs.FetchResponse) -> None:
        self.answers: Iterator[rs.FetchResponse] = iter(answers)
        self.asked = 0
        self.isolation: list[int] = []

    async def node(self, node: int, *, apart: bool) -> Broker:
        return self

    async def send(self, request: Any, *, timeout_ms: int) -> rs.FetchResponse:
        self.asked += 1
        self.isolation += [request.isolation_level]
        return next(self.answers)


async def fetch(broker: Broker, offset: int = 0, empty_answers_s: float = 60.0) -> bytes:
    reader = LogReader(cast(Any, broker))
    piece = await reader.fetch("orders", 0, offset, node=1, empty_answers_s=empty_answers_s)
    return piece.data


async def test_a_throttled_answer_and_an_empty_one_are_asked_for_again() -> None:
    broker = Broker(answer(None, throttle_ms=1), answer(b""), answer(b"batch"))
    assert await fetch(broker) == b"batch"
    assert broker.asked == 3


async def test_at_the_end_of_the_log_nothing_is_waited_for() -> None:
    broker = Broker(answer(b""))
    assert await fetch(broker, offset=END) == b""
    assert broker.asked == 1


@pytest.mark.parametrize(
    ("throttle_ms", "code"),
    [(1, ErrorCode.throttling_quota_exceeded), (0, ErrorCode.request_timed_out)],
)
async def test_a_broker_that_never_gives_records_is_a_retriable_error_that_names_the_quotas(
    throttle_ms: int, code: ErrorCode
) -> None:
    broker = Broker(*[answer(None, throttle_ms=throttle_ms)] * 9)
    with pytest.raises(KafkaError, match="fetch quotas") as refused:
        await fetch(broker, empty_answers_s=0.2)
    assert refused.value.code is code
    assert refused.value.retriable


async def test_whoever_reads_what_is_committed_is_told_of_aborted_transactions() -> None:
    aborted = rs.AbortedTransaction(producer_id=ProducerId(7), first_offset=i64(3))
    broker = Broker(answer(b"batch", aborted=(aborted,)), answer(b"batch"))
    reader = LogReader(cast(Any, broker))
    told = [await reader.fetch("orders", 0, 0, node=1, committed=one) for one in (True, False)]
    assert [one.aborted for one in told] == [((7, 3),), ()]
    assert broker.isolation == [1, 0]
