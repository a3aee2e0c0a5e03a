"""Bounds checks of a frame before kio decodes it, and removal of what kio cannot decode.

kio allocates an array as long as the frame *says* it is (an 11-byte frame can end the process),
raises for tagged fields it does not know (Kafka's rule is to skip them, KIP-482) and for error
codes it does not know. The guard walks a frame by kio's own schema classes first: every length
and count must fit into the bytes that are left, what is unknown is cut out or made
``UNKNOWN_SERVER_ERROR``. Whatever passes needs no more memory than a fixed multiple of its size.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import Field, fields
from functools import cache
from typing import Any

from kio.schema.errors import ErrorCode
from kio.serial._introspect import (
    EntityField,
    EntityTupleField,
    PrimitiveTupleField,
    classify_field,
    get_field_tag,
    get_schema_field_type,
    is_optional,
)
from kio.static.protocol import Entity

from tideline.kafka.errors import MalformedFrame, TooManyElements
from tideline.kafka.varints import uvarint

MAX_ELEMENTS = 1_000_000
"""Array elements in one answer of a broker. Each becomes a Python object."""
MAX_REQUEST_ELEMENTS = 50_000
"""Array elements in one request: topics, names, resources of a whole cluster. A million would take
the interpreter for longer than a tenth of the lease, and anybody may send them."""
MAX_PRODUCED_PARTITIONS, MAX_REQUEST_PARTITIONS = 5_000, 10_000
"""The same of a request that is looked at partition by partition: those that one broker leads, or
that one transaction begins with. Kafka's own advice is 4,000 of a broker."""
_MOST = {
    0: MAX_PRODUCED_PARTITIONS,
    **dict.fromkeys((1, 2, 10, 21, 23, 24), MAX_REQUEST_PARTITIONS),
}
"""By API: Produce, Fetch, ListOffsets, FindCoordinator, whose answer is looked into group by group,
DeleteRecords, OffsetForLeaderEpoch, AddPartitionsToTxn."""
UNBOUNDED = 2**62
MAX_REQUEST_TEXT = 16 * 1024 * 1024
"""Bytes of strings in one request. As many names as there may be elements, of the longest that
Kafka allows (249), are three quarters of it. They are decoded in one go, which no other thread
interrupts: a frame that is full of them would take half a second."""


def most_elements(api_key: int) -> int:
    """Array elements that one request of this API may have."""
    return _MOST.get(api_key, MAX_REQUEST_ELEMENTS)


Edit = tuple[int, int, bytes]
"""Replace ``frame[start:end]``."""

_FIXED = {
    "int8": 1, "uint8": 1, "bool": 1,
    "int16": 2, "uint16": 2,
    "int32": 4, "uint32": 4, "timedelta_i32": 4,
    "int64": 8, "uint64": 8, "float64": 8,
    "uuid": 16,
}  # fmt: skip
_KNOWN_ERRORS = frozenset(code.value for code in ErrorCode)
_UNKNOWN_SERVER_ERROR = (-1).to_bytes(2, "big", signed=True)
_MAX_TIMESTAMP_MS = 253_402_300_799_999
"""The last millisecond of the year 9999, the last that Python's datetime knows."""


class _Walk:
    __slots__ = ("edits", "elements", "end", "frame", "most", "text")

    def __init__(self, frame: bytes, most: int = MAX_ELEMENTS, text: int = UNBOUNDED) -> None:
        self.most = most
        self.text = text
        """Bytes of strings that may still come."""
        self.frame = frame
        self.end = len(frame)
        self.edits: list[Edit] = []
        self.elements = 0

    def count(self, elements: int, least_bytes: int, at: int) -> None:
        """Account for an array before a single element is looked at."""
        if elements * least_bytes > self.end - at:
            raise MalformedFrame(
                f"an array of {elements} elements at byte {at} cannot fit into the "
                f"{self.end - at} bytes that are left"
            )
        self.elements += elements
        if self.elements > self.most:
            raise TooManyElements(f"more than {self.most} array elements in one frame")

    def skip(self, at: int, size: int) -> int:
        if size < 0 or size > self.end - at:
            raise MalformedFrame(
                f"a length of {size} at byte {at} exceeds the {self.end - at} bytes that are left"
            )
        return at + size

    def read(self, at: int, size: int) -> int:
        """Skip a string."""
        end = self.skip(at, size)
        self.text -= size
        if self.text < 0:
            raise TooManyElements(f"more than {MAX_REQUEST_TEXT} bytes of strings in one frame")
        return end

    def varint(self, at: int) -> tuple[int, int]:
        """Unsigned varint of at most 32 bits: (value, next position)."""
        value = shift = 0
        while True:
            if at >= self.end:
                raise MalformedFrame(f"a variable-length number at byte {at} is cut off")
            byte = self.frame[at]
            at += 1
            value |= (byte & 0x7F) << shift
            if byte < 0x80:
                break
            shift += 7
            if shift > 28:
                raise MalformedFrame(f"a variable-length number at byte {at} is too long")
        if value > 0xFFFFFFFF:
            raise MalformedFrame(f"a variable-length number at byte {at} is too large")
        return value, at

    def number(self, at: int, size: int) -> int:
        if size > self.end - at:
            raise MalformedFrame(f"the frame ends at byte {self.end}, within a number at {at}")
        return int.from_bytes(self.frame[at : at + size], "big", signed=True)


