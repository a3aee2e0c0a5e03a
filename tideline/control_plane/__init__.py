"""The control plane: one interface, kept by Postgres and, for tests and simulations, in memory."""

from tideline.control_plane.connecting import connect
from tideline.control_plane.plane import (
    ACKS_CHANNEL,
    COMMITS_CHANNEL,
    CONTROL_CHANNEL,
    REPORTS_CHANNEL,
    REQUESTS_CHANNEL,
    ControlPlane,
)

__all__ = [
    "ACKS_CHANNEL",
    "COMMITS_CHANNEL",
    "CONTROL_CHANNEL",
    "REPORTS_CHANNEL",
    "REQUESTS_CHANNEL",
    "ControlPlane",
    "connect",
]
