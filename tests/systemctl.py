"""Stands in for ``systemctl`` on the hosts of a rehearsal: starts what a unit and its drop-ins say,
and a broker of the embedded stack where the host's Kafka is meant.

One :class:`Systemd` answers for all hosts. What a host has as ``systemctl`` asks it over a socket,
so that a call does not cost an interpreter that loads the stack.
"""

from __future__ import annotations

import os
import re
import shlex
import shutil
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from tests.rehearsed import substituted
from tests.support.waiting import stopped

GONE_S = 30
ASKS = """\
#!{python} -IS
import socket, sys
with socket.socket(socket.AF_UNIX) as asked:
    asked.connect({path!r})
    asked.sendall("\\n".join([{node!r}, *sys.argv[1:]]).encode())
    asked.shutdown(socket.SHUT_WR)
    said = asked.makefile().read()
sys.exit(said or 0)
"""


def own_environment() -> dict[str, str]:
    """This process's, without any setting of Tideline's."""
    return {k: v for k, v in os.environ.items() if not k.startswith("TIDELINE_")}


@dataclass(frozen=True)
class Host:
    """``paths``: what stands for the directories and programs that units and pages name."""

    node: int
    directory: Path
    paths: Mapping[str, str]
    running: dict[str, subprocess.Popen[bytes]] = field(default_factory=dict)
    """By unit. Not by pid: that of one that has ended by itself is soon another process's."""

    @property
    def units(self) -> Path:
        return Path(self.paths["/etc/systemd/system"])

    def unit(self, name: str) -> Unit:
        return Unit(name, self)


class Unit:
    """One ``.service`` file and its drop-ins, as far as these units go."""

    def __init__(self, name: str, host: Host) -> None:
        self.name, self._host = name, host
        self._credentials = host.directory / "credentials" / name

    def _text(self) -> str:
        units = self._host.units
        files = [units / f"{self.name}.service", *units.glob(f"{self.name}.service.d/*.conf")]
        text = substituted("\n".join(file.read_text() for file in files), self._host.paths)
        return text.replace("%d", str(self._credentials))

    def start(self) -> None:
        text = self._text()

        def values(key: str) -> list[str]:
            return re.findall(rf"^{key}=(.*)$", text, re.MULTILINE)

        self._credentials.mkdir(parents=True, exist_ok=True)
        for credential in values("LoadCredential"):
            name, _, source = credential.partition(":")
            shutil.copy(source, self._credentials / name)
        for name in values("StateDirectory"):
            state = self._host.directory / "var" / "lib" / name
            state.mkdir(mode=0o700, parents=True, exist_ok=True)
        (command,) = values("ExecStart")
        with (self._host.directory / f"{self.name}.log").open("ab") as log:
            self._host.running[self.name] = subprocess.Popen(
                shlex.split(command),
                env=own_environment() | _environment(values),
                cwd=self._host.directory, stdin=subprocess.DEVNULL, stdout=log, stderr=log,
                start_new_session=True,
            )  # fmt: skip

    def stop(self) -> None:
        """SIGTERM, and SIGKILL to what does not end."""
        process = self._host.running.pop(self.name, None)
        if process is None:
            return
        stopped(process, GONE_S)


def _environment(values: Callable[[str], list[str]]) -> dict[str, str]:
    pairs = values("Environment")
    for given in values("EnvironmentFile"):
        file = Path(given.removeprefix("-"))
        if file.is_file() or not given.startswith("-"):
            pairs += [line for line in file.read_text().splitlines() if "=" in line]
    return dict(pair.split("=", 1) for pair in pairs)


class Systemd:
    """Of the ``hosts``, at a socket in ``directory``. ``kafka``: what ``start`` and ``stop`` do to
    the broker of a node."""

    def __init__(self, directory: Path, kafka: Mapping[str, Callable[[int], None]]) -> None:
        self._path = str(directory / "systemd")  # short: 107 bytes are all that there is
        self._kafka = kafka
        self._hosts: dict[int, Host] = {}
        self._listener = socket.socket(socket.AF_UNIX)
        self._listener.bind(self._path)
        self._listener.listen()
        self._thread = threading.Thread(target=self._serve, name="systemd", daemon=True)
        self._thread.start()

    def install(self, host: Host, program: Path) -> None:
        """Make ``program`` the host's ``systemctl``."""
        self._hosts[host.node] = host
        python = sys.executable
        program.write_text(ASKS.format(python=python, path=self._path, node=str(host.node)))
        program.chmod(0o755)

    def close(self) -> None:
        """Whatever units still run is stopped."""
        for host in self._hosts.values():
            for name in tuple(host.running):
                host.unit(name).stop()
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self._thread.join()

    def _serve(self) -> None:
        while True:
            try:
                asked, _ = self._listener.accept()
            except OSError:
                return  # closed
            with asked, asked.makefile("rw") as talk:
                node, verb, *rest = talk.read().split("\n")
                try:
                    self._do(int(node), verb, [word for word in rest if word != "--now"])
                except Exception as error:  # told to whoever called
                    talk.write(f"systemctl {verb} {' '.join(rest)}: {error!r}")

    def _do(self, node: int, verb: str, names: list[str]) -> None:
        stops = verb in ("stop", "restart", "disable")
        starts = verb in ("start", "restart", "enable")
        assert stops or starts or verb == "daemon-reload", f"{verb} is not stood in for"
        for name in names:
            unit = self._hosts[node].unit(name)
            if stops:
                self._kafka["stop"](node) if name == "kafka" else unit.stop()
            if starts:
                self._kafka["start"](node) if name == "kafka" else unit.start()
