"""docs/kafka-copies.md says of each copy its source, what renews it, a bound and a test; where one
of them is missing, that is explained below the table."""

from __future__ import annotations

import re
from pathlib import Path

from tests.pages.references import CODE, TEST, table_rows

PAGE = Path("docs/kafka-copies.md").read_text()
CELLS = 8  # number, what, from where, kept in, renewed by, right again after, meanwhile, test
NEVER = "never"
NONE = "none"
COPY = re.compile(r"\(copy ((?:\d+, )*\d+)\)")
_, MISSING = PAGE.split("## What is missing", 1)


def rows() -> list[list[str]]:
    return list(table_rows(PAGE, r"\d+"))


def explained() -> set[str]:
    """The numbers of the copies that a point below the table is about."""
    return {number for numbers in COPY.findall(MISSING) for number in numbers.split(", ")}


def test_copies_are_counted_without_gap_and_every_cell_is_filled() -> None:
    assert [row[0] for row in rows()] == [str(n) for n in range(1, len(rows()) + 1)]
    assert rows()
    for row in rows():
        assert len(row) == CELLS, row
        assert all(row), row


def test_every_copy_says_where_it_comes_from_and_where_it_is_kept() -> None:
    for _, what, source, kept, *_ in rows():
        assert CODE.search(source), what
        assert CODE.search(kept), what


def test_every_copy_has_a_test_of_its_renewal_or_says_what_has_none() -> None:
    for number, what, *_, test in rows():
        assert TEST.search(test) or test.startswith(NONE), what
        if NONE in TEST.sub("", test):
            assert number in explained(), what


def test_what_is_never_right_again_by_itself_is_explained() -> None:
    for number, what, _, _, _, after, _, _ in rows():
        if NEVER in after:
            assert number in explained(), what


def test_what_is_missing_is_about_copies_of_the_table() -> None:
    assert explained()
    assert explained() <= {row[0] for row in rows()}


def test_the_page_is_found_from_the_first_one() -> None:
    assert "(kafka-copies.md)" in Path("docs/README.md").read_text()
