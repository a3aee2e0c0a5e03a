"""supervisord: one per home, over a Unix socket with a generated password."""

from __future__ import annotations

import http.client
import os
import shlex
import socket
import subprocess
import sys
import xmlrpc.client
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from supervisor.xmlrpc import Faults, SupervisorTransport
from tenacity import RetryError, Retrying, retry_if_result, stop_after_delay, wait_fixed

from tideline.stack.errors import StackError, StackNotRunningError
from tideline.stack.home import Home, StackState, write_private
from tideline.stack.processes import MARKER, PROGRAM_MARKER, Program

USER = "tideline"
ANSWER_TIMEOUT_S = 30.0
"""One that is not there refuses at once; one that waits for a core is not gone."""
LIVING_STATES = ("STARTING", "RUNNING")
BUSY_STATES = (*LIVING_STATES, "BACKOFF", "STOPPING")


@dataclass(frozen=True)
class ProcessInfo:
    """What supervisord says of a program."""

    name: str
    state: str
    """STOPPED, STARTING, RUNNING, BACKOFF, STOPPING, EXITED, FATAL or UNKNOWN."""
    pid: int | None
    uptime_s: int
    why: str

    @property
    def is_up(self) -> bool:
        """Started and not known to fail; STARTING is only the first second."""
        return self.state in LIVING_STATES


class Supervisor:
    """Talks to the supervisord of a home. Safe to use from several threads."""

    def __init__(self, home: Home, state: StackState, password: str) -> None:
        self._home = home
        self._state = state
        self._password = password
        self._socket = Path(state.runtime_dir) / "supervisor.sock"

    @property
    def configuration_file(self) -> Path:
        return self._home.run / "supervisord.conf"

    def _rpc(self, method: str, *arguments: object) -> Any:
        """Call supervisord. Raises :class:`xmlrpc.client.Fault` when it refuses, and
        :class:`StackNotRunningError` when it does not answer in time."""
        transport = _Transport(self._socket, self._password)
        try:
            with xmlrpc.client.ServerProxy("http://localhost", transport=transport) as proxy:
                return getattr(proxy, method)(*arguments)
        except (OSError, http.client.HTTPException, xmlrpc.client.ProtocolError) as error:
            raise StackNotRunningError(
                f"the supervisor at {self._socket} does not answer ({error}). "
                "`tideline stack down` cleans up what it left."
            ) from None

    def is_running(self) -> bool:
        """Whether it answers, with our password."""
        try:
            return bool(self._rpc("supervisor.getState")["statename"] == "RUNNING")
        except StackNotRunningError:
            return False

    def pid(self) -> int:
        return int(self._rpc("supervisor.getPID"))

    def launch(self, programs: Sequence[Program], wait_s: float = 15) -> None:
        """Start supervisord with ``programs``, none of them running yet."""
        self._write_configuration(programs)
        self._socket.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        launched = subprocess.run(
            [sys.executable, "-m", "supervisor.supervisord", "-c", str(self.configuration_file)],
            env=_clean_environment() | {MARKER: self._state.id, PROGRAM_MARKER: "supervisord"},
            cwd=self._home.run,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            check=False,
            timeout=wait_s,
        )
        if launched.returncode != 0:
            raise StackError(f"supervisord did not start: {launched.stderr.strip()[-2000:]}")
        self._await(self.is_running, wait_s, f"supervisord at {self._socket}")

    def update(self, programs: Sequence[Program]) -> None:
        """Give a running supervisord programs that it does not know yet. Of what has changed about
        the others each hears at its next :meth:`start`."""
        self._write_configuration(programs)
        added, _, _ = self._rpc("supervisor.reloadConfig")[0]
        for name in added:
            self._rpc("supervisor.addProcessGroup", name)

    def _write_configuration(self, programs: Sequence[Program]) -> None:
        text = configuration(self._home, self._state, self._socket, self._password, programs)
        write_private(self.configuration_file, text)

    def processes(self) -> dict[str, ProcessInfo]:
        answer = self._rpc("supervisor.getAllProcessInfo")
        return {info["name"]: _info(info) for info in answer}

    def process(self, name: str) -> ProcessInfo:
        """Raises :class:`StackError` for a name that is no program of this stack."""
        try:
            return _info(self._rpc("supervisor.getProcessInfo", name))
        except xmlrpc.client.Fault as fault:
            if fault.faultCode != Faults.BAD_NAME:
                raise
            known = ", ".join(sorted(self.processes()))
            raise StackError(
                f"{name!r} is no program of this stack. Choose one of: {known}."
            ) from None

    def start(self, name: str) -> None:
        """Ask for a start without waiting; a program that runs already is left alone."""
        self._take_over_changes(name)
        self._call("startProcess", name, Faults.ALREADY_STARTED)

    def _take_over_changes(self, name: str) -> None:
        """supervisord keeps a program as it was added, also when its file says otherwise."""
        _, changed, _ = self._rpc("supervisor.reloadConfig")[0]
        if name in changed and self.process(name).pid is None:
            self._rpc("supervisor.removeProcessGroup", name)
            self._rpc("supervisor.addProcessGroup", name)

    def stop(self, name: str, wait_s: float) -> None:
        """The program's own stop signal, SIGKILL after its bound; returns when it is gone, or
        raises :class:`StackError` after ``wait_s``."""
        self._call("stopProcess", name, Faults.NOT_RUNNING)
        self.await_gone(name, wait_s)

    def await_gone(self, name: str, wait_s: float = 20) -> None:
        self._await(
            lambda: self.process(name).state not in BUSY_STATES, wait_s, f"the end of {name}"
        )

    def kill(self, name: str) -> bool:
        """SIGKILL without a restart. False when the program did not run."""
        killed = bool(self._rpc("tideline.kill", name))
        self.await_gone(name)
        return killed

    def shut_down(self) -> None:
        self._rpc("supervisor.shutdown")

    def _call(self, method: str, name: str, *ignored: int) -> None:
        try:
            self._rpc(f"supervisor.{method}", name, False)
        except xmlrpc.client.Fault as fault:
            if fault.faultCode not in ignored:
                raise StackError(f"supervisord: {method} {name}: {fault.faultString}") from None

    @staticmethod
    def _await(condition: Any, wait_s: float, what: str) -> None:
        try:
            Retrying(
                retry=retry_if_result(lambda met: not met),
                wait=wait_fixed(0.05),
                stop=stop_after_delay(wait_s),
            )(condition)
        except RetryError:
            raise StackError(f"waited {wait_s:.0f} s for {what}") from None


