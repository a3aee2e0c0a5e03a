"""What a person may type to start a migration, and how a mistake is answered."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tideline.domain.messages import TopicMigrationInput
from tideline.domain.migration_input import (
    InvalidMigrationInput,
    parse_migration_input,
    parse_options,
    to_json,
)
from tideline.domain.options import Durability, MigrationOptions, OpenTransactionsPolicy


def test_a_topic_alone_takes_every_default() -> None:
    assert parse_migration_input({"topic": "orders"}) == TopicMigrationInput("orders")


def test_options_that_are_missing_or_null_take_their_defaults() -> None:
    assert parse_options({"durability": "tiered", "parallel_partitions": None}) == MigrationOptions(
        durability=Durability.TIERED
    )


@given(
    st.builds(
        TopicMigrationInput,
        st.from_regex(r"[a-zA-Z0-9_-]{1,50}", fullmatch=True),
        st.builds(
            MigrationOptions,
            st.sampled_from(Durability),
            st.sampled_from(OpenTransactionsPolicy),
            st.integers(0, 86_400_000),
            st.integers(1_000, 60_000),
            st.integers(1, 1_000),
            st.integers(0, 1_000),
            st.integers(0, 86_400_000),
        ),
        st.text(max_size=20),
    )
)
def test_what_is_written_as_json_is_read_back(value: TopicMigrationInput) -> None:
    assert parse_migration_input(json.loads(json.dumps(to_json(value)))) == value


@pytest.mark.parametrize(
    ("value", "said"),
    [
        (None, "missing"),
        ("orders", "text"),
        (3.5, "a number"),
        ({"topic": ""}, "name the topic"),
        ({"topic": ".."}, "no topic name"),
        ({"topic": "x" * 250}, "no topic name"),
        ({"topic": "a", "requested_by": 1}, "requested_by"),
        ({"topic": "a", "options": []}, "a list instead of a JSON object"),
        ({"topic": "a", "options": {"parallel": 2}}, "options.parallel: no such field"),
        ({"topic": "a", "options": {"parallel_partitions": True}}, "whole number"),
        ({"topic": "a", "options": {"open_transactions": []}}, "wait, abort"),
    ],
)
def test_a_mistake_is_named_with_its_field_and_rule(value: Any, said: str) -> None:
    with pytest.raises(InvalidMigrationInput, match=said.replace(".", r"\.")):
        parse_migration_input(value)


@given(st.recursive(st.none() | st.booleans() | st.integers() | st.text(), st.lists))
def test_no_json_at_all_is_accepted_without_a_topic(value: Any) -> None:
    with pytest.raises(InvalidMigrationInput):
        parse_migration_input(value)
