"""The Postgres of the contract tests."""

from __future__ import annotations

from tests.contract.conftest import database, migrated, postgres_server, world, worlds

__all__ = ["database", "migrated", "postgres_server", "world", "worlds"]
