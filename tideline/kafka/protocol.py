"""Messages of Kafka's protocol, encoded and decoded by kio, guarded where the bytes are foreign.

A *frame* here is what follows the 4-byte length on the wire: header, then body. Message classes
are kio's, one per API and version; ``message.__version__`` decides how it is written.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from dataclasses import dataclass, fields
from functools import cache
from typing import Any, TypeVar, cast

from kio.index import (
    UnknownAPIKey,
    UnknownEntity,
    load_request_schema,
    load_response_schema,
)
from kio.schema.index import api_key_map, schema_name_map
from kio.serial import entity_reader, entity_writer, readers, writers
from kio.serial._introspect import EntityTupleField, classify_field
from kio.static.constants import EntityType
from kio.static.protocol import Entity, RequestPayload, ResponsePayload

from tideline.kafka.errors import MalformedFrame, UnsupportedVersion
from tideline.kafka.wire_guard import (
    MAX_REQUEST_TEXT,
    clean_field,
    field_span,
    guard,
    most_elements,
    top_level_tags,
)

API_VERSIONS_KEY = 18
FLEXIBLE_FETCH, FETCH_WITHOUT_REPLICA_ID = 12, 15
FLEXIBLE_PRODUCE = 9
"""The first such versions."""
MAX_KNOWN_ARRAYS = 64
"""Bound of :func:`splice_array`'s memory."""
_HEAD = struct.Struct(">hhi")
_CLIENT_ID = struct.Struct(">h")
_STRING = _CLIENT_ID.unpack_from

M = TypeVar("M", bound=Entity)


@dataclass(frozen=True, slots=True)
class RequestHeader:
    """What every request begins with, in all versions of the header."""

    api_key: int
    api_version: int
    correlation_id: int
    client_id: str | None
    body_start: int
    """Offset of the byte after the client id: the header's tagged fields if the API version is
    flexible, else the body."""


def parse_header(frame: bytes) -> RequestHeader:
    """Read the header without a schema. Raises :class:`MalformedFrame`."""
    if len(frame) < 10:
        raise MalformedFrame(f"a request of {len(frame)} bytes is shorter than its header")
    key, version, correlation = _HEAD.unpack_from(frame)
    (length,) = _CLIENT_ID.unpack_from(frame, 8)
    end = 10 + max(length, 0)
    if length < -1 or end > len(frame):
        raise MalformedFrame(f"a client id of {length} bytes exceeds the frame")
    try:
        client = None if length < 0 else str(frame[10:end], "utf-8")
    except UnicodeDecodeError:
        raise MalformedFrame("the client id is not UTF-8") from None
    return RequestHeader(key, version, correlation, client, end)


def correlation_of(response: bytes) -> int:
    """Correlation id of a response frame. Raises :class:`MalformedFrame`."""
    if len(response) < 4:
        raise MalformedFrame(f"a response of {len(response)} bytes has no correlation id")
    return int.from_bytes(response[:4], "big", signed=True)


@cache
def request_class(api_key: int, version: int) -> type[RequestPayload] | None:
    """kio's class, or ``None`` if it does not know this version."""
    try:
        return load_request_schema(api_key, version)
    except (UnknownAPIKey, UnknownEntity):
        return None


@cache
def response_class(api_key: int, version: int) -> type[ResponsePayload] | None:
    """kio's class, or ``None`` if it does not know this version."""
    try:
        return load_response_schema(api_key, version)
    except (UnknownAPIKey, UnknownEntity):
        return None


@cache
def decodable_versions(api_key: int) -> range:
    """The versions of an API that can be decoded; empty for an API that is not known."""
    name = api_key_map.get(api_key)
    known = [
        version
        for version, kinds in (schema_name_map.get(name, {}) if name else {}).items()
        if EntityType.request in kinds and EntityType.response in kinds
    ]
    return range(min(known), max(known) + 1) if known else range(0)


PRODUCE_VERSIONS = decodable_versions(0)


