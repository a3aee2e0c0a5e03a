"""I3 by itself: who reads the prefix beside a replica that does not lead, before its copying to
remote storage is complete and after.

One partition whose B0 is set, so that no record comes any more; two replicas, what each has on its
disk, and what remote storage has. A replica falls behind, diverges, loses its disk, is rebuilt from
remote storage; local records expire, the log start moves, leadership moves among replicas in sync.
Every state is asked for every offset below B0 through every replica's gateway.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from typing import NamedTuple

B0 = 3
TRUE, FOREIGN = "true", "foreign"
"""A record of the partition's lineage, or of a leader that was deposed before B0."""

PROTECTIONS = frozenset(
    {
        "empty is no end",  # tideline/domain/read_ceiling.py:prefix_answer
        "out of range below the start",  # tideline/domain/read_ceiling.py:may_say_out_of_range
    }
)
FLAG = "tieringComplete"
"""As seed 000 has it: a replica that does not lead serves nothing before the flag is set."""


class Replica(NamedTuple):
    """Records at ``[local, end)``; consumers are shown what is below ``high_watermark``."""

    local: int
    records: tuple[str, ...]
    high_watermark: int
    log_start: int

    @property
    def end(self) -> int:
        return self.local + len(self.records)


class Prefix(NamedTuple):
    replicas: tuple[Replica, Replica]
    leader: int
    copied: int
    """Remote storage has ``[log start, copied)``."""
    log_start: int


class Found(NamedTuple):
    states: int
    transitions: int
    wrong: str
    """What the first consumer was told that it must not be; empty: none ever is."""
    steps: tuple[str, ...]


def beginnings() -> Iterator[Prefix]:
    """B0 was set at the end of the leader's log. The other replica has all of it, or a part, or a
    record of a deposed leader that it has not been told to truncate."""
    leader = Replica(0, (TRUE,) * B0, B0, 0)
    for kept in range(B0 + 1):
        for high_watermark in range(kept + 1):
            yield Prefix((leader, Replica(0, (TRUE,) * kept, high_watermark, 0)), 0, 0, 0)
    for kept in range(B0):
        diverged = (*(TRUE,) * kept, FOREIGN)
        yield Prefix((leader, Replica(0, diverged, kept, 0)), 0, 0, 0)


def explore(protections: frozenset[str], *, most: int = 1_000_000) -> Found:
    """Every state that can be reached, breadth first, up to the first wrong answer."""
    seen: dict[Prefix, tuple[Prefix | None, str]] = dict.fromkeys(beginnings(), (None, ""))
    waiting, transitions = deque(seen), 0
    while waiting:
        state = waiting.popleft()
        if wrong := _wrong(state, protections):
            return Found(len(seen), transitions, wrong, _steps(seen, state))
        for name, after in moves(state):
            transitions += 1
            if after not in seen:
                seen[after] = (state, name)
                waiting.append(after)
        assert len(seen) < most
    return Found(len(seen), transitions, "", ())


def moves(state: Prefix) -> Iterator[tuple[str, Prefix]]:
    leader, other = state.replicas[state.leader], 1 - state.leader
    follower = state.replicas[other]
    if state.copied < B0:
        yield "the leader copies a segment", state._replace(copied=state.copied + 1)
    if state.log_start < B0:
        start = state.log_start + 1
        moved = _from(leader, start)._replace(log_start=start)
        yield (
            "retention moves the log start",
            _with(
                state._replace(log_start=start, copied=max(state.copied, start)),
                state.leader,
                moved,
            ),
        )
    for n, replica in enumerate(state.replicas):
        if replica.local < min(state.copied, replica.end):
            yield (
                f"replica {n} drops a local record that was copied",
                _with(state, n, _from(replica, replica.local + 1)),
            )
    if follower != (fetched := _fetch(leader, follower, state.copied)):
        yield "the follower fetches", _with(state, other, fetched)
    told = min(leader.high_watermark, follower.end)
    if told > follower.high_watermark and FOREIGN not in follower.records:
        # An answer that says where the logs diverge moves no high watermark (KIP-595).
        yield (
            "the follower hears the high watermark",
            _with(state, other, follower._replace(high_watermark=told)),
        )
    yield "the follower loses its disk", _with(state, other, Replica(0, (), 0, 0))
    if follower.end == B0 and FOREIGN not in follower.records:
        led = follower._replace(high_watermark=B0, log_start=state.log_start)
        yield "leadership moves", _with(state._replace(leader=other), other, led)


def _fetch(leader: Replica, follower: Replica, copied: int) -> Replica:
    """One round of replication: truncation first; from a start that the leader has only in remote
    storage the follower goes on at the leader's local start (KIP-405)."""
    start = max(follower.log_start, leader.log_start)
    follower = _from(follower, start)._replace(log_start=start)
    if FOREIGN in follower.records:
        kept = follower.records[: follower.records.index(FOREIGN)]
        shown = min(follower.high_watermark, follower.local + len(kept))
        return follower._replace(records=kept, high_watermark=shown)
    if follower.end < leader.local:
        if copied < leader.local:
            return follower
        return Replica(leader.local, (), leader.local, start)
    if follower.end < leader.end:
        return follower._replace(records=(*follower.records, TRUE))
    return follower


def _from(replica: Replica, start: int) -> Replica:
    """Without local records below ``start``."""
    if start <= replica.local:
        return replica
    kept = replica.records[start - replica.local :]
    return replica._replace(
        local=start, records=kept, high_watermark=max(replica.high_watermark, start)
    )


def _with(state: Prefix, number: int, replica: Replica) -> Prefix:
    replicas = list(state.replicas)
    replicas[number] = replica
    return state._replace(replicas=(replicas[0], replicas[1]))


def _answer(state: Prefix, number: int, offset: int) -> str:
    """What the broker says: a record's lineage, "empty" or "out of range"."""
    replica = state.replicas[number]
    if offset < replica.log_start or offset > replica.end:
        return "out of range"
    if offset >= replica.high_watermark:
        return "empty"
    if offset >= replica.local:
        return replica.records[offset - replica.local]
    return TRUE if state.log_start <= offset < state.copied else "out of range"


def _wrong(state: Prefix, protections: frozenset[str]) -> str:
    """What a consumer at an offset that exists is told wrongly through any gateway."""
    for number, replica in enumerate(state.replicas):
        if FLAG in protections and number != state.leader and state.copied < B0:
            continue
        for offset in range(state.log_start, B0):
            said = _answer(state, number, offset)
            if said == "empty" and not (
                "empty is no end" in protections and replica.high_watermark < B0
            ):
                return f"the log ends at {offset}"
            if said == "out of range" and not (
                "out of range below the start" in protections and offset >= replica.log_start
            ):
                return f"{offset} is out of range"
            if said == FOREIGN:
                return f"another record at {offset}"
    return ""


def _steps(seen: dict[Prefix, tuple[Prefix | None, str]], state: Prefix) -> tuple[str, ...]:
    names: list[str] = []
    at: Prefix | None = state
    while at is not None:
        before, name = seen[at]
        names.append(name)
        at = before
    return tuple(name for name in reversed(names) if name)
