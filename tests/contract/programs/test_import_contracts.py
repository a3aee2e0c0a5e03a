"""`make lint` says who may import what; each contract fails on what it forbids."""

from __future__ import annotations

import re
import shutil
import subprocess
import sysconfig
import tomllib
from pathlib import Path

from tests.support.waiting import HANGS_S

ROOT = Path(__file__).parents[3]
SETTINGS = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]
LINT = Path(sysconfig.get_path("scripts")) / "lint-imports"
VIOLATIONS = {
    "tideline/domain/ids.py": "import socket",
    "workflows/phases.py": "import random",
    "activities/topic.py": "import workflows.phases",
    "tideline/background.py": "import tideline.kafka.client",
    "tideline/control_plane/errors.py": "import tideline.control_plane.pool",
    "tideline/stack/ports.py": "import spark.gc.job",
    "tideline/cli/steer.py": "import psycopg",
    "tideline/airflow/wiring.py": "import boto3",
    "dags/tideline_gc.py": "import tideline.control_plane",
    "tideline/gateway/messages.py": "import tideline.gateway.produce.handler",
    "tideline/gateway/transport/broker.py": "import tideline.gateway.tracking.view",
    "spark/common/session.py": "import spark.gc.job",
    "tideline/airflow/temporal/hook.py": "import tideline.errors",
}


def lint(tree: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [LINT, "--no-cache", "--no-logo"],
        cwd=tree,
        env={"COLUMNS": "200", "PATH": ""},
        capture_output=True,
        text=True,
        timeout=HANGS_S,
    )


def test_every_contract_is_kept() -> None:
    found = lint(ROOT)
    assert found.returncode == 0, found.stdout


def test_each_contract_is_broken_by_an_import_that_it_forbids(tmp_path: Path) -> None:
    for package in SETTINGS["root_packages"]:
        shutil.copytree(ROOT / package, tmp_path / package)
    (tmp_path / "dags" / "__init__.py").touch()  # or that of the source tree would be read, too
    (tmp_path / "infra").mkdir()
    shutil.copy(ROOT / "infra" / "import_contracts.py", tmp_path / "infra")
    shutil.copy(ROOT / "pyproject.toml", tmp_path)
    for file, line in VIOLATIONS.items():
        with (tmp_path / file).open("a") as source:
            source.write(f"\n{line}\n")
    found = lint(tmp_path)
    assert found.returncode == 1
    broken = set(re.findall(r"^(.+) BROKEN\b", found.stdout, re.MULTILINE))
    assert broken == {contract["name"] for contract in SETTINGS["contracts"]}
