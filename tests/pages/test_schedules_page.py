"""docs/schedules.md says of each schedule its rule and its evidence, and what it names exists."""

from __future__ import annotations

import re
from pathlib import Path

from tests.pages.references import TEST, missing_tests, table_rows

PAGE = Path("docs/schedules.md").read_text()
SCHEDULES = 29
MODULE = re.compile(r"`((?:activities|workflows|spark|tideline)/[\w/]+\.py)`")


def sections() -> dict[int, str]:
    """The text of each schedule, by its number."""
    parts = re.split(r"^### Schedule (\d+)$", PAGE, flags=re.MULTILINE)
    return dict(zip(map(int, parts[1::2]), parts[2::2], strict=True))


def test_every_schedule_has_a_rule_and_evidence() -> None:
    assert list(sections()) == list(range(1, SCHEDULES + 1))
    for number, text in sections().items():
        assert "**Rule.**" in text, number
        assert TEST.search(text), f"schedule {number} names no test"


def test_every_test_that_is_named_exists() -> None:
    assert TEST.search(PAGE)
    assert missing_tests(PAGE) == []


def test_every_module_that_is_named_exists() -> None:
    named = set(MODULE.findall(PAGE))
    assert named
    assert {module for module in named if not Path(module).is_file()} == set()


def test_the_overview_names_each_schedule_with_the_evidence_that_its_section_has() -> None:
    overview = {
        int(row[0][1 : row[0].index("]")]): row[2] for row in table_rows(PAGE, r"\[\d+\].*?")
    }
    for number, text in sections().items():
        kinds = set(re.findall(r"^- \**(\w+)", text, re.MULTILINE))
        assert kinds == set(overview[number].split(", ")), number
