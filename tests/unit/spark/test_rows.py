"""Rows that travel through a frame come back as they were, whatever their fields are."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime
from enum import StrEnum
from uuid import UUID

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from spark.common.rows import arrow_schema, chunks, from_batch, to_batch
from tideline.domain.remote_log import EpochStart


class Colour(StrEnum):
    RED = "red"
    BLUE = "blue"


@dataclass(frozen=True, slots=True)
class Everything:
    number: int
    name: str
    flag: bool
    raw: bytes
    identity: UUID
    colour: Colour
    at: datetime
    lineage: tuple[EpochStart, ...]
    numbers: tuple[int, ...]
    configs: dict[str, str | None]
    perhaps: int | None
    whose: UUID | None
    some: tuple[int, ...] | None


LONG = st.integers(-(2**63), 2**63 - 1)
ROWS = st.builds(
    Everything,
    number=LONG,
    name=st.text(),
    flag=st.booleans(),
    raw=st.binary(),
    identity=st.uuids(),
    colour=st.sampled_from(Colour),
    at=st.integers(0, 2**41).map(lambda ms: datetime.fromtimestamp(ms // 1000, UTC)),
    lineage=st.lists(st.builds(EpochStart, LONG, LONG), max_size=3).map(tuple),
    numbers=st.lists(LONG, max_size=3).map(tuple),
    configs=st.dictionaries(st.text(), st.none() | st.text(), max_size=3),
    perhaps=st.none() | LONG,
    whose=st.none() | st.uuids(),
    some=st.none() | st.lists(LONG, max_size=3).map(tuple),
)


@given(st.lists(ROWS, max_size=5))
@settings(max_examples=50, deadline=None)
def test_rows_come_back_as_they_were(rows: list[Everything]) -> None:
    assert list(from_batch(Everything, to_batch(Everything, rows))) == rows


def test_only_what_may_be_none_is_nullable() -> None:
    schema = arrow_schema(Everything)
    assert [field.name for field in schema if field.nullable] == ["perhaps", "whose", "some"]
    assert schema.field("identity").type == pa.binary()
    assert schema.field("lineage").type.value_type == pa.struct(list(arrow_schema(EpochStart)))


@pytest.mark.parametrize(("count", "sizes"), [(0, []), (4, [4]), (5, [4, 1])])
def test_chunks_are_whole_and_bounded(count: int, sizes: list[int]) -> None:
    assert [len(some) for some in chunks(range(count), 4)] == sizes
