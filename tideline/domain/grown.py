"""Partitions that Kafka has and Postgres has no row of (schedule 22).

Whoever reaches a broker can add them past the gateways. Only a log to which nothing was ever
appended may begin diskless with B0 = 0: over any other its records would be hidden for ever, and
their offsets told twice. What was not said is not known, and unknown is not empty.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class NewLog:
    """What brokers say of the log of one such partition."""

    partition: int
    leader: int
    """-1: it has none now."""
    replicas: tuple[int, ...]
    ends: Mapping[int, int] = field(default_factory=dict)
    """Log end (exclusive) by node, of the replicas that answered at the leader's epoch."""

    @property
    def held_records(self) -> bool:
        """A log that does not end at 0 held records, also one of which retention left nothing."""
        return any(end > 0 for end in self.ends.values())

    @property
    def is_empty(self) -> bool:
        """And has always been: the leader and every other replica say that it ends at 0, where it
        then begins, too."""
        answered = bool(self.replicas) and self.leader in self.replicas
        return answered and all(self.ends.get(node) == 0 for node in self.replicas)

    @property
    def offsets(self) -> int:
        """That some replica's log has given out."""
        return max(self.ends.values(), default=0)

    def __str__(self) -> str:
        said = ", ".join(f"{node}: {end}" for node, end in sorted(self.ends.items())) or "nobody"
        silent = [str(node) for node in self.replicas if node not in self.ends]
        text = f"partition {self.partition} (log ends by replica: {said}"
        if silent:
            text += f"; not known of replica {', '.join(silent)}"
        return text + (")" if self.leader >= 0 else "; it has no leader)")


def first_in_the_way(logs: Sequence[NewLog]) -> NewLog | None:
    """The first, by number, that may not begin diskless; those before it may. Partitions are taken
    in by their number, without a hole: what is behind it waits for it."""
    return next((log for log in sorted(logs, key=_number) if not log.is_empty), None)


def why_not_taken_in(topic: str, log: NewLog) -> str:
    """Of one that is in the way: which, what it holds, the rule and the remedy."""
    what = f"topic {topic}: {log} exists in Kafka and is not known here"
    if not log.held_records:
        return (
            f"{what}; only a log that every replica says is empty begins diskless: bring back the "
            "replicas that do not answer, then try again"
        )
    return (
        f"{what}: it was added past the gateways, and only a log that never held a record begins "
        f"diskless, so nothing was changed. `tideline migrate {topic}` takes it across with its "
        "records; one of a topic that was created diskless does not migrate: read its records at "
        "a broker's own listener, send them through a gateway to another topic"
    )


def _number(log: NewLog) -> int:
    return log.partition
