"""Whether Postgres has a connection for everybody who may want one."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

UNLIMITED = -1


@dataclass(frozen=True, slots=True)
class ConnectionRoom:
    """What the server gives, and to the role that asks."""

    max_connections: int
    reserved: int
    """Of them for superusers and roles with a reservation."""
    role: str
    role_limit: int = UNLIMITED

    @property
    def given(self) -> int:
        """To all ordinary roles together."""
        return self.max_connections - self.reserved


@dataclass(frozen=True, slots=True)
class Wants:
    """Connections of one process, or of ``count`` of its kind."""

    what: str
    """In the singular."""
    least: int
    """Without so many it does nothing."""
    most: int
    count: int = 1
    shares_role: bool = True
    """All of the kind log in as one role; a gateway has one of its own."""

    @property
    def sum(self) -> int:
        return self.most * self.count

    @property
    def of_role(self) -> int:
        """What the role that asks may want."""
        return self.sum if self.shares_role else self.most

    def __str__(self) -> str:
        return f"{self.count} {self.what}{'' if self.count == 1 else 's'} x {self.most}"


def refusal(room: ConnectionRoom, own: Wants) -> str | None:
    """Why a process cannot run, with the remedy; ``None`` if it can."""
    if room.role_limit != UNLIMITED and room.role_limit < own.least:
        return (
            f"role {room.role} may have {room.role_limit} connections, a {own.what} needs "
            f"{own.least} to {own.most}: ALTER ROLE {room.role} CONNECTION LIMIT {own.of_role}, or "
            f"{UNLIMITED}"
        )
    if room.given < own.least:
        return (
            f"Postgres gives {room.given} connections (max_connections {room.max_connections}, "
            f"{room.reserved} of them reserved), a {own.what} needs {own.least} to {own.most}: "
            "raise max_connections"
        )
    return None


def shortages(room: ConnectionRoom, own: Wants, others: Sequence[Wants]) -> list[str]:
    """What is too small for all that may run at once, with the remedy. ``own``: every process of
    the role that asks."""
    found = []
    if room.role_limit != UNLIMITED and room.role_limit < own.of_role:
        whose = own if own.shares_role else replace(own, count=1)
        found.append(
            f"role {room.role} may have {room.role_limit} connections, {whose} are up to "
            f"{own.of_role}: ALTER ROLE {room.role} CONNECTION LIMIT {own.of_role}, or {UNLIMITED}"
        )
    everybody = [own, *others]
    if (whole := sum(part.sum for part in everybody)) > room.given:
        found.append(
            f"{' + '.join(map(str, everybody))} are up to {whole} connections, Postgres gives "
            f"{room.given}: set max_connections to {whole + room.reserved} at least, or correct "
            "TIDELINE_POSTGRES_WORKERS and TIDELINE_POSTGRES_TASKS"
        )
    return found
