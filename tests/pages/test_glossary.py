"""What docs/glossary.md says a word is called in code and SQL is called so."""

from __future__ import annotations

import re
from pathlib import Path

from tests.pages.references import where_defined

PAGE = Path("docs/glossary.md").read_text()
OURS, THEIRS = PAGE.split("## Words of the seeds")
SCHEMA = "\n".join(file.read_text() for file in Path("infra/postgres").rglob("*.sql"))


def names_in_last_cells() -> set[str]:
    rows = [line for line in OURS.splitlines() if line.startswith("| **")]
    return {name for row in rows for name in re.findall(r"`([\w.]+)`", row.rsplit(" | ", 1)[1])}


def test_every_symbol_table_and_column_exists() -> None:
    names = names_in_last_cells()
    assert names
    columns = {name for name in names if re.fullmatch(r"[a-z_]+\.[a-z_0-9]+", name)}
    symbols = {name for name in names - columns if re.fullmatch(r"\w+", name)}
    assert {n for n in columns if not re.search(rf"\b{n.split('.')[1]}\b", SCHEMA)} == set()
    unknown = {n for n in symbols if not where_defined(n) and not re.search(rf"\b{n}\b", SCHEMA)}
    assert unknown - {"boundary", "TIDELINE_GC_GRACE_MS"} == set()


def test_no_word_has_two_meanings() -> None:
    words = re.findall(r"^\| \*\*(.+?)\*\*", OURS, re.MULTILINE)
    assert len(words) == len(set(words))
