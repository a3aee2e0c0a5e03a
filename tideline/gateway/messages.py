"""Messages of any version, built and taken apart by field name, and the partitions they name.

kio has one class per API and version. A handler names the fields of the newest; those that a
version does not have are left out, as Kafka's own generated classes do for ignorable fields.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, fields, replace
from datetime import UTC, datetime, timedelta
from functools import cache
from math import ceil
from typing import Any
from uuid import UUID

from kio.schema.errors import ErrorCode
from kio.schema.types import BrokerId
from kio.serial._introspect import EntityTupleField, classify_field
from kio.static.primitive import i32, i32Timedelta

from tideline.control_plane.model import TrackedTopic
from tideline.domain.ids import TopicIdPartition
from tideline.domain.request_handling import (
    CLASSIC,
    DELETED,
    UNKNOWN,
    KafkaErrorCode,
    PartitionRoute,
)
from tideline.gateway.context import ApiKey
from tideline.gateway.tracking.view import TrackingView
from tideline.kafka.errors import KafkaUnavailable, UnsupportedVersion
from tideline.kafka.protocol import decodable_versions, request_class, response_class

TopicKey = str | UUID | None
"""How a request names a topic: by name, or by id in the newer versions."""
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MILLISECOND = timedelta(milliseconds=1)
NO_TIME = timedelta(0)
MAX_INT32 = 2**31 - 1
NO_CONTROL_PLANE = "the control plane does not answer: try again"
"""To a client. Where it is, and why it does not, is for the gateway's log."""


class Messages:
    """The classes of one API and version."""

    def __init__(self, api_key: int, version: int) -> None:
        """Raises :class:`UnsupportedVersion`."""
        request, response = request_class(api_key, version), response_class(api_key, version)
        if request is None or response is None:
            raise UnsupportedVersion(f"version {version} of API {api_key} is not known here")
        self.version = version
        self._request: type = request
        self._response: type = response

    def request(self, **values: Any) -> Any:
        return build(self._request, **values)

    def response(self, **values: Any) -> Any:
        return build(self._response, **values)

    def request_part(self, name: str, /, **values: Any) -> Any:
        """A structure inside the request, by the name of its class."""
        return build(_part(self._request, name), **values)

    def response_part(self, name: str, /, **values: Any) -> Any:
        """A structure inside the response, by the name of its class."""
        return build(_part(self._response, name), **values)


@cache
def messages(api_key: int, version: int) -> Messages:
    """The classes of one API and version. Raises :class:`UnsupportedVersion`."""
    return Messages(api_key, version)


@cache
def _part(message: type, name: str) -> type:
    found = getattr(sys.modules[message.__module__], name)
    assert isinstance(found, type)
    return found


@cache
def _field_names(kind: type) -> frozenset[str]:
    return frozenset(field.name for field in fields(kind))


def build(kind: type, **values: Any) -> Any:
    """A message or a structure from those of ``values`` that its version has."""
    known = _field_names(kind)
    return kind(**{name: value for name, value in values.items() if name in known})


@cache
def nested(kind: Any, name: str) -> Any:
    """The class of the elements of the array ``name`` in a message class of kio."""
    (array,) = (field for field in fields(kind) if field.name == name)
    found = classify_field(array)
    assert isinstance(found, EntityTupleField), f"{name} of {kind} is no array of structures"
    return found.type_


def no_throttle() -> i32Timedelta:
    return i32Timedelta.parse(NO_TIME)


def milliseconds(seconds: float) -> i32Timedelta:
    """A throttle time, rounded up."""
    return i32Timedelta.parse(timedelta(milliseconds=min(ceil(seconds * 1000), MAX_INT32)))


def in_milliseconds(time: timedelta) -> int:
    """A throttle time as it is written, whole ms."""
    return time // _MILLISECOND


def error(code: int) -> ErrorCode:
    """kio's spelling of a code."""
    return ErrorCode(int(code))


