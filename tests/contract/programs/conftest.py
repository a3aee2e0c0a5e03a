"""Tests that start a program of Tideline's, or look at one from outside."""

from __future__ import annotations

from tests.unit.cli.conftest import own_logs

__all__ = ["own_logs"]
