"""What must hold of a gateway, whatever is sent to it: looked at all along."""

from __future__ import annotations

import json
import re
import threading
from dataclasses import dataclass, field
from pathlib import Path
from urllib.request import urlopen

import psutil

EVERY_S = 0.5
MACHINE_BUSY_S = 0.2
"""Whoever was kept from running for so long between two looks may lose a lease for it."""
SAMPLE = re.compile(r"^(\w+)(?:\{([^}]*)\})? (\S+)$", re.MULTILINE)
CLIENT = re.compile(r'"client": "([\d.]+:\d+)"')
BASE_BYTES = 192 * 1024 * 1024
"""Beside TIDELINE_GATEWAY_MEMORY_MAX_BYTES and what the process has at its start: buffers of 2,000
connections (32 KiB each), and what Python keeps of memory that it has used once."""


@dataclass
class Found:
    """What does not hold."""

    what: str
    clients: tuple[str, ...] = ()
    """Addresses of the clients that the log names for it."""


class Log:
    """A gateway's log from now on."""

    def __init__(self, path: Path) -> None:
        self._path, self._read = path, path.stat().st_size

    def found(self) -> list[Found]:
        """A traceback is a finding; so is whatever is no line of the gateway's own."""
        with self._path.open("rb") as log:
            log.seek(self._read)
            new = log.read()
        whole = new[: new.rfind(b"\n") + 1]
        self._read += len(whole)
        found = []
        for raw in filter(str.strip, whole.decode(errors="replace").splitlines()):
            try:
                line = json.loads(raw)
            except ValueError:
                found.append(Found(f"in its log: {raw[:300]}"))
                continue
            if "exception" in line or line.get("level") in ("error", "critical"):
                found.append(Found(f"in its log: {raw[:6000]}", tuple(CLIENT.findall(raw))))
        return found


@dataclass
class Watched:
    """One gateway process, and its broker."""

    pid: int
    broker_pid: int
    metrics: str
    """``host:port``"""
    log: Path
    bound_bytes: int
    """Of its resident memory."""
    found: list[Found] = field(default_factory=list)
    highest_rss: int = 0
    highest_held: float = 0.0
    lateness_s: list[float] = field(default_factory=list)
    last: dict[str, float] = field(default_factory=dict)
    kept_waiting_s: float = 0.0
    """By the machine: the main thread could have run, and others did."""
    without_lease: int = 0
    """Looks that found no valid lease."""

    def __post_init__(self) -> None:
        self._process = psutil.Process(self.pid)
        self.first_rss = self._process.memory_info().rss
        self.first = self.scrape()
        self._log = Log(self.log)
        self._stop = threading.Event()
        self._waited = self._waited_before = self._run_delay()
        self._thread = threading.Thread(target=self._run, name="watch", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self._stop.set()
        self._thread.join(60)
        self._look()

    def scrape(self) -> dict[str, float]:
        """Every series by name and labels; a label ``le`` is left out."""
        with urlopen(f"http://{self.metrics}/metrics", timeout=30) as answer:
            text = answer.read().decode()
        return {
            f"{name}{{{labels}}}" if labels else name: float(value)
            for name, labels, value in SAMPLE.findall(text)
            if 'le="' not in labels
        }

    def counted(self, name: str) -> dict[str, float]:
        """What a counter has counted since the start, by labels."""
        return {
            key.removeprefix(name): value - self.first.get(key, 0.0)
            for key, value in self.last.items()
            if key.startswith(name) and value > self.first.get(key, 0.0)
        }

    def _run(self) -> None:
        while not self._stop.wait(EVERY_S):
            self._look()

    def _look(self) -> None:
        if not self._process.is_running() or self._process.status() == psutil.STATUS_ZOMBIE:
            self._find("the gateway's process has ended")
            return
        if not psutil.pid_exists(self.broker_pid):
            self._find("the broker's process has ended")
        rss = self._process.memory_info().rss
        self.highest_rss = max(self.highest_rss, rss)
        if rss > self.bound_bytes:
            self._find(f"resident memory beyond {self.bound_bytes >> 20} MiB")
        self.found += self._log.found()
        try:
            self.last = self.scrape()
        except OSError as error:
            self._find(f"/metrics does not answer: {type(error).__name__}")
            return
        self.lateness_s.append(self.last["inkless_gateway_loop_lateness_seconds"])
        self.highest_held = max(
            self.highest_held,
            sum(v for k, v in self.last.items() if k.startswith("inkless_gateway_held_bytes")),
        )
        waited = self._run_delay()
        lately, self._waited_before = waited - self._waited_before, waited
        self.kept_waiting_s = waited - self._waited
        if self.last["inkless_gateway_lease_valid"] != 1:
            self.without_lease += 1
            if lately < MACHINE_BUSY_S:
                self._find("the lease is not valid")
        if self.last["inkless_gateway_lease_fenced_total"] > 0:
            self._find("the gateway was fenced")

    def _run_delay(self) -> float:
        """s that the main thread has spent on the run queue."""
        schedule = Path(f"/proc/{self.pid}/task/{self.pid}/schedstat").read_text().split()
        return int(schedule[1]) / 1e9

    def _find(self, what: str) -> None:
        if all(found.what != what for found in self.found):
            self.found.append(Found(what))
