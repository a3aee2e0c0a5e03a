"""Paths, modules, tests and links that the pages name are there."""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path

import pytest

from tests.pages.references import missing_code, missing_tests

TREES = ("tideline", "workflows", "activities", "spark", "dags", "infra", "tests", "benchmarks")
PAGES = sorted(
    page
    for pattern in ("*.md", "docs/**/*.md", "examples/*.md", "infra/**/*.md")
    for page in Path().glob(pattern)
)
IN_QUOTES = re.compile(r"`([^`\n]+)`")
ROOTED = re.compile(rf"(?:{'|'.join((*TREES, 'docs', 'examples'))})/[\w./-]*")
FILE = re.compile(r"[\w./-]*\w\.(?:py|sql)")
RUN_AS_MODULE = re.compile(r"python -m ((?:spark|tideline|benchmarks|activities)[\w.]*)")
MOST_WORDS = {Path("README.md"): 900} | dict.fromkeys(Path("docs/decisions").glob("*.md"), 300)
LINK = re.compile(r"\]\(([^)\s]+)\)")


@pytest.fixture(params=PAGES, ids=str)
def page(request: pytest.FixtureRequest) -> Path:
    found: Path = request.param
    return found


@cache
def files_of_the_project() -> tuple[str, ...]:
    roots = (*TREES, "examples")
    return tuple(str(file) for root in roots for file in Path(root).rglob("*") if file.is_file())


def exists(name: str) -> bool:
    """Whether a path is there, or, of a file named in short, one that ends so."""
    return Path(name).exists() or any(file.endswith(f"/{name}") for file in files_of_the_project())


def alternatives(name: str) -> list[str]:
    """``a/{b,c}.py`` is two names."""
    match = re.fullmatch(r"(.*)\{([\w,]+)\}(.*)", name)
    return [match[1] + part + match[3] for part in match[2].split(",")] if match else [name]


def anchors(page: Path) -> set[str]:
    """What a heading is called in a link, as GitHub does it."""
    headings = re.findall(r"^#+ (.+)$", page.read_text(), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def test_every_path_in_a_page_exists(page: Path) -> None:
    quoted = [
        name
        for names in IN_QUOTES.findall(page.read_text())
        for name in alternatives(names.strip())
    ]
    named = {name for name in quoted if ROOTED.fullmatch(name) or FILE.fullmatch(name)}
    assert {name for name in named if not exists(name)} == set()


def test_every_module_that_a_page_runs_exists(page: Path) -> None:
    modules = set(RUN_AS_MODULE.findall(page.read_text()))
    places = {module: Path(*module.rstrip(".").split(".")) for module in modules}
    missing = {
        module
        for module, place in places.items()
        if not place.with_suffix(".py").is_file() and not (place / "__main__.py").is_file()
    }
    assert missing == set()


def test_every_link_of_a_page_leads_somewhere(page: Path) -> None:
    broken = set()
    for link in LINK.findall(page.read_text()):
        if "://" in link:
            continue
        target, _, anchor = link.partition("#")
        file = (page.parent / target) if target else page
        if not file.exists() or (anchor and anchor not in anchors(file)):
            broken.add(link)
    assert broken == set()


def test_every_test_and_symbol_that_a_page_names_exists(page: Path) -> None:
    assert missing_tests(page.read_text()) == []
    assert missing_code(page.read_text()) == {}


@pytest.mark.parametrize("short", MOST_WORDS, ids=str)
def test_a_page_for_strangers_and_a_decision_are_short(short: Path) -> None:
    assert len(short.read_text().split()) <= MOST_WORDS[short]


def test_every_section_of_the_architecture_that_a_docstring_cites_exists() -> None:
    headings = set(
        re.findall(r"^#+ (.+?)(?::.*)?$", Path("docs/architecture.md").read_text(), re.M)
    )
    sources = [file for file in files_of_the_project() if file.endswith(".py")]
    cited = {
        (file, section)
        for file in sources
        for section in re.findall(r'architecture,? "([^"\n]+)"', Path(file).read_text())
        if not file.startswith("tests/")
    }
    assert cited
    assert {(file, section) for file, section in cited if section not in headings} == set()


def test_every_page_that_a_docstring_cites_exists() -> None:
    sources = [file for file in files_of_the_project() if file.endswith((".py", ".sql"))]
    cited = {
        (file, page)
        for file in sources
        for page in re.findall(r"\b((?:docs|facts|design)/[\w/.-]+\.md)", Path(file).read_text())
    }
    assert {(file, page) for file, page in cited if not Path(page).is_file()} == set()
