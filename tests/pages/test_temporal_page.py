"""docs/temporal.md shows the JSON of each start and update, and every field that it may have."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from tideline.domain.messages import TOPIC_WORKFLOW
from tideline.domain.migration_input import START, Shape
from tideline.domain.operator_choices import UPDATES
from tideline.domain.tiered_storage_change import (
    SWITCH,
    TIERED_STORAGE_WORKFLOW,
    TieredStorageUpdate,
)

SHAPES: dict[str, Shape[Any]] = {
    TOPIC_WORKFLOW: START,
    TIERED_STORAGE_WORKFLOW: SWITCH,
    TieredStorageUpdate.TARGET: SWITCH,
    **UPDATES,
}
PAGE = Path("docs/temporal.md").read_text()
SECTIONS = dict(re.findall(r"^### (\w+)\n(.*?)(?=^##|\Z)", PAGE, re.MULTILINE | re.DOTALL))


def test_the_page_has_a_section_of_each_start_and_update() -> None:
    assert SECTIONS.keys() == SHAPES.keys()


@pytest.mark.parametrize("name", SHAPES)
def test_a_section_shows_the_example_that_a_refusal_names(name: str) -> None:
    assert re.findall(r"```json\n(.*?)\n```", SECTIONS[name]) == [SHAPES[name].example]


@pytest.mark.parametrize("name", [n for n in SHAPES if n != TieredStorageUpdate.TARGET])
def test_a_section_names_every_field(name: str) -> None:
    assert [f for f in SHAPES[name].fields if not re.search(rf'[`"]{f}[`"]', SECTIONS[name])] == []
