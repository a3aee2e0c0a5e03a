"""What an image carries: its requirements are a part of the one lock, and enough for its role."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from importlib.metadata import packages_distributions
from pathlib import Path

import pytest
from packaging.utils import canonicalize_name

from infra.wheel import LIBRARY
from tests.support.waiting import HANGS_S

ROOT = Path(__file__).parents[3]
LOCKS = {name: ROOT / "infra" / "images" / f"{name}.lock" for name in ("service", "jobs")}
ROLES = {
    "gateway": ("service", ["tideline.gateway.__main__"], ["gateway", "run", "--help"]),
    "worker": (
        "service",
        ["tideline.worker.__main__", "tideline.cli.database", "tideline.migration.doctor"],
        ["worker", "run", "--help"],
    ),
    "jobs": (
        "jobs",
        [f"spark.{job}.job" for job in ("coverage", "retention", "tiering", "gc")],
        ["doctor", "--help"],
    ),
}
"""The lock, what the role imports, and a command of its image."""

WITHOUT = """
import importlib, json, sys
from importlib.abc import MetaPathFinder

missing = set(json.loads(sys.argv[1]))

class Missing(MetaPathFinder):
    def find_spec(self, name, path, target=None):
        if name.partition(".")[0] in missing:
            raise ModuleNotFoundError(f"{name} is not in the image", name=name)

sys.meta_path.insert(0, Missing())
for module in json.loads(sys.argv[2]):
    importlib.import_module(module)
sys.argv = ["tideline", *sys.argv[3:]]
importlib.import_module("tideline.cli.app").main()
"""


def pins(lock: Path) -> dict[str, str]:
    """Of each package its pin, its marker and hashes included."""
    text = re.sub(r"^\s*#.*\n", "", lock.read_text(), flags=re.MULTILINE)
    entries = re.findall(r"^(\S+)==((?:.*\\\n)*.*)$", text, re.MULTILINE)
    return {canonicalize_name(name.partition("[")[0]): rest for name, rest in entries}


def version_and_hashes(pin: str) -> tuple[str, frozenset[str]]:
    return re.split(r"[ ;]", pin, maxsplit=1)[0], frozenset(re.findall(r"sha256:\w+", pin))


@pytest.mark.parametrize("name", LOCKS)
def test_an_images_requirements_are_those_of_the_one_lock(name: str) -> None:
    every, some = pins(ROOT / "requirements.lock"), pins(LOCKS[name])
    assert len(some) > 30
    other = {
        package
        for package, pin in some.items()
        if package not in every or version_and_hashes(pin) != version_and_hashes(every[package])
    }
    assert other == set(), "run `make lock`"
    assert all(version_and_hashes(pin)[1] for pin in some.values())


def test_only_the_jobs_image_carries_spark_and_none_what_developers_need() -> None:
    service, jobs = pins(LOCKS["service"]).keys(), pins(LOCKS["jobs"]).keys()
    assert {"pyspark", "pandas", "pyarrow"} <= jobs - service
    assert not {"pytest", "mypy", "ruff", "apache-airflow", "supervisor", "uv"} & jobs


@pytest.mark.parametrize("role", ROLES)
def test_a_role_starts_with_what_its_image_carries(role: str) -> None:
    lock, modules, arguments = ROLES[role]
    carried = pins(LOCKS[lock]).keys()
    missing = [
        package
        for package, distributions in packages_distributions().items()
        if not {canonicalize_name(name) for name in distributions} & {*carried, "tideline"}
    ]
    assert "pytest" in missing
    command = [sys.executable, "-c", WITHOUT, json.dumps(missing), json.dumps(modules), *arguments]
    ran = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=HANGS_S)
    assert ran.returncode == 0, ran.stderr[-2000:]


def instructions(target: str) -> list[str]:
    """Of one stage of the Dockerfile, continued lines joined, comments left out."""
    text = re.sub(r"\\\n\s*", "", (ROOT / "Dockerfile").read_text())
    stage = re.search(rf"^FROM \S+ AS {target}\n(.*?)(?=^FROM |\Z)", text, re.M | re.S)
    assert stage is not None, f"no target {target}"
    return [line for line in stage[1].splitlines() if line and not line.startswith("#")]


@pytest.mark.parametrize("target", ["gateway", "worker", "jobs"])
def test_an_image_runs_as_nobody_in_particular_and_is_stopped_by_sigterm(target: str) -> None:
    lines = instructions(target)
    assert "USER 10001:10001" in lines
    assert lines.index("USER 10001:10001") < len(lines) - 1
    (entry,) = [line for line in lines if line.startswith("ENTRYPOINT ")]
    assert isinstance(json.loads(entry.removeprefix("ENTRYPOINT ")), list)
    assert "STOPSIGNAL SIGTERM" in instructions("base")


@pytest.mark.parametrize("target", ["gateway", "worker"])
def test_a_service_is_healthy_when_it_is_ready(target: str) -> None:
    (check,) = [line for line in instructions(target) if line.startswith("HEALTHCHECK ")]
    command = json.loads(check.partition("CMD ")[2])
    assert "/ready" in command[-1]
    compile(command[-1], "HEALTHCHECK", "exec")


def test_what_the_dockerfile_copies_is_let_in() -> None:
    kept = {
        line.removeprefix("!")
        for line in (ROOT / ".dockerignore").read_text().splitlines()
        if line.startswith("!")
    }
    copied = {
        source
        for stage in ("wire", "build")
        for line in instructions(stage)
        if line.startswith("COPY ") and not line.startswith("COPY --from=")
        for source in line.split()[1:-1]
    }
    assert copied == kept
    assert all((ROOT / source).exists() for source in copied)


def test_the_wheel_of_an_image_is_made_with_the_library_that_is_built_before() -> None:
    built, kept = (ROOT / source for source in (LIBRARY, ".dockerignore"))
    (brought,) = [line for line in instructions("build") if line.startswith("COPY --from=wire")]
    _, _, source, target = brought.split()
    assert (ROOT / source.removeprefix("/src/"), ROOT / target) == (built, built.parent)
    assert "wire/target" in kept.read_text().splitlines(), "one of the machine's own"
    lines = instructions("build")
    assert lines.index(brought) < next(n for n, line in enumerate(lines) if "uv build" in line)
