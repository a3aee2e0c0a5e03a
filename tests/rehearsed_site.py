"""The hosts on which a page is rehearsed: their files, their shells, and what stands there for the
addresses, paths and programs that the page names."""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
import threading
from collections.abc import Mapping
from pathlib import Path

from tests.rehearsed import Block, substituted
from tests.support.waiting import Wait
from tests.systemctl import Host, Systemd, own_environment
from tideline.stack.kafka_jars import tool_command

ROOT = Path(__file__).parents[1]
BLOCK_S = 300


def programs() -> dict[str, list[str]]:
    """What each host has on its path, beside what this machine has and ``systemctl``."""
    return {
        "tideline": [sys.executable, "-m", "tideline"],
        "kafka-acls.sh": tool_command("org.apache.kafka.tools.AclCommand"),
        "kafka-configs.sh": tool_command("kafka.admin.ConfigCommand"),
        "kafka-leader-election.sh": tool_command("org.apache.kafka.tools.LeaderElectionCommand"),
        "kafka-topics.sh": tool_command("org.apache.kafka.tools.TopicCommand"),
    }


class Shell:
    """One shell, as a reader of the page has it: what a block leaves behind the next one finds."""

    def __init__(self, scripts: Path, environment: Mapping[str, str]) -> None:
        self._scripts, self._count = scripts, 0
        self._process = subprocess.Popen(
            ["bash", "--noprofile", "--norc", "-euo", "pipefail"], cwd=ROOT, env=environment,
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
        )  # fmt: skip

    def run(self, name: str, text: str) -> str:
        """All that it says. The first command that fails ends the shell, and the test."""
        self._count += 1
        script = self._scripts / f"{self._count}-{name}.sh"
        script.write_text(text)
        end = f"the end of {script}"
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        wait, over = Wait(name, BLOCK_S), threading.Event()

        def bound() -> None:
            while not over.wait(1.0):
                if wait.over:
                    return self._process.kill()

        threading.Thread(target=bound, name=f"the bound of {name}", daemon=True).start()
        said = ""
        try:
            self._process.stdin.write(f". '{script}' </dev/null\necho '{end}'\n")
            self._process.stdin.flush()
            for line in self._process.stdout:
                if line.endswith(f"{end}\n"):  # behind what has no line's end
                    return said + line.removesuffix(f"{end}\n")
                said += line
        finally:
            over.set()
        raise AssertionError(f"{name} failed:\n{said}")

    def close(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait()


class Site:
    """``page``: its marked blocks. A host is named by its number, the operator's by 0."""

    def __init__(self, page: Mapping[str, Block], root: Path, systemd: Systemd) -> None:
        self._page, self._root, self._systemd = page, root, systemd
        self._hosts: dict[int, Host] = {}
        self._shells: dict[int, Shell] = {}
        self._tables: dict[int, Mapping[str, str]] = {}
        self.used: set[str] = set()
        """Names of the blocks that were run, or written into a file."""

    def add(self, node: int, table: Mapping[str, str]) -> None:
        """A host with nothing on it but the directories that the page has made before. ``table``:
        what stands for what in a block."""
        here = self._root / f"host-{node}"
        for made in ("bin", "etc/secrets", "etc/tls", "systemd", "scripts"):
            (here / made).mkdir(parents=True)
        paths = {
            "/etc/tideline": str(here / "etc"),
            "/etc/systemd/system": str(here / "systemd"),
            "/var/lib/tideline-gateway": str(here / "var/lib/tideline-gateway"),
            "/opt/tideline/bin/tideline": str(here / "bin/tideline"),
        }
        for name, command in programs().items():
            program = here / "bin" / name
            program.write_text(f'#!/bin/sh\nexec {shlex.join(command)} "$@"\n')
            program.chmod(0o755)
        self._hosts[node] = host = Host(node, here, paths)
        self._systemd.install(host, here / "bin/systemctl")
        path = f"{here / 'bin'}:{os.environ['PATH']}"
        mine = {"PATH": path, "COLUMNS": "250", "TIDELINE_HOME": str(here)}
        self._shells[node] = Shell(here / "scripts", own_environment() | mine)
        self._tables[node] = paths | table

    def etc(self, node: int) -> Path:
        """What stands for ``/etc/tideline``."""
        return self._hosts[node].directory / "etc"

    def running(self, node: int) -> list[str]:
        """The units of a host that were started and not stopped."""
        return sorted(self._hosts[node].running)

    def text(self, name: str, node: int) -> str:
        """The block for this host: what the page says of broker 1 is said of this one."""
        self.used.add(name)
        block = self._page[name]
        found = f"\n{block.text}"
        if node and block.kind != "toml":
            found = found.replace("kafka-1:", f"kafka-{node}:")
        return substituted(found, self._tables[node]).lstrip("\n")

    def write(self, name: str, where: str, node: int) -> None:
        """A block that the page wants in a file below ``/etc/tideline``."""
        (self.etc(node) / where).write_text(self.text(name, node))

    def run(self, name: str, node: int) -> str:
        """A block, in the host's shell; what it said."""
        return self._shells[node].run(name, self.text(name, node))

    def close(self) -> None:
        for shell in self._shells.values():
            shell.close()
