"""A private Postgres for the contract tests: one server per run, one database per test module."""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass
from itertools import count
from pathlib import Path

import psycopg
import pytest
from psycopg import sql
from psycopg.conninfo import make_conninfo
from pydantic import SecretStr

from tests.contract.scenes import MemoryScene, PostgresScene, Scene
from tideline.control_plane import ControlPlane, connect
from tideline.control_plane.migrate import apply, provision_roles
from tideline.demo.patience import Patience
from tideline.settings import ControlPlaneSettings
from tideline.stack.parts.postgres import as_system_user, system_user, usable_binaries

PASSWORDS = {
    "tideline_gateway": "gateway-secret",
    "tideline_worker": "worker-secret",
    "tideline_jobs": "jobs-secret",
}
START_TIMEOUT_S = 60.0


class PostgresServer:
    """A throw-away server on loopback, with durability switched off for speed."""

    def __init__(self, directory: Path) -> None:
        self._data = directory / "data"
        self._log = directory / "postgres.log"
        self._process: subprocess.Popen[bytes] | None = None
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            self.port = int(probe.getsockname()[1])
        if os.getuid() == 0:
            owner = system_user()
            os.chown(directory, owner.pw_uid, owner.pw_gid)
        self._prefix = as_system_user()
        self._bin = usable_binaries(directory)
        subprocess.run(
            [*self._prefix, str(self._bin / "initdb"), "-D", str(self._data), "-U", "postgres",
             "--auth=trust", "--encoding=UTF8", "--locale=C", "--no-sync"],
            cwd=directory, check=True, capture_output=True, timeout=60,
        )  # fmt: skip
        self._directory = directory

    @property
    def dsn(self) -> str:
        return f"host=127.0.0.1 port={self.port} user=postgres dbname=postgres"

    def start(self) -> None:
        settings = {
            "listen_addresses": "127.0.0.1",
            "port": str(self.port),
            "unix_socket_directories": "",
            "fsync": "off",
            "max_connections": "60",
            "shared_buffers": "64MB",
            "jit": "off",
        }
        flags = [part for name, value in settings.items() for part in ("-c", f"{name}={value}")]
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(
                [*self._prefix, str(self._bin / "postgres"), "-D", str(self._data), *flags],
                cwd=self._directory, stdout=log, stderr=log,
            )  # fmt: skip
        patience = Patience(START_TIMEOUT_S)
        while True:
            try:
                psycopg.connect(self.dsn, connect_timeout=2).close()
                return
            except psycopg.OperationalError:
                if self._process.poll() is not None or patience.over:
                    raise RuntimeError(self._log.read_text()) from None
                time.sleep(0.05)

    def client(self, program: str, database: str, *arguments: str, stdin: str = "") -> str:
        """What a client program of the installation prints."""
        return subprocess.run(
            [str(self._bin / program), make_conninfo(self.dsn, dbname=database), *arguments],
            input=stdin, check=True, capture_output=True, text=True, timeout=60,
        ).stdout  # fmt: skip

    def copy_volume(self) -> Path:
        """Of a stopped server, as a snapshot of its volume would be."""
        copy = self._data.with_name("copy")
        shutil.copytree(self._data, copy)
        return copy

    def roll_back(self, copy: Path) -> None:
        """A stopped server's volume becomes ``copy`` again."""
        shutil.rmtree(self._data)
        copy.rename(self._data)
        if os.getuid() == 0:
            owner = system_user()
            for path in (self._data, *self._data.rglob("*")):
                os.chown(path, owner.pw_uid, owner.pw_gid)

    def become_standby(self) -> None:
        """From the next start on, until it is promoted."""
        (self._data / "standby.signal").touch()

    def stop(self) -> None:
        """Immediate: what a crash of the server looks like to its clients."""
        if self._process is not None:
            self._process.send_signal(signal.SIGQUIT)
            self._process.wait(timeout=20)
            self._process = None


@pytest.fixture(scope="session")
def postgres_server() -> Iterator[PostgresServer]:
    directory = Path(tempfile.mkdtemp(prefix="tideline-contract-"))
    try:
        server = PostgresServer(directory)
        server.start()
        try:
            yield server
        finally:
            server.stop()
    finally:
        shutil.rmtree(directory, ignore_errors=True)


@dataclass(frozen=True)
class Database:
    """A migrated database. ``dsn`` is the superuser's."""

    dsn: str

    def as_role(self, role: str) -> str:
        return make_conninfo(self.dsn, user=role, password=PASSWORDS[role])

    def settings(self, role: str | None = None, **values: object) -> ControlPlaneSettings:
        dsn = self.dsn if role is None else self.as_role(role)
        return ControlPlaneSettings.model_validate(
            {"postgres_dsn": SecretStr(dsn), "postgres_pool_size": 4, **values}
        )


_database_numbers = count(1)


@pytest.fixture(scope="module")
def database(postgres_server: PostgresServer) -> Database:
    """A fresh database with every migration applied and the login roles provisioned."""
    name = f"contract_{next(_database_numbers)}"
    with psycopg.connect(postgres_server.dsn, autocommit=True) as connection:
        connection.execute(sql.SQL("CREATE DATABASE {}").format(sql.Identifier(name)))
    dsn = make_conninfo(postgres_server.dsn, dbname=name)
    apply(dsn)
    provision_roles(dsn, PASSWORDS)
    return Database(dsn)


@pytest.fixture(scope="module")
def postgres_dsn(database: Database) -> str:
    """Superuser connection string of a migrated database."""
    return database.dsn


@pytest.fixture
async def control_plane(database: Database) -> AsyncIterator[ControlPlane]:
    """The adapter with every right, as a test's hands and eyes."""
    async with connect(database.settings(), application_name="contract-test") as plane:
        yield plane


@pytest.fixture
def postgres_scene(control_plane: ControlPlane, database: Database) -> Iterator[PostgresScene]:
    """Empty tables and a builder of situations in them."""
    scene = PostgresScene(control_plane, database.dsn)
    scene.clear()
    yield scene
    scene.jobs.close()


@pytest.fixture(params=["memory", "postgres"])
def scene(request: pytest.FixtureRequest) -> Scene:
    """An empty control plane of each kind: what is asked of ``scene`` holds of both."""
    if request.param == "memory":
        return MemoryScene()
    found: PostgresScene = request.getfixturevalue("postgres_scene")
    return found
