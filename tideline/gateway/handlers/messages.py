"""Small helpers to build answers in whatever version a client speaks."""

from __future__ import annotations

from dataclasses import fields
from datetime import timedelta
from functools import cache
from typing import Any

from kio.serial._introspect import EntityTupleField, classify_field
from kio.static.primitive import i32Timedelta


@cache
def nested(schema: Any, name: str) -> Any:
    """The class of the elements of the array ``name`` in a message class of kio."""
    (array,) = (field for field in fields(schema) if field.name == name)
    kind = classify_field(array)
    assert isinstance(kind, EntityTupleField), f"{name} of {schema} is no array of structures"
    return kind.type_


def no_throttle() -> i32Timedelta:
    """``throttle_time_ms`` 0."""
    return i32Timedelta.parse(timedelta(0))


def build(schema: type[Any], **values: Any) -> Any:
    """Make a message from those of ``values`` that its version has."""
    known = {field.name for field in fields(schema)}
    return schema(**{name: value for name, value in values.items() if name in known})