Step = Callable[[_Walk, int], int]


def _fixed(size: int) -> Step:
    def step(walk: _Walk, at: int) -> int:
        if size > walk.end - at:
            raise MalformedFrame(f"the frame ends at byte {walk.end}, within a field at {at}")
        return at + size

    return step


def _sized(walk: _Walk, at: int) -> int:
    """A signed length, -1 for null."""
    length = walk.number(at, 4)
    return at + 4 if length == -1 else walk.skip(at + 4, length)


def _compact_sized(walk: _Walk, at: int) -> int:
    length, at = walk.varint(at)
    return at if length == 0 else walk.skip(at, length - 1)


def _string(walk: _Walk, at: int) -> int:
    length = walk.number(at, 2)
    return at + 2 if length == -1 else walk.read(at + 2, length)


def _compact_string(walk: _Walk, at: int) -> int:
    length, at = walk.varint(at)
    return at if length == 0 else walk.read(at, length - 1)


def _error_code(walk: _Walk, at: int) -> int:
    if walk.number(at, 2) not in _KNOWN_ERRORS:
        walk.edits.append((at, at + 2, _UNKNOWN_SERVER_ERROR))
    return at + 2


def _timestamp(least: int) -> Step:
    """A time in ms, ``least`` being -1 where that means none. What Python cannot represent, and
    Kafka's -1 where kio knows no "none" (a transaction that has not begun), becomes 0."""

    def step(walk: _Walk, at: int) -> int:
        if not least <= walk.number(at, 8) <= _MAX_TIMESTAMP_MS:
            walk.edits.append((at, at + 8, bytes(8)))
        return at + 8

    return step


def _primitive(kafka_type: str, flexible: bool, legacy_string: bool) -> tuple[Step, int]:
    """The step for one value and the least bytes that it takes."""
    if kafka_type in _FIXED:
        return _fixed(_FIXED[kafka_type]), _FIXED[kafka_type]
    match kafka_type:
        case "string":
            return (_string, 2) if legacy_string or not flexible else (_compact_string, 1)
        case "bytes" | "records":
            return (_compact_sized, 1) if flexible else (_sized, 4)
        case "error_code":
            return _error_code, 2
        case "datetime_i64":
            return _timestamp(0), 8
        case "timedelta_i64":
            return _timestamp(-1), 8
    raise MalformedFrame(f"kio has a field type that the guard does not know: {kafka_type!r}")


def _array(item: Step, least: int, flexible: bool, nullable: bool) -> Step:
    """kio reads null as ``None`` whether the field may be null or not; Kafka refuses it."""

    def step(walk: _Walk, at: int) -> int:
        if flexible:
            length, at = walk.varint(at)
            length -= 1
        else:
            length = walk.number(at, 4)
            at += 4
        if length <= 0:
            if length < (-1 if nullable else 0):
                raise MalformedFrame(f"an array at byte {at} has the length {length}")
            return at
        walk.count(length, least, at)
        for _ in range(length):
            at = item(walk, at)
        return at

    return step


def _nullable(item: Step) -> Step:
    def step(walk: _Walk, at: int) -> int:
        marker = walk.number(at, 1)
        return at + 1 if marker < 0 else item(walk, at + 1)

    return step


def _field(owner: type[Entity], field: Field[Any], tagged: bool) -> tuple[Step, int]:
    flexible = owner.__flexible__
    kind = classify_field(field)
    if isinstance(kind, EntityField):
        step, least = _entity(kind.type_)
        optional = is_optional(field) and not tagged
        return (_nullable(step), 1) if optional else (step, least)
    if isinstance(kind, EntityTupleField):
        step, least = _entity(kind.type_)
    elif get_schema_field_type(field) == "datetime_i64" and is_optional(field):
        return _timestamp(-1), 8
    else:
        legacy = owner.__name__ == "RequestHeader" and field.name == "client_id"
        step, least = _primitive(get_schema_field_type(field), flexible, legacy)
        if not isinstance(kind, PrimitiveTupleField):
            return step, least
    return _array(step, least, flexible, is_optional(field)), 1 if flexible else 4


