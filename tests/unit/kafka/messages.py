"""Random messages of any class that kio has."""

from __future__ import annotations

import random
from dataclasses import fields
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID

from kio.schema.errors import ErrorCode
from kio.schema.index import api_key_map
from kio.serial._introspect import (
    EntityField,
    EntityTupleField,
    PrimitiveTupleField,
    classify_field,
    get_schema_field_type,
    is_optional,
)

from tideline.kafka.protocol import decodable_versions, request_class, response_class

INTEGERS = {
    "int8": 8, "int16": 16, "int32": 32, "int64": 64,
    "uint8": 7, "uint16": 15, "uint32": 31, "uint64": 63,
}  # fmt: skip


def all_schemas() -> list[tuple[int, int, str, type[Any]]]:
    """(API key, version, direction, class) of everything that can be decoded."""
    found = []
    for key in sorted(api_key_map):
        for version in decodable_versions(key):
            for direction, lookup in (("request", request_class), ("response", response_class)):
                schema = lookup(key, version)
                assert schema is not None
                found.append((key, version, direction, schema))
    return found


def random_message(schema: type[Any], rng: random.Random, depth: int = 0) -> Any:
    """An instance with random values in every field."""
    return schema(**{field.name: _value(field, rng, depth) for field in fields(schema)})


def _value(field: Any, rng: random.Random, depth: int) -> Any:
    kind = classify_field(field)
    tagged = "tag" in field.metadata
    if is_optional(field) and not tagged and rng.random() < 0.2:
        return None
    size = rng.randrange(3) if depth < 4 else 0
    if isinstance(kind, EntityField):
        return random_message(kind.type_, rng, depth + 1)
    if isinstance(kind, EntityTupleField):
        return tuple(random_message(kind.type_, rng, depth + 1) for _ in range(size))
    name = get_schema_field_type(field)
    if isinstance(kind, PrimitiveTupleField):
        return tuple(_primitive(name, rng) for _ in range(size))
    return _primitive(name, rng)


def _primitive(name: str, rng: random.Random) -> Any:
    if name in INTEGERS:
        bits = INTEGERS[name]
        return rng.randrange(-(2 ** (bits - 1)) if name[0] == "i" else 0, 2 ** (bits - 1))
    match name:
        case "string":
            return rng.choice(["", "topic", "schlüssel-ж", "x" * 200])
        case "bytes" | "records":
            return rng.randbytes(rng.randrange(200))
        case "bool":
            return rng.random() < 0.5
        case "float64":
            return rng.random()
        case "uuid":
            return UUID(int=rng.randrange(1, 2**128))
        case "error_code":
            return rng.choice(list(ErrorCode))
        case "timedelta_i32" | "timedelta_i64":
            return timedelta(milliseconds=rng.randrange(2**31))
        case "datetime_i64":
            return datetime.fromtimestamp(rng.randrange(2**31), UTC)
    raise AssertionError(f"a kind of field that is new to the tests: {name}")
