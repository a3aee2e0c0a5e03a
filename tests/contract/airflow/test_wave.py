"""A wave goes batch after batch, each topic once, and knows what is left."""

from __future__ import annotations

from typing import Any

import pytest

from tideline.airflow.wave import PLAN_VARIABLE, read_wave, schemas
from tideline.domain.migration_input import parse_options
from tideline.errors import UsageError

DEFAULTS = {name: schema["default"] for name, schema in schemas(5).items()}


def given(**params: Any) -> dict[str, Any]:
    return DEFAULTS | params


def test_a_wave_is_cut_into_batches_of_its_size_and_migrates_each_topic_once() -> None:
    params: dict[str, Any] | None = given(topics=["a", "b", "c", "a", "d", "e"], batch_size=2)
    seen = []
    while params is not None:
        wave = read_wave(params, None, 5)
        assert wave is not None
        seen.append([entry["topic"] for entry in wave.batch()])
        rest = wave.rest("run-1", 1000, wave.batch()[-1]["topic"])
        params = None if rest is None else given(**rest)
    assert seen == [["a", "b"], ["c", "d"], ["e"]]


def test_every_batch_has_the_options_the_number_and_the_name_of_its_wave() -> None:
    first = read_wave(
        given(
            topics=["a", "b"], batch_size=1, durability="tiered", approve_each_batch=True,
            patience_minutes=30,
        ), {}, 5
    )  # fmt: skip
    assert first is not None
    rest = first.rest("manual__1", 1000, "a")
    assert rest is not None
    second = read_wave(given(**rest), None, 5)
    assert second is not None
    assert second.number == 2
    assert second.name == "manual__1"
    assert second.approve_each_batch
    assert second.patience_minutes == 30
    assert first.batch()[0]["options"] == second.batch()[0]["options"]
    assert parse_options(second.batch()[0]["options"]).durability == "tiered"


def test_without_a_size_a_batch_has_as_many_topics_as_may_migrate_at_once() -> None:
    wave = read_wave(given(topics=list("abcdefg")), None, 3)
    assert wave is not None
    assert len(wave.batch()) == 3


@pytest.mark.parametrize("planned", [["a"], {"topics": ["a"], "batch_size": 1}])
def test_a_run_without_topics_takes_those_of_the_plan(planned: object) -> None:
    wave = read_wave(given(), planned, 5)
    assert wave is not None
    assert wave.topics == ("a",)
    chosen = read_wave(given(topics=["b"]), planned, 5)
    assert chosen is not None
    assert chosen.topics == ("b",)


@pytest.mark.parametrize("planned", [None, [], {}, {"topics": []}])
def test_a_run_without_topics_and_plan_has_nothing_to_do(planned: object) -> None:
    assert read_wave(given(), planned, 5) is None


@pytest.mark.parametrize(
    ("planned", "said"),
    [
        ("orders", f"Variable {PLAN_VARIABLE}: write a JSON list"),
        ({"topcis": ["a"]}, "no field 'topcis'; known are"),
        ({"topics": "orders"}, "topics: write a list"),
        (["two words"], "'two words' is no topic name"),
        ({"topics": ["a"], "batch_size": 0}, "from 1 to 100"),
        ({"topics": ["a"], "patience_minutes": 0}, "from 1 to 10080, or none"),
        ({"topics": ["a"], "durability": "maybe"}, "options.durability: 'maybe'"),
    ],
)
def test_a_wrong_plan_names_the_field_the_rule_and_the_remedy(planned: object, said: str) -> None:
    with pytest.raises(UsageError, match=said):
        read_wave(given(), planned, 5)


def test_a_batch_leaves_out_what_may_not_begin_and_the_rest_stands_behind_its_last_topic() -> None:
    wave = read_wave(given(topics=list("abcde"), batch_size=2), None, 5)
    assert wave is not None
    assert [entry["topic"] for entry in wave.batch({"a", "c"})] == ["b", "d"]
    rest = wave.rest("run-1", 1000, "d")
    assert rest is not None
    assert rest["topics"] == ["e"]
    assert wave.rest("run-1", 1000, "e") is None


def test_every_batch_knows_its_plan_or_when_a_person_asked() -> None:
    by_hand = read_wave(given(topics=["a", "b", "c"], batch_size=1), None, 5)
    assert by_hand is not None
    assert by_hand.is_asked_for_now
    second = read_wave(given(**(by_hand.rest("run-1", 1000, "a") or {})), ["z"], 5)
    assert second is not None
    assert (second.plan, second.asked_at, second.is_asked_for_now) == ("", 1000, False)
    third = second.rest("run-2", 2000, "b")
    assert third is not None
    assert third["asked_at"] == 1000
    planned = read_wave(given(), ["a", "b"], 1)
    assert planned is not None
    assert not planned.is_asked_for_now
    further = read_wave(given(**(planned.rest("run-1", 1000, "a") or {})), ["changed"], 5)
    assert further is not None
    assert (further.plan, further.asked_at) == (planned.plan, 0)
    other = read_wave(given(), ["a", "c"], 1)
    assert other is not None
    assert other.plan not in ("", planned.plan), "another text is another plan"
