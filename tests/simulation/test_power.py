"""The first schedule that shows a planted bug is looked for, and kept."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.history.violations import Kind, Violation
from tests.simulation import planted, power
from tests.simulation.planted import BUGS, Found
from tests.simulation.plants.bug import Bug

SHOWN_BY = {"gate": {7, 9}, "stand-in ungated": {BUGS["stand-in ungated"].first + 2}}


@pytest.fixture(autouse=True)
def nothing_is_played(monkeypatch: pytest.MonkeyPatch) -> None:
    def seen(bug: Bug, seed: int) -> Violation | None:
        shown = seed in SHOWN_BY.get(bug.name, ())
        return Violation(Kind.LOST, None, f"by {seed}") if shown else None

    monkeypatch.setattr(power, "seen", seen)


def test_of_each_bug_the_first_schedule_that_shows_it_is_told() -> None:
    assert dict(power.power(["gate", "hole", "stand-in ungated"], 10, 2)) == {
        "gate": Found(7, 7, "lost", "by 7"),
        "hole": Found(10),
        "stand-in ungated": Found(3, 1_000_003, "lost", "by 1000003"),
    }


def test_a_bug_is_looked_for_no_further_than_asked() -> None:
    assert dict(power.power(["gate"], 6, 1)) == {"gate": Found(6)}


def test_what_is_found_is_kept_and_told_on_the_page(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    page, file = tmp_path / "page.md", tmp_path / "found.toml"
    page.write_text(f"before\n{power.BEGINS}old\n{power.ENDS}behind\n")
    monkeypatch.setattr(power, "PAGE", page)
    for module in (power, planted):
        monkeypatch.setattr(module, "FOUND_FILE", file)
    found = {"gate": Found(7, 7, "lost", 'by "7"\\'), "hole": Found(10)}
    power.write(found)
    assert planted.recorded() == found
    told = page.read_text()
    assert told == f"before\n{power.BEGINS}{power.table(found)}{power.ENDS}behind\n"
    assert f"| gate | {BUGS['gate'].says} | 7 | lost |" in told


def test_a_bug_is_late_past_two_hundred_schedules_and_a_gross_one_past_five() -> None:
    found = {"gate": Found(6, 6), "read ceiling": Found(5, 5), "fence": Found(201, 201)}
    assert power.late(found | {"hole": Found(200, 200)}) == ["gate", "fence"]