class _Transport(SupervisorTransport):  # type: ignore[misc]
    """Supervisor's own, with a bound on the wait for an answer."""

    def __init__(self, path: Path, password: str) -> None:
        super().__init__(USER, password, f"unix://{path}")
        self._get_connection = lambda: _UnixConnection(path)


class _UnixConnection(http.client.HTTPConnection):
    def __init__(self, path: Path) -> None:
        super().__init__("localhost", timeout=ANSWER_TIMEOUT_S)
        self._path = path

    def connect(self) -> None:
        self.sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.sock.settimeout(ANSWER_TIMEOUT_S)
        self.sock.connect(str(self._path))


def configuration(
    home: Home, state: StackState, listener: Path, password: str, programs: Sequence[Program]
) -> str:
    """supervisord's INI file. Secrets are in it: write it privately."""
    sections = [
        f"""[supervisord]
logfile={_value(home.logs / "supervisord.log")}
logfile_maxbytes=2MB
logfile_backups=2
pidfile={_value(home.run / "supervisord.pid")}
childlogdir={_value(home.logs)}
identifier=tideline-{state.id}
directory={_value(home.run)}
nocleanup=true

[unix_http_server]
file={_value(listener)}
chmod=0600
username={USER}
password={password}

[rpcinterface:supervisor]
supervisor.rpcinterface_factory=supervisor.rpcinterface:make_main_rpcinterface

[rpcinterface:tideline]
supervisor.rpcinterface_factory=tideline.stack.supervisor_rpc:make_interface
"""
    ]
    sections += [_program_section(program, state.id) for program in programs]
    return "\n".join(sections)


def _program_section(program: Program, stack_id: str) -> str:
    environment = {**program.environment, MARKER: stack_id, PROGRAM_MARKER: program.name}
    assignments = ",".join(f'{name}="{_value(value)}"' for name, value in environment.items())
    return f"""[program:{program.name}]
command={_value(shlex.join(program.command))}
environment={assignments}
autostart=false
autorestart=true
startsecs=1
startretries=10
stopsignal={program.stop_signal}
stopwaitsecs={program.stop_wait_s}
stopasgroup=true
killasgroup=true
redirect_stderr=true
stdout_logfile={_value(program.log)}
stdout_logfile_maxbytes={program.log_max_bytes}
stdout_logfile_backups={program.log_backups}
"""


def _value(value: object) -> str:
    text = str(value)
    if any(character in text for character in '"\n'):
        raise StackError(f"{text!r} cannot be written to supervisord's configuration: no quotes")
    return text.replace("%", "%%")


def _clean_environment() -> dict[str, str]:
    """What the parts inherit: nothing of the caller's shell but the places of things."""
    kept = ("PATH", "HOME", "LANG", "LC_ALL", "TZ", "TMPDIR", "JAVA_HOME", "LD_LIBRARY_PATH")
    return {name: os.environ[name] for name in kept if name in os.environ}


def _info(info: dict[str, Any]) -> ProcessInfo:
    running = info["pid"] != 0
    return ProcessInfo(
        name=info["name"],
        state=info["statename"],
        pid=info["pid"] if running else None,
        uptime_s=max(0, info["now"] - info["start"]) if running else 0,
        why=info["spawnerr"] or info["description"],
    )
