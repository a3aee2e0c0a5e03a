"""Who may act: leases, incarnations, fences, confirmations, rounds."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from tests.history.violations import Kind
from tests.simulation.loop import current
from tests.simulation.plants.bug import PAST_B0, Change, Theme, as_in_table, edited, instead
from tideline.control_plane.memory import MemoryControlPlane
from tideline.control_plane.memory.files import WalFiles
from tideline.control_plane.memory.gateways import ACTIVE, FENCED, Gateways
from tideline.control_plane.memory.partition import Partition
from tideline.control_plane.memory.topics import Topic, Topics
from tideline.domain.ack_gate import Standing
from tideline.domain.history import HistoryWatch, Witness
from tideline.domain.quiescence import LeaseWatch
from tideline.gateway.context import ConnectionRegistry
from tideline.gateway.produce.handler import ProduceRequest
from tideline.gateway.produce.parking import Admission, ParkingLot, ProduceAdmission
from tideline.gateway.tracking import quiesce
from tideline.gateway.tracking.confirm import Confirmations
from tideline.gateway.tracking.lease import Lease
from tideline.gateway.tracking.quiesce import Fences, QuiesceKeeper
from tideline.gateway.tracking.sync import TrackingSync

THEME = Theme()
bug = THEME.bug


def _fence(self: Gateways, gateway_id: int, incarnation: Any, renewals: int, reason: str) -> bool:
    known = self.registered.get(gateway_id)
    if known is None or known.incarnation != incarnation:
        return False
    if known.status == ACTIVE:
        self.registered[gateway_id] = replace(known, status=FENCED)
        self.reasons[gateway_id] = reason
        self.ended[incarnation] = known
    return True


async def _unasked(self: Confirmations, at: Any) -> Standing:
    return Standing(generation=0, boundary=-1, active=True, closed=False, awaited=False)


def _any_may_replace(self: Gateways, holder: Any, watched: Any) -> None:
    return None


UNCONFIRMED: Change = instead(Confirmations, "standing", _unasked)

bug("confirmation", "what Kafka acknowledged is told without asking Postgres after it: a machine "
    "that was suspended tells past B0", PAST_B0, UNCONFIRMED, is_gross=True)  # fmt: skip
bug("fence", "the fence does not compare the renewals, and nothing is confirmed", PAST_B0,
    UNCONFIRMED, instead(Gateways, "fence", _fence))  # fmt: skip
bug("registration", "a second process of an id replaces a living one: two that live end each "
    "other for ever, and no topic is tracked by all", (Kind.STUCK,),
    instead(Gateways, "_assert_may_replace", _any_may_replace))  # fmt: skip
bug("registration, unconfirmed", "a second process of an id replaces a living one, and nothing is "
    "confirmed", PAST_B0,
    UNCONFIRMED, instead(Gateways, "_assert_may_replace", _any_may_replace))  # fmt: skip


async def _open_gate(
    self: Fences, at: Any, ticket: Any, last_offset: int, patience_s: float
) -> bool:
    return True


bug("gate", "the gate lets every answer of Kafka pass", PAST_B0,
    instead(Fences, "pass_gate", _open_gate), is_gross=True)  # fmt: skip


def _always_awaited(self: Partition, gateway_id: int, incarnation: Any, *, active: bool) -> Any:
    return replace(STANDING(self, gateway_id, incarnation, active=active), awaited=True)


STANDING = Partition.standing
bug("witnesses", "every incarnation counts as a witness of a closing, also after it acknowledged, "
    "which it does while produces are in flight", PAST_B0,
    instead(Partition, "standing", _always_awaited),
    edited(QuiesceKeeper, "_acknowledge",
           ("await asyncio.gather(self._find_ceiling(at, topic.name), fence.idle.wait())",
            "await self._find_ceiling(at, topic.name)")),
    edited(quiesce, "judge", (" and closed_generation == ticket.closed_generation", ""))
    )  # fmt: skip


def _nobody(self: Gateways) -> list[Any]:
    return []


async def _passed(self: MemoryControlPlane, log: Any, generation: int) -> list[Any]:
    return []


bug("quiesce barrier", "B0 is read and persisted before the gateways have parked", PAST_B0,
    instead(MemoryControlPlane, "quiesce_barrier", _passed),
    edited(Partition, "persist", ("(boundary, prefix_log_start, gateways, now_ms)",
                                  "(boundary, prefix_log_start, (), now_ms)")),
    is_gross=True)  # fmt: skip
bug("tracking barrier", "the migration begins before every gateway knows of it", PAST_B0,
    instead(Gateways, "at_tracking_barrier", _nobody), is_gross=True)  # fmt: skip


def _kafka_once_parked(self: ProduceAdmission, log: Any) -> Any:
    found = ADMISSION(self, log)
    return Admission.KAFKA if found is Admission.SUFFIX and self in PARKING else found


def _drained(self: ParkingLot, log: Any) -> bool:
    PARKING.append(self._rules)
    try:
        return DRAIN(self, log)
    finally:
        PARKING.pop()


ADMISSION, DRAIN = ProduceAdmission.admission_of, ParkingLot.drain
PARKING: list[Any] = []
bug("parked", "what was parked before B0 goes to Kafka when B0 is known, and is told", PAST_B0,
    instead(ProduceAdmission, "admission_of", _kafka_once_parked),
    instead(ParkingLot, "drain", _drained),
    edited(Fences, "pass_gate", ("            while True:\n",
           "            while True:\n"
           "                kind = self._tracking.partition(at.topic_id, at.partition).kind\n"
           "                if kind is RouteKind.SUFFIX:\n"
           "                    return True\n")))  # fmt: skip


# -- rounds


def _any_round(self: Topic, round: int | None) -> None:
    return None


def _begin_anew(self: Topic) -> None:
    kept = dict(self.acknowledged)
    BEGIN_ANEW(self)
    self.acknowledged.update(kept)


def _stop(self: Topics, topic: Topic, at: Any) -> None:
    kept = dict(topic.acknowledged)
    STOP(self, topic, at)
    topic.acknowledged.update(kept)


BEGIN_ANEW, STOP = Topic.begin_anew, Topics.stop
bug("rounds forgotten", "an acknowledgement of tracking counts for a later round, too", PAST_B0,
    instead(Topic, "assert_round", _any_round), instead(Topic, "begin_anew", _begin_anew),
    instead(Topics, "stop", _stop))  # fmt: skip


# -- subtle ones

bug("joined confirmation", "a confirmation joins a question that is under way, whose snapshot may "
    "be older than Kafka's answer: an append behind B0 is told", PAST_B0,
    edited(Confirmations, "_ask",
           ("            for at in asked:\n                del self._waiting[at]\n", ""),
           ("                for at, answer in asked.items():\n",
            "                for at, answer in asked.items():\n"
            "                    if self._waiting.get(at) is answer:\n"
            "                        del self._waiting[at]\n")))  # fmt: skip
bug("new witnesses", "a closing that is repeated makes witnesses of incarnations that have "
    "registered since: what Kafka appends for them behind the log's end that was read is told",
    PAST_B0,
    edited(Partition, "close", ("if self.quiesce is QuiesceState.OPEN:", "if True:")))  # fmt: skip
bug("served before it has learned", "a new incarnation counts as registered, and its lease as "
    "valid, before it has read what is tracked: it goes by the state of the one before",
    PAST_B0,
    edited(Lease, "_renew",
           ("            if before_serving is not None:\n",
            "            self._registered = True\n"
            "            self._valid_until = sent + self._duration_ms / 1000\n"
            "            self.gained()\n"
            "            if before_serving is not None:\n")))  # fmt: skip
bug("in flight at the acknowledgement", "a closing is acknowledged while produces are in flight, "
    "and what they are answered is told whoever is awaited", PAST_B0,
    edited(QuiesceKeeper, "_acknowledge",
           ("await asyncio.gather(self._find_ceiling(at, topic.name), fence.idle.wait())",
            "await self._find_ceiling(at, topic.name)")),
    edited(Standing, "confirms", (" and (not self.closed or self.awaited)", "")),
    edited(quiesce, "judge", (" and closed_generation == ticket.closed_generation", ""))
    )  # fmt: skip
bug("append at B0", "the gate tells an append of Kafka that lies exactly at B0", PAST_B0,
    edited(quiesce, "judge", ("< last_offset < boundary", "< last_offset <= boundary"))
    )  # fmt: skip
bug("fenced witness", "a gateway is fenced after half of its lease, and an "
    "incarnation that is fenced is confirmed as long as it has not acknowledged", PAST_B0,
    edited(LeaseWatch, "lapsed", ("reading.lease_ms + self._margin_ms", "reading.lease_ms / 2")),
    edited(Standing, "confirms", ("self.active and unset", "unset")))  # fmt: skip
bug("replaced and forgotten", "the tracking barrier does not wait for a process that was replaced "
    "and may still run, and nothing of what it passes through is gated", PAST_B0,
    instead(Gateways, "unaccounted", _nobody))  # fmt: skip


async def _at_once(self: TrackingSync, topic_id: Any) -> None:
    return None


bug("drain left out", "a gateway acknowledges a topic, and a closing, without waiting for what it "
    "had passed to Kafka before it tracked the topic: that is told ungated", PAST_B0,
    instead(TrackingSync, "until_drained", _at_once),
    edited(TrackingSync, "_acknowledge_now",
           ("            await self._drain()\n", "")))  # fmt: skip
bug("acknowledged and not on disk", "a topic is acknowledged, and the snapshot stays as it was "
    "when the process started: one that starts again while Postgres is away passes it through",
    PAST_B0,
    edited(TrackingSync, "_write_if_changed",
           ("is not None:", "is not None and self._snapshot._identity is None:")))  # fmt: skip


async def _kept(self: Lease) -> None:
    return None


bug("snapshot of who was stopped", "a gateway that is stopped, which nobody waits for from then "
    "on, keeps its snapshot: started there again without Postgres, when its id has been at another "
    "place meanwhile, it passes through what has migrated", PAST_B0,
    instead(Lease, "_remove_snapshot", _kept))  # fmt: skip
bug("refusal taken for an outage (F4)", "a gateway that is refused at its start serves by its "
    "snapshot once Postgres is away", PAST_B0,
    as_in_table(TrackingSync, "_first_registration", "refusal-taken-for-an-outage"))  # fmt: skip


def _settled(self: MemoryControlPlane) -> None:
    return None


FORGOTTEN = (Kind.LOST, Kind.DIFFERENT, Kind.BACK, Kind.STALE)
bug("commit on an unsettled timeline (F3)", "after a promotion a gateway commits before the others "
    "have shown their last commits: offsets that were told are given again",
    FORGOTTEN,
    instead(MemoryControlPlane, "_assert_settled", _settled))  # fmt: skip


def _unjudged(
    self: HistoryWatch, witness: Witness, is_committed: bool | None, now_s: float
) -> str | None:
    return None


def _none_missing(self: WalFiles, stored: Any) -> tuple[str, ...]:
    return ()


bug("last commit unasked (F3)", "a gateway renews with a Postgres that was promoted, whether or "
    "not that has the last commit that was answered to the gateway: offsets that were told are "
    "given again", FORGOTTEN,
    instead(HistoryWatch, "judge_witness", _unjudged))  # fmt: skip
bug("absent ones lack nothing (F3)", "after a promotion a gateway that stays away is waited for no "
    "longer, whatever the bucket has of it: offsets that it told are given again", FORGOTTEN,
    instead(WalFiles, "missing", _none_missing))  # fmt: skip
bug("whole answer relayed", "where a request went to Kafka as a whole its answer is passed on as "
    "it came, also what the gate has withheld of it", PAST_B0,
    edited(ProduceRequest, "outcome",
           ("if relayed and self._whole_answer is not None",
            "if self._whole_answer is not None")))  # fmt: skip
bug("stand-in ungated", "what a gateway forwards for another one, in whose place it stands, passes "
    "no gate, and no acknowledgement waits for it", PAST_B0,
    edited(ProduceRequest, "_forward",
           ("self._fences.forwarded(part.at.log) if part.at.log is not None else None",
            "self._fences.forwarded(part.at.log)\n"
            "            if part.at.log is not None\n"
            "            and self.context.connection.broker_id == self._leaders._node\n"
            "            else None")),
    stand_ins=True)  # fmt: skip


async def _drain_own(self: ConnectionRegistry) -> None:
    """Of connections to the broker that the gateway is beside."""
    own = ConnectionRegistry()
    for connection in self:
        if connection.broker_id == int(current().name[-1]):
            own.add(connection)
    await DRAIN_ALL(own)


DRAIN_ALL = ConnectionRegistry.drain
bug("stand-in undrained", "a topic is acknowledged without waiting for what the gateway had passed "
    "to the brokers of those in whose place it stands, and that is told ungated", PAST_B0,
    instead(ConnectionRegistry, "drain", _drain_own), stand_ins=True)  # fmt: skip
