"""What the wheel installs, and what an installation finds of it."""

from __future__ import annotations

import subprocess
import sys
import venv
import zipfile
from pathlib import Path

import pytest

from tideline import installation
from tideline.errors import RefusedError
from tideline.installation import GENERIC_NAMES, refuse_strangers, shipped

ROOT = Path(__file__).parents[2]
DATA = ("dags", "infra/alerts", "infra/dashboards", "infra/kafka", "infra/postgres")
MADE_BY_MAVEN = ROOT / "infra/kafka/target"


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("wheel")
    command = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(directory)]
    subprocess.run(command, cwd=ROOT, check=True, capture_output=True, timeout=120)
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


def test_an_installation_finds_what_it_carries_and_its_own_packages(
    wheel: Path, tmp_path: Path
) -> None:
    venv.create(tmp_path / "venv", with_pip=False)
    python = tmp_path / "venv" / "bin" / "python"
    install = ["uv", "pip", "install", "--no-deps", "--offline", "--python", str(python)]
    uv = [sys.executable, "-m", *install, str(wheel)]
    subprocess.run(uv, check=True, capture_output=True, timeout=120)
    script = "\n".join(
        [
            "from tideline.installation import refuse_strangers, shipped",
            "refuse_strangers()",
            *(f"print(shipped({below!r}))" for below in DATA),
        ]
    )
    ran = subprocess.run(
        [str(python), "-c", script], cwd=tmp_path, capture_output=True, text=True, timeout=60
    )
    assert ran.returncode == 0, ran.stderr
    for line in ran.stdout.splitlines():
        assert Path(line).is_relative_to(tmp_path / "venv")
        assert Path(line).is_dir()


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
    ran = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60)
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
