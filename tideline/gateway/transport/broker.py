"""The broker to which a client's connection is joined."""

from __future__ import annotations

import socket
from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

CONNECT_TIMEOUT_S = 5.0
Address = tuple[str, int]


@dataclass(frozen=True, slots=True)
class Broker:
    """Whom a client's connection is joined to: the paired broker, or one that is stood in for."""

    node: int
    address: Address


class Expected(NamedTuple):
    """An answer that Kafka owes. It answers in order, so nothing else needs to be known."""

    correlation_id: int
    sink: Callable[[bytes], None]
    own: bool = False
    """Asked by the gateway itself: no client waits for it."""
    lost: Callable[[str], None] = lambda reason: None
    """Told, of one of the gateway's own, that the broker's connection has ended before it."""


_KEEPALIVE = {"TCP_KEEPIDLE": 60, "TCP_KEEPINTVL": 15, "TCP_KEEPCNT": 4}
"""A peer that vanished without a word is noticed after two minutes."""


def keep_alive(connected: socket.socket) -> None:
    """Probe a silent peer, so that a half-open connection ends; send small frames at once."""
    connected.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    connected.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    for name, value in _KEEPALIVE.items():
        if (option := getattr(socket, name, None)) is not None:
            connected.setsockopt(socket.IPPROTO_TCP, option, value)
