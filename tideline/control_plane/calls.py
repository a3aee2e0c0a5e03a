"""A call of a control plane function: its name, its parameters, and what its rows mean.

Both ports to Postgres execute such calls, :mod:`tideline.control_plane.postgres` from an event
loop and :mod:`tideline.control_plane.jobs` from a thread. Rows become dataclasses by column name.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import MISSING, asdict, dataclass, fields, is_dataclass
from datetime import datetime
from enum import Enum
from functools import cache
from operator import attrgetter
from typing import Any, Generic, TypeVar, get_args, get_origin, get_type_hints
from uuid import UUID

from psycopg.types.json import Jsonb

from tideline.domain.history import ServerIdentity
from tideline.domain.ids import TopicIdPartition

Row = Mapping[str, Any]
M = TypeVar("M")
R = TypeVar("R")


@dataclass(frozen=True, slots=True)
class Function(Generic[R]):
    """A SQL function of the schema ``tideline``."""

    name: str
    read: Callable[[Sequence[Row]], R]
    """What its rows mean: :func:`nothing`, or made by :func:`rows`, :func:`first`, :func:`value`
    or :func:`values`."""
    many: bool = False
    """There may be tens of thousands: an event loop has them read in a thread."""


@cache
def statement(name: str, parameters: int) -> bytes:
    """The query that calls the function with so many parameters."""
    return f"SELECT * FROM tideline.{name}({', '.join(['%s'] * parameters)})".encode()


def parameters(arguments: Iterable[object]) -> list[object]:
    """As SQL takes them: a partition is a topic id and a number, an enum its value, a mapping a
    jsonb document, a sequence an array. Dataclasses go through :func:`document`."""
    return [parameter for argument in arguments for parameter in _parameters(argument)]


def _parameters(argument: object) -> Iterator[object]:
    match argument:
        case TopicIdPartition():
            yield argument.topic_id
            yield argument.partition
        case Enum():
            yield argument.value
        case Mapping():
            yield Jsonb(dict(argument))
        case list() | tuple():
            yield list(argument)
        case _:
            yield argument


def document(objects: Iterable[object]) -> Jsonb:
    """Dataclasses as a jsonb array of objects."""
    views = [asdict(one) for one in objects]  # type: ignore[call-overload]
    return Jsonb(views, dumps=lambda found: json.dumps(found, default=str))


def columns(objects: Sequence[object], *names: str) -> list[list[Any]]:
    """One array per attribute (dotted names allowed), for functions that take parallel arrays."""
    return [list(map(attrgetter(name), objects)) for name in names]


def literals(objects: Sequence[object], *names: str) -> list[str]:
    """As :func:`columns`, of numbers, ids and booleans only, none of them ``None``: each array as
    the text of it, which takes a fifth of the time that psycopg takes to choose types for it. Only
    where the function's own types say what the text means."""
    return [array_literal(map(attrgetter(name), objects)) for name in names]


def array_literal(found: Iterable[int | UUID]) -> str:
    """As Postgres reads an array."""
    return f"{{{','.join(map(str, found))}}}"


def nothing(_: Sequence[Row]) -> None:
    """The function answers nothing."""


def only(model: type[M]) -> Callable[[Sequence[Row]], M]:
    """The ``model`` of the only row, which is always there."""
    return lambda found: mapper(model)(found[0])


def key_range(found: Sequence[Row]) -> tuple[int, int]:
    """``[lo, hi)``, the function's one row."""
    return found[0]["lo"], found[0]["hi"]


def value(kind: Callable[[Any], R]) -> Callable[[Sequence[Row]], R]:
    """The function answers one scalar."""
    return lambda found: values(kind)(found)[0]


def values(kind: Callable[[Any], R]) -> Callable[[Sequence[Row]], list[R]]:
    """The function answers a set of scalars."""
    return lambda found: [kind(scalar) for row in found for scalar in row.values()]


def rows(model: type[M]) -> Callable[[Sequence[Row]], list[M]]:
    """One ``model`` per row."""
    return lambda found: list(map(mapper(model), found))


def first(model: type[M]) -> Callable[[Sequence[Row]], M | None]:
    """The ``model`` of the only row, if there is one."""
    return lambda found: mapper(model)(found[0]) if found else None


def mapper(model: type[M]) -> Callable[[Row], M]:
    """Builds ``model`` from a row, or from an object inside a jsonb column, by column name.

    Enums, ids, times, nested dataclasses and tuples of them follow the annotations. A dataclass
    whose name is no column takes its fields from the same row; a field with a default may be
    missing, any other raises ``KeyError``.
    """
    shape: Any = model
    return _mapper(shape)


@cache
def _mapper(model: Any) -> Callable[[Row], Any]:
    hints = get_type_hints(model)
    wanted = [(f.name, _converter(hints[f.name]), _inline(hints[f.name])) for f in fields(model)]
    optional = {f.name for f in fields(model) if f.default is not MISSING}

    def build(row: Row) -> Any:
        made: dict[str, Any] = {}
        for name, convert, inline in wanted:
            if inline is not None and name not in row:
                made[name] = inline(row)
            elif name in row or name not in optional:
                found = row[name]
                made[name] = found if convert is None or found is None else convert(found)
        return model(**made)

    return build


def _inline(hint: Any) -> Callable[[Row], Any] | None:
    return mapper(hint) if isinstance(hint, type) and is_dataclass(hint) else None


def _converter(hint: Any) -> Callable[[Any], Any] | None:
    """``None``: psycopg's own value is right already."""
    if get_origin(hint) is tuple:
        inner = _converter(get_args(hint)[0])
        return tuple if inner is None else lambda found: tuple(map(inner, found))
    if get_origin(hint) is not None:
        return _of_union(hint)
    if is_dataclass(hint) and isinstance(hint, type):
        return mapper(hint)
    if isinstance(hint, type) and issubclass(hint, Enum):
        return hint
    if hint is UUID:
        return lambda found: found if isinstance(found, UUID) else UUID(found)
    if hint is datetime:
        return lambda found: found if isinstance(found, datetime) else datetime.fromisoformat(found)
    return None


def _of_union(hint: Any) -> Callable[[Any], Any] | None:
    """Of ``X | None`` that of X; other generic types are taken as they are."""
    chosen = [kind for kind in get_args(hint) if kind is not type(None)]
    is_optional = type(None) in get_args(hint) and len(chosen) == 1
    return _converter(chosen[0]) if is_optional else None


def _whether_known(scalar: Any) -> bool | None:
    return None if scalar is None else bool(scalar)


HAS_COMMITTED = Function("has_committed", value(_whether_known))
SERVER_IDENTITY = Function("server_identity", only(ServerIdentity))
DELETE_RECORDS = Function("delete_records", value(int))
ADVANCE_PREFIX_START = Function("advance_prefix_start", nothing)
"""What several processes call."""
