"""Produces that have to wait, per partition and in the order of their arrival.

They wait while a generation is closed, while there is no valid lease, and while the WAL buffer is
full. What always holds: a partition's produces are let through in arrival order, none overtakes
another, and after one of a connection is refused everything parked behind it on that connection
and partition is refused too (schedule 10). Bounded by bytes over all partitions and by time.
"""

from __future__ import annotations

import asyncio
from collections import Counter, deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from enum import Enum, auto
from typing import Protocol

from tideline.domain.answers import SEND_AGAIN, Asked, Behaviour, handling
from tideline.domain.ids import TopicIdPartition
from tideline.domain.pipelining import ProducerBatch, is_after
from tideline.domain.request_handling import KafkaErrorCode
from tideline.gateway.metrics import (
    BOUND_REACHED,
    PARK_REFUSED,
    PARK_SECONDS,
    PARKED,
    PARKED_BYTES,
    PARKED_OLDEST,
)
from tideline.gateway.produce.deadlines import Deadlines
from tideline.gateway.produce.wal import RefusedProduces, WalWriter
from tideline.gateway.room import Room
from tideline.gateway.tracking.lease import Lease
from tideline.gateway.tracking.view import TrackingView


class Admission(Enum):
    """What a partition's produces may do now."""

    KAFKA = auto()
    """Forward to the broker, behind the ack gate."""
    SUFFIX = auto()
    """Append to the WAL."""
    WAIT = auto()


@dataclass(frozen=True, slots=True)
class AdmissionRefused:
    """Never, in this state; ``error`` is the answer."""

    error: KafkaErrorCode


class AdmissionRules(Protocol):
    """Says what a partition's produces may do, and when that may have become another answer."""

    def admission_of(self, log: TopicIdPartition) -> Admission | AdmissionRefused: ...

    def watch(
        self, *, some: Callable[[frozenset[TopicIdPartition]], None], every: Callable[[], None]
    ) -> None:
        """Call ``some`` with the logs whose admission may have changed, ``every`` when all may
        have."""

    def hurry(self) -> None:
        """What was let through to the suffix waits for nothing more to be gathered with it."""


class ProduceAdmission:
    """By a partition's route, the lease, and room in the WAL buffer."""

    def __init__(self, tracking: TrackingView, lease: Lease, writer: WalWriter) -> None:
        self._tracking = tracking
        self._lease = lease
        self._writer = writer

    def admission_of(self, log: TopicIdPartition) -> Admission | AdmissionRefused:
        """See :class:`AdmissionRules`."""
        route = self._tracking.partition(log.topic_id, log.partition)
        answer = handling(Asked.PRODUCE, route, self._tracking.lease)
        match answer.behaviour:
            case Behaviour.PASS | Behaviour.GATE:
                return Admission.KAFKA
            case Behaviour.SUFFIX:
                # SQL refuses the commits of an incarnation that it does not know.
                open_ = self._lease.registered and self._writer.has_room
                return Admission.SUFFIX if open_ else Admission.WAIT
            case Behaviour.REFUSE:
                return AdmissionRefused(answer.error)
            case _:
                return Admission.WAIT

    def watch(
        self, *, some: Callable[[frozenset[TopicIdPartition]], None], every: Callable[[], None]
    ) -> None:
        """See :class:`AdmissionRules`."""
        self._tracking.changed.add(some)
        self._lease.gained.add(every)
        self._writer.made_room.add(every)

    def hurry(self) -> None:
        """See :class:`AdmissionRules`."""
        self._writer.hurry()


@dataclass(slots=True, eq=False)
class ParkedProduce:
    """One partition's part of a produce request."""

    source: object
    """The client connection: order matters within it."""
    size: int
    """bytes"""
    batch: ProducerBatch
    max_wait_s: float
    admit: Callable[[Admission], None]
    """Takes it on, at once, in order. Not called after ``refuse``."""
    refuse: Callable[[KafkaErrorCode], None]
    awaited: bool = True
    """Its client waits for an answer; what nobody waits for goes on without its connection."""
    arrived: float = field(default=0.0)
    deadline: float = field(default=0.0)
    number: int = field(default=-1)
    """By which :class:`Deadlines` knows it."""


