"""Which gateways live, and in which zone each is, as the registry tells.

Nobody is told here that a gateway may not act: that is fencing. A gateway that is taken for dead
without being it is only not named to clients for a while, so this goes by what was read last. While
Postgres does not answer nothing changes, and silence is counted anew from the first answer on: in
between nobody could renew.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace

import structlog

from tideline.background import cancel_and_wait, keep
from tideline.control_plane import ControlPlane
from tideline.control_plane.model import GatewayRegistration
from tideline.domain.leader_choice import LiveGateways
from tideline.domain.quiescence import LeaseReading, LeaseWatch
from tideline.domain.stand_in import Fleet, Sibling, stand_ins_of
from tideline.errors import TidelineError
from tideline.gateway.listeners import Listeners
from tideline.gateway.metrics import LIVE_GATEWAYS
from tideline.gateway.tracking.lease import boot_clock
from tideline.gateway.tracking.view import TrackingView

log = structlog.get_logger()
ACTIVE = "active"
SLOW_S = 0.5
"""An answer that takes longer, and longer than a pause between two, was given by a Postgres that
others could not renew at either."""


class Peers:
    """Reads the registry while there is a partition that another gateway might serve: by the
    renewals of this gateway's lease, which list everybody; by itself while there are none."""

    def __init__(
        self,
        control_plane: ControlPlane,
        tracking: TrackingView,
        *,
        node: int,
        rack: str | None,
        addressed: Collection[int],
        poll_s: float,
        clock: Callable[[], float] = boot_clock,
        always: bool = False,
        serving: Callable[[], bool] = lambda: True,
        renews: Callable[[], bool] = lambda: False,
    ) -> None:
        """``node``: this gateway's own, which lives while it is asked, and ``serving`` says whether
        it accepts connections. ``addressed``: the nodes that clients are told an address of.
        ``always``: the registry is read whatever is tracked, for those who stand in. ``renews``:
        whether the lease is valid, of which :meth:`told` hears every ``poll_s``, :meth:`untold`
        when Postgres does not answer."""
        self._control_plane = control_plane
        self._tracking = tracking
        self._node, self._rack = node, rack
        self._addressed = frozenset(addressed)
        self.poll_s = poll_s
        self._clock = clock
        self.always = always
        self._serving, self._renews = serving, renews
        self._fleet: dict[int, Sibling] = {}
        self.readings = 0
        """Of the registry so far."""
        self.looked: Listeners[[]] = Listeners()
        """Called after each reading of the registry, and when the row of this gateway changes."""
        self._watch = LeaseWatch()
        self._registered: dict[int, str | None] = {}
        self._brokers: Mapping[int, str | None] | None = None
        self._racks: dict[int, str | None] = {}
        """Of each broker that Kafka has named, as it named it last."""
        self.zones: frozenset[str] = frozenset()
        """What is a zone: the racks of brokers, also of those that are away, and of gateways."""
        self._live: LiveGateways = {}
        self._tasks: list[asyncio.Task[None]] = []

    @property
    def live(self) -> LiveGateways:
        """Those that live, of the brokers that Kafka named last; empty while nothing is known."""
        return self._live

    @property
    def fleet(self) -> Fleet:
        """All that ever registered, as the registry was read last; empty before. Of two that name
        one broker it is who lives."""
        return self._fleet

    @property
    def zone(self) -> str | None:
        """Of this gateway."""
        return self._rack or (self._brokers or {}).get(self._node) or None

    @property
    def known(self) -> bool:
        """Whether the registry was read."""
        return bool(self._registered)

    @property
    def racks_known(self) -> bool:
        """Whether Kafka has named its brokers."""
        return self._brokers is not None

    def brokers_are(self, racks: Mapping[int, str | None]) -> None:
        """Kafka names these brokers, and the rack of each. One that it does not name is away, and
        its gateway accepts nobody."""
        if racks != self._brokers:
            self._brokers = dict(racks)
            self._racks |= racks
            self._settle()

    async def look(self) -> None:
        """Read the registry once. Raises :class:`~tideline.errors.TidelineError`."""
        sent = self._clock()
        try:
            gateways = await self._control_plane.list_gateways()
        except TidelineError:
            self.untold()
            raise
        self._read(gateways, sent, self._clock())

    def untold(self) -> None:
        """Postgres did not answer."""
        self._watch = LeaseWatch()

    def told(
        self, gateways: Sequence[GatewayRegistration], sent_s: float, answered_s: float
    ) -> None:
        """What a renewal has listed, and when it was sent and answered by the same clock."""
        if self._wanted():
            self._read(gateways, sent_s, answered_s)

    def own_changed(self) -> None:
        """This gateway accepts connections, or does not any more. Its clients are told by that, not
        by the reading before: of a gateway that begins, elsewhere nobody may have heard yet that it
        had been away."""
        own = self._fleet.get(self._node)
        if own is not None and own.serves != self._serving():
            self._fleet = {**self._fleet, self._node: replace(own, serves=self._serving())}
            self.looked()

    def _wanted(self) -> bool:
        return self.always or self._tracking.has_suffixes()

    def _read(
        self, gateways: Sequence[GatewayRegistration], sent_s: float, answered_s: float
    ) -> None:
        readings = {
            g: LeaseReading(g.gateway_id, g.incarnation, g.renewals, g.lease_ms)
            for g in gateways
            if g.status == ACTIVE
        }
        if answered_s - sent_s > max(SLOW_S, self.poll_s):
            self._watch = LeaseWatch()
        sent = sent_s * 1000
        self._watch.observe(readings.values(), sent_ms=sent, received_ms=answered_s * 1000)
        lapsed = {g.gateway_id: self._watch.lapsed(r, sent_ms=sent) for g, r in readings.items()}
        fleet: dict[int, Sibling] = {}
        for g in gateways:
            lives = not lapsed.get(g.gateway_id, True)
            if lives or g.broker_id not in fleet:
                fleet[g.broker_id] = Sibling(g.rack, lives, g.serving, stand_ins_of(g.stand_ins))
        own = fleet.get(self._node, Sibling())
        fleet[self._node] = replace(own, zone=self._rack, lives=True, serves=self._serving())
        self._fleet = fleet
        self._registered = {
            node: sibling.zone
            for node, sibling in fleet.items()
            if node == self._node or not sibling.is_away
        }
        self.readings += 1
        self._settle()
        self.looked()

    def _settle(self) -> None:
        brokers, before = self._brokers, self._live
        self._live = {
            node: rack or (brokers or {}).get(node) or None
            for node, rack in sorted(self._registered.items())
            if node in self._addressed and (brokers is None or node in brokers)
        }
        if before and before.keys() != self._live.keys():
            log.info("peers.changed", live=list(self._live), before=list(before))
        of_gateways = {self._rack, *(sibling.zone for sibling in self._fleet.values())}
        self.zones = frozenset(filter(None, {*self._racks.values(), *of_gateways}))
        LIVE_GATEWAYS.set(len(self._live))

    def start(self) -> None:
        self._tasks = [keep(self._follow(), "peers")]

    async def close(self) -> None:
        await cancel_and_wait(*self._tasks)

    async def _follow(self) -> None:
        while True:
            await asyncio.sleep(self.poll_s)
            if self._renews() or not self._wanted():
                continue
            try:
                await self.look()
            except TidelineError as error:
                log.warning("peers.not_read", error=str(error))
