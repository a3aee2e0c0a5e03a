"""Whether a Postgres is the one that was seen before, with everything that was seen in it.

A *history* is one sequence of commits. Ids name it, the system identifier tells a copy of its rows
from it, and its *beats* prove that it has not gone back: numbered rows with a random token each,
written every few seconds. Who has seen a beat asks for it again; a server that was rolled back, or
promoted without it, has not got that token, however many commits it took since. Commits reach a
standby in their order, so one that has the beat has everything that was committed before it.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, replace
from uuid import UUID

from tideline.errors import RefusedError


class WrongHistory(RefusedError):
    """Kafka, Postgres and the buckets do not belong together, or Postgres has lost commits."""


@dataclass(frozen=True, slots=True)
class ServerIdentity:
    """What a Postgres says of itself."""

    installation_id: UUID
    """Made once, when the schema was."""
    history_id: UUID
    """Another one from the moment at which an operator accepted that commits are gone."""
    cluster_id: str | None
    """The Kafka cluster whose topics it keeps; ``None`` until the first process says."""
    system_identifier: str
    timeline: int
    lsn: int
    """Bytes of WAL that are flushed. Never goes back on one timeline, not by a crash either."""
    beat: int
    """The newest beat, and its token."""
    token: UUID
    waits_for_standby: bool
    """Whether commits are answered only when a standby has them, too."""
    knows: bool | None = None
    """Whether the beat that was asked about is in it; ``None``: none was."""
    halted: str | None = None
    """Why nobody may go on in this history: somebody has found that commits are missing."""
    settled: bool = True
    """Whether it is known that its timeline lacks no commit that was acknowledged before it: until
    then nothing is committed."""

    def __str__(self) -> str:
        return (
            f"system {self.system_identifier}, timeline {self.timeline}, history {self.history_id}"
        )


def disagreement(seen: ServerIdentity, now: ServerIdentity) -> str | None:
    """Why ``now`` may lack what was committed when ``seen`` was; ``None``: it lacks nothing.

    ``now`` was asked about the beat of ``seen``, after ``seen`` was. A timeline that has grown is
    a promotion: it lost nothing that is older than the beat. What was acknowledged later may be
    missing where commits waited for no standby, and where they waited for another one than was
    promoted: nothing is committed before that is known (:attr:`ServerIdentity.settled`).
    """
    if now.installation_id != seen.installation_id:
        return f"it holds installation {now.installation_id}, not {seen.installation_id}"
    if now.history_id != seen.history_id:
        return f"it holds history {now.history_id}, not {seen.history_id}"
    if now.system_identifier != seen.system_identifier:
        return (
            f"it is system {now.system_identifier}, a copy of the rows of system "
            f"{seen.system_identifier}"
        )
    if now.timeline < seen.timeline:
        return f"it is on timeline {now.timeline}, timeline {seen.timeline} was seen already"
    if now.knows is False:
        return (
            f"timeline {now.timeline} has not got beat {seen.beat}, which was seen on timeline "
            f"{seen.timeline}: it was rolled back, or promoted without the last commits"
        )
    if now.timeline == seen.timeline and now.lsn < seen.lsn:
        return f"it ends at WAL byte {now.lsn}, byte {seen.lsn} was seen: it was rolled back"
    if now.timeline > seen.timeline and now.knows is None:
        return f"nobody has asked timeline {now.timeline} for a beat that was seen before it"
    if now.timeline > seen.timeline and not seen.waits_for_standby:
        return (
            f"timeline {now.timeline} was promoted from timeline {seen.timeline}, where commits "
            "waited for no standby (synchronous_standby_names was empty): what was acknowledged "
            f"after beat {seen.beat} may be missing"
        )
    if now.halted:
        return f"its history is halted: {now.halted}"
    return None


def lacks_commits(seen: ServerIdentity, now: ServerIdentity) -> bool:
    """Whether ``now`` is the very database of ``seen``, and may have lost commits. Whoever sees it
    halts the history, for all who have not seen as much of it."""
    same = (seen.installation_id, seen.history_id, seen.system_identifier) == (
        now.installation_id,
        now.history_id,
        now.system_identifier,
    )
    return same and not now.halted and disagreement(seen, now) is not None


def newest(one: ServerIdentity | None, other: ServerIdentity | None) -> ServerIdentity | None:
    """The one that saw more of the history."""
    if one is None or other is None:
        return one or other
    return max(one, other, key=lambda seen: (seen.timeline, seen.beat, seen.lsn))


def to_document(seen: ServerIdentity) -> dict[str, object]:
    """As JSON; :func:`from_document` reads it."""
    return {
        "installation_id": str(seen.installation_id),
        "history_id": str(seen.history_id),
        "cluster_id": seen.cluster_id,
        "system_identifier": seen.system_identifier,
        "timeline": seen.timeline,
        "lsn": seen.lsn,
        "beat": seen.beat,
        "token": str(seen.token),
        "waits_for_standby": seen.waits_for_standby,
    }


def from_document(document: Mapping[str, object]) -> ServerIdentity:
    """Raises ``KeyError``, ``ValueError`` or ``TypeError`` for what is none."""
    cluster_id = document["cluster_id"]
    return ServerIdentity(
        installation_id=UUID(str(document["installation_id"])),
        history_id=UUID(str(document["history_id"])),
        cluster_id=None if cluster_id is None else str(cluster_id),
        system_identifier=str(document["system_identifier"]),
        timeline=int(str(document["timeline"])),
        lsn=int(str(document["lsn"])),
        beat=int(str(document["beat"])),
        token=UUID(str(document["token"])),
        waits_for_standby=document["waits_for_standby"] is True,
    )


WITNESS_S = 30.0
"""How long nothing that is known of a commit's object means that it is lost: no object is collected
sooner after its commit than a key is kept ahead, a minute."""


@dataclass(frozen=True, slots=True)
class Witness:
    """The last commit that was answered to this process."""

    object_key: str
    at_s: float


class HistoryWatch:
    """What one process has seen of its Postgres, for all of its connections."""

    def __init__(self) -> None:
        self.seen: ServerIdentity | None = None
        self.refused: str | None = None
        """Why what answered last is not the Postgres that was seen."""
        self.witness: Witness | None = None
        """Newer than every beat and renewal that was seen, for as long as Postgres is away after
        it: no Postgres without it is the same."""

    def acknowledged(self, object_key: str, now_s: float) -> None:
        """What was committed with this object was answered."""
        self.witness = Witness(object_key, now_s)

    async def compare(
        self,
        identity: Callable[[ServerIdentity], Awaitable[ServerIdentity]],
        has_committed: Callable[[str], Awaitable[bool | None]],
        halt: Callable[[UUID, str], Awaitable[object]],
        now_s: Callable[[], float],
    ) -> bool:
        """Whether a server that is new to this process may be called: not while nobody can tell
        whether it has the last commit. The first three ask it: who it is, whether the object of a
        key is committed (``None``: it is not known), and to halt the history that was seen, since
        who starts later may not have seen what is lost. Raises :class:`WrongHistory`."""
        if (seen := self.seen) is None:
            return True
        now = await identity(seen)
        why = self.judge(seen, now)
        halts = why is not None and lacks_commits(seen, now)
        in_doubt = False
        if why is None and (witness := self.witness) is not None:
            found = await has_committed(witness.object_key)
            why = self.judge_witness(witness, found, now_s())
            halts = why is not None
            # Collected, or lost with its key: the bucket tells.
            in_doubt = found is None and not halts and not now.settled
        if why is not None:
            if halts:
                await halt(seen.history_id, why)
            raise WrongHistory(f"Postgres is not the one that was seen: {why}")
        return not in_doubt

    def judge_witness(
        self, witness: Witness, is_committed: bool | None, now_s: float
    ) -> str | None:
        """Why a Postgres with this answer about the object of ``witness`` has lost its commit;
        ``None``: it has not, or nobody can tell. ``is_committed``: ``None`` where the object is not
        known: never registered, or collected since."""
        # One that is registered and no more has gone back, however long ago its commit was.
        if is_committed or (is_committed is None and now_s - witness.at_s > WITNESS_S):
            return None
        self.refused = (
            f"it has not got the commit of object {witness.object_key}, which was acknowledged: it "
            "was rolled back, or promoted without the last commits"
        )
        return self.refused

    def judge(self, before: ServerIdentity | None, now: ServerIdentity) -> str | None:
        """As :func:`disagreement`. ``before``: :attr:`seen` when the question was sent; two
        answers may overtake each other."""
        refused = None if before is None else disagreement(before, now)
        if refused is None:
            now = replace(now, knows=None)
            self.seen = now if self.seen is None else newest(self.seen, now)
        self.refused = refused
        return refused
