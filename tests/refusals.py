"""What each role says to a Postgres that lacks what was committed."""

from __future__ import annotations

import json
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from confluent_kafka import KafkaError, Message, Producer

from tests.harness import command
from tests.raw_batches import raw_batches
from tests.support.waiting import HANGS_S, flushed, until
from tideline.demo.report import Check
from tideline.errors import ExitCode
from tideline.kafka.errors import KafkaError as Refused
from tideline.stack import Stack

BEHIND = "has not got beat"
"""Of the reasons of :mod:`tideline.domain.history` the one for a server that was rolled back."""
STORAGE_ERROR = KafkaError(KafkaError.KAFKA_STORAGE_ERROR)


class Refusals:
    """Made before the fault, so that what was logged earlier does not count."""

    def __init__(self, stack: Stack, tracked: str, offset: int, classic: str) -> None:
        """``tracked`` has a record at ``offset`` of partition 0, past B0."""
        self._stack, self._tracked, self._offset = stack, tracked, offset
        self._classic = classic
        self._supervised = stack.home / "logs" / "supervisord.log"
        self._gateways = [stack.log_path(f"gateway-{n}") for n in stack.endpoints.gateways]
        logs = [self._supervised, stack.log_path("worker"), *self._gateways]
        self._seen = {path: path.stat().st_size for path in logs}

    def checks(self) -> list[Check]:
        """One for each role, by name."""
        commands = (
            ("gc", "--run"),
            ("retention", "--run"),
            ("tiering", "trigger", self._tracked, "--now"),
            ("migrate", self._classic),
        )
        until("the worker to end", lambda: self._ended("worker"))
        with ThreadPoolExecutor(len(commands)) as together:
            ran = list(together.map(self._command, commands))
        return [*map(self._gateway, self._gateways), *self._clients(), self._worker(), *ran]

    def _gateway(self, log: Path) -> Check:
        reason = until("a gateway to stop", lambda: self._said(log, "tracking.stopped", "reason"))
        return Check(f"{log.stem} stops tracked traffic", BEHIND in reason, reason)

    def _clients(self) -> Iterator[Check]:
        told = self._produce(self._tracked)
        yield Check("a tracked topic takes no record", told == STORAGE_ERROR, str(told))
        try:
            found = str(raw_batches(self._stack, self._tracked, 0, self._offset, self._offset + 1))
        except Refused as error:
            found = error.code.name
        yield Check("nor is it read", found == "kafka_storage_error", found)
        told = self._produce(self._classic)
        yield Check("a classic topic is served", told is None, str(told))

    def _produce(self, topic: str) -> KafkaError | None:
        """One attempt."""
        told: list[KafkaError | None] = []

        def settled(error: KafkaError | None, _: Message) -> None:
            told.append(error)

        producer = Producer({"bootstrap.servers": self._stack.endpoints.gateway_bootstrap,
                             "retries": 0})  # fmt: skip
        producer.produce(topic, b"refused", partition=0, on_delivery=settled)
        flushed(producer, 60)
        return told[0]

    def _worker(self) -> Check:
        why = self._said(self._stack.log_path("worker"), "worker_ended", "why")
        return Check("the worker ends with exit code 4", BEHIND in why, why)

    def _ended(self, program: str) -> bool:
        code = f"exited: {program} (exit status {int(ExitCode.REFUSED)};"
        return code in self._new(self._supervised)

    def _command(self, arguments: tuple[str, ...]) -> Check:
        ran = command(self._stack, *arguments)
        code, said = ran.wait(HANGS_S), ran.output().strip()
        refused = code == ExitCode.REFUSED and BEHIND in said
        return Check(f"tideline {' '.join(arguments)} is refused", refused, f"{code}: {said}")

    def _said(self, log: Path, event: str, field: str) -> str:
        """Of the first such line."""
        for line in self._new(log).splitlines():
            if line.startswith("{") and (found := json.loads(line)).get("event") == event:
                return str(found[field])
        return ""

    def _new(self, log: Path) -> str:
        with log.open("rb") as file:
            file.seek(self._seen[log])
            return file.read().decode(errors="replace")
