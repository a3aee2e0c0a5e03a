"""Stands in for ``systemctl`` on one host of a rehearsal: starts what a unit says, and a broker of
the embedded stack where the host's Kafka is meant.

``python -m tests.systemctl HOST start|restart|enable|disable|stop [--now] UNIT`` with the root of
the rehearsal in ``REHEARSAL_ROOT``, where each host has its own directories, and ``host.json``:
``{"node": N, "stack": home, "paths": {"/etc/tideline": …}}``.
"""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import psutil

from tests.rehearsed import substituted
from tideline.stack import Stack

UNITS = Path(__file__).parents[1] / "infra" / "systemd"
GONE_S = 30


class Unit:
    """One ``.service`` file, as far as these units go."""

    def __init__(self, name: str, host: Path, paths: dict[str, str]) -> None:
        self.name, self._host = name, host
        text = substituted((UNITS / f"{name}.service").read_text(), paths)
        self._text = text.replace("%d", str(self._credentials))

    @property
    def _credentials(self) -> Path:
        return self._host / "credentials" / self.name

    @property
    def pid_file(self) -> Path:
        return self._host / f"{self.name}.pid"

    def _values(self, key: str) -> list[str]:
        return re.findall(rf"^{key}=(.*)$", self._text, re.MULTILINE)

    def _environment(self) -> dict[str, str]:
        pairs = list(self._values("Environment"))
        for given in self._values("EnvironmentFile"):
            file = Path(given.removeprefix("-"))
            if file.is_file() or not given.startswith("-"):
                pairs += [line for line in file.read_text().splitlines() if "=" in line]
        return dict(pair.split("=", 1) for pair in pairs)

    def start(self) -> None:
        self._credentials.mkdir(parents=True, exist_ok=True)
        for credential in self._values("LoadCredential"):
            name, _, source = credential.partition(":")
            shutil.copy(source, self._credentials / name)
        for name in self._values("StateDirectory"):
            (self._host / "var" / "lib" / name).mkdir(mode=0o700, parents=True, exist_ok=True)
        (command,) = self._values("ExecStart")
        own = {k: v for k, v in os.environ.items() if not k.startswith("TIDELINE_")}
        with (self._host / f"{self.name}.log").open("ab") as log:
            started = subprocess.Popen(
                shlex.split(command), env=own | self._environment(), cwd=self._host,
                stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True,
            )  # fmt: skip
        self.pid_file.write_text(str(started.pid))

    def stop(self) -> None:
        """SIGTERM, and SIGKILL to what does not end."""
        if not self.pid_file.is_file():
            return
        pid = int(self.pid_file.read_text())
        self.pid_file.unlink()
        if not psutil.pid_exists(pid):
            return
        process = psutil.Process(pid)
        process.send_signal(signal.SIGTERM)
        if psutil.wait_procs([process], timeout=GONE_S)[1]:
            process.kill()


def main(host_directory: Path, verb: str, name: str) -> None:
    host = json.loads((host_directory / "host.json").read_text())
    if name == "kafka":
        stack, broker = Stack.attach(host["stack"]), f"kafka-{host['node']}"
        if verb in ("stop", "restart"):
            stack.stop(broker)
        if verb in ("start", "restart"):
            stack.start(broker, wait=False)
        return
    unit = Unit(name, host_directory, host["paths"])
    if verb in ("stop", "restart", "disable"):
        unit.stop()
    if verb in ("start", "restart", "enable"):
        unit.start()


if __name__ == "__main__":
    _, directory, action, *rest = sys.argv
    (target,) = [word for word in rest if word != "--now"]
    main(Path(directory), action, target)
