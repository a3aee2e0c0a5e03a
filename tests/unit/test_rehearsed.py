"""Blocks of a page that a test runs, and that none of the install page's is forgotten."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.rehearsed import Block, blocks, substituted

PAGE = Path("docs/install.md")
TEST = Path("tests/nightly/own_stack/test_install_page.py")


def page(tmp_path: Path, text: str) -> Path:
    made = tmp_path / "page.md"
    made.write_text(text)
    return made


def test_a_block_behind_a_marker_is_found_by_its_name(tmp_path: Path) -> None:
    text = "Say\n\n<!-- rehearsed: one -->\n```sh\nls\n```\n\n```toml\na = 1\n```\n"
    assert blocks(page(tmp_path, text)) == (
        {"one": Block("sh", "ls\n")},
        [Block("toml", "a = 1\n")],
    )


@pytest.mark.parametrize(
    "text",
    [
        "<!-- rehearsed: one -->\n\n```sh\nls\n```\n",
        "<!-- rehearsed: one -->\n```sh\nls\n```\n<!-- rehearsed: one -->\n```sh\nls\n```\n",
    ],
    ids=["without its block", "twice"],
)
def test_a_marker_that_says_nothing_is_no_marker(tmp_path: Path, text: str) -> None:
    with pytest.raises(AssertionError):
        blocks(page(tmp_path, text))


def test_addresses_are_replaced_once_and_the_longest_first() -> None:
    table = {"a:90": "b:1", "a:9092": "a:90", "b:1": "never"}
    assert substituted("a:9092,a:90", table) == "a:90,b:1"


def test_every_block_of_the_install_page_is_run_or_named_with_why_not() -> None:
    marked, others = blocks(PAGE)
    source = TEST.read_text()
    assert {name for name in marked if f'"{name}"' not in source} == set()
    first_lines = {block.text.partition("\n")[0] for block in others}
    assert {line for line in first_lines if f'"{line}": "' not in source} == set()
