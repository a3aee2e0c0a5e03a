"""A call of a control plane function: its name, its parameters, and what its rows mean.

Interfaces declare their calls with :func:`call`, from which the clients follow: that of
:mod:`tideline.control_plane.postgres` for an event loop, that of :mod:`tideline.control_plane.jobs`
for a thread, and what the catalog has to tell. Rows become dataclasses by column name.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import MISSING, asdict, dataclass, fields, is_dataclass
from datetime import datetime
from enum import Enum
from functools import cache, wraps
from inspect import signature
from operator import attrgetter
from types import NoneType, UnionType
from typing import Any, Generic, TypeAlias, TypeVar, cast, get_args, get_origin, get_type_hints
from uuid import UUID

from psycopg.types.json import Jsonb

from tideline.domain.history import ServerIdentity
from tideline.domain.ids import TopicIdPartition

Row = Mapping[str, Any]
Given: TypeAlias = Callable[[Any], Iterable[object]]
"""The parameters of a SQL function that one of a method becomes."""
M = TypeVar("M")
R = TypeVar("R")
F = TypeVar("F", bound=Callable[..., Any])

OTHERS = "others"
"""The lane of a call that names none."""
TOLD = "creates a fact, which the catalog tells before it counts"
READS = "only reads"
OBSERVED = "observed anew"
COUNTS = "counters, failures and orders of operators"
UPKEEP = "removes what nobody can read: the start that made it so is told"


@dataclass(frozen=True, slots=True)
class Function(Generic[R]):
    """A SQL function of the schema ``tideline``."""

    name: str
    read: Callable[[Sequence[Row]], R]
    """What its rows mean: :func:`nothing`, or made by :func:`rows`, :func:`first`, :func:`value`
    or :func:`values`."""
    many: bool = False
    """There may be tens of thousands: an event loop has them read in a thread."""
    retry: bool = True
    """Whether an event loop repeats it on a transient failure."""
    lane: str = OTHERS
    """Of a gateway's connections (:data:`tideline.control_plane.pool.LANE_SIZES`)."""


def call(
    fact: str,
    sql: str = "",
    *,
    read: Callable[[Sequence[Row]], object] | None = None,
    many: bool = False,
    retry: bool = True,
    lane: str = OTHERS,
    **given: Given,
) -> Callable[[F], F]:
    """The method below is a call of the SQL function ``sql``, or of its own name.

    ``fact``: :data:`TOLD`, or why the catalog does without it. ``given`` names parameters that are
    not as :func:`parameters` takes them. Rows are read as the method's annotation says
    (:func:`reader`), or by ``read``. The rest is as in :class:`Function`. The class of the method
    has a ``_call`` that takes a function and its parameters, and answers or awaits.
    """

    def declared(stub: F) -> F:
        shape = signature(stub)
        assert given.keys() <= shape.parameters.keys(), f"{stub.__name__} takes no {given}"

        @cache
        def function() -> Function[Any]:
            reads = read or reader(get_type_hints(stub)["return"])
            return Function(sql or stub.__name__, reads, many, retry, lane)

        @wraps(stub)
        def ask(self: Any, *arguments: Any, **named: Any) -> Any:
            bound = shape.bind(self, *arguments, **named)
            bound.apply_defaults()
            _, *taken = bound.arguments.items()
            spelt = [given[name](found) if name in given else (found,) for name, found in taken]
            return self._call(function(), *(one for some in spelt for one in some))

        ask.__dict__["function"] = function
        return noted(fact)(cast(F, ask))

    return declared


def noted(fact: str) -> Callable[[F], F]:
    """As :func:`call` has it, of a method with a body of its own."""

    def declared(method: F) -> F:
        method.__dict__["fact"] = fact
        return method

    return declared


def facts_of(interface: type) -> dict[str, str]:
    """What its calls create, by name."""
    found = {name: getattr(interface, name) for name in dir(interface) if not name.startswith("_")}
    return {name: method.fact for name, method in found.items() if hasattr(method, "fact")}


def reader(hint: Any) -> Callable[[Sequence[Row]], Any]:
    """How rows are read that mean what an annotation says."""
    if hint is NoneType:
        return nothing
    if get_origin(hint) is list:
        (one,) = get_args(hint)
        return values(_SCALARS[one]) if one in _SCALARS else rows(one)
    kind, *empty = get_args(hint) if isinstance(hint, UnionType) else (hint,)
    if isinstance(kind, type) and is_dataclass(kind):
        return first(kind) if empty else only(kind)
    scalar = _SCALARS[kind]
    return value(lambda found: None if empty and found is None else scalar(found))


def _uuid(found: object) -> UUID:
    return found if isinstance(found, UUID) else UUID(str(found))


_SCALARS: Mapping[Any, Callable[[Any], Any]] = {
    bool: bool, int: int, str: str, UUID: _uuid, datetime: lambda found: found,
}  # fmt: skip


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
        case Collection() if not isinstance(argument, str | bytes):
            yield list(argument)
        case _:
            yield argument


def document(objects: Iterable[object]) -> Jsonb:
    """Dataclasses as a jsonb array of objects."""
    views = [asdict(one) for one in objects]  # type: ignore[call-overload]
    return Jsonb(views, dumps=lambda found: json.dumps(found, default=str))


def documents(objects: Iterable[object]) -> tuple[Jsonb]:
    """:func:`document`, of a parameter."""
    return (document(objects),)


def attributes(*names: str) -> Given:
    """Those of one object; of ``None`` as many nulls."""
    return lambda found: [None if found is None else getattr(found, name) for name in names]


def keys_and_values(found: Mapping[Any, Any] | None) -> tuple[list[Any], list[Any]]:
    """Two arrays, which are empty without a mapping."""
    return list(found or {}), list((found or {}).values())


def columns(*names: str) -> Given:
    """One array per attribute (dotted names allowed), for functions that take parallel arrays."""
    return lambda objects: [list(map(attrgetter(name), objects)) for name in names]


def literals(*names: str) -> Given:
    """As :func:`columns`, of numbers, ids and booleans only, none of them ``None``: each array as
    the text of it, which takes a fifth of the time that psycopg takes to choose types for it. Only
    where the function's own types say what the text means."""
    return lambda objects: [array_literal(map(attrgetter(name), objects)) for name in names]


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


BEAT = attributes("beat", "token")
"""Of a :class:`~tideline.domain.history.ServerIdentity` what the server is asked for."""
HAS_COMMITTED = Function("has_committed", value(_whether_known))
SERVER_IDENTITY = Function("server_identity", only(ServerIdentity))
"""What connections ask before they are used."""
