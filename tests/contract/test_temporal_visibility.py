"""What Temporal's own Postgres schema takes of our search attributes and memos."""

from __future__ import annotations

import base64
import gzip
import json
from collections.abc import Callable, Iterator
from itertools import cycle
from pathlib import Path
from typing import Any

import psycopg
import pytest
from temporalio import workflow
from temporalio.common import SearchAttributeUpdate

from tests.contract.conftest import Database
from tideline.domain.messages import ENDINGS, SEARCH_ATTRIBUTES, WAITING_MEMO, SearchAttribute
from tideline.domain.migration import Phase
from tideline.domain.tiered_storage import Step
from tideline.domain.waits import MOST, Waits
from workflows.reporting import MAX_REASON, SearchAttributes
from workflows.topic_state import Stage

HISTORIES = sorted((Path(__file__).parents[1] / "replay" / "histories").glob("*.json.gz"))
COLUMNS = {
    "Keyword": "VARCHAR(255) GENERATED ALWAYS AS (search_attributes->>'{0}') STORED",
    "Int": "BIGINT GENERATED ALWAYS AS ((search_attributes->>'{0}')::bigint) STORED",
    "Text": "TSVECTOR GENERATED ALWAYS AS ((search_attributes->>'{0}')::tsvector) STORED",
}
"""temporalio/temporal, schema/postgresql/v12/visibility/schema.sql, as far as version 1.14."""
AWKWARD = (
    "partition 0: transaction 'app' of producer 1 is Ongoing since 1795939951694",
    "a NUL \x00, a \\, a 'quote",
    "x" * 3 * MAX_REASON,
)
Insert = Callable[[dict[str, object], bytes], None]


@pytest.fixture
def insert(database: Database) -> Iterator[Insert]:
    columns = ", ".join(
        f'"{name}" {COLUMNS[kind].format(name)}' for name, kind in SEARCH_ATTRIBUTES.items()
    )
    with psycopg.connect(database.dsn, autocommit=True) as connection:
        connection.execute(
            f"CREATE TEMP TABLE executions_visibility"
            f" (search_attributes JSONB, memo BYTEA, {columns})"
        )

        def insert(attributes: dict[str, object], memo: bytes) -> None:
            connection.execute(
                "INSERT INTO executions_visibility (search_attributes, memo) VALUES (%s, %s)",
                (json.dumps(attributes), memo),
            )

        yield insert


def recorded(*field: str) -> Iterator[dict[str, Any]]:
    """What ``field`` holds, by name, in each recorded event that has it."""
    for file in HISTORIES:
        for event in json.loads(gzip.decompress(file.read_bytes()))["events"]:
            (found,) = (value for key, value in event.items() if key.endswith("ttributes"))
            for name in field:
                found = found.get(name, {})
            yield {
                name: json.loads(base64.b64decode(payload["data"]))
                for name, payload in found.items()
                if "data" in payload  # else it is unset
            }


def test_each_recorded_attribute_fits_into_its_column(insert: Insert) -> None:
    rows = [
        row
        for found in recorded("searchAttributes", "indexedFields")
        if (row := {name: found[name] for name in SEARCH_ATTRIBUTES if name in found})
    ]
    assert len(rows) > 100
    for row in rows:
        insert(row, b"")


def test_whatever_a_workflow_says_fits(insert: Insert, monkeypatch: pytest.MonkeyPatch) -> None:
    told: dict[str, object] = {}
    memo: dict[str, object] = {}

    def upsert(updates: list[SearchAttributeUpdate[Any]]) -> None:
        told.update({update.key.name: update.value for update in updates})

    monkeypatch.setattr(workflow, "upsert_search_attributes", upsert)
    monkeypatch.setattr(workflow, "upsert_memo", memo.update)
    known = {str(row.get(WAITING_MEMO, "")) for row in recorded("upsertedMemo", "fields")}
    assert len(known) > 20
    reasons = sorted({*known, *AWKWARD} - {""})
    phases = [*Stage, *Phase, *ENDINGS, *(f"tiered storage: {step}" for step in Step)]
    kinds = cycle(Waits)
    for phase in phases:
        for reason in reasons:
            waits = next(kinds)
            SearchAttributes().update(
                topic="n" * 249, phase=phase, waiting_reason=reason, waits=waits, boundary=2**63 - 1
            )
            assert told[SearchAttribute.WAITS] == (waits or Waits.OTHER)
            assert memo[WAITING_MEMO] == reason[:MAX_REASON]
            insert(told, json.dumps(memo).encode())


def test_a_kind_is_a_short_keyword_and_prose_is_in_no_attribute() -> None:
    assert all(len(kind) <= MOST for kind in Waits)
    assert set(SEARCH_ATTRIBUTES.values()) == {"Keyword", "Int"}
