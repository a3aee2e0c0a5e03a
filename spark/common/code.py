"""Which Tideline this process runs: what it tells of a log is the answer of this one alone."""

from __future__ import annotations

import hashlib
import importlib.resources
from collections.abc import Iterator
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from importlib.resources.abc import Traversable

PACKAGES = ("spark", "tideline")


def digest() -> str:
    """Of every module of Tideline's packages as they lie there now; empty where that cannot be
    told."""
    found = hashlib.sha256()
    try:
        for package in PACKAGES:
            for name, body in _modules(importlib.resources.files(package), package):
                found.update(f"{name} {len(body)} ".encode() + body)
    except Exception:
        # Whatever reads packages (a folder, an archive, an importer of somebody's own) has errors
        # of its own, and who asks can do without.
        return ""
    return found.hexdigest()


def _modules(folder: Traversable, name: str) -> Iterator[tuple[str, bytes]]:
    for one in sorted(folder.iterdir(), key=lambda one: one.name):
        path = f"{name}/{one.name}"
        if one.is_dir():
            yield from _modules(one, path)
        elif one.name.endswith(".py"):
            yield path, one.read_bytes()


DIGEST = digest()
"""As they lay when this module was imported: others may be put into their place while this process
runs what it has. Its copies (:mod:`spark.common.daemon`) have it from there."""
