"""Mutations of the source as data: ``table.toml``."""

from __future__ import annotations

import tomllib
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[3]


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


def mutations() -> list[Mutation]:
    """In the order of the table. Raises ``TypeError`` for a row with a part too few or too many."""
    table = tomllib.loads(Path(__file__).with_name("table.toml").read_text())
    return [Mutation(name, **row) for name, row in table.items()]
