"""What is in flight to Kafka per tracked partition, and the acknowledgement of a closed generation.

What always holds: a gateway acknowledges that a generation is closed only when no produce that it
forwarded is unanswered, and from then on it forwards none and shows no offset higher than what it
had seen, until B0, the abort, or the end of the quiesce is known (schedules 1, 2, 5, 13, 14).
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass, field
from uuid import UUID

import structlog

from tideline.background import cancel_and_wait, spawn
from tideline.control_plane import ControlPlane
from tideline.control_plane.errors import ControlPlaneUnavailable, GatewayFenced
from tideline.domain.ack_gate import AckTicket, AckVerdict, Standing, judge
from tideline.domain.history import WrongHistory
from tideline.domain.ids import TopicIdPartition, TopicPartition
from tideline.domain.migration import UNDEFINED_OFFSET
from tideline.domain.read_ceiling import UNKNOWN_CEILING, UNKNOWN_EPOCH, ReadCeiling
from tideline.domain.request_handling import PartitionRoute, RouteKind
from tideline.errors import RefusedError, TidelineError
from tideline.gateway.metrics import QUIESCE_ACK_SECONDS
from tideline.gateway.tracking.confirm import Confirmations
from tideline.gateway.tracking.lease import Lease
from tideline.gateway.tracking.view import TrackingView

log = structlog.get_logger()
RETRY_S = 0.1
ASK_AGAIN_S = 0.25
"""A closing may become void, or Postgres come back, without a word to this gateway."""
READ_PATIENCE_S = 1.0
"""How long a consumer waits for a confirmation before it is shown what was confirmed earlier."""
CEILING_PATIENCE_S = 0.1
VOID_CHECK_S = 0.5
"""How often it is asked whether a quiesce is past its deadline, which the database decides."""


@dataclass(slots=True)
class PartitionFence:
    """One tracked partition's traffic with Kafka."""

    in_flight: int = 0
    """Produces forwarded whose answer has not been dealt with."""
    highest_acknowledged: int = UNDEFINED_OFFSET
    """Last offset (inclusive) acknowledged to a producer."""
    closed_generation: int = -1
    """Newest generation whose closing was acknowledged."""
    ceiling: ReadCeiling = field(default_factory=ReadCeiling)
    idle: asyncio.Event = field(default_factory=asyncio.Event)

    def __post_init__(self) -> None:
        self.idle.set()


class IncarnationFenced(Exception):
    """The incarnation that forwarded the produce is over: its connection has to end."""


