"""Text that somebody else has chosen is one line of printable characters, of bounded length."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tideline.domain.foreign_text import MOST_OF_A_NAME, has_controls, in_one_line, quoted

ANYTHING = st.text(st.characters(exclude_categories=()), max_size=200)
"""Controls, formats, surrogates, private and unassigned characters among it."""


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("orders", "orders"),
        ("größer 订单", "größer 订单"),
        ("\x1b[2J\x1b]0;title\x07", r"\x1b[2J\x1b]0;title\x07"),
        ("a\r\nok: forged", r"a\r\nok: forged"),
        ("a\u202eb", r"a\u202eb"),
        ("a\u2066b\u200bc\ufeff", r"a\u2066b\u200bc\ufeff"),
        ("a\u2028b\u2029c\x85d", r"a\u2028b\u2029c\x85d"),
        ("a\u00a0b", r"a\xa0b"),
        ("\ud800\U000e0001\ue000", r"\ud800\U000e0001\ue000"),
        ("\0", r"\x00"),
    ],
)
def test_what_a_terminal_or_a_reader_might_obey_is_escaped(text: str, shown: str) -> None:
    assert in_one_line(text) == shown


@given(ANYTHING, st.integers(60, 200))
def test_any_text_is_one_printable_line_of_bounded_length_and_stays_it(
    text: str, most: int
) -> None:
    once = in_one_line(text, most)
    assert once.isprintable()
    assert len(once) <= most
    assert in_one_line(once, most) == once


@given(st.text(st.characters(exclude_categories=("C", "Z")), max_size=60))
def test_printable_text_is_shown_as_it_is(text: str) -> None:
    assert in_one_line(text, 60) == text


@given(ANYTHING)
def test_a_quoted_name_ends_where_its_quotes_end(name: str) -> None:
    """So that no name can go on as the sentence around it."""
    said = quoted(name)
    inner = said[1:-1].replace("\\\\", "")
    assert said[0] == said[-1] == '"'
    assert '"' not in inner.replace('\\"', "")
    assert len(said) <= MOST_OF_A_NAME + 2


def test_control_characters_are_known() -> None:
    assert all(has_controls(f"a{chr(n)}") for n in (*range(32), *range(0x7F, 0xA0)))
    assert not any(map(has_controls, ("app-1", "größer", "订单", "a b", "")))
