"""Who may still act: incarnations of gateways, their fences, and who holds a barrier back.

A process that slept must find out by what it carries, not by what it believes: every write is
checked against the newest incarnation.
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Sequence
from dataclasses import dataclass, field, replace
from uuid import UUID

from tideline.control_plane.errors import (
    GatewayFenced,
    GatewayIdHeld,
    GatewayRetired,
    InvalidInput,
    UnknownGateway,
)
from tideline.control_plane.model import UNACCOUNTED, GatewayRegistration
from tideline.domain.quiescence import LeaseReading

ACTIVE, FENCED, RELEASED, RETIRED = "active", "fenced", "released", "retired"


@dataclass(slots=True)
class Gateways:
    """Every gateway ever registered, by id."""

    registered: dict[int, GatewayRegistration] = field(default_factory=dict)
    reasons: dict[int, str] = field(default_factory=dict)
    """Why one was fenced, or who attested that a retired one is cut off."""
    ended: dict[UUID, GatewayRegistration] = field(default_factory=dict)
    """Incarnations that may never act again, as they were."""
    timelines: dict[int, int] = field(default_factory=dict)
    """By id: that of the server when the gateway renewed or registered last."""
    accounted: dict[UUID, str] = field(default_factory=dict)
    """Of those: how it is known that no process acts under it."""

    def register(self, gateway: GatewayRegistration, watched: LeaseReading | None = None) -> None:
        """A new incarnation ends the one before it for ever; the same one may register again. One
        that is active is replaced only at the counter at which it was ``watched`` to stand still.
        """
        known = self.registered.get(gateway.gateway_id)
        if known is not None and known.status == RETIRED:
            raise GatewayRetired(
                f"gateway {gateway.gateway_id} was retired ({self.reasons[gateway.gateway_id]})"
            )
        is_same = known is not None and known.incarnation == gateway.incarnation
        if gateway.incarnation in self.ended or (is_same and known and known.status != ACTIVE):
            raise GatewayFenced(
                f"incarnation {gateway.incarnation} of gateway {gateway.gateway_id} was fenced "
                "for ever"
            )
        if known is None:
            self.registered[gateway.gateway_id] = gateway
        elif not is_same:
            self._assert_may_replace(known, watched)
            self.ended.setdefault(known.incarnation, known)
            self.registered[gateway.gateway_id] = replace(gateway, renewals=known.renewals + 1)
        else:
            # The process counts its lease from here: who waits for it to lapse has to see that.
            self.registered[gateway.gateway_id] = replace(known, renewals=known.renewals + 1)

    def _assert_may_replace(
        self, holder: GatewayRegistration, watched: LeaseReading | None
    ) -> None:
        seen = (watched.incarnation, watched.renewals) if watched is not None else None
        if holder.status == ACTIVE and seen != (holder.incarnation, holder.renewals):
            raise GatewayIdHeld(
                f"gateway id {holder.gateway_id} is held by incarnation {holder.incarnation} at "
                f"{holder.address} (renewal {holder.renewals})"
            )

    def release(self, gateway_id: int, incarnation: UUID) -> None:
        """The process has stopped: whoever comes next need not wait."""
        known = self.registered.get(gateway_id)
        if known is not None and (known.incarnation, known.status) == (incarnation, ACTIVE):
            self.registered[gateway_id] = replace(known, status=RELEASED)
            self.reasons[gateway_id] = "stopped"
            self.ended[incarnation] = known
        self.account(gateway_id, [incarnation], "stopped")

    def account(self, gateway_id: int, incarnations: Iterable[UUID], how: str) -> None:
        """Of those that have ended: nothing acts under them any more."""
        for incarnation in incarnations:
            known = self.ended.get(incarnation)
            if known is not None and known.gateway_id == gateway_id:
                self.accounted.setdefault(incarnation, how)

    def attest_gone(self, gateway_id: int, incarnations: Sequence[UUID], attested_by: str) -> None:
        """Raises ``InvalidInput`` when nobody attests, ``UnknownGateway``."""
        if not attested_by:
            raise InvalidInput("nobody attests that the process is gone")
        known = (self.ended.get(incarnation) for incarnation in incarnations)
        if any(was is None or was.gateway_id != gateway_id for was in known):
            named = ", ".join(map(str, incarnations))
            raise UnknownGateway(f"no incarnation {named} of gateway {gateway_id} has ended")
        self.account(gateway_id, incarnations, f"gone, attested by {attested_by}")

    def unaccounted(self) -> list[GatewayRegistration]:
        """Replaced incarnations that may still run, but for those of retired ids."""
        return [
            replace(
                now, incarnation=incarnation, status=UNACCOUNTED, renewals=0, address=known.address
            )
            for incarnation, known in self.ended.items()
            if incarnation not in self.accounted
            and (now := self.registered[known.gateway_id]).status != RETIRED
            and now.incarnation != incarnation
        ]

    def is_active(self, gateway_id: int, incarnation: UUID) -> bool:
        known = self.registered.get(gateway_id)
        return known is not None and (known.incarnation, known.status) == (incarnation, ACTIVE)

    def renew(self, gateway_id: int, incarnation: UUID, timeline: int) -> int:
        """The counter after one more renewal. Raises ``GatewayFenced``."""
        self.assert_active(gateway_id, incarnation)
        known = self.registered[gateway_id]
        self.registered[gateway_id] = replace(known, renewals=known.renewals + 1)
        self.timelines[gateway_id] = timeline
        return known.renewals + 1

    def unheard(self, timeline: int) -> list[GatewayRegistration]:
        """Active ones that have not renewed on it."""
        return [
            gateway
            for gateway in self.at_quiesce_barrier()
            if self.timelines.get(gateway.gateway_id) != timeline
        ]

    def heard(self, incarnations: Container[UUID], timeline: int) -> None:
        """As if they had renewed on it."""
        for gateway in self.unheard(timeline):
            if gateway.incarnation in incarnations:
                self.timelines[gateway.gateway_id] = timeline

    def note_serving(self, gateway_id: int, incarnation: UUID, serving: bool) -> None:
        """Raises ``GatewayFenced``."""
        self.assert_active(gateway_id, incarnation)
        known = self.registered[gateway_id]
        self.registered[gateway_id] = replace(known, serving=serving)

    def assert_active(self, gateway_id: int, incarnation: UUID) -> None:
        """Raises ``GatewayFenced`` unless the incarnation is the registered one and not fenced."""
        known = self.registered.get(gateway_id)
        if known is None:
            why = "it is not registered"
        elif known.incarnation != incarnation:
            why = "a newer one has registered"
        elif known.status != ACTIVE:
            why = f"it is {known.status} ({self.reasons[gateway_id]})"
        else:
            return
        raise GatewayFenced(f"incarnation {incarnation} of gateway {gateway_id} may not act: {why}")

    def fence(self, gateway_id: int, incarnation: UUID, renewals: int, reason: str) -> bool:
        """Whether the incarnation is fenced now: not if it was renewed past ``renewals``."""
        known = self.registered.get(gateway_id)
        if known is None or known.incarnation != incarnation:
            return False
        if known.status == ACTIVE and known.renewals == renewals:
            self.registered[gateway_id] = replace(known, status=FENCED)
            self.reasons[gateway_id] = reason
            self.ended[incarnation] = known
        return self.registered[gateway_id].status == FENCED

    def retire(self, gateway_id: int, attested_by: str) -> None:
        """Raises ``InvalidInput`` when nobody attests, ``UnknownGateway``."""
        if not attested_by:
            raise InvalidInput("nobody attests that the gateway is cut off")
        if gateway_id not in self.registered:
            raise UnknownGateway(f"gateway {gateway_id} was never registered")
        known = self.registered[gateway_id]
        if known.status != RETIRED:
            self.registered[gateway_id] = replace(known, status=RETIRED)
            self.reasons[gateway_id] = f"cut off, attested by {attested_by}"

    def at_tracking_barrier(self) -> list[GatewayRegistration]:
        """A gateway that is fenced or stopped counts. It never heard of the topic: when it wakes,
        and until it learns that it is over, it passes produces through untracked and relays their
        acknowledgements. Only an operator who retires it attests that it is cut off. So does an
        incarnation that was replaced and may still run: its successor's word says nothing of it.
        """
        registered = [gateway for gateway in self._by_id() if gateway.status != RETIRED]
        return sorted([*registered, *self.unaccounted()], key=lambda g: g.gateway_id)

    def at_quiesce_barrier(self) -> list[GatewayRegistration]:
        """A fenced gateway does not count: it tracks the topic (the tracking barrier waited for
        it), so its fence keeps it from relaying what it has pending."""
        return [gateway for gateway in self._by_id() if gateway.status == ACTIVE]

    def _by_id(self) -> Iterable[GatewayRegistration]:
        return (self.registered[gateway_id] for gateway_id in sorted(self.registered))
