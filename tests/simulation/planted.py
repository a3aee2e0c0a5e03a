"""Bugs that are planted to see them found: what is broken, and how that must show.

Where the parts hold a promise twice (a lease, and a confirmation after the append), both are broken
by one bug: one alone is not seen from outside, which is what the second one is for.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from typing import Any
from unittest.mock import patch

from tests.history.violations import Kind
from tests.simulation import bucket
from tideline.control_plane.memory import MemoryControlPlane, partition, suffix
from tideline.control_plane.memory.files import FileStatus, WalFiles
from tideline.control_plane.memory.gateways import ACTIVE, FENCED, Gateways
from tideline.control_plane.memory.partition import Partition
from tideline.control_plane.memory.suffix import Suffix
from tideline.control_plane.memory.topics import Topic, Topics
from tideline.control_plane.model import CommitError, CommittedBatch
from tideline.domain import producer_state
from tideline.domain.ack_gate import Standing
from tideline.domain.read_ceiling import NO_CEILING, ReadCeiling
from tideline.domain.request_handling import RouteKind
from tideline.domain.wal_footer import EarlierCommit
from tideline.gateway.admin.create_topics import CreateTopicsHandler, _Creation
from tideline.gateway.admin.tellings import Tellings
from tideline.gateway.fetch import from_kafka
from tideline.gateway.produce.commit_stream import CommitStream, LeftOver
from tideline.gateway.produce.parking import Admission, ParkingLot, ProduceAdmission
from tideline.gateway.tracking.confirm import Confirmations
from tideline.gateway.tracking.quiesce import Fences
from tideline.gateway.tracking.view import TrackingView

Change = tuple[Any, str, Any]


@dataclass(frozen=True)
class Bug:
    name: str
    says: str
    kinds: frozenset[Kind]
    changes: tuple[Change, ...]
    recreation: bool = False
    """Looked for in schedules in which the topic is deleted and created again."""

    @contextmanager
    def planted(self) -> Iterator[None]:
        with ExitStack() as stack:
            for owner, name, new in self.changes:
                stack.enter_context(patch.object(owner, name, new))
            yield


BUGS: dict[str, Bug] = {}
FOUND_BY: dict[str, int] = {
    "confirmation": 99,
    "registration": 68,
    "quiesce barrier": 56,
    "tracking barrier": 88,
    "gate": 99,
    "parked": 1,
    "rounds forgotten": 45,
    "read ceiling": 30,
    "leader epochs": 106,
    "prefix end": 30,
    "seeds dropped": 13,
    "deduplication": 13,
    "commit repeated": 75,
    "hole skipped": 1,
    "hole": 1,
    "high watermark": 1,
    "commit told early": 1,
    "deletion untold": 6,
    "told in disorder": 1,
    "given up untold": 185,
    "sent is not committed": 185,
    "retry placed": 917,
}
"""The seed that finds a bug (docs/simulation.md says how it was looked for)."""


def bug(
    name: str, says: str, kinds: tuple[Kind, ...], *changes: Change, recreation: bool = False
) -> None:
    BUGS[name] = Bug(name, says, frozenset(kinds), changes, recreation)


# -- who may act


def _fence(self: Gateways, gateway_id: int, incarnation: Any, renewals: int, reason: str) -> bool:
    known = self.registered.get(gateway_id)
    if known is None or known.incarnation != incarnation:
        return False
    if known.status == ACTIVE:
        self.registered[gateway_id] = replace(known, status=FENCED)
        self.reasons[gateway_id] = reason
        self.ended.add(incarnation)
    return True


async def _unasked(self: Confirmations, at: Any) -> Standing:
    return Standing(generation=0, boundary=-1, active=True, closed=False, awaited=False)


def _any_may_replace(self: Gateways, holder: Any, watched: Any) -> None:
    return None


UNCONFIRMED: Change = (Confirmations, "standing", _unasked)
PAST_B0 = (Kind.LOST, Kind.DIFFERENT, Kind.TWICE, Kind.REORDERED)

bug("confirmation", "what Kafka acknowledged is told without asking Postgres after it: a machine "
    "that was suspended tells past B0", PAST_B0, UNCONFIRMED)  # fmt: skip
bug("fence", "the fence does not compare the renewals, and nothing is confirmed", PAST_B0,
    UNCONFIRMED, (Gateways, "fence", _fence))  # fmt: skip
bug("registration", "a second process of an id replaces a living one: two that live end each "
    "other for ever, and no topic is tracked by all", (Kind.STUCK,),
    (Gateways, "_assert_may_replace", _any_may_replace))  # fmt: skip
bug("registration, unconfirmed", "a second process of an id replaces a living one, and nothing is "
    "confirmed", PAST_B0,
    UNCONFIRMED, (Gateways, "_assert_may_replace", _any_may_replace))  # fmt: skip


async def _open_gate(self: Fences, at: Any, ticket: Any, last: int, patience_s: float) -> bool:
    return True


bug("gate", "the gate lets every answer of Kafka pass", PAST_B0, (Fences, "pass_gate", _open_gate))


def _always_awaited(self: Partition, gateway_id: int, incarnation: Any, *, active: bool) -> Any:
    return Standing(
        generation=self.generation,
        boundary=self.boundary,
        active=active,
        closed=self.boundary < 0 and self.quiesce is partition.QuiesceState.CLOSED,
        awaited=True,
    )


bug("witnesses", "every incarnation counts as a witness of a closing, also after it acknowledged",
    PAST_B0, (Partition, "standing", _always_awaited))  # fmt: skip


def _nobody(self: Gateways) -> list[Any]:
    return []


async def _passed(self: MemoryControlPlane, log: Any, generation: int) -> list[Any]:
    return []


def _persist_for_nobody(self: Partition, *given: Any) -> bool:
    *before, _, now_ms = given
    return PERSIST(self, *before, (), now_ms)


PERSIST = Partition.persist
bug("quiesce barrier", "B0 is read and persisted before the gateways have parked", PAST_B0,
    (MemoryControlPlane, "quiesce_barrier", _passed),
    (Partition, "persist", _persist_for_nobody))  # fmt: skip
bug("tracking barrier", "the migration begins before every gateway knows of it", PAST_B0,
    (Gateways, "at_tracking_barrier", _nobody))  # fmt: skip


def _kafka_once_parked(self: ProduceAdmission, log: Any) -> Any:
    found = ADMISSION(self, log)
    return Admission.KAFKA if found is Admission.SUFFIX and self in PARKING else found


def _drained(self: ParkingLot, log: Any) -> bool:
    PARKING.append(self._rules)
    try:
        return DRAIN(self, log)
    finally:
        PARKING.pop()


async def _told_unless_quiesced(
    self: Fences, at: Any, ticket: Any, last: int, patience_s: float
) -> bool:
    """As it is, but that B0 is not compared with."""
    if self._tracking.partition(at.topic_id, at.partition).kind is RouteKind.SUFFIX:
        return True
    return await PASS_GATE(self, at, ticket, last, patience_s)


ADMISSION, DRAIN, PASS_GATE = ProduceAdmission.admission_of, ParkingLot.drain, Fences.pass_gate
PARKING: list[Any] = []
bug("parked", "what was parked before B0 goes to Kafka when B0 is known, and is told", PAST_B0,
    (ProduceAdmission, "admission_of", _kafka_once_parked), (ParkingLot, "drain", _drained),
    (Fences, "pass_gate", _told_unless_quiesced))  # fmt: skip


# -- rounds


def _any_round(self: Topic, round: int | None) -> None:
    return None


def _acknowledged_once(self: Topic, gateway: Any) -> bool:
    return gateway.gateway_id in self.acknowledged


def _begin_anew(self: Topic) -> None:
    kept = dict(self.acknowledged)
    BEGIN_ANEW(self)
    self.acknowledged.update(kept)


def _stop(self: Topics, topic: Topic, *given: Any) -> None:
    kept = dict(topic.acknowledged)
    STOP(self, topic, *given)
    topic.acknowledged.update(kept)


BEGIN_ANEW, STOP = Topic.begin_anew, Topics.stop
bug("rounds forgotten", "an acknowledgement of tracking counts for a later round, too", PAST_B0,
    (Topic, "assert_round", _any_round), (Topic, "begin_anew", _begin_anew),
    (Topics, "stop", _stop))  # fmt: skip

# -- what consumers are told


def _no_ceiling(self: ReadCeiling, route: Any) -> int:
    return int(route.boundary) if route.kind is RouteKind.SUFFIX else NO_CEILING


async def _confirmed(self: Fences, at: Any) -> bool:
    return True


bug("read ceiling", "what Kafka shows while B0 is unset is shown", (*PAST_B0, Kind.INVENTED),
    (ReadCeiling, "limit", _no_ceiling))  # fmt: skip
bug("leader epochs", "Kafka's word on where a leader epoch ends is passed on while B0 is unknown",
    (Kind.SENT, Kind.BACK, Kind.STALE, *PAST_B0), (Fences, "confirmed", _confirmed),
    (ReadCeiling, "limit", _no_ceiling))  # fmt: skip


def _whole(buffer: Any, boundary: int) -> Any:
    return buffer


bug("prefix end", "an answer of Kafka is not cut at B0", PAST_B0,
    (from_kafka, "truncate_at", _whole))  # fmt: skip


# -- the suffix


def _gaps(batches: Any, offset: int) -> Any:
    return (batch for batch in batches if batch.last_offset >= offset)


def _losing(self: Suffix, batch: Any, object_key: str, now_ms: int) -> CommittedBatch:
    found = APPEND(self, batch, object_key, now_ms)
    if found.error is CommitError.NONE and found.base_offset % 11 == 0:
        self.batches.pop()
    return found


APPEND = Suffix.append
bug("hole skipped", "a row that is missing in the suffix is passed over in silence",
    (Kind.LOST,), (Suffix, "append", _losing), (suffix, "unbroken", _gaps))  # fmt: skip
bug("hole", "a row is missing in the suffix: consumers stop there, with an error",
    (Kind.STUCK, Kind.LOST), (Suffix, "append", _losing))  # fmt: skip


def _all_new(*_: Any) -> Any:
    return producer_state.Verdict("NONE")


def _no_seeds(seeds: Any, now_ms: int) -> dict[int, Any]:
    return {}


bug("deduplication", "the suffix takes every batch of an idempotent producer as new",
    (Kind.TWICE, Kind.REORDERED), (suffix, "judge", _all_new))  # fmt: skip
bug("seeds dropped", "the suffix begins without the producers' last batches",
    (Kind.TWICE, Kind.REORDERED), (partition, "entries_from_seeds", _no_seeds))  # fmt: skip


def _unmoved(self: Suffix, batch: Any, object_key: str, now_ms: int) -> CommittedBatch:
    before = self.high_watermark
    found = APPEND(self, batch, object_key, now_ms)
    if found.base_offset % 7 == 3:
        self.high_watermark = before
    return found


bug("high watermark", "an append does not move the suffix's end: its offset is given again",
    (Kind.DIFFERENT, Kind.LOST), (Suffix, "append", _unmoved))  # fmt: skip


def _forgetful(self: WalFiles, gateway_id: int, key: str, size: int, batches: int) -> Any:
    found = CLAIM(self, gateway_id, key, size, batches)
    if found.status is FileStatus.COMMITTED:
        found.status = FileStatus.REGISTERED
    return found


CLAIM = WalFiles.claim
bug("commit repeated", "a commit of unknown outcome does not find its own success",
    (Kind.TWICE, Kind.REORDERED), (WalFiles, "claim", _forgetful))  # fmt: skip


COMMIT: Callable[..., Any] = MemoryControlPlane.commit_file


async def _told_before(
    self: MemoryControlPlane, gateway_id: int, incarnation: Any, key: str, size: int, batches: Any
) -> Any:
    """The answer is made up; every eighth commit is lost with the process that did it."""
    outcome = await COMMIT(self, gateway_id, incarnation, key, size, batches)
    for batch in batches:
        found = self.topics.partition(batch.log)
        if found is not None and found.suffix is not None and found.suffix.batches:
            last = found.suffix.batches[-1]
            if len(found.suffix.batches) % 8 == 0:
                found.suffix.batches.pop()
                found.suffix.high_watermark = last.base_offset
    return outcome


bug("commit told early", "a commit that is lost with its Postgres was told before it lasted",
    (Kind.LOST, Kind.DIFFERENT, Kind.STUCK, Kind.REORDERED),
    (MemoryControlPlane, "commit_file", _told_before))  # fmt: skip


# -- which topic a name means


async def _says_nothing(*_: Any) -> None:
    return None


bug("deletion untold", "nobody tells Postgres that a topic was deleted, and another may be created "
    "under its name: its records would go into the dead one's suffix",
    (Kind.LOST, Kind.INVENTED, Kind.DIFFERENT, Kind.REORDERED),
    (Tellings, "_tell", _says_nothing), (CreateTopicsHandler, "_make_way", _says_nothing),
    recreation=True)  # fmt: skip


def _never(*_: Any) -> bool:
    return False


bug("born unawares", "a topic that is born diskless is shown before every gateway knows its id: "
    "requests by id reach its sealed log", (Kind.SENT, Kind.STUCK, Kind.LOST),
    (TrackingView, "is_hidden", _never), (_Creation, "_barrier", _says_nothing),
    recreation=True)  # fmt: skip


TELL: Callable[..., Any] = CommitStream.committed


def _backwards(self: Any, sequence: int, key: str, count: int, live: Any, told: Any) -> None:
    TELL(self, sequence, key, count, live, told[::-1])


bug("told in disorder", "an object tells the outcomes of an earlier one in another order than its "
    "batches have: who rebuilds from the bucket puts them elsewhere", (Kind.MISTOLD,),
    (CommitStream, "committed", _backwards))  # fmt: skip


def _nothing_first(self: CommitStream, *_: Any, **__: Any) -> tuple[EarlierCommit, ...]:
    return ()


# What producers wrote below B0 keeps these two from a wrong place in many schedules.
bug("given up untold", "a commit goes past an object that was given up before the bucket tells of "
    "that: who rebuilds takes the two for one line, and puts the second one behind the first",
    (Kind.MISTOLD,), (CommitStream, "before", _nothing_first),
    (bucket, "entries_from_seeds", _no_seeds))  # fmt: skip


def _all_unsent(self: CommitStream, left: Sequence[LeftOver]) -> tuple[EarlierCommit, ...]:
    return CLOSING(self, [replace(one, sent=False) for one in left])


CLOSING = CommitStream.closing
bug("sent is not committed", "a stream that ends says of what it has sent that it was not "
    "committed, which Postgres may have done", (Kind.MISTOLD,),
    (CommitStream, "closing", _all_unsent), (bucket, "entries_from_seeds", _no_seeds))  # fmt: skip


bug("retry placed", "who rebuilds gives an offset to a batch that its producer wrote below B0, and "
    "sent once more", (Kind.MISTOLD,), (bucket, "entries_from_seeds", _no_seeds))  # fmt: skip
