"""What the wheel installs, and what an installation finds of it."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import sysconfig
import venv
import zipfile
from pathlib import Path

import pytest

from tests.support.waiting import HANGS_S
from tideline import __version__, installation
from tideline.errors import RefusedError
from tideline.installation import GENERIC_NAMES, refuse_strangers, shipped

ROOT = Path(__file__).parents[3]
DATA = ("dags", "infra/alerts", "infra/dashboards", "infra/kafka", "infra/postgres", "infra/spark")
MADE_BY_MAVEN = ROOT / "infra/kafka/target"


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("wheel")
    command = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(directory)]
    subprocess.run(command, cwd=ROOT, check=True, capture_output=True, timeout=HANGS_S)
    return next(directory.glob("*.whl"))


def shipped_files(below: str) -> set[str]:
    """As the source tree holds them."""
    return {
        str(path.relative_to(ROOT))
        for path in (ROOT / below).rglob("*")
        if path.is_file()
        and MADE_BY_MAVEN not in path.parents
        and path.suffix not in (".pyc", ".md")
        and not path.name.startswith(".")
    }


def test_nothing_generic_lands_in_site_packages_beyond_the_prescribed_packages(
    wheel: Path,
) -> None:
    top = {name.partition("/")[0] for name in zipfile.ZipFile(wheel).namelist()}
    assert {name for name in top if not name.endswith(".dist-info")} == {"tideline", *GENERIC_NAMES}


@pytest.mark.parametrize("below", DATA)
def test_the_wheel_carries_every_file_that_is_not_python_within_the_package(
    wheel: Path, below: str
) -> None:
    expected = {f"tideline/_data/{name}" for name in shipped_files(below)}
    assert expected
    assert expected <= set(zipfile.ZipFile(wheel).namelist())


@pytest.fixture(scope="module")
def installed(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The Python of an environment with the wheel in it, and nothing else."""
    directory = tmp_path_factory.mktemp("installed")
    venv.create(directory / "venv", with_pip=False)
    python = directory / "venv" / "bin" / "python"
    install = ["uv", "pip", "install", "--no-deps", "--offline", "--python", str(python)]
    uv = [sys.executable, "-m", *install, str(wheel)]
    subprocess.run(uv, check=True, capture_output=True, timeout=HANGS_S)
    return python


def test_an_installation_finds_what_it_carries_and_its_own_packages(
    installed: Path, tmp_path: Path
) -> None:
    script = "\n".join(
        [
            "from tideline.installation import refuse_strangers, shipped",
            "refuse_strangers()",
            *(f"print(shipped({below!r}))" for below in DATA),
        ]
    )
    ran = subprocess.run(
        [str(installed), "-c", script],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=HANGS_S,
    )
    assert ran.returncode == 0, ran.stderr
    for line in ran.stdout.splitlines():
        assert Path(line).is_relative_to(installed.parents[1])
        assert Path(line).is_dir()


def with_requirements(installed: Path, script: str) -> subprocess.CompletedProcess[str]:
    """Run by the installation, whose requirements are those of the source tree."""
    environment = {**os.environ, "PYTHONPATH": sysconfig.get_paths()["purelib"]}
    return subprocess.run(
        [str(installed), "-c", script],
        cwd=installed.parent,
        env=environment,
        capture_output=True,
        text=True,
        timeout=HANGS_S,
    )


def test_an_installation_loads_the_native_library_out_of_the_wheel(installed: Path) -> None:
    ran = with_requirements(
        installed,
        "from tideline.kafka.wire import LIBRARY, answer_passes, library\n"
        "from tideline.migration.doctor import gateways_library\n"
        "library()\n"
        "assert answer_passes(bytes(8), 12, 0)\n"
        "print(LIBRARY)\n"
        "print(gateways_library().found)",
    )
    assert ran.returncode == 0, ran.stderr
    where, told = ran.stdout.splitlines()
    assert Path(where).is_relative_to(installed.parents[1])
    assert told.startswith(f"{__version__} (border")


def test_a_wheel_with_the_library_is_for_its_platform_and_for_any_python_3(wheel: Path) -> None:
    platform = sysconfig.get_platform().replace("-", "_").replace(".", "_")
    assert wheel.name == f"tideline-{__version__}-py3-none-{platform}.whl"


def built(directory: Path) -> subprocess.CompletedProcess[str]:
    """What building a wheel comes to in a copy of the source tree, without a library that was built
    before, and without cargo."""
    left_out = shutil.ignore_patterns(".*", "target", "docs", "tests", "reports", "helm")
    shutil.copytree(ROOT, directory / "tree", ignore=left_out)
    return subprocess.run(
        [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(directory)],
        cwd=directory / "tree",
        env={"PATH": str(directory)},
        capture_output=True,
        text=True,
        timeout=HANGS_S,
    )


def test_without_cargo_no_wheel_is_made(tmp_path: Path) -> None:
    ran = built(tmp_path)
    assert ran.returncode != 0
    assert "cargo was not found" in ran.stderr + ran.stdout
    assert "Install Rust" in ran.stderr + ran.stdout
    assert not list(tmp_path.glob("*.whl"))


def test_the_source_tree_finds_its_own() -> None:
    refuse_strangers()
    assert [shipped(below) for below in DATA] == [ROOT / below for below in DATA]


def test_a_package_of_the_same_name_that_comes_first_is_refused_with_its_place(
    tmp_path: Path,
) -> None:
    (tmp_path / "workflows").mkdir()
    (tmp_path / "workflows" / "__init__.py").touch()
    script = (
        "import sys\n"
        f"sys.path[:0] = [{str(tmp_path)!r}, {str(ROOT)!r}]\n"
        "from tideline.worker.__main__ import main\n"
        "sys.exit(main())"
    )
    ran = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, timeout=HANGS_S
    )
    assert ran.returncode == RefusedError.exit_code
    assert f"the package `workflows` is not Tideline's: it is {tmp_path / 'workflows'}" in (
        ran.stdout + ran.stderr
    )


def test_an_incomplete_installation_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "tideline" / "_data").mkdir(parents=True)
    monkeypatch.setattr(installation, "PACKAGE", tmp_path / "tideline")
    with pytest.raises(RefusedError, match=r"infra/postgres is missing: install tideline"):
        shipped("infra/postgres")
