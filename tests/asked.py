"""Requests of the table of answers (``tideline/domain/answers.py``) as messages of the protocol."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta
from typing import Any

from tideline.domain.answers import (
    DELETE_ALL,
    Asked,
    Behaviour,
    Case,
    LeaseState,
    Request,
    State,
)
from tideline.domain.offset_search import SpecialTimestamp
from tideline.domain.request_handling import KafkaErrorCode
from tideline.gateway.context import ApiKey
from tideline.gateway.messages import Messages, messages
from tideline.kafka.batches import iter_batches

API = {
    Request.PRODUCE: ApiKey.PRODUCE,
    Request.FETCH: ApiKey.FETCH,
    Request.LIST_OFFSETS: ApiKey.LIST_OFFSETS,
    Request.LEADER_EPOCH: ApiKey.OFFSET_FOR_LEADER_EPOCH,
    Request.DELETE_RECORDS: ApiKey.DELETE_RECORDS,
}
VERSIONS = {
    Request.PRODUCE: 9,
    Request.FETCH: 12,
    Request.LIST_OFFSETS: 10,
    Request.LEADER_EPOCH: 4,
    Request.DELETE_RECORDS: 2,
}
PATIENCE_S = 5
"""Of a produce: how long it is parked at most."""
SPECIAL = {
    Asked.EARLIEST: SpecialTimestamp.EARLIEST,
    Asked.LATEST: SpecialTimestamp.LATEST,
    Asked.MAX_TIMESTAMP: SpecialTimestamp.MAX_TIMESTAMP,
    Asked.TIERED: SpecialTimestamp.LATEST_TIERED,
}


@dataclass(frozen=True)
class Places:
    """What a test's partition has in each region."""

    prefix: int
    """An offset below B0."""
    suffix: int
    """One from B0 on that has a record."""
    end: int
    """The high watermark."""
    old_epoch: int
    """Leader epoch that ended before B0."""
    new_epoch: int
    """The one at B0."""
    gap: int = -1
    """An offset inside an accepted log gap."""


@dataclass(frozen=True)
class Told:
    """The answer about one partition."""

    error: str
    offset: int = -1
    """Of the first batch (Fetch), or what else the API answers."""


def api_of(asked: Asked) -> Messages:
    return messages(API[asked.request], VERSIONS[asked.request])


def request(asked: Asked, topic: str, partition: int, places: Places, records: bytes) -> Any:
    """The message that asks it. ``records``: the batch of a produce."""
    api = api_of(asked)
    match asked.request:
        case Request.PRODUCE:
            row = api.request_part("PartitionProduceData", index=partition, records=records)
            return api.request(
                transactional_id=None,
                acks=-1,
                timeout=timedelta(seconds=PATIENCE_S),
                topic_data=(
                    api.request_part("TopicProduceData", name=topic, partition_data=(row,)),
                ),
            )
        case Request.FETCH:
            where = {
                Asked.FETCH_PREFIX: places.prefix,
                Asked.FETCH_GAP: places.gap,
                Asked.FETCH_SUFFIX: places.suffix,
            }[asked]
            row = api.request_part(
                "FetchPartition", partition=partition, fetch_offset=where, partition_max_bytes=1000
            )
            return api.request(
                max_wait=timedelta(0),
                min_bytes=1,
                max_bytes=1 << 20,
                isolation_level=0,
                session_id=0,
                session_epoch=-1,
                topics=(api.request_part("FetchTopic", topic=topic, partitions=(row,)),),
                forgotten_topics_data=(),
                rack_id="",
            )
        case Request.LIST_OFFSETS:
            row = api.request_part(
                "ListOffsetsPartition", partition_index=partition, timestamp=SPECIAL.get(asked, 0)
            )
            return api.request(
                replica_id=-1,
                isolation_level=0,
                timeout=timedelta(seconds=60),
                topics=(api.request_part("ListOffsetsTopic", name=topic, partitions=(row,)),),
            )
        case Request.LEADER_EPOCH:
            old = asked is Asked.EPOCH_PREFIX
            row = api.request_part(
                "OffsetForLeaderPartition",
                partition=partition,
                leader_epoch=places.old_epoch if old else places.new_epoch,
            )
            return api.request(
                replica_id=-1,
                topics=(api.request_part("OffsetForLeaderTopic", topic=topic, partitions=(row,)),),
            )
        case Request.DELETE_RECORDS:
            up_to = places.prefix if asked is Asked.DELETE_PREFIX else DELETE_ALL
            row = api.request_part(
                "DeleteRecordsPartition", partition_index=partition, offset=up_to
            )
            return api.request(
                topics=(api.request_part("DeleteRecordsTopic", name=topic, partitions=(row,)),),
                timeout=timedelta(seconds=30),
            )


def told(asked: Asked, response: Any) -> Told:
    """What ``response`` says of its only partition."""
    topics = response.responses if hasattr(response, "responses") else response.topics
    (topic,) = topics
    rows = topic.partition_responses if hasattr(topic, "partition_responses") else topic.partitions
    (row,) = rows
    if asked.request is Request.FETCH:
        headers = list(iter_batches(row.records or b""))
        return Told(row.error_code.name.upper(), headers[0].base_offset if headers else -1)
    for name in ("base_offset", "end_offset", "low_watermark", "offset"):
        if hasattr(row, name):
            return Told(row.error_code.name.upper(), int(getattr(row, name)))
    raise AssertionError(row)


def expected(case: Case, *, has_offset: bool = True) -> KafkaErrorCode:
    """The code that a client hears, if whoever answers can. Of a partition that quiesces its
    reader has seen the log's end before, and the gateway has acknowledged the closing.
    ``has_offset``: Kafka knows an offset to answer."""
    answer = case.answer
    if answer.behaviour is Behaviour.GATE and _is_confirmed(case, has_offset):
        return KafkaErrorCode.NONE
    return answer.error


def _is_confirmed(case: Case, has_offset: bool) -> bool:
    if case.state is State.QUIESCING:
        return has_offset and case.asked.request in (Request.FETCH, Request.LIST_OFFSETS)
    return case.lease is LeaseState.HELD
