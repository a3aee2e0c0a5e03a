"""What is installed beside the modules of this package: files that are not Python, and packages
with names that others use, too (docs/install.md)."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path

from tideline.errors import RefusedError

PACKAGE = Path(__file__).resolve().parent
GENERIC_NAMES = ("workflows", "activities", "spark")
"""Packages of this project that lie beside ``tideline``."""
NATIVE = "libtideline_wire.so"
"""The library of the native transport; in a source tree it is where cargo puts it."""


def shipped(path: str) -> Path:
    """A directory of the project, such as ``infra/postgres``: in the source tree, or in an
    installation, where it lies inside the package. Raises :class:`RefusedError`."""
    inside = PACKAGE / "_data"
    found = (inside if inside.is_dir() else PACKAGE.parent) / path
    if not found.is_dir():
        raise RefusedError(f"{found} is missing: install tideline from its wheel or source tree")
    return found


def native_library() -> Path:
    """Where :data:`NATIVE` is, if it is there."""
    inside = PACKAGE / "_data"
    directory = inside / "wire" if inside.is_dir() else PACKAGE.parent / "wire/target/release"
    return directory / NATIVE


def refuse_strangers() -> None:
    """Raises :class:`RefusedError` when another package hides one of this project's."""
    for name in GENERIC_NAMES:
        spec = find_spec(name)
        where = Path(spec.origin).resolve().parent if spec and spec.origin else None
        if where != PACKAGE.parent / name:
            raise RefusedError(
                f"the package `{name}` is not Tideline's: it is {where or 'not found'}, and should "
                f"be {PACKAGE.parent / name}. Tideline wants an environment of its own, without a "
                f"package `{name}` before it in PYTHONPATH or in the current directory."
            )
