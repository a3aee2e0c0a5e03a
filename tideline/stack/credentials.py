"""Generated passwords and keys: made once per home, readable by their owner only."""

from __future__ import annotations

import hmac
import json
import secrets
from dataclasses import asdict, dataclass, field, fields

from tideline.control_plane.migrate import gateway_role
from tideline.errors import UsageError
from tideline.stack.errors import StackError
from tideline.stack.home import Home, read_json, write_private

SUPERUSER = "postgres"
"""Postgres superuser: owns the schema and applies migrations."""

LOGIN_ROLES = {SUPERUSER: SUPERUSER, "worker": "tideline_worker", "jobs": "tideline_jobs"}
"""Short role name: Postgres login role. Gateways have one each, ``gateway-<node id>``."""


def login_role(role: str) -> str:
    """The Postgres login role of a short role name. Raises :class:`UsageError` for another."""
    kind, _, node = role.partition("-")
    if kind == "gateway" and node.isdigit():
        return gateway_role(int(node))
    if role not in LOGIN_ROLES:
        roles = ", ".join((*LOGIN_ROLES, "gateway-1"))
        raise UsageError(f"{role!r} is no role: choose one of {roles}")
    return LOGIN_ROLES[role]


@dataclass(frozen=True)
class Credentials:
    """Never printed: every field is left out of ``repr``."""

    postgres_superuser: str = field(repr=False)
    postgres_gateway: str = field(repr=False)
    postgres_worker: str = field(repr=False)
    postgres_jobs: str = field(repr=False)
    s3_admin_access_key: str = field(repr=False)
    s3_admin_secret_key: str = field(repr=False)
    s3_broker_access_key: str = field(repr=False)
    s3_broker_secret_key: str = field(repr=False)
    s3_access_key: str = field(repr=False)
    s3_secret_key: str = field(repr=False)
    supervisor: str = field(repr=False)

    def postgres(self, role: str) -> str:
        """The password of a short role name, as :func:`login_role` knows them. Those of gateways
        follow from one of them all, and do not tell it."""
        if role.startswith("gateway-"):
            return self._derived(self.postgres_gateway, f"{role} password")
        return {
            SUPERUSER: self.postgres_superuser,
            "worker": self.postgres_worker,
            "jobs": self.postgres_jobs,
        }[role]

    def s3_pair(self, process: str) -> tuple[str, str]:
        """Access key and secret key of ``gateway``, ``worker`` or ``jobs``, where each has its own.
        They follow from the keys that all share, and do not tell them."""
        shared = self.s3_secret_key
        access, secret = (
            self._derived(shared, f"{process} {kind}") for kind in ("access key", "secret key")
        )
        return access, secret

    @staticmethod
    def _derived(shared: str, what: str) -> str:
        return hmac.new(shared.encode(), what.encode(), "sha256").hexdigest()[:40]

    def login_passwords(self, brokers: int) -> dict[str, str]:
        """Postgres login role: password, without the superuser, of a stack of so many brokers."""
        gateways = [f"gateway-{node}" for node in range(1, brokers + 1)]
        roles = [short for short in LOGIN_ROLES if short != SUPERUSER]
        return {login_role(role): self.postgres(role) for role in (*gateways, *roles)}


def load_or_create(home: Home) -> Credentials:
    """The home's credentials; made at the first call."""
    stored = read_json(home.credentials_file)
    names = [entry.name for entry in fields(Credentials)]
    if stored is not None:
        missing = [name for name in names if name not in stored]
        if missing:
            raise StackError(
                f"{home.credentials_file} lacks {', '.join(missing)}. "
                f"Remove {home.path} to start afresh."
            )
        return Credentials(**{name: stored[name] for name in names})
    # Hex only: these end up in INI files, connection strings and property files.
    made = Credentials(**{name: secrets.token_hex(20) for name in names})
    write_private(home.credentials_file, json.dumps(asdict(made), indent=2) + "\n")
    return made
