"""The embedded stack: Postgres, S3, Temporal, Kafka, gateways and worker on loopback."""

from tideline.stack.endpoints import Endpoints, S3Endpoint
from tideline.stack.errors import StackError, StackNotRunningError
from tideline.stack.stack import ALL_PARTS, Stack

__all__ = [
    "ALL_PARTS",
    "Endpoints",
    "S3Endpoint",
    "Stack",
    "StackError",
    "StackNotRunningError",
]