def without_leader_hint(row: Any) -> Any:
    """A partition's structure that names no leader (KIP-951): its client asks for Metadata."""
    hint = getattr(row, "current_leader", None)
    if hint is None or int(hint.leader_id) < 0:
        return row
    return replace(row, current_leader=replace(hint, leader_id=BrokerId(-1), leader_epoch=i32(-1)))


def timestamp(milliseconds: int) -> datetime | None:
    """kio's spelling of a timestamp in ms; -1 is none."""
    return None if milliseconds < 0 else _EPOCH + timedelta(milliseconds=milliseconds)


def topic_key(topic: Any) -> TopicKey:
    """How ``topic``, a structure of a request or a response, is named."""
    for name in ("topic_id", "name", "topic"):
        if hasattr(topic, name):
            key: TopicKey = getattr(topic, name)
            return key
    raise AssertionError(f"{type(topic).__name__} names no topic")


def each_partition(
    topics: Iterable[Any], rows: str, index: str
) -> Iterator[tuple[tuple[TopicKey, int], Any]]:
    """The structures of partitions, ``rows`` of each topic, in their order, and what each names."""
    for topic in topics:
        for row in getattr(topic, rows):
            yield (topic_key(topic), int(getattr(row, index))), row


def by_partition(topics: Iterable[Any], rows: str, index: str) -> dict[tuple[TopicKey, int], Any]:
    """As :func:`each_partition`. Of a partition that comes twice the last one counts: Kafka keeps
    them in maps, answers about that one, and has not judged what another one says."""
    return dict(each_partition(topics, rows, index))


def key_fields(key: TopicKey) -> dict[str, TopicKey]:
    """The fields that name a topic, for every version of a structure."""
    if isinstance(key, UUID) or key is None:
        return {"topic_id": key}
    return {"name": key, "topic": key}


@dataclass(frozen=True, slots=True)
class RequestedPartition:
    """One partition that a request names."""

    key: TopicKey
    partition: int
    topic: TrackedTopic | None
    """``None``: not tracked, or deleted."""
    log: TopicIdPartition | None
    """``None``: not tracked, or the id is not known."""

    @property
    def named(self) -> tuple[TopicKey, int]:
        """As the request names it."""
        return self.key, self.partition

    def route(self, tracking: TrackingView) -> PartitionRoute:
        """As it is now."""
        if self.log is not None:
            return tracking.partition(self.log.topic_id, self.log.partition)
        if self.topic is not None:
            return UNKNOWN
        gone = isinstance(self.key, UUID) and tracking.is_deleted(self.key)
        return DELETED if gone else CLASSIC


def leaves_out(at: RequestedPartition) -> KafkaUnavailable:
    """What is raised of a broker that did not answer for a partition that it was asked of."""
    return KafkaUnavailable(f"the broker's answer leaves out {at.key}-{at.partition}")


def locate(tracking: TrackingView, key: TopicKey, partition: int) -> RequestedPartition:
    """The partition that a request names, as it is tracked now."""
    if isinstance(key, UUID):
        topic = tracking.topic_by_id(key)
    else:
        topic = tracking.topic_by_name(key) if key is not None else None
    if topic is None or topic.topic_id is None:
        return RequestedPartition(key, partition, topic, None)
    return RequestedPartition(key, partition, topic, TopicIdPartition(topic.topic_id, partition))


def named(code: KafkaErrorCode, key: TopicKey) -> KafkaErrorCode:
    """A topic that is gone, in the words of the request's version."""
    if code is KafkaErrorCode.UNKNOWN_TOPIC_OR_PARTITION and not isinstance(key, str):
        return KafkaErrorCode.UNKNOWN_TOPIC_ID
    return code


def group_by_topic(parts: Sequence[tuple[TopicKey, Any]]) -> list[tuple[TopicKey, list[Any]]]:
    """Parts under their topics, both in the order of their first appearance."""
    grouped: dict[TopicKey, list[Any]] = {}
    for key, part in parts:
        grouped.setdefault(key, []).append(part)
    return list(grouped.items())


def preload() -> None:
    """Load the message classes now: the first request of each version would wait for them."""
    for key in ApiKey:
        for version in decodable_versions(key):
            request_class(key, version)
            response_class(key, version)
