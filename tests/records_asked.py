"""The tables that runs of the jobs tell, asked in SQL as docs/records.md shows it."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import duckdb

from spark.common.record_tables import opened
from tideline.object_store.client import ObjectStoreClient
from tideline.settings import JobsSettings

PAGE = Path("docs/records.md")


def of_the_page(about: str, **instead: str) -> str:
    """The one query of the page that has ``about`` in it, with other values in the place of its."""
    (query,) = (q for q in re.findall(r"```sql\n(.*?)```", PAGE.read_text(), re.S) if about in q)
    for found, other in instead.items():
        assert found in query
        query = query.replace(found, other)
    return query


def asked(settings: JobsSettings, table: str, query: str) -> list[dict[str, Any]]:
    """Rows of ``query`` over ``table``, through the catalog of the settings."""
    with opened(settings, ObjectStoreClient(settings)) as tables:
        found = tables.load(table)
        assert found is not None, f"nothing was told to {table}"
        rows = found.scan().to_arrow()
    connection = duckdb.connect()
    connection.execute("SET TimeZone = 'UTC'")
    connection.register(table, rows)
    answer = connection.execute(query)
    names = [column[0] for column in answer.description or ()]
    return [dict(zip(names, row, strict=True)) for row in answer.fetchall()]
