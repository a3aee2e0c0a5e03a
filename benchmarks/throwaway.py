"""A Postgres of its own on loopback, for a benchmark that needs no more than that."""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import psycopg

from tideline.demo.patience import Patience
from tideline.stack.parts.postgres import as_system_user, system_user, usable_binaries

START_S = 120.0
SETTINGS = {
    "listen_addresses": "127.0.0.1",
    "unix_socket_directories": "",
    "jit": "off",
    "max_wal_size": "8GB",
}


class ThrowawayPostgres:
    """Trusts whoever connects. ``settings`` are those of the server, by their names."""

    def __init__(self, directory: Path, settings: Mapping[str, str]) -> None:
        self._directory, self._settings = directory, SETTINGS | dict(settings)
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            self._port = int(probe.getsockname()[1])
        if os.getuid() == 0:
            owner = system_user()
            os.chown(directory, owner.pw_uid, owner.pw_gid)
        self._user = as_system_user()
        self._binaries = usable_binaries(directory)
        self._run("initdb", "-U", "postgres", "--auth=trust", "--encoding=UTF8", "--locale=C")
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def dsn(self) -> str:
        """The superuser's."""
        return f"host=127.0.0.1 port={self._port} user=postgres dbname=postgres"

    def start(self, **settings: str) -> None:
        """``settings``: beside those that it always has."""
        given = self._settings | {"port": str(self._port)} | settings
        flags = [part for name, value in given.items() for part in ("-c", f"{name}={value}")]
        log = self._directory / "postgres.log"
        with log.open("ab") as output:
            self._process = subprocess.Popen(
                [*self._user, str(self._binaries / "postgres"), "-D", self._data, *flags],
                cwd=self._directory, stdout=output, stderr=output,
            )  # fmt: skip
        patience = Patience(START_S)
        while True:
            try:
                psycopg.connect(self.dsn, connect_timeout=2).close()
                return
            except psycopg.OperationalError:
                if self._process.poll() is not None or patience.over:
                    raise RuntimeError(log.read_text()) from None
                time.sleep(0.05)

    def stop(self) -> None:
        """In order: everything is on disk."""
        if self._process is not None:
            self._process.send_signal(signal.SIGINT)
            self._process.wait(timeout=600)
            self._process = None

    @property
    def _data(self) -> str:
        return str(self._directory / "data")

    def _run(self, program: str, *arguments: str) -> None:
        subprocess.run(
            [*self._user, str(self._binaries / program), "-D", self._data, *arguments],
            cwd=self._directory, check=True, capture_output=True, timeout=120,
        )  # fmt: skip


@contextmanager
def throwaway(settings: Mapping[str, str]) -> Iterator[ThrowawayPostgres]:
    """A server that is not started yet; it and its data are gone at the end."""
    directory = Path(tempfile.mkdtemp(prefix="tideline-postgres-"))
    directory.chmod(0o755)
    server = ThrowawayPostgres(directory, settings)
    try:
        yield server
    finally:
        server.stop()
        shutil.rmtree(directory, ignore_errors=True)
