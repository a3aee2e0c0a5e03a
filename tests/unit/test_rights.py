"""The tables of least rights name what the code can send to Kafka and S3, and nothing more."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest
from grimp import ImportGraph, build_graph

from infra.apis_page import offered_up_to
from infra.rights_page import files
from tideline.domain.api_answers import API_RULES
from tideline.domain.rights import (
    ABORT,
    CHANGING,
    DELETE,
    GET,
    KAFKA_RIGHTS,
    LIST,
    METHODS,
    PUT,
    S3_RIGHTS,
    Process,
)

OURS = ("tideline", "activities", "spark", "workflows")
NOT_THEIRS = ("tideline/stack/", "tideline/demo/")
"""The embedded stack and the demonstration have rights of their own."""
ENTRY = {
    Process.GATEWAY: ("tideline.gateway",),
    Process.WORKER: ("tideline.worker", "activities"),
    Process.JOBS: ("spark",),
}
OVER_THE_CLIENTS_CONNECTION = {"CreateTopics"}
"""Requests that gateways make, and send under the rights of the client that asked."""
REQUEST = re.compile(r"kio\.schema\.(\w+)\.v\d+(\.request)?")


def sources() -> list[Path]:
    return [
        file
        for root in OURS
        for file in sorted(Path(root).rglob("*.py"))
        if not file.as_posix().startswith(NOT_THEIRS)
    ]


def imported(file: Path) -> Iterator[str]:
    """Modules of requests that a file imports."""
    for node in ast.walk(ast.parse(file.read_text())):
        if not isinstance(node, ast.ImportFrom) or node.module is None:
            continue
        found = REQUEST.fullmatch(node.module)
        if found and (found[2] or any(name.name == "request" for name in node.names)):
            yield found[1]


def test_every_request_that_the_code_makes_is_in_the_table_and_no_other_is() -> None:
    apis = {
        re.sub(r"(?<!^)(?=[A-Z])", "_", rule.name).lower(): rule.name for rule in API_RULES.values()
    }
    made = {apis[name] for file in sources() for name in imported(file)}
    table = {right.api for right in KAFKA_RIGHTS}
    assert made - OVER_THE_CLIENTS_CONNECTION == table


@cache
def graph() -> ImportGraph:
    return build_graph(*OURS)


def reach(process: Process) -> set[str]:
    """Every module that a process may load."""
    found: set[str] = set()
    for package in ENTRY[process]:
        for start in {package, *graph().find_descendants(package)}:
            found |= {start, *graph().find_upstream_modules(start)}
    return found


def called(file: Path) -> set[str]:
    return {
        node.func.attr
        for node in ast.walk(ast.parse(file.read_text()))
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute)
    }


@pytest.mark.parametrize("process", Process)
def test_who_may_change_something_in_kafka_is_who_calls_what_changes_it(process: Process) -> None:
    modules = reach(process)
    own = tuple(f"{entry}." for entry in ENTRY[process])
    calls: set[str] = set()
    for file in sources():
        module = ".".join(file.with_suffix("").parts).removesuffix(".__init__")
        if module in modules and f"{module}.".startswith(own):
            calls |= called(file)
    changes = {api for api, functions in CHANGING.items() if functions & calls}
    granted = {r.api for r in KAFKA_RIGHTS if r.api in CHANGING and process in r.reasons}
    assert changes == granted


def test_every_call_of_the_store_is_in_the_table_of_methods() -> None:
    (file,) = [file for file in sources() if file.as_posix() == "tideline/object_store/client.py"]
    calls = set(re.findall(r"self\._client\.(\w+)\(", file.read_text()))
    assert calls - {"close"} == METHODS.keys()
    others = [f for f in sources() if f != file and "import boto3" in f.read_text()]
    assert others == [], "the store is reached through one class"


def test_each_action_of_a_policy_is_needed_by_a_call() -> None:
    assert {action for right in S3_RIGHTS for action in right.actions} == {
        action for actions in METHODS.values() for action in actions
    }
    assert {GET, PUT, DELETE, LIST, ABORT} >= {a for r in S3_RIGHTS for a in r.actions}


STORE = re.compile(r"(?:store|_store|collector)\.delete\(")


def test_only_jobs_delete_objects_and_the_doctor_its_own() -> None:
    deleting = {file for file in sources() if STORE.search(file.read_text())}
    others = {file.as_posix() for file in deleting if file.parts[0] != "spark"}
    assert others == {"tideline/object_store/features.py", "tideline/object_store/late_put.py"}
    rights = {(r.process, r.keys) for r in S3_RIGHTS if DELETE in r.actions}
    assert {one for one in rights if one[0] is not Process.JOBS} == {(Process.WORKER, "doctor/*")}


@pytest.mark.parametrize(("path", "text"), files().items(), ids=map(str, files()))
def test_the_files_are_those_that_the_tables_make(path: Path, text: str) -> None:
    assert path.read_text() == text, "run `make docs`"


def test_no_right_is_for_an_api_that_a_broker_does_not_have() -> None:
    names = {API_RULES[key].name for key in offered_up_to()}
    assert {right.api for right in KAFKA_RIGHTS} <= names
