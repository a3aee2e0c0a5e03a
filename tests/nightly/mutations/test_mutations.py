"""Each mutation of ``table.toml``, planted into a copy of the tree, is found by the test it names.

The checkout stays as it is. The package is installed editable, so the copy has to come first: it is
the working directory, pytest's ``pythonpath`` and PYTHONPATH. What is read beside Python is looked
for beside its package (:mod:`tideline.installation`): SQL comes from the copy, too. All mutations
share one copy, and what is compiled of it, one after the other.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from importlib.util import cache_from_source
from pathlib import Path
from select import select
from subprocess import PIPE, Popen
from xml.etree import ElementTree

import pytest

from tests.nightly.mutations.table import ROOT, Mutation, mutations
from tests.support.waiting import until
from tideline.installation import native_library

TREE = (
    "activities", "benchmarks", "dags", "docs", "examples", "infra", "spark", "tests", "tideline",
    "workflows", "pyproject.toml",
)  # fmt: skip
LEFT_OUT = shutil.ignore_patterns("target", "*.pyc.*")
"""What Maven builds, and what another process is about to compile."""
FORKS = Path(__file__).with_name("forks.py")
ENDS_AFTER_S = 240
"""By the clock. Before whoever waits for it gives up: it takes down what it has started."""
FOUND_WITHIN_S = 300.0
ALL_WITHIN_S = 800.0
"""Every test of the table, one after the other: more than a hundred."""
DOES_NOT_RUN = re.compile(
    r"(Attribute|Import|ModuleNotFound|Name|Syntax|Type|UnboundLocal)Error: "
    r"|Failed: Timeout"
    r"|\S*OtherSchema: "
    r"|\S*ControlPlaneFailure: .*\(42\w{3}\)",
    re.DOTALL,
)
"""How a test fails in code that the mutation has broken, whatever the test asserts. 42: Postgres'
class of syntax errors and of names that are not there."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """Of one run of pytest."""

    code: int
    """0: all passed; 1: one did not; 2 to 5: they could not be collected or run."""
    failures: tuple[str, ...]
    """What ended the tests that failed: no fixture of theirs, and no module on its import."""
    said: str

    def why_missed(self, mutation: Mutation) -> str:
        """Why it does not find the mutation, or ``""``."""
        if self.code == 0:
            return f"nobody notices: {mutation.breaks}"
        if self.code != 1:
            return f"pytest ended with {self.code} before a test had run"
        if not self.failures:
            return "something around the test failed, and not what it asserts"
        if DOES_NOT_RUN.match(self.failures[0]):
            return f"the code does not run with it: {self.failures[0]}"
        return ""


class Copy:
    """Of what the tests of the table import and read."""

    def __init__(self, directory: Path) -> None:
        self.root, self._directory = directory / "tree", directory
        self._forks: Popen[str] | None = None
        self.root.mkdir()
        for name in TREE:
            if (ROOT / name).is_dir():
                shutil.copytree(ROOT / name, self.root / name, ignore=LEFT_OUT)
            else:
                shutil.copy2(ROOT / name, self.root / name)
        library = self.root / native_library().relative_to(ROOT)
        library.parent.mkdir(parents=True)
        library.symlink_to(native_library())

    @contextmanager
    def planted(self, mutation: Mutation) -> Iterator[None]:
        file = self.root / mutation.file
        original = file.read_text()
        _write(file, mutation.planted(original))
        try:
            yield
        finally:
            _write(file, original)

    def run(self, *tests: str, seconds: float = FOUND_WITHIN_S) -> Outcome:
        report, said = self._directory / "report.xml", self._directory / "said"
        report.unlink(missing_ok=True)
        arguments = [
            "-x", "-q", "-p", "no:cacheprovider",
            f"--timeout={ENDS_AFTER_S}", f"--basetemp={self._directory / 'given'}",
            f"--junitxml={report}", *tests,
        ]  # fmt: skip
        kept = {name: was for name, was in os.environ.items() if not name.startswith("PYTEST_")}
        run = {
            "root": str(self.root),
            "arguments": arguments,
            "environment": {**kept, "PYTHONPATH": str(self.root)},
            "said": str(said),
        }
        code = self._forked(json.dumps(run), seconds)
        found = ElementTree.parse(report).iter("failure") if report.exists() else ()
        failures = tuple(failure.get("message", "") for failure in found)
        return Outcome(code, failures, said.read_text())

    def _forked(self, run: str, seconds: float) -> int:
        if self._forks is None:
            command = [sys.executable, str(FORKS)]
            self._forks = Popen(command, stdin=PIPE, stdout=PIPE, text=True, start_new_session=True)
        assert self._forks.stdin is not None
        assert self._forks.stdout is not None
        print(run, file=self._forks.stdin, flush=True)
        answer = [self._forks.stdout]
        try:
            until("pytest to end", lambda: bool(select(answer, [], [], 0)[0]), seconds)
            return int(answer[0].readline())
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        if self._forks is not None:
            os.killpg(self._forks.pid, signal.SIGKILL)
            self._forks.communicate()
            self._forks = None


def _write(file: Path, text: str) -> None:
    file.write_text(text)
    # What was compiled of the file counts while its time, in seconds, and its size do.
    Path(cache_from_source(str(file))).unlink(missing_ok=True)


@pytest.fixture(scope="module")
def copy(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Copy]:
    directory = tmp_path_factory.mktemp("mutations")
    made = Copy(directory)
    yield made
    made.close()
    shutil.rmtree(directory)  # pytest keeps those of three runs


@pytest.mark.parametrize("mutation", mutations(), ids=str)
def test_a_planted_mutation_is_found_by_its_test(copy: Copy, mutation: Mutation) -> None:
    with copy.planted(mutation):
        outcome = copy.run(mutation.test)
    why_not = outcome.why_missed(mutation)
    assert not why_not, f"{why_not}\n{outcome.said}"


def test_every_test_of_the_table_passes_in_a_copy_without_a_mutation(copy: Copy) -> None:
    """Else it would be the copy that it finds."""
    every = dict.fromkeys(mutation.test for mutation in mutations())
    outcome = copy.run(*every, seconds=ALL_WITHIN_S)
    assert outcome.code == 0, outcome.said


@pytest.mark.parametrize(
    ("new", "why_not"),
    [
        ("UNDEFINED_OFFSET < last_offset and last_offset < boundary", "nobody notices"),
        ("UNDEFINED_OFFSET < last < boundary", "does not run with it: NameError"),
        ("UNDEFINED_OFFSET <", "pytest ended with"),
    ],
    ids=["equal code", "a name that is not there", "no Python"],
)
def test_what_its_test_does_not_find_is_told(copy: Copy, new: str, why_not: str) -> None:
    (mutation,) = (m for m in mutations() if m.name == "ack-gate-at-b0")
    with copy.planted(replace(mutation, new=new)):
        outcome = copy.run(mutation.test)
    assert why_not in outcome.why_missed(mutation)
