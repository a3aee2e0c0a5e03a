"""A gateway process's incarnation and its lease on tracked topics.

What always holds: the lease is counted from before the renewal was sent, on a clock that runs on
while the machine is suspended, so it ends here no later than a waiter can see it end in Postgres
(schedules 1 and 15; architecture "Fencing 4"). A process takes the id over from another one only
after it has watched that one's counter stand still for its lease and a margin; of two processes
that live under one id the first keeps it, and the other says so and waits (schedule 24). What
this process was before, and what held its state directory before it, is accounted for.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from uuid import UUID, uuid4

import structlog

from tideline.background import spawn
from tideline.control_plane import ControlPlane
from tideline.control_plane.errors import GatewayFenced, GatewayIdHeld, GatewayRetired
from tideline.control_plane.model import GatewayRegistration
from tideline.domain.quiescence import LeaseReading, LeaseWatch
from tideline.errors import TidelineError
from tideline.gateway.listeners import Listeners
from tideline.gateway.metrics import (
    ID_HELD,
    LEASE_FENCED,
    LEASE_LEFT,
    LEASE_RENEWALS,
    LEASE_VALID,
)
from tideline.gateway.tracking.state_directory import StateDirectory

log = structlog.get_logger()
RELEASE_PATIENCE_S = 2.0
PROVEN_DEAD = "dead: another process holds the lock of its state directory"
GOES_ON = "the same process goes on as incarnation {}"
STOPPED = "stopped"
Clock = Callable[[], float]
BeforeServing = Callable[[], Awaitable[None]]
"""What a new incarnation has to learn before anything is served under it."""


def boot_clock() -> float:
    """Seconds since boot, suspended time included."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)


def _unheard(registering: asyncio.Task[None]) -> None:
    """Whoever waited may have gone; nobody else asks how it ended."""
    if not registering.cancelled():
        registering.exception()


async def _no_snapshot() -> None:
    """There is none."""


class NotNoted(TidelineError):
    """Nothing is registered that the next process here could not account for."""

    is_outage = True  # of the disk; nobody has refused this process


