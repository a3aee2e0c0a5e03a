"""Verdicts that are kept are of one Tideline: that which folded and judged."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from spark.common import code
from tests.support.waiting import HANGS_S


def test_the_code_is_that_of_every_module() -> None:
    names = [
        name
        for package in code.PACKAGES
        for name, _ in code._modules(code.importlib.resources.files(package), package)
    ]
    assert {"spark/coverage/judge.py", "spark/common/fold.py", "tideline/domain/coverage.py"} < {
        *names
    }
    assert all(name.endswith(".py") for name in names)
    assert code.digest() == code.DIGEST
    assert len(code.DIGEST) == 64


def test_what_is_put_in_its_place_later_is_not_the_code_that_runs(tmp_path: Path) -> None:
    for package in code.PACKAGES:
        shutil.copytree(
            Path(package), tmp_path / package, ignore=shutil.ignore_patterns("__pycache__")
        )
    program = f"""
from spark.common import code
from spark.coverage import judge
assert judge.__file__.startswith({str(tmp_path)!r})
with open(judge.__file__, "a") as file:
    file.write("# of another version")
print(judge.code.DIGEST, code.digest())
"""
    ran = subprocess.run(
        [sys.executable, "-c", program], cwd=tmp_path, capture_output=True, text=True, check=True,
        timeout=HANGS_S, env=os.environ | {"PYTHONPATH": str(tmp_path)},
    )  # fmt: skip
    imported, later = ran.stdout.split()
    assert imported == code.DIGEST
    assert later != imported


def test_a_module_that_cannot_be_read_makes_no_digest_and_fails_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(code.importlib.resources, "files", lambda _: tmp_path)
    (tmp_path / "one.py").write_text("1")
    (tmp_path / "notes.txt").symlink_to("nowhere")
    assert code.digest()
    (tmp_path / ".#one.py").symlink_to("nowhere")
    assert code.digest() == ""
    monkeypatch.undo()
    monkeypatch.setattr(code, "PACKAGES", ("no_such_package",))
    assert code.digest() == ""
