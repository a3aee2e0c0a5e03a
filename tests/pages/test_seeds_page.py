"""docs/seeds.md has a row for each rule, and what a row names is there."""

from __future__ import annotations

import re
from itertools import pairwise
from pathlib import Path

from tests.pages.references import CODE, TEST, missing_code, missing_tests, table_rows

PAGE = Path("docs/seeds.md").read_text()
DIFFERENCES = Path("docs/differences.md").read_text()
STATES = ("built", "differently", "partly", "not built")
NAMED_LINE = re.compile(r"\[([^]]+)\]\(differences\.md\)")
LINES = [
    *(line.lstrip("| ").split(" | ")[0] for line in re.findall(r"^\| .*", DIFFERENCES, re.M)),
    *re.findall(r"^- (.*)", DIFFERENCES, re.M),
]
"""How each line of differences.md begins: the first cell of a row, or an item of a list."""
FILE = re.compile(r"`((?:dags|infra|spark|tideline)/[\w/.]+\.(?:py|sql))`")
SEEDS = ("000", "001", "002", "003", "004")
CELLS = 4  # rule, what it asks, code and test, state
NOTHING = "–"
MOST_LINES = 6
LONGEST_LINE = 180


def rows() -> list[list[str]]:
    return list(table_rows(PAGE, r"\d{3}\.\d+"))


def test_every_seed_has_rules_and_they_are_counted_without_gap() -> None:
    for seed in SEEDS:
        numbers = [int(row[0].split(".")[1]) for row in rows() if row[0].startswith(f"{seed}.")]
        assert numbers == list(range(1, len(numbers) + 1)), seed
        assert numbers, seed


def test_every_rule_has_code_and_test_or_says_what_is_missing() -> None:
    for row in rows():
        assert len(row) == CELLS, row
        _, _, named, state = row
        has_code = bool(CODE.search(named) or FILE.search(named))
        has_test = bool(TEST.search(named))
        match state.split(":", 1):
            case ["built"]:
                assert has_code, row
                assert has_test, row
            case ["differently", how]:
                assert has_code, row
                assert has_test, row
                assert NAMED_LINE.search(how), row
            case ["partly", missing]:
                assert has_code, row
                assert missing.strip(), row
                assert has_test or "no test" in missing, row
            case ["not built", why]:
                assert named == NOTHING, row
                assert why.strip(), row
            case _:
                raise AssertionError(f"an unknown state: {row}")


def test_what_is_kept_in_another_way_names_its_line_of_the_differences() -> None:
    """By how the line begins, and no other line begins so."""
    for row in rows():
        for named in NAMED_LINE.findall(row[-1]):
            assert [line for line in LINES if line.startswith(named)][1:] == [], row
            assert any(line.startswith(named) for line in LINES), row
        assert row[-1].count("](differences.md") == len(NAMED_LINE.findall(row[-1])), row


def test_every_table_of_rules_has_a_header() -> None:
    """Without one its rows are rendered as text."""
    lines = PAGE.splitlines()
    rule = re.compile(r"\| \d{3}\.\d+ \|")
    for before, line in pairwise(lines):
        if rule.match(line) and not rule.match(before):
            assert before.startswith("| --- |"), line[:60]


def test_the_overview_counts_the_rows() -> None:
    for seed, _, _, *counted in table_rows(PAGE, r"\d{3}"):
        states = [row[-1].split(":")[0] for row in rows() if row[0].startswith(f"{seed}.")]
        assert [str(states.count(state)) for state in STATES] == counted, seed


def test_the_overview_says_what_each_state_means() -> None:
    overview = PAGE[: PAGE.index("\n## ")]
    assert "| " + " | ".join(("here", *STATES)) + " |" in overview
    assert [state for state in STATES if f"**{state}**: " not in overview] == []


def test_what_a_row_names_is_code_a_file_or_a_test() -> None:
    """What is written in another way would be looked for by no test of this page."""
    for row in rows():
        if row[2] != NOTHING:
            for named in row[2].split("<br>"):
                assert any(kind.fullmatch(named) for kind in (CODE, FILE, TEST)), row


def test_all_code_that_is_named_exists() -> None:
    assert CODE.search(PAGE)
    assert missing_code(PAGE) == {}


def test_all_files_that_are_named_without_a_symbol_exist() -> None:
    assert {file for file in FILE.findall(PAGE) if not Path(file).is_file()} == set()


def test_all_tests_that_are_named_exist() -> None:
    assert missing_tests(PAGE) == []


def test_a_cell_can_be_read_at_a_glance() -> None:
    for row in rows():
        for cell in row:
            lines = cell.split("<br>")
            assert len(lines) <= MOST_LINES, row
            assert max(map(len, lines)) <= LONGEST_LINE, row