class Fences:
    """The fences of all tracked partitions, and the ack gate over them."""

    def __init__(self, tracking: TrackingView, lease: Lease, confirmations: Confirmations) -> None:
        self._tracking = tracking
        self._lease = lease
        self._confirmations = confirmations
        self._fences: dict[TopicIdPartition, PartitionFence] = {}
        self._changed = asyncio.Event()
        tracking.changed.add(self._routes_changed)
        lease.gained.add(self.pulse)
        lease.fenced.add(self.pulse)

    def __len__(self) -> int:
        return len(self._fences)

    def of(self, at: TopicIdPartition) -> PartitionFence:
        fence = self._fences.get(at)
        if fence is None:
            fence = self._fences[at] = PartitionFence()
        return fence

    def thaw(self, at: TopicIdPartition) -> None:
        """The quiesce is over; what was never begun is not begun by this."""
        if (fence := self._fences.get(at)) is not None:
            fence.ceiling.thaw()

    def pulse(self) -> None:
        """Something that the gate depends on has changed."""
        self._changed.set()
        self._changed = asyncio.Event()

    def _routes_changed(self, logs: frozenset[TopicIdPartition]) -> None:
        self.pulse()
        for at in logs:
            self._forget_if_let_go(at)

    def _forget_if_let_go(self, at: TopicIdPartition) -> None:
        """So that what is remembered is bounded by what is tracked."""
        fence = self._fences.get(at)
        # Not while it is displaced: that may be a broker that lags, and what was acknowledged by
        # then is what SQL refuses a lower B0 for.
        let_go = self._tracking.topic_by_id(at.topic_id) is None
        if fence is not None and let_go and fence.in_flight == 0:
            del self._fences[at]

    def forwarded(self, at: TopicIdPartition) -> AckTicket:
        """A produce goes to Kafka now. Every call needs one of :meth:`answered`."""
        fence = self.of(at)
        fence.in_flight += 1
        fence.idle.clear()
        return AckTicket(self._lease.incarnation, fence.closed_generation)

    def answered(self, at: TopicIdPartition, acknowledged: int = UNDEFINED_OFFSET) -> None:
        """Its answer is dealt with; ``acknowledged``: the last offset that was relayed, if any."""
        fence = self.of(at)
        fence.highest_acknowledged = max(fence.highest_acknowledged, acknowledged)
        fence.in_flight -= 1
        if fence.in_flight == 0:
            fence.idle.set()
            self._forget_if_let_go(at)

    async def pass_gate(
        self, at: TopicIdPartition, ticket: AckTicket, last_offset: int, patience_s: float
    ) -> bool:
        """Whether a final answer of Kafka may be relayed; waits until that is known. To be called
        when the answer is there, since Postgres is asked from then on.

        Raises :class:`IncarnationFenced` if the incarnation is over, ``TimeoutError`` past the
        bound.
        """
        async with asyncio.timeout(patience_s):
            while True:
                changed = self._changed
                verdict = self._judge(at, ticket, last_offset, None)
                if verdict is AckVerdict.ASK:
                    standing = await self._confirmations.standing(at)
                    verdict = self._judge(at, ticket, last_offset, standing)
                if verdict in (AckVerdict.RELAY, AckVerdict.WITHHOLD):
                    return verdict is AckVerdict.RELAY
                if ticket.incarnation != self._lease.incarnation:
                    raise IncarnationFenced(f"incarnation {ticket.incarnation} was fenced")
                with suppress(TimeoutError):
                    async with asyncio.timeout(ASK_AGAIN_S):
                        await changed.wait()

    def _judge(
        self, at: TopicIdPartition, ticket: AckTicket, last_offset: int, standing: Standing | None
    ) -> AckVerdict:
        return judge(
            ticket,
            self._tracking.partition(at.topic_id, at.partition),
            incarnation=self._lease.incarnation,
            closed_generation=self.of(at).closed_generation,
            lease_valid=self._tracking.lease_valid(),
            last_offset=last_offset,
            standing=standing,
        )

    async def confirmed(self, at: TopicIdPartition) -> bool:
        """Whether what Kafka has answered of ``at`` before now, B0 being unset, stays true of the
        whole log: every B0 that may yet be set lies past it."""
        if not self._tracking.lease_valid():
            return False
        with suppress(TimeoutError):
            async with asyncio.timeout(READ_PATIENCE_S):
                standing = await self._confirmations.standing(at)
                return standing is not None and standing.confirms and self._tracking.lease_valid()
        return False

    async def observe(self, at: TopicIdPartition, end: int, leader_epoch: int) -> None:
        """A consumer's own request has seen the log up to ``end`` (exclusive), while B0 was unset.
        The read ceiling is raised if that is confirmed within the patience of a read."""
        ceiling = self.of(at).ceiling
        if ceiling.asks(end, leader_epoch) and not ceiling.frozen and await self.confirmed(at):
            self.of(at).ceiling.confirmed(end, leader_epoch)

    def ceiling_of(self, at: TopicIdPartition, route: PartitionRoute) -> int:
        """First offset that must not be returned from Kafka's log, or ``UNKNOWN_CEILING``."""
        limit = self.of(at).ceiling.limit(route)
        self._forget_if_let_go(at)  # the route may have changed while the reader waited
        return limit


