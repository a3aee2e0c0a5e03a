"""The embedded stack: Postgres, S3, Temporal, Kafka, gateways and worker on loopback."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tideline.stack.endpoints import Endpoints, S3Endpoint
    from tideline.stack.errors import StackError, StackNotRunningError
    from tideline.stack.parts import ALL_PARTS
    from tideline.stack.stack import Stack

__all__ = [
    "ALL_PARTS",
    "Endpoints",
    "S3Endpoint",
    "Stack",
    "StackError",
    "StackNotRunningError",
]

_HOMES = {
    "ALL_PARTS": "parts",
    "Endpoints": "endpoints",
    "S3Endpoint": "endpoints",
    "Stack": "stack",
    "StackError": "errors",
    "StackNotRunningError": "errors",
}


def __getattr__(name: str) -> object:
    # supervisord loads a module of this package: it must not pay for the clients of every part.
    if name in _HOMES:
        return getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
