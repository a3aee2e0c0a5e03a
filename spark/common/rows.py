"""A frame's rows are a dataclass: its columns, their types and both conversions follow from it.

A column has the name of its field. ``int`` is 64 bits, a ``UUID`` its 16 bytes, a ``datetime`` ms
in UTC, an enum its text, a tuple a list, a dataclass a struct, a ``dict`` a map of plain values;
only ``… | None`` may be null.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import fields, is_dataclass
from datetime import datetime
from enum import Enum
from functools import cache
from itertools import islice
from types import NoneType
from typing import TYPE_CHECKING, Any, TypeVar, cast, get_args, get_origin, get_type_hints
from uuid import UUID

import pyarrow as pa

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType

T = TypeVar("T")
A = TypeVar("A")
B = TypeVar("B")
F = TypeVar("F", bound=Callable[..., Any])
ROWS_AT_ONCE = 10_000
"""Of one record batch between Python and the JVM."""
_PLAIN: dict[type, pa.DataType] = {
    int: pa.int64(),
    str: pa.string(),
    bool: pa.bool_(),
    bytes: pa.binary(),
    UUID: pa.binary(),
    datetime: pa.timestamp("ms", "UTC"),
}


def _cached(function: F) -> F:
    """``functools.cache`` that keeps the signature: mypy holds row classes for unhashable."""
    return cast(F, cache(function))


@_cached
def arrow_schema(row: type) -> pa.Schema:
    """The columns of a row class, for Arrow."""
    return pa.schema([_field(name, hint) for name, hint in _columns(row)])


def spark_schema(row: type) -> StructType:
    """The columns of a row class, for Spark."""
    from pyspark.sql.pandas.types import from_arrow_schema

    return from_arrow_schema(arrow_schema(row))


def to_batch(row: type[T], rows: Sequence[T]) -> pa.RecordBatch:
    columns = {}
    for name, hint in _columns(row):
        values = [getattr(one, name) for one in rows]
        columns[name] = _converted(values, _to_column(_not_none(hint)))
    return pa.RecordBatch.from_pydict(columns, schema=arrow_schema(row))


def from_batch(row: type[T], batch: pa.RecordBatch | pa.Table) -> Iterator[T]:
    columns = [
        _converted(batch.column(name).to_pylist(), _from_column(_not_none(hint)))
        for name, hint in _columns(row)
    ]
    return (row(*values) for values in zip(*columns, strict=True))


def to_frame(
    session: SparkSession,
    row: type[T],
    rows: Sequence[T],
    tasks: int,
    *,
    keep_neighbours: bool = False,
) -> DataFrame:
    """``rows`` in at most ``tasks`` partitions. ``keep_neighbours``: those that follow each other
    mostly share one; else they are dealt out."""
    table = pa.Table.from_batches([to_batch(row, rows)])
    frame = session.createDataFrame(table, spark_schema(row))
    parts = max(1, min(tasks, len(rows)))
    if keep_neighbours:
        return frame.coalesce(parts)
    # Dealt out of several hands, each from a place of its own, some would get two and others none.
    # What is asked of the one hand keeps Spark from leaving it out.
    return frame.coalesce(1).where("spark_partition_id() = 0").repartition(parts)


def from_frame(row: type[T], frame: DataFrame) -> list[T]:
    """The rows on the driver. Does the work that the frame stands for."""
    return list(from_batch(row, frame.toArrow()))


def map_rows(
    frame: DataFrame,
    take: type[A],
    give: type[B],
    work: Callable[[Iterator[A]], Iterable[B]],
    rows_at_once: int = ROWS_AT_ONCE,
) -> DataFrame:
    """What ``work`` makes of each task's rows on its executor. It is handed on ``rows_at_once``
    rows at a time: 1, when what is done must be known though the task fails later."""

    def act(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        taken = (row for batch in batches for row in from_batch(take, batch))
        for some in chunks(work(taken), rows_at_once):
            yield to_batch(give, some)

    return frame.mapInArrow(act, spark_schema(give))


def chunks(items: Iterable[T], size: int) -> Iterator[list[T]]:
    """``items`` in lists of at most ``size``."""
    remaining = iter(items)
    while some := list(islice(remaining, size)):
        yield some


@_cached
def _columns(row: Any) -> tuple[tuple[str, Any], ...]:
    hints = get_type_hints(row)
    return tuple((field.name, hints[field.name]) for field in fields(row))


def _field(name: str, hint: Any) -> pa.Field:
    return pa.field(name, _type(_not_none(hint)), nullable=NoneType in get_args(hint))


def _not_none(hint: Any) -> Any:
    if NoneType not in get_args(hint):
        return hint
    return next(kind for kind in get_args(hint) if kind is not NoneType)


def _type(kind: Any) -> pa.DataType:
    if get_origin(kind) is tuple:
        return pa.list_(_type(get_args(kind)[0]))
    if get_origin(kind) is dict:
        key, value = get_args(kind)
        return pa.map_(_type(key), _type(_not_none(value)))
    if _is_row(kind):
        return pa.struct(list(arrow_schema(kind)))
    return pa.string() if issubclass(kind, Enum) else _PLAIN[kind]


@_cached
def _to_column(kind: Any) -> Callable[[Any], Any] | None:
    if get_origin(kind) is tuple:
        of_item = _to_column(get_args(kind)[0])
        return lambda items: _converted(items, of_item)
    if get_origin(kind) is dict:
        return lambda mapping: list(mapping.items())
    if _is_row(kind):
        inner = [(name, _to_column(_not_none(hint))) for name, hint in _columns(kind)]
        return lambda one: {n: _converted([getattr(one, n)], to)[0] for n, to in inner}
    if kind is UUID:
        return lambda found: found.bytes
    return (lambda found: found.value) if issubclass(kind, Enum) else None


@_cached
def _from_column(kind: Any) -> Callable[[Any], Any] | None:
    if get_origin(kind) is tuple:
        of_item = _from_column(get_args(kind)[0])
        return lambda items: tuple(_converted(items, of_item))
    if get_origin(kind) is dict:
        return dict
    if _is_row(kind):
        inner = [(name, _from_column(_not_none(hint))) for name, hint in _columns(kind)]
        return lambda found: kind(*(_converted([found[n]], to)[0] for n, to in inner))
    if kind is UUID:
        return lambda raw: UUID(bytes=raw)
    return kind if issubclass(kind, Enum) else None


def _converted(values: Iterable[Any], convert: Callable[[Any], Any] | None) -> list[Any]:
    if convert is None:
        return list(values)
    return [None if value is None else convert(value) for value in values]


def _is_row(kind: Any) -> bool:
    return is_dataclass(kind)
