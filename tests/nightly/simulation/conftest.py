"""A run leaves nothing behind here either."""

from __future__ import annotations

from tests.simulation.conftest import nothing_left_behind

__all__ = ["nothing_left_behind"]
