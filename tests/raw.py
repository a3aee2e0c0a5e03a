"""Requests in raw frames, over connections that stay: APIs and fields by Kafka's names for them.

What a client library would do of its own accord (versions, coordinators, repeats) is the test's.
"""

from __future__ import annotations

import socket
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import fields
from typing import Any

from kio.schema.errors import ErrorCode
from kio.serial._introspect import EntityField, EntityTupleField, classify_field

from tests.support.waiting import HANGS_S, until
from tideline.domain.api_answers import API_RULES, BROKER_HIGHEST
from tideline.kafka.protocol import decode_response, encode_request, request_class

KEYS = {rule.name: key for key, rule in API_RULES.items()}
GROUP, TRANSACTION = 0, 1
"""What a coordinator is for."""
_ON_THE_WAY = {ErrorCode.coordinator_not_available, ErrorCode.coordinator_load_in_progress}


def message(api: str, version: int, **values: Any) -> Any:
    """A request; structures inside it are dicts, arrays are lists."""
    kind = request_class(KEYS[api], version)
    assert kind is not None, f"{api} {version}"
    return _made(kind, values)


def _made(kind: Any, values: Mapping[str, Any]) -> Any:
    assert values.keys() <= {field.name for field in fields(kind)}, (kind, values)
    made = dict(values)
    for field in fields(kind):
        value = made.get(field.name)
        found = classify_field(field)
        if isinstance(found, EntityTupleField) and value is not None:
            made[field.name] = tuple(_made(found.type_, part) for part in value)
        elif isinstance(found, EntityField) and value is not None:
            made[field.name] = _made(found.type_, value)
        elif isinstance(value, list):
            made[field.name] = tuple(value)
    return kind(**made)


class Connection:
    """One, to a broker or a gateway."""

    def __init__(self, address: str, patience_s: float = HANGS_S) -> None:
        """``TimeoutError`` from what is not answered for ``patience_s`` seconds."""
        host, _, port = address.rpartition(":")
        self._socket = socket.create_connection((host, int(port)), timeout=patience_s)
        self._answers = self._socket.makefile("rb")

    def ask(self, asked: Any) -> Any:
        """One frame, and its answer."""
        frame = encode_request(asked, 1, "raw")
        self._socket.sendall(len(frame).to_bytes(4, "big") + frame)
        answer = self._answers.read(int.from_bytes(self._answers.read(4), "big"))
        return decode_response(answer, int(asked.__api_key__), int(asked.__version__))

    def close(self) -> None:
        self._answers.close()
        self._socket.close()


def ask(address: str, asked: Any) -> Any:
    """One frame over a connection of its own, and its answer."""
    connection = Connection(address)
    try:
        return connection.ask(asked)
    finally:
        connection.close()


class Doors:
    """All brokers, or all gateways, by node id; one connection to each."""

    def __init__(self, addresses: Mapping[int, str]) -> None:
        self.addresses = addresses
        self._open: dict[int, Connection] = {}

    def ask(self, api: str, node: int = 1, /, version: int = -1, **values: Any) -> Any:
        """In the highest version that brokers have, unless one is given."""
        if node not in self._open:
            self._open[node] = Connection(self.addresses[node])
        highest = BROKER_HIGHEST[KEYS[api]]
        return self._open[node].ask(message(api, highest if version < 0 else version, **values))

    def coordinator(self, key: str, kind: int = GROUP) -> int:
        """The node that keeps the group, or the transactional id, ``key``."""

        def found() -> int | None:
            (told,) = self.ask(
                "FindCoordinator", key_type=kind, coordinator_keys=[key]
            ).coordinators
            assert told.error_code in {ErrorCode.none, *_ON_THE_WAY}, told
            # After a gateway was away a client is told of a node that nobody is, and asks again.
            is_known = told.error_code is ErrorCode.none and told.node_id in self.addresses
            return int(told.node_id) if is_known else None

        node = until(f"the coordinator of {key}", found)

        def is_loaded() -> bool:
            """A new one reads its partition first."""
            if kind == TRANSACTION:
                (told,) = self.ask(
                    "DescribeTransactions", node, transactional_ids=[key]
                ).transaction_states
            else:
                (told,) = self.ask(
                    "DescribeGroups", node, groups=[key], include_authorized_operations=False
                ).groups
            return told.error_code not in {*_ON_THE_WAY, ErrorCode.not_coordinator}

        until(f"node {node} to be the coordinator of {key}", is_loaded)
        return node

    def close(self) -> None:
        for connection in self._open.values():
            connection.close()


@contextmanager
def doors(addresses: Mapping[int, str]) -> Iterator[Doors]:
    made = Doors(addresses)
    try:
        yield made
    finally:
        made.close()
