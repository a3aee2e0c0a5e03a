"""Which ports the parts listen on: the usual ones, moved when something else has them or has
reserved them."""

from __future__ import annotations

import socket
from collections.abc import Callable, Collection, Mapping
from pathlib import Path

import psutil
from pydantic import BaseModel, ValidationError

from tideline.stack.errors import StackError
from tideline.stack.home import meeting_place, write_private
from tideline.stack.processes import MARKER

LOOPBACK = "127.0.0.1"
STEP = 7
ATTEMPTS = 400

_FIXED = {
    "postgres": 15432,
    "s3": 18333,
    "s3-grpc": 18334,
    "s3-master": 18335,
    "s3-master-grpc": 18336,
    "s3-volume": 18337,
    "s3-volume-grpc": 18338,
    "s3-filer": 18339,
    "s3-filer-grpc": 18340,
    "temporal": 17233,
    "temporal-ui": 18233,
    "temporal-http": 17243,
    "metrics-temporal": 19400,
    "metrics-worker": 19410,
    "airflow": 18080,
}
_PER_BROKER = {
    "kafka": 19090,
    "controller": 19290,
    "gateway": 19190,
    "metrics-gateway": 19420,
}
_STAND_IN = 19500


def stand_in(gateway: int, node: int) -> str:
    """The name of the listener at which ``gateway`` stands in for the gateway of ``node``."""
    return f"stand-in-{gateway}-{node}"


_OF_SECURED_BROKERS = {"internal": 19490}
"""Kafka's own traffic, which has a listener to itself."""


def preferred(brokers: int, secure: bool = False) -> dict[str, int]:
    """The usual port of each listener of a stack with ``brokers`` nodes."""
    nodes = range(1, brokers + 1)
    per_broker = _PER_BROKER | (_OF_SECURED_BROKERS if secure else {})
    return (
        _FIXED
        | {f"{name}-{node}": base + node for name, base in per_broker.items() for node in nodes}
        | {
            stand_in(gateway, node): _STAND_IN + 10 * gateway + node
            for gateway in nodes
            for node in nodes
            if gateway != node
        }
    )


def is_free(port: int) -> bool:
    """Whether a listener on loopback could take ``port`` now. It listens for a moment: some kernels
    refuse an address that somebody holds only then."""
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((LOOPBACK, port))
            probe.listen(1)
        except OSError:
            return False
    return True


def allocate(
    wanted: Mapping[str, int],
    remembered: Mapping[str, int],
    free: Callable[[int], bool] = is_free,
) -> dict[str, int]:
    """A free port per name: the remembered one, else the wanted one, else the next above it.

    Stays below 32768, where the kernel picks the source ports of connections.
    Raises :class:`StackError` when nothing is free in reach.
    """
    chosen: dict[str, int] = {}
    taken: set[int] = set()
    usual_ports = set(wanted.values())
    for name, usual in wanted.items():
        moved = (usual + STEP * step for step in range(1, ATTEMPTS))
        candidates = [
            remembered.get(name, usual),
            usual,
            *(port for port in moved if port not in usual_ports),
        ]
        for port in candidates:
            if port < 32768 and port not in taken and free(port):
                chosen[name] = port
                taken.add(port)
                break
        else:
            raise StackError(
                f"no free port for {name}: tried {usual} to {usual + STEP * ATTEMPTS} on "
                f"{LOOPBACK} in steps of {STEP}. Stop what listens there."
            )
    return chosen


class Reservation(BaseModel):
    """One running stack."""

    supervisor_pid: int
    ports: list[int]

    def is_alive(self, identity: str) -> bool:
        """Whether the supervisor of the stack ``identity`` still runs; its pid may be another's."""
        try:
            return psutil.Process(self.supervisor_pid).environ().get(MARKER) == identity
        except (psutil.Error, OSError):
            return False


class _Reservations(BaseModel):
    stacks: dict[str, Reservation] = {}


class PortReservations:
    """Ports that running stacks of this user have, though nothing may listen there at the moment:
    a broker that is kept down for a while finds its port free when it comes back. Hold the turn to
    start while using it."""

    def __init__(self, path: Path | None = None) -> None:
        self._path = path or meeting_place() / "ports.json"

    def of_others(self, identity: str) -> set[int]:
        """Ports of running stacks other than ``identity``."""
        return {
            port
            for other, reservation in self._living().items()
            if other != identity
            for port in reservation.ports
        }

    def reserve(self, identity: str, supervisor_pid: int, ports: Collection[int]) -> None:
        """Record the ports of a stack that was just launched; forget stacks that ended."""
        stacks = self._living() | {
            identity: Reservation(supervisor_pid=supervisor_pid, ports=sorted(ports))
        }
        write_private(self._path, _Reservations(stacks=stacks).model_dump_json())

    def _living(self) -> dict[str, Reservation]:
        try:
            reservations = _Reservations.model_validate_json(self._path.read_text())
        except (FileNotFoundError, ValidationError):
            return {}
        return {
            identity: reserve
            for identity, reserve in reservations.stacks.items()
            if reserve.is_alive(identity)
        }
