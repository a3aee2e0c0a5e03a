"""Who may still act: generations of a partition, incarnations of a gateway, barriers.

A process that slept must find out by what it carries, not by what it believes: every write is
checked against the newest token (architecture, "Fencing"). ``infra/postgres/functions``:
gateways, tracking and quiesce repeat these rules in SQL.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum
from uuid import UUID


class GatewayStatus(StrEnum):
    """The status of a registered gateway."""

    ACTIVE = "active"
    FENCED = "fenced"
    RETIRED = "retired"


class QuiesceState(StrEnum):
    """A generation is closed at most once: open → closed → reopened.

    An acknowledgement of a closure that became void must not count for another closure, because
    the gateway has appended in between. Only a new generation is open again.
    """

    OPEN = "open"
    CLOSED = "closed"
    REOPENED = "reopened"


@dataclass(frozen=True, slots=True)
class Gateway:
    """A registered gateway, as a barrier sees it."""

    gateway_id: int
    incarnation: UUID
    status: GatewayStatus


def may_act(gateway: Gateway | None, incarnation: UUID) -> bool:
    """Whether a process with ``incarnation`` may write: it is the registered one, not fenced."""
    return (
        gateway is not None
        and gateway.incarnation == incarnation
        and gateway.status is GatewayStatus.ACTIVE
    )


def missing_at_tracking(
    gateways: Iterable[Gateway], acknowledged: Iterable[tuple[int, UUID]]
) -> list[Gateway]:
    """Gateways that hold the start of a migration back.

    A fenced gateway counts. It never heard of the topic: when it wakes, and until it learns that
    it is fenced, it passes produces through untracked and relays their acknowledgements. Only an
    operator who retires it attests that it is cut off.
    """
    known = set(acknowledged)
    return [
        gateway
        for gateway in gateways
        if gateway.status is not GatewayStatus.RETIRED
        and (gateway.gateway_id, gateway.incarnation) not in known
    ]


def missing_at_quiesce(
    gateways: Iterable[Gateway], acknowledged: Iterable[tuple[int, UUID]]
) -> list[Gateway]:
    """Gateways that hold B0 back. A fenced one does not: it tracks the topic (the tracking barrier
    waited for it), so its fence keeps it from relaying what it has pending.
    """
    known = set(acknowledged)
    return [
        gateway
        for gateway in gateways
        if gateway.status is GatewayStatus.ACTIVE
        and (gateway.gateway_id, gateway.incarnation) not in known
    ]
