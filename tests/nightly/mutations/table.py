"""Mutations of the source as data: ``table.toml``, and those of the workflows beside the histories
that find them."""

from __future__ import annotations

import tomllib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[3]
TABLES = (Path(__file__).with_name("table.toml"), ROOT / "tests/replay/mutants.toml")


@dataclass(frozen=True, slots=True)
class Mutation:
    """One replacement in one file, and the test that finds it."""

    name: str
    breaks: str
    """What goes wrong, as one sentence."""
    file: str
    """Path from the root of the tree."""
    old: str
    new: str
    test: str
    """As pytest is given it."""

    def __str__(self) -> str:
        return self.name

    def planted(self, text: str) -> str:
        """``text`` of the file with the mutation in it. Raises ``AssertionError`` unless ``old``
        stands there once: the row is not about this code any more."""
        found = text.count(self.old)
        assert found == 1, f"{self.name}: {self.file} has {found} times what is to be replaced"
        assert self.new != self.old, f"{self.name} changes nothing"
        return text.replace(self.old, self.new)


def mutations(tables: Sequence[Path] = TABLES) -> list[Mutation]:
    """In the order of the tables. Raises ``TypeError`` for a row with a part too few or too
    many."""
    rows = (row for table in tables for row in tomllib.loads(table.read_text()).items())
    return [Mutation(name, **parts) for name, parts in rows]
