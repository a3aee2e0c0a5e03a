"""A private Postgres for the contract tests, one server per run and one database per test module;
and one Temporal server that skips time."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import tempfile
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING

import psutil
import psycopg
import pytest
from psycopg import sql
from psycopg.conninfo import make_conninfo
from pydantic import SecretStr

from benchmarks.throwaway import ThrowawayPostgres
from tests.contract.scenes import MemoryScene, PostgresScene, Scene
from tests.ports import free_port
from tests.support.waiting import HANGS_S, until
from tests.unit.rebuild.buckets import Bucket
from tideline.control_plane import ControlPlane, connect
from tideline.control_plane.migrate import apply, provision_roles
from tideline.rebuild.postgres import RebuildPostgres
from tideline.settings import ControlPlaneSettings
from tideline.stack import processes
from tideline.stack.parts.postgres import system_user
from tideline.stack.startup import tail

if TYPE_CHECKING:
    from temporalio.testing import WorkflowEnvironment

    from tests.contract.tiering import Tiered
    from tests.contract.tiering_world import World

PASSWORDS = {
    "tideline_gateway_1": "gateway-secret",
    "tideline_worker": "worker-secret",
    "tideline_jobs": "jobs-secret",
}
START_TIMEOUT_S = 60.0


SETTINGS = {
    "fsync": "off",
    "max_connections": "60",
    "shared_buffers": "64MB",
    # A transaction of its own in any database would hold back what is told of as changed.
    "autovacuum": "off",
}


class PostgresServer(ThrowawayPostgres):
    """With durability switched off for speed, and what happens to servers and their volumes."""

    def __init__(self, directory: Path) -> None:
        super().__init__(directory, SETTINGS, start_s=START_TIMEOUT_S, port=free_port())

    def client(self, program: str, database: str, *arguments: str, stdin: str = "") -> str:
        """What a client program of the installation prints."""
        return subprocess.run(
            [str(self.binaries / program), make_conninfo(self.dsn, dbname=database), *arguments],
            input=stdin, check=True, capture_output=True, text=True, timeout=HANGS_S,
        ).stdout  # fmt: skip

    def copy_volume(self) -> Path:
        """Of a stopped server, as a snapshot of its volume would be."""
        copy = self.data.with_name("copy")
        shutil.copytree(self.data, copy)
        return copy

    def roll_back(self, copy: Path) -> None:
        """A stopped server's volume becomes ``copy`` again."""
        shutil.rmtree(self.data)
        copy.rename(self.data)
        if os.getuid() == 0:
            owner = system_user()
            for path in (self.data, *self.data.rglob("*")):
                os.chown(path, owner.pw_uid, owner.pw_gid)

    def become_standby(self) -> None:
        """From the next start on, until it is promoted."""
        (self.data / "standby.signal").touch()

    def follow(self, primary: PostgresServer) -> None:
        """A stopped server's volume becomes a copy of a running primary's, and follows it from the
        next start on."""
        shutil.rmtree(self.data, ignore_errors=True)  # it may be lost
        self._run("pg_basebackup", "-d", primary.dsn, "-X", "stream", "-c", "fast", "-R")

    def last_words(self) -> str:
        """The end of its log."""
        return "\n".join(tail(self._directory / "postgres.log", 40))

    def stop(self) -> None:
        """Immediate: what a crash of the server looks like to its clients."""
        self._end(signal.SIGQUIT, within_s=HANGS_S)

    def kill(self) -> None:
        """SIGKILL to each of its processes: nobody says goodbye."""
        assert self._process is not None
        members = processes.family(self._process.pid)
        processes.signal_all(members, signal.SIGKILL)
        self._process.wait()
        self._process = None
        until("the processes to be gone", lambda: not psutil.wait_procs(members, timeout=0)[1])


@contextmanager
def a_server(prefix: str) -> Iterator[PostgresServer]:
    """It does not run yet; it is gone at the end."""
    directory = Path(tempfile.mkdtemp(prefix=prefix))
    try:
        server = PostgresServer(directory)
        try:
            yield server
        finally:
            server.stop()
    finally:
        shutil.rmtree(directory, ignore_errors=True)


@pytest.fixture(scope="session")
def postgres_server() -> Iterator[PostgresServer]:
    with a_server("tideline-contract-") as server:
        server.start()
        yield server


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


def create_database(server: PostgresServer, name: str, template: str = "template1") -> str:
    """Its connection string."""
    statement = sql.SQL("CREATE DATABASE {} TEMPLATE {}")
    with psycopg.connect(server.dsn, autocommit=True) as connection:
        connection.execute(statement.format(sql.Identifier(name), sql.Identifier(template)))
    return make_conninfo(server.dsn, dbname=name)


_database_numbers = count(1)


@pytest.fixture(scope="session")
def migrated(postgres_server: PostgresServer) -> str:
    """The database that others are copies of: to apply every migration takes most of a second."""
    name = "migrated"
    dsn = create_database(postgres_server, name)
    apply(dsn)
    provision_roles(dsn, PASSWORDS)
    return name


@pytest.fixture(scope="module")
def database(postgres_server: PostgresServer, migrated: str) -> Database:
    """A fresh database with every migration applied and the login roles provisioned."""
    name = f"contract_{next(_database_numbers)}"
    return Database(create_database(postgres_server, name, migrated))


@pytest.fixture(scope="module")
def worlds(database: Database) -> Iterator[Callable[[], World]]:
    """A world of tiering that begins anew each time it is asked for."""
    from tests.contract.tiering_world import World  # which needs this module

    with World.factory(database) as begin:
        yield begin


@pytest.fixture
def world(worlds: Callable[[], World]) -> World:
    return worlds()


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


@pytest.fixture
async def tiered(postgres_scene: PostgresScene, database: Database) -> AsyncIterator[Tiered]:
    """Empty tables, a gateway that commits, and a worker of split and merge."""
    from tests.contract.tiering import Tiered, Worker, jobs  # which need this module

    with jobs(database) as plane:
        yield Tiered(postgres_scene, await postgres_scene.gateway(), Worker(plane))


@pytest.fixture(params=["memory", "postgres"])
def scene(request: pytest.FixtureRequest) -> Scene:
    """An empty control plane of each kind: what is asked of ``scene`` holds of both."""
    if request.param == "memory":
        return MemoryScene()
    found: PostgresScene = request.getfixturevalue("postgres_scene")
    return found


@pytest.fixture
def postgres(database: Database) -> Iterator[RebuildPostgres]:
    """As ``tideline rebuild`` has it."""
    found = RebuildPostgres(database.settings())
    yield found
    found.close()


@pytest.fixture(scope="session")
async def skipping_server() -> AsyncIterator[WorkflowEnvironment]:
    from tests.contract.workflows.skipping import time_skipping_server

    async with time_skipping_server() as environment:
        yield environment


@pytest.fixture
async def skipping(skipping_server: WorkflowEnvironment) -> AsyncIterator[WorkflowEnvironment]:
    """Temporal's server on which hours of waiting take milliseconds. The tests of a process share
    it one after the other: workflows have ids and queues of their own, and its clock is ahead, by
    ten years for each workflow that has failed (the server would still end it then)."""
    from tests.contract.workflows.skipping import settled

    yield skipping_server
    await settled(skipping_server)


@pytest.fixture
def bucket() -> Bucket:
    return Bucket()
