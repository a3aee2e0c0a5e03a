"""What a job whose tasks run in its driver's process sees of its rows is what Spark shows it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, cast

import pytest

from spark.common.rows import from_frame, map_rows, to_frame
from tests.spark_without_jvm import Session

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

SESSION = cast("SparkSession", Session())


@dataclass(frozen=True)
class Number:
    n: int


@dataclass(frozen=True)
class Text:
    text: str


def spelled(numbers: Iterator[Number]) -> Iterator[Text]:
    for number in numbers:
        if number.n < 0:
            raise ValueError(number.n)
        yield Text(str(number.n))


@pytest.mark.parametrize("tasks", [1, 3, 50])
@pytest.mark.parametrize("count", [0, 1, 10])
def test_each_row_goes_through_one_task(count: int, tasks: int) -> None:
    frame = to_frame(SESSION, Number, [Number(n) for n in range(count)], tasks)
    found = from_frame(Text, map_rows(frame, Number, Text, spelled, 2))
    assert found == [Text(str(n)) for n in range(count)]


def test_nothing_is_done_before_rows_are_asked_for_and_then_a_task_that_fails_is_heard() -> None:
    frame = map_rows(to_frame(SESSION, Number, [Number(-1)], 2), Number, Text, spelled)
    with pytest.raises(ValueError, match="-1"):
        from_frame(Text, frame)
