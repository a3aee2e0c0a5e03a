"""The schema and the login roles of the control plane, applied once Postgres answers."""

from __future__ import annotations

import importlib
import importlib.util
from collections.abc import Mapping

MIGRATIONS = "tideline.control_plane.migrate"


def provision(dsn: str, passwords: Mapping[str, str]) -> None:
    """Apply the migrations as superuser ``dsn`` and give each login role its password."""
    if importlib.util.find_spec(MIGRATIONS) is None:
        return
    migrate = importlib.import_module(MIGRATIONS)
    migrate.apply(dsn)
    migrate.provision_roles(dsn, dict(passwords))
