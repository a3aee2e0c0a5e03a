"""docs/schedules.md names tests and modules that exist."""

from __future__ import annotations

import re
from pathlib import Path

PAGE = Path("docs/schedules.md")
SCHEDULES = 23


def rows() -> dict[int, str]:
    found = (re.match(r"\| (\d+) \|", line) for line in PAGE.read_text().splitlines())
    return {int(match[1]): match.string for match in found if match}


def test_every_schedule_has_a_row_with_evidence() -> None:
    table = rows()
    assert list(table) == list(range(1, SCHEDULES + 1))
    for number, row in table.items():
        assert "::test_" in row, f"schedule {number} names no test"


def test_every_test_that_is_named_exists() -> None:
    named = set(re.findall(r"`([\w/]+\.py)::(test_\w+)`", PAGE.read_text()))
    missing = {
        f"{file}::{name}"
        for file, name in named
        if not re.search(rf"def {name}\(", Path("tests", file).read_text())
    }
    assert named
    assert missing == set()


def test_every_module_that_is_named_exists() -> None:
    named = set(
        re.findall(
            r"`((?:activities|control_plane|domain|gateway)/\w+\.py)", "".join(rows().values())
        )
    )
    missing = {m for m in named if not Path(m).is_file() and not Path("tideline", m).is_file()}
    assert named
    assert missing == set()


def test_every_note_that_is_linked_exists() -> None:
    text = PAGE.read_text()
    linked = {int(number) for number in re.findall(r"\(#schedule-(\d+)\)", text)}
    noted = {int(number) for number in re.findall(r"^### Schedule (\d+)$", text, re.MULTILINE)}
    assert linked == noted
