"""The gateways of a stack and its brokers, each with topics of its own that hold the same."""

from __future__ import annotations

import struct
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any
from uuid import UUID

from tests.differential.answers import CLOSED, SILENT, Names, plain
from tests.differential.batches import bytes_of
from tests.differential.questions import Batch, Question, Topic, TopicId
from tests.raw import Connection, message
from tests.support.waiting import until

ANSWERED_S = 25.0
"""Longer than any request here asks for."""


def twin_of(name: str) -> str:
    """What the brokers' side calls its topic: in the same place among other names, by which some
    answers are in order."""
    return f"{name}-twin"


@dataclass
class Side:
    addresses: Mapping[int, str]
    """By node id."""
    topics: Mapping[str, tuple[str, UUID]]
    """Name and id, by what both sides call it."""
    others: Mapping[str, tuple[str, UUID]]
    """Those of the other side, which an answer about all topics names as well."""
    now_ms: int
    """When the records of all batches were made."""
    _open: dict[int, Connection] = field(default_factory=dict)

    def __post_init__(self) -> None:
        called = [(which, *topic) for which, topic in self.topics.items()]
        called += [(f"the other {which}", *topic) for which, topic in self.others.items()]
        called.sort(key=lambda row: -len(row[1]))
        self.names = Names(
            {name: which for which, name, _ in called},
            {topic_id: which for which, _, topic_id in called},
            {_at(address): node for node, address in self.addresses.items()},
        )

    def ask(self, question: Question, node: int) -> Any:
        """The answer as plain values, or that there was none."""
        asked = message(question.api, question.version, **self._meant(question.values))
        connection = self._open.get(node) or self._connected(node)
        self._open[node] = connection
        try:
            return plain(connection.ask(asked), self.names)
        except TimeoutError:
            outcome = SILENT
        except (ConnectionError, EOFError, struct.error):
            outcome = CLOSED
        self._open.pop(node).close()
        return outcome

    def _connected(self, node: int) -> Connection:
        """A gateway takes no connection while its broker does not answer."""

        def taken() -> Connection | None:
            with suppress(ConnectionRefusedError):
                return Connection(self.addresses[node], ANSWERED_S)
            return None

        return until(f"{self.addresses[node]} to take a connection", taken)

    def _meant(self, value: Any) -> Any:
        match value:
            case Topic(which):
                return self.topics[which][0]
            case TopicId(which):
                return self.topics[which][1]
            case Batch():
                return bytes_of(value, self.now_ms)
            case dict():
                return {name: self._meant(inner) for name, inner in value.items()}
            case list():
                return [self._meant(inner) for inner in value]
        return value

    def close(self) -> None:
        for connection in self._open.values():
            connection.close()
        self._open.clear()


def _at(address: str) -> tuple[str, int]:
    host, _, port = address.rpartition(":")
    return host, int(port)
