"""Requests out of a seed: any API and version that is offered, by kio's schemas, with values that
are likely to hurt; and frames that are nearly requests.

A frame is written field by field, so that where its lengths, counts and tags stand is known: that
is where a change hurts most. Equal seeds and :class:`Names` make equal frames.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass, field, fields
from functools import cache
from random import Random
from typing import Any
from uuid import UUID

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

from infra.apis_page import offered_up_to
from tests.unit.gateway.fakes import record_batch
from tideline.gateway.context import ApiKey
from tideline.gateway.transport.addresses import offered_versions
from tideline.kafka.protocol import request_class

NEVER_WHOLE = frozenset({43, 45, 49, 51, 57, 64, 80, 81})
"""APIs with which anybody may hurt the broker or other clients where nothing is authorised:
leaders, reassignments, quotas, passwords, features, brokers, voters. They are cut short."""
CUT_ONLY = frozenset({19, 20, 33, 37, 42, 44, *NEVER_WHOLE})
"""These are whole, or cut, and changed in no other way: a flipped bit may create ten thousand
partitions, or make a topic's config a broker's."""

_INTS = {"int8": 1, "uint8": 1, "int16": 2, "uint16": 2, "int32": 4, "uint32": 4, "int64": 8,
         "timedelta_i32": 4, "timedelta_i64": 8, "datetime_i64": 8, "error_code": 2}  # fmt: skip
_SMALL_TIMES = (0, 0, 1, 20, 100, 300, -1)
_LENGTHS = (0, 1, -1, -2, 2, 127, 128, 255, 256, 32767, 65536, 2**31 - 1, -(2**31))


@dataclass(frozen=True)
class Names:
    """What requests name, so that they reach more than "unknown"."""

    topics: Sequence[str] = ("fuzz-classic", "fuzz-diskless")
    topic_ids: Sequence[UUID] = ()
    doomed: Sequence[str] = ("fuzz-doomed-1", "fuzz-doomed-2", "fuzz-doomed-3")
    """Topics that may be created and deleted."""


@dataclass(frozen=True, slots=True)
class Made:
    """A request without its length prefix."""

    api: int
    version: int
    frame: bytes
    places: tuple[tuple[str, int, int], ...]
    """Where a ``length``, ``count`` or ``tag`` stands: its first byte, and the one after its
    last."""


@cache
def offered() -> list[tuple[int, int]]:
    """Every API and version that a gateway before a broker of Kafka 4.2 offers."""
    lowest = offered_versions(ApiKey)
    return [
        (key, version)
        for key, highest in sorted(offered_up_to().items())
        for version in range(lowest[key].start, highest + 1)
        if request_class(key, version) is not None
    ]


@dataclass
class _Writer:
    random: Random
    names: Names
    api: int
    out: bytearray = field(default_factory=bytearray)
    places: list[tuple[str, int, int]] = field(default_factory=list)
    elements: int = 0

    def mark(self, kind: str, value: bytes) -> None:
        self.places.append((kind, len(self.out), len(self.out) + len(value)))
        self.out += value

    def message(self, schema: type[Entity]) -> None:
        tagged = []
        for name, tag, step in _steps(schema):
            if tag is None:
                step(self, name)
            elif self.random.random() < 0.3:
                tagged.append((tag, name, step))
        if not schema.__flexible__:
            return
        unknown = self.random.random() < 0.05
        self.mark("count", _varint(len(tagged) + unknown))
        for tag, name, step in sorted(tagged):
            inner = _Writer(self.random, self.names, self.api, elements=self.elements)
            step(inner, name)
            self.mark("tag", _varint(tag))
            self.mark("length", _varint(len(inner.out)))
            at = len(self.out)
            self.places += [(kind, at + a, at + b) for kind, a, b in inner.places]
            self.out += inner.out
        if unknown:
            self.mark("tag", _varint(self.random.choice((900, 2**31 - 1))))
            self.mark("length", b"\x03")
            self.out += b"odd"

    def text(self, name: str, nullable: bool) -> bytes | None:
        pick = self.random.random()
        if pick < 0.06:
            return None if nullable or pick < 0.01 else b""
        if pick < 0.08:
            odd = (b"\xff\xfe", b"a" * 249, b"x" * 3_000, "ö€𝄞".encode(), b"\0")
            return self.random.choice(odd)
        return self.random.choice(self._words(name)).encode()

    def _words(self, name: str) -> Sequence[str]:
        if self.api in (19, 20, 37):
            return self.names.doomed
        if "group" in name or (self.api in (15, 42, 69, 77) and name in ("groups", "group_ids")):
            return ("fuzz-group", "fuzz-group-2", "")
        if "transactional" in name:
            return ("fuzz-txn", "fuzz-txn-2")
        if "topic" in name or name in ("name", "resource_name"):
            return (*self.names.topics, "no-such-topic")
        if name in ("config_name", "configuration_keys", "config_names"):
            return ("diskless.enable", "retention.ms", "max.message.bytes", "bogus")
        if name in ("value", "config_value"):
            return ("true", "false", "1", "-1", "bogus")
        if "mechanism" in name:
            return ("PLAIN", "SCRAM-SHA-256", "bogus")
        return ("", "fuzz", "consumer", "range", "0", "fuzz,diskless_az=a")

    def number(self, name: str, kind: str) -> int:
        bits = 8 * _INTS[kind]
        low, high = -(1 << (bits - 1)), (1 << (bits - 1)) - 1
        if kind.startswith("timedelta") or "timeout" in name or "wait" in name:
            return self.random.choice(_SMALL_TIMES)
        if name in ("num_partitions", "count", "replication_factor"):
            return self.random.choice((-1, 1, 2, 0))
        if name == "resource_type":
            return self.random.choice((2, 2, 2, 32, 0, 99))
        if "partition" in name or name == "index":
            return self.random.choice((0, 0, 0, 1, 1, 2, -1, high))
        if name == "acks":
            return self.random.choice((-1, -1, 1, 0, 7))
        if "session_id" in name or "session_epoch" in name:
            return self.random.choice((0, -1, 1, 77, high))
        if "bytes" in name and self.random.random() < 0.7:
            return self.random.choice((1, 1_000, 1_048_576))
        if self.random.random() < 0.7:
            return self.random.choice((0, 0, 1, -1, 2, 5))
        return self.random.choice((low, high, self.random.randint(low, high)))

    def records(self) -> bytes | None:
        random = self.random
        pick = random.random()
        if pick < 0.05:
            return None
        if pick < 0.1:
            return random.randbytes(random.choice((0, 1, 11, 61, 200)))
        whole = bytearray()
        for _ in range(random.choice((1, 1, 1, 2))):
            whole += record_batch(
                random.choice((1, 1, 2, 50)),
                producer_id=random.choice((-1, -1, -1, 0, 1000, 2**40)),
                epoch=random.choice((-1, 0, 1)),
                sequence=random.choice((-1, 0, 1, 2**31 - 1)),
                attributes=random.choice((0, 0, 0, 0, 1, 4, 8, 16, 32, 64, 7)),
                max_timestamp=random.choice((1_000, 1_700_000_000_000, -1, 2**62)),
                payload=random.choice((b"", b"payload", b"p" * 2_000)),
                last_offset_delta=random.choice((None, None, None, 0, 1000)),
                magic=random.choice((2, 2, 2, 2, 2, 1, 0)),
            )
        if pick < 0.25:
            whole[random.randrange(len(whole))] ^= 1 << random.randrange(8)
        elif pick < 0.3:
            del whole[random.randrange(len(whole)) :]
        return bytes(whole)

    def size(self) -> int:
        """Elements of an array."""
        self.elements += 1
        if self.elements > 40:
            return 0
        pick = self.random.random()
        return 1 if pick < 0.6 else 2 if pick < 0.8 else 0 if pick < 0.95 else 7


def _varint(value: int) -> bytes:
    out = bytearray()
    value &= 0xFFFFFFFF
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


@cache
def _steps(schema: type[Entity]) -> tuple[tuple[str, int | None, Any], ...]:
    """How each field is written: name, tag, step."""
    return tuple((f.name, get_field_tag(f), _step(schema, f)) for f in fields(schema))


def _step(owner: type[Entity], found: Any) -> Any:
    flexible, kind, nullable = owner.__flexible__, classify_field(found), is_optional(found)
    if isinstance(kind, EntityField):
        entity, marker = kind.type_, nullable and get_field_tag(found) is None

        def nested(writer: _Writer, name: str) -> None:
            if marker:
                present = writer.random.random() < 0.8
                writer.out += b"\x01" if present else b"\xff"
                if not present:
                    return
            writer.message(entity)

        return nested
    if isinstance(kind, EntityTupleField):
        inner = kind.type_
        return _array(lambda writer, _: writer.message(inner), flexible, nullable)
    one = _primitive(get_schema_field_type(found), flexible, nullable)
    return _array(one, flexible, nullable) if isinstance(kind, PrimitiveTupleField) else one


def _array(one: Any, flexible: bool, nullable: bool) -> Any:
    def array(writer: _Writer, name: str) -> None:
        size = -1 if nullable and writer.random.random() < 0.1 else writer.size()
        writer.mark("count", _varint(size + 1) if flexible else struct.pack(">i", size))
        for _ in range(size):
            one(writer, name)

    return array


def _primitive(kind: str, flexible: bool, nullable: bool) -> Any:
    if kind in _INTS:
        size = _INTS[kind]

        def number(writer: _Writer, name: str) -> None:
            value = writer.number(name, kind) & ((1 << 8 * size) - 1)
            writer.out += value.to_bytes(size, "big")

        return number
    if kind == "bool":
        # Never that a topic may be created by being looked for.
        return lambda writer, name: writer.out.append(
            0 if name.startswith("allow") else writer.random.getrandbits(1)
        )
    if kind == "float64":
        return lambda writer, _: writer.out.extend(writer.random.randbytes(8))
    if kind == "uuid":

        def uuid(writer: _Writer, _: str) -> None:
            known = writer.names.topic_ids if writer.api != 20 else ()
            pick = writer.random.random()
            if known and pick < 0.7:
                writer.out += writer.random.choice(known).bytes
            else:
                writer.out += bytes(16) if pick < 0.8 else writer.random.randbytes(16)

        return uuid

    def sized(writer: _Writer, name: str) -> None:
        if kind == "string":
            value = writer.text(name, nullable)
        elif kind == "records":
            value = writer.records()
        else:
            value = writer.random.randbytes(writer.random.choice((0, 1, 40)))
        size = -1 if value is None else len(value)
        if flexible:
            writer.mark("length", _varint(size + 1))
        else:
            writer.mark("length", struct.pack(">h" if kind == "string" else ">i", size))
        writer.out += value or b""

    return sized


def make(random: Random, names: Names, api: int, version: int) -> Made:
    """One whole request: every length and count in it is right, its values may be anything."""
    schema: Any = request_class(api, version)
    client = random.choice((b"fuzz", b"", b"fuzz,diskless_az=b", None))
    writer = _Writer(random, names, api)
    writer.out += struct.pack(">hhi", api, version, 0)
    length = -1 if client is None else len(client)
    writer.mark("length", struct.pack(">h", length))
    writer.out += client or b""
    if schema.__header_schema__.__flexible__:
        writer.mark("count", b"\0")
    writer.message(schema)
    if api in NEVER_WHOLE:
        del writer.out[random.randrange(8, len(writer.out)) :]
    places = tuple(place for place in writer.places if place[2] <= len(writer.out))
    return Made(api, version, bytes(writer.out), places)


def corpus(random: Random, names: Names, each: int = 1) -> list[Made]:
    """``each`` requests of every API and version that is offered."""
    return [make(random, names, api, version) for api, version in offered() for _ in range(each)]


def mutated(random: Random, made: Made, others: Sequence[Made]) -> bytes:
    """A frame that is nearly ``made``; ``others``: whose bytes may be mixed in."""
    frame = bytearray(made.frame)
    pick = random.random()
    if made.api in CUT_ONLY or pick < 0.2:
        del frame[random.randrange(len(frame)) :]
    elif pick < 0.55 and made.places:
        _, start, end = random.choice(made.places)
        value = random.choice(_LENGTHS)
        if end - start == 2:
            frame[start:end] = struct.pack(">h", max(-32768, min(32767, value)))
        elif end - start == 4:
            frame[start:end] = struct.pack(">i", value)
        else:
            frame[start:end] = random.choice((_varint(value), b"\xff" * 5, b"\x80\x80"))
    elif pick < 0.75:
        for _ in range(random.choice((1, 1, 2, 8))):
            at = random.randrange(min(8, len(frame) - 1), len(frame))
            frame[at] ^= 1 << random.randrange(8)
    elif pick < 0.8:
        other = random.choice(others).frame
        frame = frame[: random.randrange(len(frame))] + other[random.randrange(len(other)) :]
    elif pick < 0.85:
        frame += random.randbytes(random.choice((1, 4, 100)))
    elif pick < 0.92:
        at = random.randrange(len(frame))
        frame[at:at] = random.randbytes(random.choice((1, 2, 4, 16)))
    else:  # an API or version that is not there, or another version's bytes
        key = random.choice((made.api, made.api, -1, 999, 6))
        version = random.choice((made.version - 1, made.version + 1, 0, 99, -1))
        if key != made.api or not _careful(key):
            frame[:4] = struct.pack(">hh", key, version)
    if _careful(int.from_bytes(frame[:2], "big", signed=True)) and bytes(frame) != made.frame:
        del frame[max(0, len(frame) // 2) :]
    return bytes(frame)


def _careful(key: int) -> bool:
    return key in CUT_ONLY


def numbered(frame: bytes, correlation: int) -> bytes:
    """The frame with another correlation id, if it has one."""
    if len(frame) < 8:
        return frame
    return b"".join((frame[:4], correlation.to_bytes(4, "big"), frame[8:]))


def framed(frame: bytes) -> bytes:
    """With its length before it."""
    return len(frame).to_bytes(4, "big") + frame