def decode_request(
    frame: bytes, header: RequestHeader | None = None, most: int | None = None
) -> RequestPayload:
    """Decode a foreign request, guarded.

    Raises :class:`UnsupportedVersion` for a version that is not known,
    :class:`~tideline.kafka.errors.TooManyElements` for more than ``most`` array elements (default:
    what the API may have), before those that are too many are looked at, and
    :class:`MalformedFrame` for anything else that is wrong with it.
    """
    header = header or parse_header(frame)
    schema = request_class(header.api_key, header.api_version)
    if schema is None:
        raise UnsupportedVersion(
            f"version {header.api_version} of API {header.api_key} is not known here"
        )
    clean = guard(
        frame,
        (schema.__header_schema__, schema),
        trailing_allowed=True,
        most_elements=most_elements(header.api_key) if most is None else most,
        most_text=MAX_REQUEST_TEXT,
    )
    return cast(RequestPayload, _read(clean, (schema.__header_schema__, schema)))


def decode_response(frame: bytes, api_key: int, version: int) -> ResponsePayload:
    """Decode the response frame of a request of ``version``, guarded.

    Raises as :func:`decode_request` does.
    """
    schema = response_class(api_key, version)
    if schema is None:
        raise UnsupportedVersion(f"version {version} of API {api_key} is not known here")
    clean = guard(frame, (schema.__header_schema__, schema))
    return cast(ResponsePayload, _read(clean, (schema.__header_schema__, schema)))


def response_has_tags(frame: bytes, api_key: int, version: int) -> bool:
    """Whether a flexible response ends with tagged fields, found without decoding it."""
    schema = response_class(api_key, version)
    if schema is None or not schema.__flexible__:
        return False
    return top_level_tags(frame, 5, schema) > 0  # correlation id, empty header tags


def encode_request(
    message: RequestPayload, correlation_id: int, client_id: str | None = None
) -> bytes:
    client = b"" if client_id is None else client_id.encode()
    length = -1 if client_id is None else len(client)
    head = _HEAD.pack(message.__api_key__, message.__version__, correlation_id)
    return _write(head + _CLIENT_ID.pack(length) + client, message)


def encode_response(message: ResponsePayload, correlation_id: int) -> bytes:
    return _write(correlation_id.to_bytes(4, "big", signed=True), message)


class _Parts(list[bytes]):
    """Collects what kio writes, so that records are copied once, by the final join."""

    write = list.append


def splice_array(
    frame: bytes,
    api_key: int,
    version: int,
    name: str,
    edit: Callable[[tuple[Any, ...]], tuple[Any, ...]],
    known: dict[tuple[int, int, bytes], bytes],
) -> bytes:
    """Replace one top-level array of a response and copy the rest as it is.

    ``known`` keeps what an array's bytes became: brokers answer the same ones again and again.
    What is unknown inside an array that changes is left out of it. Raises :class:`MalformedFrame`.
    """
    schema = _response_schema(api_key, version)
    start, end = response_field(frame, api_key, version, name)
    before = frame[start:end]
    after = known.get((api_key, version, before))
    if after is None:
        elements = response_array(frame, api_key, version, name)
        edited = edit(elements)
        if edited == elements:
            after = before
        else:
            writer = (
                writers.compact_array_writer if schema.__flexible__ else writers.legacy_array_writer
            )
            parts = _Parts()
            writer(entity_writer(_element_class(schema, name)))(cast(Any, parts), edited)
            after = b"".join(parts)
        if len(known) >= MAX_KNOWN_ARRAYS:
            known.clear()
        known[api_key, version, before] = after
    return frame if after == before else b"".join((frame[:start], after, frame[end:]))


def splice_int32(frame: bytes, api_key: int, version: int, name: str, value: int) -> bytes:
    """Replace one top-level int32 of a response. Raises :class:`MalformedFrame`."""
    start, end = response_field(frame, api_key, version, name)
    after = value.to_bytes(4, "big", signed=True)
    return frame if frame[start:end] == after else b"".join((frame[:start], after, frame[end:]))