class Lease:
    """Registers, renews, and says whether it is valid now."""

    def __init__(
        self,
        control_plane: ControlPlane,
        *,
        gateway_id: int,
        broker_id: int,
        address: str,
        version: str,
        duration_ms: int,
        rack: str | None = None,
        clock: Clock = boot_clock,
        directory: StateDirectory | None = None,
        stand_ins: str | None = None,
    ) -> None:
        self._control_plane = control_plane
        self._directory = directory
        self._was: list[UUID] = []
        """This process under other incarnations, until Postgres knows that it goes on."""
        self._noted: UUID | None = None
        self.gateway_id = gateway_id
        self._broker_id = broker_id
        self._address = address
        self._version = version
        self._rack = rack
        self.stand_ins = stand_ins
        """Where this gateway stands in for others, as it is told at each registration."""
        self.serving = True
        """Whether connections are accepted, as the registry is told."""
        self._duration_ms = duration_ms
        self._clock = clock
        self._valid_until = float("-inf")
        self._registered = False
        self._asked_for: UUID | None = None
        """The incarnation that may be registered, whether or not this process has heard of it."""
        self._registering: asyncio.Task[None] | None = None
        """A call that was sent is carried out, also when nobody waits for it any more."""
        self._turn = asyncio.Lock()
        """Of a renewal, or of the release after which there is none."""
        self.released = False
        """The process stops: what it still hears is not kept on disk."""
        self.remove_snapshot: Callable[[], Awaitable[None]] = _no_snapshot
        """Whoever starts over the state directory next asks Postgres first. Raises ``OSError``."""
        self._holder = LeaseWatch()
        self._seen: LeaseReading | None = None
        """Who held the id when it was looked at last."""
        self._takes_over: LeaseReading | None = None
        """Who has let the lease lapse, so that this process may take the id over."""
        self.incarnation = uuid4()
        self.gained: Listeners[[]] = Listeners()
        """Called whenever the lease becomes valid after it was not."""
        self.fenced: Listeners[[]] = Listeners()
        """Called when the incarnation is over, before another one registers: whoever has
        something pending drops it."""
        self.missed: Listeners[[]] = Listeners()
        """Called when Postgres did not answer a renewal."""
        self.told: Listeners[[Sequence[GatewayRegistration], float, float]] = Listeners()
        """Called with every gateway as a renewal has listed them, and when it was sent and
        answered, on this lease's clock."""
        self.served: Listeners[[]] = Listeners()
        """Called when :attr:`serving` is told, before the registry has it."""
        self.serves_unregistered = False
        """Requests are served, from the snapshot, and Postgres has not heard of this process yet:
        what was here before stands for it at the barriers."""
        self.stopped = False
        """Postgres may not be the right one: nothing is renewed or served."""
        self.went_back: Listeners[[str]] = Listeners()
        """Called with what Postgres has lost."""
        self._renewals: int | None = None
        """The counter that this incarnation was told last."""
        LEASE_VALID.set_function(lambda: float(self.valid()))
        LEASE_LEFT.set_function(self._left_s)

    def valid(self) -> bool:
        """Whether nobody can have fenced this incarnation yet."""
        over = self.stopped or self.released
        return not over and self._clock() < self._valid_until

    def _left_s(self) -> float:
        return max(0.0, self._valid_until - self._clock()) if self.valid() else 0.0

    @property
    def registered(self) -> bool:
        return self._registered

    async def renew(self, before_serving: BeforeServing | None = None) -> None:
        """Register or renew once; a new incarnation awaits ``before_serving`` before it counts as
        registered. Raises what that raises, and ``ControlPlaneUnavailable``; being fenced, also
        between a registration and its answer, is handled here; a retired gateway id raises
        ``GatewayRetired``, one that another process holds ``GatewayIdHeld``."""
        async with self._turn:
            if not self.released:
                await self._renew(before_serving)

    async def _renew(self, before_serving: BeforeServing | None) -> None:
        was_valid = self.valid()
        sent = self._clock()
        if not self._registered:
            try:
                await self._register()
            except GatewayFenced as error:
                # It was registered, which this process did not hear of, and has ended since: an
                # incarnation never comes back.
                self.end_incarnation(str(error))
                return
            if before_serving is not None:
                await before_serving()
            self._registered = True
        else:
            told, incarnation = self._renewals, self.incarnation
            try:
                gateways = await self._control_plane.renew_and_list(self.gateway_id, incarnation)
            except GatewayFenced as error:
                self.end_incarnation(str(error))
                return
            answered = self._clock()
            renewals = next(g.renewals for g in gateways if g.gateway_id == self.gateway_id)
            if told is not None and renewals <= told:
                # Nobody else moves this counter: a commit that was acknowledged is gone.
                self._valid_until = float("-inf")
                self.went_back(
                    f"renewal {told} of incarnation {incarnation} was acknowledged, and the next "
                    f"one is {renewals}"
                )
                return
            self._renewals = renewals
            self.told(gateways, sent, answered)
        LEASE_RENEWALS.inc()
        self._valid_until = sent + self._duration_ms / 1000
        if not was_valid and self.valid():
            self.gained()

    async def _register(self) -> None:
        await self._note()
        self._asked_for = self.incarnation
        self._registering = spawn(self._ask_to_register(), "register")
        self._registering.add_done_callback(_unheard)
        try:
            await asyncio.shield(self._registering)
        except GatewayIdHeld:
            await self._watch_holder()
            if not (self.serves_unregistered or self.waits_for_its_dead):
                # Another one goes on elsewhere: what was here before is dead all the same.
                await self._account_unregistered()
            raise
        self.serves_unregistered = False
        self._takes_over = self._seen = None
        ID_HELD.set(0)
        await self._settle()

    async def _ask_to_register(self) -> None:
        await self._control_plane.register_gateway(
            self.gateway_id,
            broker_id=self._broker_id,
            incarnation=self.incarnation,
            address=self._address,
            version=self._version,
            lease_ms=self._duration_ms,
            watched=self._takes_over,
            rack=self._rack,
            stand_ins=self.stand_ins,
            serving=self.serving,
        )

    @property
    def waits_for_its_dead(self) -> bool:
        """Whether the id is held by what was here before this process, and is dead."""
        return self._seen is not None and self._seen.incarnation in self._dead()

    def _dead(self) -> Sequence[UUID]:
        return self._directory.dead if self._directory is not None else ()

    async def _note(self) -> None:
        """Name the incarnation on disk before Postgres hears of it."""
        if self._directory is not None and self._noted != self.incarnation:
            try:
                await asyncio.to_thread(self._directory.note, [*self._was, self.incarnation])
            except OSError as error:
                raise NotNoted(
                    f"the incarnation could not be noted in the state directory ({error}): make "
                    "room there and let the gateway write to it"
                ) from error
            self._noted = self.incarnation

    async def _settle(self) -> None:
        """From the registration on this incarnation answers for what the process was before:
        it acknowledges a topic only when everything of the process is drained."""
        await self._account(self._dead(), PROVEN_DEAD)
        await self._account(self._was, GOES_ON.format(self.incarnation))
        self._was.clear()
        if self._directory is not None:
            self._directory.settled()

    async def _account_unregistered(self) -> None:
        """Nobody stands for this directory from then on, also for whoever starts here next."""
        if self._dead():
            await self._remove_snapshot()
            await self._account(self._dead(), PROVEN_DEAD)

    async def _remove_snapshot(self) -> None:
        try:
            await self.remove_snapshot()
        except OSError as error:
            raise NotNoted(
                f"the snapshot could not be removed from the state directory ({error}): let "
                "the gateway write to it"
            ) from error

    async def _account(self, incarnations: Sequence[UUID], how: str) -> None:
        if incarnations:
            await self._control_plane.account_incarnations(self.gateway_id, incarnations, how)

    async def _watch_holder(self) -> None:
        """Take the id over at the next attempt if its holder's lease has lapsed for certain."""
        sent = self._clock() * 1000
        readings = [
            LeaseReading(g.gateway_id, g.incarnation, g.renewals, g.lease_ms)
            for g in await self._control_plane.list_gateways()
            if g.gateway_id == self.gateway_id
        ]
        self._holder.observe(readings, sent_ms=sent, received_ms=self._clock() * 1000)
        self._takes_over = None
        for reading in readings:
            before, self._seen = self._seen, reading
            if before is not None and before != reading:
                ID_HELD.set(1)
                log.error(
                    "lease.id_held_by_a_live_process",
                    gateway=self.gateway_id,
                    holder=str(reading.incarnation),
                    remedy="two processes run under one gateway id: stop one of them, or give it "
                    "its own TIDELINE_GATEWAY_ID",
                )
            elif self._holder.lapsed(reading, sent_ms=sent):
                ID_HELD.set(0)
                self._takes_over = reading

    async def tell_serving(self, serving: bool) -> bool:
        """The other gateways learn whether connections are accepted here, now and from later
        registrations. Whether Postgres knows; raises as a call to it does. That this incarnation is
        fenced is found out by the renewal."""
        self.serving = serving
        self.served()
        if not self._registered:
            return False
        try:
            await self._control_plane.note_serving(self.gateway_id, self.incarnation, serving)
        except GatewayFenced:
            return False
        return True

    async def release(self) -> None:
        """The process stops and has ended every connection: whoever starts next need not wait, and
        no barrier does. Nothing is renewed or registered any more, and no snapshot is left: nobody
        stands for this state directory from then on, and what migrates meanwhile, while the id is
        at another place for example, is not in it. Without Postgres nothing happens, the lease
        lapses by itself, and the snapshot is what the next start may need."""
        self.released = True
        self._valid_until = float("-inf")
        try:
            async with asyncio.timeout(RELEASE_PATIENCE_S), self._turn:
                if self._registering is not None:
                    await asyncio.wait([self._registering])
                was_registered = self._asked_for == self.incarnation
                self._asked_for, self._registered = None, False
                if was_registered or self._was:
                    with suppress(GatewayFenced):  # which is an answer, too
                        await self._control_plane.renew_lease(self.gateway_id, self.incarnation)
                    await self._remove_snapshot()
                await self._account(self._was, STOPPED)
                if was_registered:
                    await self._control_plane.release_gateway(self.gateway_id, self.incarnation)
                    log.info("lease.released", incarnation=str(self.incarnation))
        except (TidelineError, TimeoutError) as error:
            log.warning("lease.not_released", error=str(error))

    def end_incarnation(self, reason: str) -> None:
        """Postgres has fenced this one: drop what is pending, then live on as another one."""
        log.warning("lease.fenced", incarnation=str(self.incarnation), reason=reason)
        LEASE_FENCED.inc()
        self._valid_until = float("-inf")
        self._registered = False
        self._was.append(self.incarnation)
        self.incarnation = uuid4()
        self._renewals = None
        self.fenced()

    async def keep(self, before_serving: BeforeServing) -> None:
        """:meth:`renew` every third of the duration, for ever; sooner after a failure. Raises
        ``GatewayRetired``: no barrier waits for this process any more, so it may serve nobody."""
        pause = self._duration_ms / 3000
        while True:
            if self.stopped:
                await asyncio.sleep(pause)
                continue
            try:
                await self.renew(before_serving)
                delay = pause if self._registered else 0.05
            except GatewayRetired:
                raise
            except TidelineError as error:
                log.warning("lease.not_renewed", valid=self.valid(), error=str(error))
                self.missed()
                delay = pause / 4
            await asyncio.sleep(delay)
