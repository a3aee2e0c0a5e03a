"""Which Temporal, and how it is reached: what an Airflow connection says."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from airflow.sdk.exceptions import AirflowFailException

if TYPE_CHECKING:
    from airflow.sdk import Connection

PORT = 7233
FIELDS = frozenset(
    {"namespace", "tls", "server_name", "server_ca", "client_cert", "client_key", "ui"}
)


@dataclass(frozen=True, slots=True)
class Target:
    """Of one server and namespace."""

    options: Mapping[str, Any] = field(repr=False)
    """Arguments of ``temporalio.client.Client.connect``; secrets are among them."""
    ui: str | None = None
    """Base URL of its UI."""

    @property
    def address(self) -> str:
        """``host:port``."""
        return str(self.options["target_host"])

    @property
    def namespace(self) -> str:
        return str(self.options.get("namespace", "default"))

    @property
    def key(self) -> str:
        """The same for the same options, whoever has read them."""
        return repr(sorted(self.options.items()))

    def link(self, workflow_id: str, run_id: str | None = None) -> str | None:
        """The workflow's, or its run's, page in the UI; ``None`` without one."""
        if not self.ui:
            return None
        parts = [self.namespace, "workflows", workflow_id, *([run_id, "history"] if run_id else [])]
        return "/".join((self.ui.rstrip("/"), "namespaces", *(quote(p, safe="") for p in parts)))


def target_of(connection: Connection) -> Target:
    """Raises :class:`AirflowFailException` with the field, the rule and the remedy."""
    from temporalio.service import TLSConfig

    extra = connection.extra_dejson
    where = f"connection {connection.conn_id!r}"
    if unknown := sorted(set(extra) - FIELDS):
        raise AirflowFailException(
            f"{where}: no field {unknown[0]!r} in extra; known are {', '.join(sorted(FIELDS))}"
        )
    if not connection.host:
        raise AirflowFailException(f"{where}: no host: write that of Temporal's frontend")
    if bool(extra.get("client_cert")) != bool(extra.get("client_key")):
        raise AirflowFailException(f"{where}: client_cert and client_key go together: set both")
    options: dict[str, Any] = {
        "target_host": f"{connection.host}:{connection.port or PORT}",
        "namespace": extra.get("namespace") or "default",
    }
    if connection.password:
        options["api_key"] = connection.password
    names: dict[str, Any] = {
        "server_root_ca_cert": _pem(where, extra, "server_ca"),
        "client_cert": _pem(where, extra, "client_cert"),
        "client_private_key": _pem(where, extra, "client_key"),
        "domain": extra.get("server_name") or None,
    }
    if any(names.values()):
        options["tls"] = TLSConfig(**names)
    elif _true(extra.get("tls")) or connection.password:
        options["tls"] = True
    return Target(options, extra.get("ui") or None)


def _pem(where: str, extra: Mapping[str, Any], name: str) -> bytes | None:
    """Text or a file's. A form of one line writes its line ends as ``\\n``."""
    if not (given := extra.get(name)):
        return None
    if given.lstrip().startswith("-----BEGIN"):
        return str(given).replace("\\n", "\n").encode()
    try:
        return Path(given).read_bytes()
    except OSError as error:
        raise AirflowFailException(
            f"{where}: {name}: {given} cannot be read: {error.strerror}"
        ) from None


def _true(value: object) -> bool:
    return value is True or str(value).lower() in ("true", "1", "yes")