def response_array(frame: bytes, api_key: int, version: int, name: str) -> tuple[Any, ...]:
    """One top-level array of a response, whatever else is in it. Raises :class:`MalformedFrame`."""
    schema = _response_schema(api_key, version)
    reader = readers.compact_array_reader if schema.__flexible__ else readers.legacy_array_reader
    _, _, clean = clean_field(frame, 5 if schema.__flexible__ else 4, schema, name)
    try:
        elements, _ = reader(entity_reader(_element_class(schema, name)))(clean, 0)
    except Exception as error:
        raise MalformedFrame(f"{schema.__name__}.{name}: {error}") from error
    return elements or ()


def response_field(frame: bytes, api_key: int, version: int, name: str) -> tuple[int, int]:
    """Where a top-level field of a response begins and ends. Raises :class:`MalformedFrame`."""
    schema = _response_schema(api_key, version)
    return field_span(frame, 5 if schema.__flexible__ else 4, schema, name)


def _response_schema(api_key: int, version: int) -> type[Entity]:
    schema = response_class(api_key, version)
    if schema is None:
        raise UnsupportedVersion(f"version {version} of API {api_key} is not known here")
    return schema


def _element_class(schema: type[Entity], name: str) -> type[Entity]:
    (array,) = (field for field in fields(schema) if field.name == name)
    kind = classify_field(array)
    assert isinstance(kind, EntityTupleField), f"{name} is no array of structures"
    return kind.type_


def produce_acks(frame: bytes, header: RequestHeader) -> int:
    """``acks`` of a Produce request (version 3 or later), found without decoding it.

    Raises :class:`MalformedFrame`.
    """
    if not PRODUCE_VERSIONS.start <= header.api_version < PRODUCE_VERSIONS.stop:
        raise UnsupportedVersion(f"version {header.api_version} of Produce is not known here")
    at = header.body_start
    try:
        if header.api_version >= FLEXIBLE_PRODUCE:
            # The header's tagged fields, of which no client writes any; the transactional id.
            if frame[at] or frame[at + 1] > 0x7F:
                return int(cast(Any, decode_request(frame, header)).acks)
            length = frame[at + 1] - 1
            at += 2
        else:
            (length,) = _STRING(frame, at)
            at += 2
        if length > 0:
            at += length
        (acks,) = _STRING(frame, at)
    except (IndexError, struct.error):
        raise MalformedFrame("a Produce request ends before its acks") from None
    return int(acks)


def fetch_within(frame: bytes, version: int, max_bytes: int) -> bytes:
    """A Fetch request (version 3 or later) that asks for at most ``max_bytes`` of records, found
    without decoding it: the frame itself if it does so already."""
    at = _after_client_id(frame)
    if version >= FLEXIBLE_FETCH:
        if frame[at : at + 1] != b"\0":
            return frame  # tagged fields in a header: no client writes any
        at += 1
    at += (4 if version < FETCH_WITHOUT_REPLICA_ID else 0) + 4 + 4  # maximum wait, minimum bytes
    asked = frame[at : at + 4]
    if len(asked) < 4 or int.from_bytes(asked, "big", signed=True) <= max_bytes:
        return frame
    return b"".join((frame[:at], max_bytes.to_bytes(4, "big"), frame[at + 4 :]))


def _after_client_id(frame: bytes) -> int:
    """Where a request's header ends, but for tagged fields."""
    (length,) = _CLIENT_ID.unpack_from(frame, _HEAD.size)
    return _HEAD.size + 2 + max(int(length), 0)


def _write(header: bytes, message: RequestPayload | ResponsePayload) -> bytes:
    """``header``: without tagged fields, of which a flexible one has none."""
    parts = _Parts((header, b"\0") if message.__header_schema__.__flexible__ else (header,))
    entity_writer(type(message))(cast(Any, parts), message)
    return b"".join(parts)


def _read(frame: bytes, schemas: tuple[type[Entity], ...]) -> Entity:
    at = 0
    message: Entity | None = None
    try:
        for schema in schemas:
            message, size = entity_reader(schema)(frame, at)
            at += size
    except Exception as error:
        # kio raises its own errors, ValueError and KeyError for values it cannot represent.
        raise MalformedFrame(f"{schemas[-1].__name__}: {error}") from error
    assert message is not None
    return message
