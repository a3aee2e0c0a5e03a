"""What the programs in Python have in common: commands in, JSON lines out."""

from __future__ import annotations

import json
import sys
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable
from pathlib import Path
from typing import Any, Protocol

RECORDS_PER_SECOND = 4
"""Of each producer, in whichever language; all consumers fetch what all producers write."""
FETCH_MIN_BYTES = 16_384
"""Of each consumer that commits what it has polled, in whichever language: more than comes while a
broker waits for it. A fetch and a commit for every record kept both cores busy for minutes."""
FETCH_MAX_WAIT_MS = 500
"""As most of the libraries have it by themselves."""
POLL_S = 0.5
"""How long a consumer waits for records before it looks whether it is to end."""
_printing = threading.Lock()


class Stoppable(Protocol):
    """A client with a thread of its own."""

    def stop(self) -> None:
        """Returns when it has ended, and what it sent or read is settled."""


class Library(Protocol):
    """One client library."""

    def open(self, name: str, group: str, protocol: str, isolation: str, topic: str) -> Stoppable:
        """A group consumer that reads already."""

    def produce(self, name: str, topic: str) -> Stoppable:
        """An idempotent producer that sends already."""

    def transact(self, name: str, topic: str, end: str, value: str) -> str:
        """One transaction, and how it ended."""


def tell(client: str, event: str, value: str, offset: int = -1) -> None:
    """One line, whole."""
    line = json.dumps({"client": client, "event": event, "offset": offset, "value": value})
    with _printing:
        print(line, flush=True)


def connections(file: str, library: str) -> Callable[[str], dict[str, Any]]:
    """How the client of a name connects, in the words of ``library``."""
    ways = json.loads(Path(file).read_text())

    def connection(name: str) -> dict[str, Any]:
        found: dict[str, Any] = ways[name.partition(":")[0]][library]
        return found

    return connection


def record_id(value: bytes) -> str:
    """The first word: what follows is padding."""
    return value.split(b" ", 1)[0].decode()


def serve(library: Library) -> None:
    """Until stdin ends. A failure is an answer too."""
    running: dict[str, Stoppable] = {}
    for line in sys.stdin:
        command, *words = line.split()
        answer = "done"
        try:
            if command == "open":
                running[words[0]] = library.open(*words)
            elif command == "produce":
                running[words[0]] = library.produce(*words)
            elif command == "transact":
                answer = library.transact(*words)
            else:
                running.pop(words[0]).stop()
        except Exception as error:
            answer = f"failed {type(error).__name__}: {error}"
        tell("", "answer", answer)
    for client in running.values():
        client.stop()


class Loop(ABC):
    """Calls ``turn`` until it is stopped, then ``end``; an error that ends it is told."""

    def __init__(self, name: str) -> None:
        self.name = name
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)

    def start(self) -> Stoppable:
        self._thread.start()
        return self

    def stop(self) -> None:
        self._stop.set()
        self._thread.join()

    def pause(self, seconds: float) -> None:
        """Of a turn; it ends with the loop."""
        self._stop.wait(seconds)

    @abstractmethod
    def turn(self) -> None:
        """Once; it may wait for a moment."""

    @abstractmethod
    def end(self) -> None:
        """Settle what was sent or read, and close."""

    def _run(self) -> None:
        try:
            while not self._stop.is_set():
                self.turn()
            self.end()
        except Exception as error:
            tell(self.name, "ended", f"{type(error).__name__}: {error}")
