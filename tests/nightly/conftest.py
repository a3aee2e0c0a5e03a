"""What tests of the night share with those of integration."""

from __future__ import annotations

from tests.integration.conftest import services

__all__ = ["services"]
