"""A Postgres of its own on loopback, for what needs no more than that."""

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
LARGE = {"max_wal_size": "8GB"}
"""For what writes as much as it can."""
SETTINGS = {
    "listen_addresses": "127.0.0.1",
    "unix_socket_directories": "",
    "jit": "off",
}


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


class ThrowawayPostgres:
    """Trusts whoever connects. ``settings`` are those of the server, by their names."""

    def __init__(
        self,
        directory: Path,
        settings: Mapping[str, str],
        *,
        start_s: float = START_S,
        port: int | None = None,
        binaries: Path | None = None,
    ) -> None:
        """``start_s``: how long a start may stand still. ``port``: one that is free now, if none is
        given. ``binaries``: of another installation than the embedded stack's."""
        self._directory, self._settings = directory, SETTINGS | dict(settings)
        self._start_s = start_s
        self.data = directory / "data"
        self.port = port or _free_port()
        if os.getuid() == 0:
            owner = system_user()
            os.chown(directory, owner.pw_uid, owner.pw_gid)
        self._user = as_system_user()
        self.binaries = binaries or usable_binaries(directory)
        self._run("initdb", "-U", "postgres", "--auth=trust", "--encoding=UTF8", "--locale=C",
            "--no-sync")  # fmt: skip
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def dsn(self) -> str:
        """The superuser's."""
        return f"host=127.0.0.1 port={self.port} user=postgres dbname=postgres"

    def start(self, **settings: str) -> None:
        """``settings``: beside those that it always has."""
        given = self._settings | {"port": str(self.port)} | settings
        flags = [part for name, value in given.items() for part in ("-c", f"{name}={value}")]
        log = self._directory / "postgres.log"
        with log.open("ab") as output:
            self._process = subprocess.Popen(
                [*self._user, str(self.binaries / "postgres"), "-D", str(self.data), *flags],
                cwd=self._directory, stdout=output, stderr=output,
            )  # fmt: skip
        patience = Patience(self._start_s)
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
        self._end(signal.SIGINT, within_s=600)

    def _end(self, how: signal.Signals, within_s: float) -> None:
        if self._process is not None:
            self._process.send_signal(how)
            self._process.wait(timeout=within_s)
            self._process = None

    def _run(self, program: str, *arguments: str) -> None:
        subprocess.run(
            [*self._user, str(self.binaries / program), "-D", str(self.data), *arguments],
            cwd=self._directory, check=True, capture_output=True, timeout=self._start_s,
        )  # fmt: skip


@contextmanager
def throwaway(
    settings: Mapping[str, str], binaries: Path | None = None
) -> Iterator[ThrowawayPostgres]:
    """A server that is not started yet; it and its data are gone at the end."""
    directory = Path(tempfile.mkdtemp(prefix="tideline-postgres-"))
    directory.chmod(0o755)
    server = ThrowawayPostgres(directory, LARGE | dict(settings), binaries=binaries)
    try:
        yield server
    finally:
        server.stop()
        shutil.rmtree(directory, ignore_errors=True)
