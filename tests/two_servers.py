"""A stack of one broker whose Postgres is a primary and a standby of the test's own, both named in
one connection string, with a gateway and a worker that nobody starts again when they end."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, fields
from pathlib import Path
from typing import cast
from urllib.request import urlopen

import psycopg
from psycopg.conninfo import make_conninfo

from tests.contract.conftest import PostgresServer, a_server
from tests.support.waiting import HANGS_S, exited, until
from tideline.control_plane.migrate import apply, provision_roles
from tideline.stack import Stack
from tideline.stack.credentials import SUPERUSER, login_role
from tideline.stack.endpoints import DATABASE, Endpoints
from tideline.stack.errors import NotReadyError
from tideline.stack.ports import LOOPBACK
from tideline.stack.probes import http_up, kafka_nodes

PARTS = ("s3", "temporal", "kafka")
GATEWAY, WORKER = "gateway-1", "worker"
SOON = {"TIDELINE_HISTORY_POSITION_MS": "2000"}
"""A rebuild watches for somewhat longer than the worker waits between two positions."""


@dataclass(frozen=True)
class BothServers(Endpoints):
    """Two hosts in each connection string, as operators of a standby write it."""

    servers: tuple[PostgresServer, PostgresServer]

    def postgres_dsn(self, role: str = "worker") -> str:
        # Tideline's own processes ask for the primary by themselves, tools of a test do not.
        tool = {"target_session_attrs": "read-write"} if role == SUPERUSER else {}
        return make_conninfo(
            host=",".join(LOOPBACK for _ in self.servers),
            port=",".join(str(server.port) for server in self.servers),
            user=login_role(role),
            dbname=DATABASE,
            **tool,
        )


class TwoServers(Stack):
    """Attach to a stack without Postgres, gateway and worker, then set :attr:`servers`: the primary
    first."""

    servers: tuple[PostgresServer, PostgresServer]

    @property
    def primary(self) -> PostgresServer:
        return self.servers[0]

    @property
    def standby(self) -> PostgresServer:
        return self.servers[1]

    @property
    def endpoints(self) -> Endpoints:
        plain = super().endpoints
        known = {field.name: getattr(plain, field.name) for field in fields(plain)}
        return BothServers(**known, servers=self.servers)

    def environment(self, role: str) -> dict[str, str]:
        dsn = self.endpoints.postgres_dsn(role)
        found = super().environment(role)
        return {
            name: dsn if name.endswith("POSTGRES_DSN") else value for name, value in found.items()
        }

    def make_schema(self) -> None:
        """In the primary: database, tables, roles, and that the brokers are closed."""
        with psycopg.connect(self.primary.dsn, autocommit=True) as admin:
            admin.execute(f"CREATE DATABASE {DATABASE}".encode())
        dsn = self.endpoints.postgres_dsn(SUPERUSER)
        apply(dsn)
        provision_roles(dsn, self._plan.credentials.login_passwords(brokers=1))
        with psycopg.connect(dsn, autocommit=True) as admin:
            cluster_id = self._plan.state.kafka_cluster_id
            why = "its brokers listen on loopback"
            admin.execute("SELECT tideline.attest_cluster(%s, 'a test', %s)", [cluster_id, why])

    def begin_to_follow(self, *, synchronous: bool) -> None:
        """The standby is a new copy of the primary; with ``synchronous`` commits wait for it."""
        self.standby.stop()
        self.standby.follow(self.primary)
        self.standby.start(fsync="on")
        names = "*" if synchronous else ""
        with psycopg.connect(self.primary.dsn, autocommit=True) as admin:
            # Behind the copy, which does not get it: nobody stands by when it is the primary.
            admin.execute(f"ALTER SYSTEM SET synchronous_standby_names = '{names}'".encode())
            admin.execute("SELECT pg_reload_conf()")
        wanted = "sync" if synchronous else "async"
        until("the standby to follow", lambda: self.followers() == [wanted])

    def identity(self) -> list[tuple[object, ...]]:
        """System identifier and timeline of the primary."""
        return _rows(self.primary, "SELECT i.system_identifier, i.timeline"
                                   " FROM tideline.server_identity(NULL, NULL) AS i")  # fmt: skip

    def followers(self) -> list[str]:
        """How each standby that is connected to the primary follows it."""
        query = "SELECT sync_state FROM pg_stat_replication WHERE state = 'streaming'"
        return [str(row[0]) for row in _rows(self.primary, query)]

    def let_standby_fall_behind(self) -> None:
        """It takes reads, and nothing more from the primary."""
        with psycopg.connect(self.standby.dsn, autocommit=True) as admin:
            admin.execute("ALTER SYSTEM SET primary_conninfo = ''")
            admin.execute("SELECT pg_reload_conf()")
        until("the standby to be cut off", lambda: self.followers() == [])

    def promote(self) -> None:
        """The standby is the primary from now on. Nothing happens to the old one."""
        with psycopg.connect(self.standby.dsn, autocommit=True) as admin:
            assert admin.execute("SELECT pg_promote()").fetchone() == (True,)
        self.servers = (self.standby, self.primary)


def _rows(server: PostgresServer, query: str) -> list[tuple[object, ...]]:
    dsn = make_conninfo(server.dsn, dbname=DATABASE)
    with psycopg.connect(dsn, autocommit=True) as connection:
        return connection.execute(query.encode()).fetchall()


def high_watermarks(server: PostgresServer, topics: Sequence[str]) -> dict[tuple[str, int], int]:
    """Of each partition, as this server alone has them."""
    found = _rows(server, "SELECT topic_name, partition, high_watermark FROM tideline.logs")
    return {
        (str(topic), int(str(partition))): int(str(end))
        for topic, partition, end in found
        if topic in topics
    }


class Role:
    """A gateway or the worker. When it ends, it stays down."""

    def __init__(self, stack: Stack, name: str) -> None:
        self._stack, self.name = stack, name
        self.log = stack.home / "logs" / f"{name}.log"
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Does not wait for it."""
        (self._stack.home / "data" / self.name).mkdir(exist_ok=True)
        inherited = {k: v for k, v in os.environ.items() if not k.startswith("TIDELINE_")}
        module = f"tideline.{self.name.partition('-')[0]}"
        with self.log.open("ab") as log:
            self._process = subprocess.Popen(
                [sys.executable, "-m", module], stdout=log, stderr=log,
                env=inherited | self._stack.environment(self.name),
            )  # fmt: skip

    def wait_ready(self) -> None:
        """Until it serves."""
        until(f"{self.name} to serve", self._serves, HANGS_S)

    @property
    def runs(self) -> bool:
        return self._process is not None and self._process.poll() is None

    def ended(self, within_s: float = HANGS_S) -> int:
        """Its exit code, once it has ended by itself."""
        assert self._process is not None
        return exited(self._process, self.name, within_s)

    def stop(self) -> None:
        """An orderly stop; nothing happens if it has ended."""
        if self._process is not None and self.runs:
            self._process.send_signal(signal.SIGTERM)
            self._process.wait(HANGS_S)

    def said(self, event: str) -> list[str]:
        """Lines of its log with ``event``."""
        lines = self.log.read_text(errors="replace").splitlines()
        return [line for line in lines if event in line]

    def metric(self, name: str) -> float:
        """The sum of a metric's series now."""
        address = self._stack.endpoints.metrics[self.name]
        text = urlopen(f"http://{address}/metrics", timeout=HANGS_S).read().decode()
        series = [line for line in text.splitlines() if line.partition("{")[0].split()[0] == name]
        assert series, f"{self.name} has no metric {name}"
        return sum(float(line.rpartition(" ")[2]) for line in series)

    def _serves(self) -> bool:
        assert self.runs, f"{self.name} has ended: {self.log}"
        endpoints = self._stack.endpoints
        is_worker = self.name == WORKER
        where = endpoints.metrics[WORKER] if is_worker else endpoints.gateways[1]
        host, _, port = where.rpartition(":")
        try:
            if is_worker:
                http_up((host, int(port)), "/health")
            else:
                kafka_nodes((host, int(port)))
        except NotReadyError:
            return False
        return True


@contextmanager
def two_servers(home: Path) -> Iterator[TwoServers]:
    """The stack is up, its primary has the schema, and its standby does not run yet. Servers are
    gone at the end; the stack is left to the caller."""
    Stack.up(home, brokers=1, parts=PARTS, settings=SOON)
    stack = cast(TwoServers, TwoServers.attach(home))
    with ExitStack() as held:
        one, other = (held.enter_context(a_server("tideline-server-")) for _ in range(2))
        stack.servers = (one, other)
        one.start(fsync="on")
        stack.make_schema()
        yield stack


@contextmanager
def serving(stack: Stack) -> Iterator[tuple[Role, Role]]:
    """A gateway and a worker, both started; stopped at the end, however they did."""
    gateway, worker = Role(stack, GATEWAY), Role(stack, WORKER)
    try:
        for role in (worker, gateway):
            role.start()
        for role in (gateway, worker):
            role.wait_ready()
        yield gateway, worker
    finally:
        gateway.stop()
        worker.stop()