class QuiesceKeeper:
    """Acknowledges closed generations and ends those that are past their deadline."""

    def __init__(
        self,
        control_plane: ControlPlane,
        tracking: TrackingView,
        lease: Lease,
        fences: Fences,
        *,
        high_watermark: Callable[[TopicPartition], Awaitable[int | None]],
        reload: Callable[[TopicIdPartition], Awaitable[None]],
        drained: Callable[[UUID], Awaitable[None]],
    ) -> None:
        """``drained`` returns when everything is done that reached Kafka before the topic was
        tracked in its present round."""
        self._control_plane = control_plane
        self._tracking = tracking
        self._lease = lease
        self._fences = fences
        self._high_watermark = high_watermark
        self._reload = reload
        self._drained = drained
        self._tasks: dict[TopicIdPartition, tuple[int, UUID, asyncio.Task[None]]] = {}
        tracking.changed.add(self._routes_changed)
        lease.gained.add(self._start_over)

    def _routes_changed(self, logs: frozenset[TopicIdPartition]) -> None:
        for at in logs:
            self._settle(at)

    def _settle(self, at: TopicIdPartition) -> None:
        route = self._tracking.partition(at.topic_id, at.partition)
        running = self._tasks.get(at)
        if route.kind is not RouteKind.QUIESCING:
            self._cancel(at)
            self._fences.thaw(at)
            return
        wanted = (route.generation, self._lease.incarnation)
        if running is not None and running[:2] == wanted:
            return
        self._cancel(at)
        if not self._tracking.lease_valid() or (running is not None and running[1] != wanted[1]):
            # The barrier may have passed the incarnation before this one, and B0 may be read from
            # the log end already: what Kafka shows from now on may lie past it (schedule 2).
            self._fences.of(at).ceiling.freeze()
        task = spawn(self._keep(at, route.generation), f"quiesce-{at}", vital=True)
        self._tasks[at] = (*wanted, task)
        task.add_done_callback(lambda done: self._forget(at, done))

    def _cancel(self, at: TopicIdPartition) -> None:
        if (running := self._tasks.pop(at, None)) is not None:
            running[2].cancel()

    def _forget(self, at: TopicIdPartition, done: asyncio.Task[None]) -> None:
        if (running := self._tasks.get(at)) is not None and running[2] is done:
            del self._tasks[at]

    def _start_over(self) -> None:
        """A new incarnation has to acknowledge by itself."""
        for at, route in self._tracking.routes().items():
            if route.kind is RouteKind.QUIESCING:
                self._settle(at)

    async def _keep(self, at: TopicIdPartition, generation: int) -> None:
        seen = time.monotonic()
        await self._acknowledge(at, generation, seen)
        while self._is_wanted(at):
            await self._void_if_expired(at, generation)

    def _is_wanted(self, at: TopicIdPartition) -> bool:
        """Whether the task that asks is the partition's still: a cancellation may be swallowed
        (tideline.background)."""
        running = self._tasks.get(at)
        return running is not None and running[2] is asyncio.current_task()

    async def _void_if_expired(self, at: TopicIdPartition, generation: int) -> None:
        await asyncio.sleep(VOID_CHECK_S)
        try:
            if await self._control_plane.void_expired_quiesce(at):
                log.warning("quiesce.void", partition=str(at), generation=generation)
                await self._reload(at)
        except TidelineError as error:
            log.warning("quiesce.deadline_not_asked", partition=str(at), error=str(error))

    async def _acknowledge(self, at: TopicIdPartition, generation: int, seen: float) -> None:
        fence = self._fences.of(at)
        topic = self._tracking.topic_by_id(at.topic_id)
        if topic is None:
            return
        # What an untracked produce appends is gated by nothing: B0 has to wait for it as well.
        await self._drained(at.topic_id)
        await asyncio.gather(self._find_ceiling(at, topic.name), fence.idle.wait())
        ceiling = fence.ceiling.freeze()
        fence.closed_generation = max(fence.closed_generation, generation)
        incarnation = self._lease.incarnation
        while self._is_wanted(at):
            try:
                await self._control_plane.acknowledge_quiesce(
                    self._lease.gateway_id,
                    incarnation=incarnation,
                    log=at,
                    generation=generation,
                    highest_acknowledged_offset=fence.highest_acknowledged,
                    read_ceiling=max(0, ceiling),
                )
            except (ControlPlaneUnavailable, WrongHistory) as error:
                log.warning("quiesce.not_acknowledged", partition=str(at), error=str(error))
                await asyncio.sleep(RETRY_S)
            except GatewayFenced:
                # The lease finds out by itself, and the new incarnation starts over; or this one
                # is not registered yet, and nobody starts over for it when it is.
                if self._lease.incarnation != incarnation:
                    return
                await asyncio.sleep(RETRY_S)
            except RefusedError as error:
                log.info("quiesce.superseded", partition=str(at), reason=str(error))
                return
            except TidelineError as error:
                # A full disk, a right that is missing: the barrier waits, as long as a quiesce may,
                # and classic traffic does not end with this process.
                log.error("quiesce.not_acknowledged", partition=str(at), error=str(error))
                await self._void_if_expired(at, generation)
            else:
                QUIESCE_ACK_SECONDS.observe(time.monotonic() - seen)
                return

    async def _find_ceiling(self, at: TopicIdPartition, topic: str) -> None:
        """So that a consumer that comes during the pause sees something, unless that would make
        the write pause longer: asked as a consumer asks, and confirmed like one's answer."""
        if self._fences.of(at).ceiling.highest_seen != UNKNOWN_CEILING:
            return
        with suppress(TimeoutError):
            async with asyncio.timeout(CEILING_PATIENCE_S):
                end = await self._high_watermark(TopicPartition(topic, at.partition))
                if end is not None:
                    await self._fences.observe(at, end, UNKNOWN_EPOCH)

    async def close(self) -> None:
        await cancel_and_wait(*(task for _, _, task in self._tasks.values()))
