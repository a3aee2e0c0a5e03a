"""What a broken promise is, and the bounds that a history is judged by."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from math import inf

from tests.history.operations import Operation, Partition


class Kind(Enum):
    LOST = "lost"
    TWICE = "twice"
    REORDERED = "reordered"
    DIFFERENT = "different bytes at one offset"
    INVENTED = "a record that nobody sent, or that was refused"
    STALE = "stale"
    BACK = "offsets that go back"
    SENT = "a consumer sent elsewhere"
    ABORTED = "a record of an aborted transaction"
    STUCK = "stuck"
    FATAL = "a producer was told a fatal error"
    UNPLANNED = "an exception that nobody planned"
    MISTOLD = "the bucket tells something else than the control plane knows"


@dataclass(frozen=True, slots=True)
class Violation:
    kind: Kind
    partition: Partition | None
    text: str
    evidence: tuple[Operation, ...] = ()

    def __str__(self) -> str:
        lines = [f"{self.kind.value}: {self.partition}: {self.text}"]
        return "\n".join([*lines, *(f"    {operation}" for operation in self.evidence)])


@dataclass(frozen=True, slots=True)
class Bounds:
    """All in seconds. `stale`: how long after an acknowledgement or a shown high watermark an
    answer may still not know of it. `answer`: how long a request may take. `progress`: how long
    one client may hear nothing but errors on one partition. `sent`: how long after an end of the
    log was told a position below it may still be called out of range or diverged; by default as
    long as an answer may be stale. `dense`: nothing is compacted and there are no transactions, so
    every offset has a record that is shown."""

    stale: float = 0.0
    answer: float = inf
    progress: float = inf
    sent: float | None = None
    dense: bool = False

    @property
    def sent_elsewhere(self) -> float:
        return self.stale if self.sent is None else self.sent


class Teller:
    def __init__(self, partition: Partition, found: list[Violation]) -> None:
        self._partition = partition
        self._found = found

    def __call__(self, kind: Kind, text: str, *evidence: Operation) -> None:
        self._found.append(Violation(kind, self._partition, text, evidence))
