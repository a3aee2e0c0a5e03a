"""The page of what a gateway answers otherwise than the broker beside it."""

from __future__ import annotations

from pathlib import Path

from tests.differential.differences import BY_DESIGN
from tests.pages.references import table_rows

PAGE = Path("docs/differential.md").read_text()


def test_each_rule_by_which_answers_may_differ_has_its_reason_on_the_page() -> None:
    told = [row[0].strip("`") for row in table_rows(PAGE, "`[a-z0-9-]+`")]
    assert told == [rule.name for rule in BY_DESIGN]
