"""`make test` and `make test-all` run every test of the tree, and the pages name no other."""

from __future__ import annotations

import ast
import re
import tomllib
from pathlib import Path

import pytest

from tests.pages.references import TEST

EVERY = sorted(Path("tests").rglob("*.py"))
NIGHTLY = "tests/nightly"
IN_TEST = tuple(
    tomllib.loads(Path("pyproject.toml").read_text())["tool"]["pytest"]["ini_options"]["testpaths"]
)
"""What pytest collects where it is given no path."""


def below(file: Path | str, *folders: str) -> bool:
    return any(Path(file).is_relative_to(folder) for folder in folders)


def recipe(target: str) -> str:
    """The line of the Makefile that begins pytest."""
    found = re.search(
        rf"^{target}:.*\n\t@(\$\(BIN\)/pytest .*)$", Path("Makefile").read_text(), re.M
    )
    assert found, target
    return found[1]


def has_tests(file: Path) -> bool:
    return any(
        isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.name.startswith("test_")
        for node in ast.walk(ast.parse(file.read_text()))
    )


def test_make_test_collects_what_pyproject_names_and_make_test_all_everything() -> None:
    assert not any(word.startswith("tests") for word in recipe("test").split())
    assert recipe("test-all").split()[:2] == ["$(BIN)/pytest", "tests"]
    assert "make test\n" in Path(".ci/run").read_text()


def test_no_test_is_collected_by_neither() -> None:
    tests = [file for file in EVERY if has_tests(file)]
    assert len(tests) > 300
    assert [f for f in tests if not f.name.startswith("test_")] == [], "pytest does not open these"
    assert [f for f in tests if not below(f, *IN_TEST, NIGHTLY)] == []


def test_what_make_test_collects_is_there_and_has_nothing_of_the_night() -> None:
    assert [folder for folder in IN_TEST if not Path(folder).is_dir()] == []
    assert not any(below(NIGHTLY, folder) or below(folder, NIGHTLY) for folder in IN_TEST)


@pytest.mark.parametrize("page", ["seeds", "schedules"])
def test_the_tests_that_a_rule_or_schedule_names_are_run(page: str) -> None:
    named = {f"tests/{file}" for file, _ in TEST.findall(Path(f"docs/{page}.md").read_text())}
    assert named
    assert [file for file in sorted(named) if not below(file, *IN_TEST, NIGHTLY)] == []
