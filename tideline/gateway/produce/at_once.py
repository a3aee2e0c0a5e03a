"""A Produce that goes to the suffix as a whole, at once: nearly every one of a topic that has
crossed.

It is what :class:`~tideline.gateway.produce.handler.ProduceRequest` does where nothing of it has
to wait, out of a frame that is walked instead of decoded, without an object for each partition.
What always holds: from the first look at a partition until the last batch is accepted there is no
turn of the event loop, so that no fence, route, lease or produce comes in between; and whatever is
out of the ordinary (a partition that is not in the suffix, has others parked or is named twice; a
right that is not known, a quota, a batch that is refused or large, a buffer that may become full)
is found before anything is accepted, and the whole request goes the other way.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import NamedTuple, Protocol

from tideline.control_plane.model import CommittedBatch
from tideline.domain.answers import SEND_AGAIN
from tideline.domain.ids import TopicIdPartition
from tideline.domain.pipelining import ProducerBatch
from tideline.domain.quotas import QuotaKind
from tideline.gateway.context import RequestContext
from tideline.gateway.leaders import LeaderNaming
from tideline.gateway.messages import NO_TIME, RequestedPartition, locate, messages
from tideline.gateway.produce.answering import count_appended, response
from tideline.gateway.produce.appends import Append
from tideline.gateway.produce.examination import Allowance, Examiner
from tideline.gateway.produce.parking import ParkingLot
from tideline.gateway.produce.partition import (
    ProduceOutcome,
    count_outcome,
    header_of,
    outcome_of,
    producer_of,
)
from tideline.gateway.produce.wal import RefusedProduces, WalWriter
from tideline.gateway.quotas import ClientQuotas
from tideline.gateway.rights import TopicRights
from tideline.gateway.tracking.view import TrackingView
from tideline.kafka.batches import BatchHeader
from tideline.kafka.native_look import LookedPart
from tideline.kafka.produced import ValidBatch


class Accepting(Protocol):
    """The parts of a gateway that take a produce."""

    @property
    def tracking(self) -> TrackingView: ...
    @property
    def parking(self) -> ParkingLot: ...
    @property
    def refused(self) -> RefusedProduces: ...
    @property
    def writer(self) -> WalWriter: ...
    @property
    def examiner(self) -> Examiner: ...
    @property
    def leaders(self) -> LeaderNaming: ...
    @property
    def patience_s(self) -> float: ...
    @property
    def rights(self) -> TopicRights: ...
    @property
    def quotas(self) -> ClientQuotas: ...


Appended = Sequence[tuple[RequestedPartition, Append, int]]
"""Each with its bytes, in the order of the request."""


class _Valid(NamedTuple):
    """A batch that may be appended, as it is then."""

    at: RequestedPartition
    records: bytes
    producer: ProducerBatch
    last_sequence: int
    record_count: int
    max_timestamp: int


def appended_at_once(context: RequestContext, parts: Accepting) -> Appended | None:
    """Accept every batch of the request; ``None``: none was accepted. To be asked when no produce
    of the connection waits for its turn."""
    if parts.quotas.has(QuotaKind.PRODUCE):
        return None
    looked = context.looked_produce()
    found = _walked(context, parts) if looked is None else _looked(context, parts, looked)
    if found is None or len({_log(batch.at) for batch in found}) < len(found):
        return None
    source, may_pass = context.connection, parts.refused.may_pass
    if not all(may_pass((_log(batch.at), source), batch.producer) for batch in found):
        return None  # those that it has passed, it passes again
    create, appended = asyncio.get_running_loop().create_future, []
    for at, records, producer, last_sequence, record_count, max_timestamp in found:
        assert at.topic is not None
        append = Append(
            log=_log(at),
            source=source,
            batch=records,
            producer=producer,
            last_sequence=last_sequence,
            record_count=record_count,
            max_timestamp=max_timestamp,
            timestamp_type=at.topic.timestamp_type,
            outcome=create(),
        )
        appended.append((at, append, len(records)))
        parts.writer.append(append)
    return appended


def _looked(
    context: RequestContext, parts: Accepting, looked: Sequence[LookedPart]
) -> list[_Valid] | None:
    """The batches of a request that the native library has looked into, if each of them may be
    appended now; else ``None``."""
    asked, names, size = [], set(), 0
    for part in looked:
        at = locate(parts.tracking, part.key, part.partition)
        if at.topic is None or at.log is None or not parts.parking.goes_on(at.log):
            return None
        names.add(at.topic.name)
        size += part.end - part.start
        asked.append((at, at.topic.limits, part))
    if not _may_be_taken(context, parts, names, size):
        return None
    allowance, now_ms = Allowance(), parts.examiner.now_ms()
    found = []
    for at, limits, (_, _, start, end, batch) in asked:
        records = context.frame[start:end]
        if batch is None or not batch.suits(end - start, limits, now_ms):
            header = header_of(records)
            if header is None or header.is_transactional or not allowance.covers(records, header):
                return None
            valid = _by_rules(context, parts, at, records, header, allowance)
            if valid is None:
                return None
            found.append(valid)
            continue
        producer = ProducerBatch(batch.producer_id, batch.producer_epoch, batch.base_sequence)
        last, count, timestamp = batch.last_sequence, batch.record_count, batch.max_timestamp
        found.append(_Valid(at, records, producer, last, count, timestamp))
    return found


def _walked(context: RequestContext, parts: Accepting) -> list[_Valid] | None:
    """The same of a request that nobody has looked into."""
    walked = context.walked_produce()
    if walked is None or walked.acks not in (-1, 1):
        return None
    asked, names, size, allowance = [], set(), 0, Allowance()
    for key, partitions in walked.topics:
        for partition, records in partitions:
            at = locate(parts.tracking, key, partition)
            header = header_of(records)
            if at.topic is None or at.log is None or header is None or header.is_transactional:
                return None
            if not allowance.covers(records, header) or not parts.parking.goes_on(at.log):
                return None
            names.add(at.topic.name)
            size += len(records)
            asked.append((at, records, header))
    if not _may_be_taken(context, parts, names, size):
        return None
    found = []
    for at, records, header in asked:
        valid = _by_rules(context, parts, at, records, header, allowance)
        if valid is None:
            return None
        found.append(valid)
    return found


def _may_be_taken(context: RequestContext, parts: Accepting, names: set[str], size: int) -> bool:
    """Whether there are batches, room for so many bytes of them, and a right to these topics."""
    room = bool(names) and parts.writer.has_room_for(size)
    return room and parts.rights.known_to_allow(context, names)


def _by_rules(
    context: RequestContext,
    parts: Accepting,
    at: RequestedPartition,
    records: bytes,
    header: BatchHeader,
    allowance: Allowance,
) -> _Valid | None:
    """A batch that ``allowance`` covers, if it is valid."""
    assert at.topic is not None
    version = context.header.api_version
    found = parts.examiner.within(records, header, at.topic.limits, version, allowance)
    if not isinstance(found, ValidBatch):
        return None
    right = found.header
    last, count, timestamp = right.last_sequence, right.record_count, right.max_timestamp
    return _Valid(at, found.records, producer_of(header), last, count, timestamp)


async def answer(context: RequestContext, parts: Accepting, appended: Appended) -> bytes:
    """What became of the batches, as the response frame. Raises
    :class:`~tideline.gateway.produce.appends.AppendDropped`: nothing may be answered."""
    await _done([append.outcome for _, append, _ in appended], parts.patience_s)
    told, size = [], 0
    for at, append, taken in appended:
        assert at.topic is not None
        if append.outcome.done() and not append.outcome.cancelled():
            outcome = outcome_of(append)
            count_outcome("suffix", outcome)
        else:
            outcome = ProduceOutcome(SEND_AGAIN)
            count_outcome("refused", outcome)
        if outcome.code == 0:
            size += taken
        told.append((at, outcome))
    count_appended(context, parts.leaders, size)
    return await response(
        context, messages(context.header.api_key, context.header.api_version), told, NO_TIME
    )


async def _done(outcomes: Sequence[asyncio.Future[CommittedBatch]], patience_s: float) -> None:
    """Until there are all, or ``patience_s`` is over. Who goes away cancels none of them."""
    loop = asyncio.get_running_loop()
    waiter: asyncio.Future[None] = loop.create_future()
    left = len(outcomes)

    def over() -> None:
        if not waiter.done():
            waiter.set_result(None)

    def one_is(outcome: asyncio.Future[CommittedBatch]) -> None:
        nonlocal left
        left -= 1
        if not outcome.cancelled():
            outcome.exception()  # a handler that was cancelled does not look
        if not left:
            over()

    for outcome in outcomes:
        outcome.add_done_callback(one_is)
    timer = loop.call_later(patience_s, over)
    try:
        await waiter
    finally:
        timer.cancel()


def _log(at: RequestedPartition) -> TopicIdPartition:
    assert at.log is not None
    return at.log