class ParkingLot:
    """One lane per partition, in the order of arrival."""

    def __init__(
        self,
        rules: AdmissionRules,
        refused: RefusedProduces,
        *,
        max_bytes: int,
        max_wait_s: float,
        clock: Callable[[], float],
        room: Room | None = None,
    ) -> None:
        self._rules = rules
        self._room = room or Room()
        self._refused = refused
        self._max_bytes = max_bytes
        self._max_wait_s = max_wait_s
        self._clock = clock
        self._lanes: dict[TopicIdPartition, deque[ParkedProduce]] = {}
        self._of_producer: Counter[tuple[TopicIdPartition, object, int]] = Counter()
        """How many wait of each producer on a connection."""
        self._overflowed: dict[TopicIdPartition, set[object]] = {}
        self._draining: set[TopicIdPartition] = set()
        self._bytes = 0
        self._deadlines = Deadlines()
        self._timer: asyncio.TimerHandle | None = None
        self._armed_for = 0.0
        """The deadline that the timer was set for, on the lot's clock."""
        rules.watch(some=self._drain_some, every=self.drain_all)
        refused.watch = self._refuse_behind
        PARKED_OLDEST.set_function(self.oldest_s)

    @property
    def parked_bytes(self) -> int:
        return self._bytes

    def oldest_s(self) -> float:
        """For how long the produce that has waited longest has; 0: none waits. Any thread may
        ask."""
        first = [entry.arrived for lane in tuple(self._lanes.values()) for entry in tuple(lane)[:1]]
        return self._clock() - min(first) if first else 0.0

    def waiting(self, log: TopicIdPartition) -> int:
        """How many produces of ``log`` wait."""
        return len(self._lanes.get(log, ()))

    def offer(self, log: TopicIdPartition, entry: ParkedProduce) -> None:
        """Let ``entry`` through, park it, or refuse it; returns at once."""
        if not self._refused.may_pass((log, entry.source), entry.batch):
            self._refuse(log, entry, SEND_AGAIN, "order")
            return
        lane = self._lanes.get(log)
        if not lane and log not in self._draining:
            match self._rules.admission_of(log):
                case AdmissionRefused(error):
                    self._refuse(log, entry, error, "state")
                    return
                case Admission.WAIT:
                    pass
                case admission:
                    entry.admit(admission)
                    return
        self._park(log, entry)

    def goes_on(self, log: TopicIdPartition) -> bool:
        """Whether a produce that came now would be let through to the suffix at once, but for what
        of its own producer was refused."""
        if self._lanes.get(log) or log in self._draining:
            return False
        return self._rules.admission_of(log) is Admission.SUFFIX

    def drain(self, log: TopicIdPartition) -> bool:
        """Let through what may go now; whether some went to the suffix. Call it when the state of
        ``log`` has changed."""
        lane, to_suffix = self._lanes.get(log), False
        if not lane or log in self._draining:
            return False
        self._draining.add(log)
        try:
            while lane:
                admission = self._rules.admission_of(log)
                if admission is Admission.WAIT:
                    break
                entry = self._take(log, lane)
                if isinstance(admission, AdmissionRefused):
                    self._refuse(log, entry, admission.error, "state")
                elif self._refused.may_pass((log, entry.source), entry.batch):
                    PARK_SECONDS.observe(self._clock() - entry.arrived)
                    entry.admit(admission)
                    to_suffix |= admission is Admission.SUFFIX
                else:
                    self._refuse(log, entry, SEND_AGAIN, "order")
        finally:
            self._draining.discard(log)
            self._forget_if_empty(log)
        return to_suffix

    def _drain_some(self, logs: frozenset[TopicIdPartition]) -> None:
        """Of those whose B0 is there the write pause ends with their commit. What waited for room
        is not hurried: it would go in smaller objects the more there is."""
        went = [self.drain(log) for log in logs]
        if any(went):
            self._rules.hurry()

    def drain_all(self) -> None:
        """:meth:`drain` for every lane: a lease came back, or the WAL buffer has room."""
        for log in list(self._lanes):
            self.drain(log)

    def drop(self, source: object) -> None:
        """The connection is gone: nobody waits any more for what it had parked, and it was never
        taken on."""
        for log, lane in list(self._lanes.items()):
            for entry in self._split(lane, lambda e: e.source is source and e.awaited):
                self._leaves(log, entry)
            self._forget_if_empty(log)

    def expire(self) -> None:
        """Refuse what has waited too long, and what is parked behind it on its connection."""
        now = self._clock()
        for log in self._deadlines.take_late(now):
            lane = self._lanes.get(log)
            if lane is None:
                continue  # drained, or dropped, by what a refusal before it led to
            for source in dict.fromkeys(entry.source for entry in lane if entry.deadline <= now):
                self._refuse_from(log, lane, source, now)
            self._forget_if_empty(log)
            self.drain(log)
        self._arm()

    def _park(self, log: TopicIdPartition, entry: ParkedProduce) -> None:
        overflowed = self._overflowed.get(log, set())
        if entry.source in overflowed or self._bytes + entry.size > self._max_bytes:
            self._overflowed.setdefault(log, set()).add(entry.source)
            self._refuse(log, entry, SEND_AGAIN, "bytes")
            if log not in self._lanes:
                self._overflowed.pop(log, None)
            return
        entry.arrived = self._clock()
        entry.deadline = entry.arrived + min(self._max_wait_s, entry.max_wait_s)
        self._lanes.setdefault(log, deque()).append(entry)
        self._of_producer[log, entry.source, entry.batch.producer_id] += 1
        self._account(1, entry.size)
        entry.number = self._deadlines.add(log, entry.deadline)
        self._arm()

    def _refuse_from(
        self, log: TopicIdPartition, lane: deque[ParkedProduce], source: object, now: float
    ) -> None:
        """The first late entry of ``source`` and all of ``source`` behind it."""
        reached = False

        def goes(entry: ParkedProduce) -> bool:
            nonlocal reached
            if entry.source is not source:
                return False
            reached = reached or entry.deadline <= now
            return reached

        self._refuse_all(log, self._split(lane, goes), "time")

    def _refuse_behind(self, place: tuple[TopicIdPartition, object], batch: ProducerBatch) -> None:
        """What waits behind a batch of the same producer that was refused: that one, when it comes
        again, would wait behind it."""
        log, source = place
        lane = self._lanes.get(log)
        if lane is None or not self._of_producer[log, source, batch.producer_id]:
            return

        def goes(entry: ParkedProduce) -> bool:
            if entry.source is not source or entry.batch.producer_id != batch.producer_id:
                return False
            behind = is_after(entry.batch.base_sequence, batch.base_sequence)
            return behind and entry.batch.producer_epoch == batch.producer_epoch

        self._refuse_all(log, self._split(lane, goes), "order")
        if log not in self._draining:
            self._forget_if_empty(log)

    @staticmethod
    def _split(
        lane: deque[ParkedProduce], goes: Callable[[ParkedProduce], bool]
    ) -> list[ParkedProduce]:
        """Take out those that go, in one pass; both halves keep their order."""
        gone: list[ParkedProduce] = []
        stays: list[ParkedProduce] = []
        for entry in lane:
            (gone if goes(entry) else stays).append(entry)
        lane.clear()
        lane.extend(stays)
        return gone

    def _refuse_all(self, log: TopicIdPartition, gone: Sequence[ParkedProduce], bound: str) -> None:
        """All have left before the first one is refused: nobody looks for them behind it."""
        for entry in gone:
            self._leaves(log, entry)
        for entry in gone:
            self._refuse(log, entry, SEND_AGAIN, bound)

    def _refuse(
        self, log: TopicIdPartition, entry: ParkedProduce, error: KafkaErrorCode, bound: str
    ) -> None:
        self._refused.refuse((log, entry.source), entry.batch)
        PARK_REFUSED.labels(bound).inc()
        if bound == "bytes":
            BOUND_REACHED.labels("parked").inc()
        entry.refuse(error)

    def _take(self, log: TopicIdPartition, lane: deque[ParkedProduce]) -> ParkedProduce:
        entry = lane.popleft()
        self._leaves(log, entry)
        return entry

    def _leaves(self, log: TopicIdPartition, entry: ParkedProduce) -> None:
        place = log, entry.source, entry.batch.producer_id
        self._of_producer[place] -= 1
        if not self._of_producer[place]:
            del self._of_producer[place]
        self._deadlines.strike(entry.number)
        self._account(-1, -entry.size)

    def _account(self, count: int, size: int) -> None:
        self._bytes += size
        if size > 0:
            self._room.take("parked", size)
        else:
            self._room.give("parked", -size)
        PARKED.inc(count)
        PARKED_BYTES.inc(size)

    def _forget_if_empty(self, log: TopicIdPartition) -> None:
        if not self._lanes.get(log):
            self._lanes.pop(log, None)
            self._overflowed.pop(log, None)

    def _arm(self) -> None:
        """Have the timer ring no later than the earliest deadline. One that rings too early, for
        what has been let through since, sets itself anew."""
        earliest = self._deadlines.earliest()
        if self._timer is not None:
            if earliest is not None and earliest >= self._armed_for:
                return
            self._timer.cancel()
            self._timer = None
        if earliest is not None:
            delay = max(0.0, earliest - self._clock())
            self._timer = asyncio.get_running_loop().call_later(delay, self._ring)
            self._armed_for = earliest

    def _ring(self) -> None:
        self._timer = None
        self.expire()
