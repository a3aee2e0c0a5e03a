"""What a partition is on both sides."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True)
class Place:
    state: str
    nodes: Mapping[str, int]
    """By what the node is to it."""
    takes_writes: bool = True
    boundary: int = -1
    """B0; -1 where there is none."""

    @property
    def is_tracked(self) -> bool:
        return self.state != "classic"

    @property
    def has_suffix(self) -> bool:
        return self.boundary >= 0
