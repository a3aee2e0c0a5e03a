"""What a call is declared as is what is asked of Postgres."""

from __future__ import annotations

import inspect
from typing import Any
from uuid import UUID

import pytest

from tideline.control_plane.calls import (
    READS,
    Function,
    attributes,
    call,
    keys_and_values,
    parameters,
    reader,
)
from tideline.control_plane.jobs import JobsControlPlane
from tideline.control_plane.pool import LANE_SIZES
from tideline.control_plane.postgres import PostgresControlPlane
from tideline.domain.ids import TopicIdPartition
from tideline.domain.places import PlaceHolder

LOG = TopicIdPartition(UUID(int=1), 3)


class Declared:
    """Answers with what is asked."""

    def _call(self, function: Function[Any], *given: object) -> Any:
        return function, parameters(given)

    @call(READS, "of_sql", lane="reads", asking=attributes("run", "topic"), sums=keys_and_values)
    def ask(
        self,
        log: TopicIdPartition,
        asking: PlaceHolder | None = None,
        *,
        sums: dict[str, int] | None = None,
        limit: int = 7,
    ) -> list[int]: ...


@pytest.mark.parametrize("plane", [PostgresControlPlane, JobsControlPlane])
def test_every_call_has_a_lane_and_an_answer_that_can_be_read(plane: type) -> None:
    declared = [one.function() for _, one in inspect.getmembers(plane) if hasattr(one, "function")]
    assert declared
    assert all(function.lane in LANE_SIZES for function in declared)


def test_parameters_go_to_sql_in_the_order_of_the_method_however_they_are_named() -> None:
    holder = PlaceHolder(UUID(int=2), "t", "r")
    function, given = Declared().ask(limit=5, log=LOG, asking=holder)
    assert (function.name, function.lane, function.retry) == ("of_sql", "reads", True)
    assert given == [UUID(int=1), 3, "r", "t", [], [], 5]
    _, given = Declared().ask(LOG, sums={"a": 1})
    assert given == [UUID(int=1), 3, None, None, ["a"], [1], 7]
    with pytest.raises(TypeError, match="unexpected keyword"):
        Declared().ask(LOG, of=1)


def test_rows_are_read_as_the_annotation_says() -> None:
    assert reader(type(None))([]) is None
    assert reader(list[int])([{"n": 1}, {"n": 2}]) == [1, 2]
    assert reader(int | None)([{"n": None}]) is None
    assert reader(bool)([{"n": None}]) is False
    assert reader(UUID)([{"n": str(UUID(int=1))}]) == UUID(int=1)
    assert reader(list[PlaceHolder])([{"topic_id": UUID(int=1), "topic": "t", "run": "r"}]) == [
        PlaceHolder(UUID(int=1), "t", "r")
    ]
    assert reader(PlaceHolder | None)([]) is None
    with pytest.raises(KeyError):
        reader(dict[str, int])