def _tags(known: dict[int, Step]) -> Step:
    def step(walk: _Walk, at: int) -> int:
        start = at
        count, at = walk.varint(at)
        if count == 0:
            return at
        walk.count(count, 2, at)
        after_count = at
        cut: list[Edit] = []
        previous = -1
        for _ in range(count):
            tag_at = at
            tag, size_at = walk.varint(at)
            size, at = walk.varint(size_at)
            end = walk.skip(at, size)
            if tag <= previous:
                raise MalformedFrame(f"tagged fields at byte {tag_at} are out of order")
            previous = tag
            inner = known.get(tag)
            if inner is None:
                cut.append((tag_at, end, b""))
            else:
                before = len(walk.edits)
                if inner(walk, at) != end:
                    raise MalformedFrame(f"tagged field {tag} at byte {tag_at} has a wrong length")
                shrunk = sum(e - s - len(new) for s, e, new in walk.edits[before:])
                if shrunk:
                    walk.edits.append((size_at, at, uvarint(size - shrunk)))
            at = end
        if cut:
            walk.edits.append((start, after_count, uvarint(count - len(cut))))
            walk.edits.extend(cut)
        return at

    return step


@cache
def _entity(entity: type[Entity]) -> tuple[Step, int]:
    steps: list[Step] = []
    known: dict[int, Step] = {}
    least = run = 0
    for field in fields(entity):
        tag = get_field_tag(field)
        step, size = _field(entity, field, tag is not None)
        if tag is not None:
            known[tag] = step
            continue
        least += size
        kind = classify_field(field)
        primitive = not isinstance(kind, EntityField) and not kind.is_array
        if primitive and get_schema_field_type(field) in _FIXED:
            run += size  # neighbours of fixed size are checked at once
            continue
        if run:
            steps.append(_fixed(run))
            run = 0
        steps.append(step)
    if run:
        steps.append(_fixed(run))
    if entity.__flexible__:
        steps.append(_tags(known))
        least += 1
    if len(steps) == 1:
        return steps[0], least
    ordered = tuple(steps)

    def walk_entity(walk: _Walk, at: int) -> int:
        for step in ordered:
            at = step(walk, at)
        return at

    return walk_entity, max(least, 1)


def guard(
    frame: bytes,
    schemas: tuple[type[Entity], ...],
    *,
    trailing_allowed: bool = False,
    most_elements: int = MAX_ELEMENTS,
    most_text: int = UNBOUNDED,
) -> bytes:
    """Check that ``frame`` is the schemas one after the other, and nothing else.

    ``trailing_allowed``: bytes behind the message are not looked at, as Kafka's brokers do not
    (``AbstractRequest.parseRequest``); librdkafka's Metadata requests have some.

    Returns the frame itself, or a copy without what kio cannot decode. Raises
    :class:`MalformedFrame`, before anything is looked at if an array is too long.
    """
    walk = _Walk(frame, most_elements, most_text)
    at = 0
    for schema in schemas:
        at = _entity(schema)[0](walk, at)
    if at != walk.end and not trailing_allowed:
        raise MalformedFrame(f"{walk.end - at} bytes follow after the end of the message")
    return _apply(frame, walk.edits) if walk.edits else frame


def top_level_tags(frame: bytes, at: int, schema: type[Entity]) -> int:
    """How many tagged fields the flexible message of ``schema`` at byte ``at`` ends with."""
    walk = _Walk(frame)
    return walk.varint(_untagged(schema)(walk, at))[0]


def field_span(frame: bytes, at: int, schema: type[Entity], name: str) -> tuple[int, int]:
    """Where the untagged field ``name`` of the message at byte ``at`` begins and ends. Only what
    stands before it is walked."""
    walk = _Walk(frame)
    *before, field = _steps_up_to(schema, name)
    for step in before:
        at = step(walk, at)
    return at, field(walk, at)


@cache
def _steps_up_to(schema: type[Entity], name: str) -> tuple[Step, ...]:
    """Of the untagged fields before ``name``, and of that one."""
    steps: list[Step] = []
    for field in fields(schema):
        if get_field_tag(field) is not None:
            continue
        steps.append(_field(schema, field, False)[0])
        if field.name == name:
            return tuple(steps)
    raise KeyError(name)


def clean_field(frame: bytes, at: int, schema: type[Entity], name: str) -> tuple[int, int, bytes]:
    """The same, and the field's bytes without what kio cannot decode."""
    start, end = field_span(frame, at, schema, name)
    (found,) = (field for field in fields(schema) if field.name == name)
    walk = _Walk(frame)
    _field(schema, found, False)[0](walk, start)
    edits = [(a - start, b - start, new) for a, b, new in walk.edits]
    return start, end, _apply(frame[start:end], edits)


@cache
def _untagged(entity: type[Entity]) -> Step:
    steps = [
        _field(entity, field, False)[0] for field in fields(entity) if get_field_tag(field) is None
    ]

    def walk_fields(walk: _Walk, at: int) -> int:
        for step in steps:
            at = step(walk, at)
        return at

    return walk_fields


def _apply(frame: bytes, edits: list[Edit]) -> bytes:
    # An edit inside an earlier cut cannot happen: nothing is walked inside an unknown tag.
    parts: list[bytes] = []
    at = 0
    for start, end, replacement in sorted(edits):
        parts += (frame[at:start], replacement)
        at = end
    parts.append(frame[at:])
    return b"".join(parts)
