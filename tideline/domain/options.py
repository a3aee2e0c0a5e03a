"""The choices of an operator for a migration: one table, from which the command line's options, the
parameters of an Airflow wave, the validation of every input and the page on operating follow.

Types are no strings here (no ``from __future__ import annotations``): Temporal's sandbox, in which
tests and replay run workflows, reads them while one continues, when this module is known to it by
its importers only.
"""

from dataclasses import dataclass, field, fields
from enum import StrEnum
from typing import Any, get_type_hints

DAY_MS = 86_400_000


class Durability(StrEnum):
    """What must be true of the prefix before B0 is persisted (docs/phases.md, phase 4)."""

    FSYNCED = "fsynced"
    """Each replica flushed each append: ``flush.messages=1`` was armed before the quiesce."""
    REPLICATED = "replicated"
    """Every in-sync replica has it, perhaps only in page cache."""
    TIERED = "tiered"
    """The whole prefix is in remote storage first. The longest pause."""

    @property
    def lets_through(self) -> bool:
        """Whether partitions may be started with the permit for their write pause. Each of the
        longest pauses is asked for: as many as are let through would be in theirs at once."""
        return self is not Durability.TIERED


class OpenTransactionsPolicy(StrEnum):
    """What to do with a transaction that is still open at the drain deadline."""

    WAIT = "wait"
    """Go on waiting, with the reason shown."""
    ABORT = "abort"
    """Abort it, which fences the application that runs it."""


def _row(
    help: str, more: str = "", *, flag: str = "", low: int = 0, high: int = 0
) -> dict[str, Any]:
    """``help`` is for every trigger, ``more`` for the page only; a number has inclusive bounds."""
    return {"help": help, "more": more, "flag": flag, "low": low, "high": high}


@dataclass(frozen=True, slots=True)
class MigrationOptions:
    """Times in ms."""

    durability: Durability = field(
        default=Durability.FSYNCED,
        metadata=_row(
            "What holds for the prefix before B0.",
            "`fsynced`: each replica flushed each append since shortly before the first write "
            "pause. `replicated`: every in-sync replica has it. `tiered`: it is in remote "
            "storage; the longest pause.",
        ),
    )
    open_transactions: OpenTransactionsPolicy = field(
        default=OpenTransactionsPolicy.WAIT,
        metadata=_row(
            "What happens to one that is open at the drain's deadline.",
            "`wait`, with its id as the reason, or `abort`, which fences the application that "
            "runs it.",
        ),
    )
    drain_deadline_ms: int = field(
        default=60_000, metadata=_row("How long open transactions may take.", high=DAY_MS)
    )
    quiesce_hold_ms: int = field(
        default=10_000,
        metadata=_row(
            "Producers are let go after this at the latest.",
            "The quiesce is void then; the attempt starts anew.",
            low=1_000,
            high=60_000,
        ),
    )
    parallel_partitions: int = field(
        default=4,
        metadata=_row(
            "Partitions of a topic between validate and B0 at once.",
            "Of these one in each worker process parks its producers at a time, unless a pause "
            "lasts longer than a quarter of `quiesce_hold_ms`: then others begin theirs. Once the "
            "first have, six are under way at most; those that have to wait are not counted. With "
            "durability `tiered`, whose pauses are the longest, two park theirs at most.",
            flag="--parallel",
            low=1,
            high=1_000,
        ),
    )
    first_partitions: int = field(
        default=0,
        metadata=_row(
            "Partitions that cross before the others, which wait until they are resumed; 0: none.",
            "Once as many have their B0 the topic is paused: look at what its clients do across "
            "B0, then `tideline resume`. An abort is refused from the first B0 on.",
            high=1_000,
        ),
    )
    segment_wait_ms: int = field(
        default=30_000,
        metadata=_row(
            "How long remote storage may take for the prefix, behind B0.",
            "There is no way back then: the wait goes on, and its reason says since when it takes "
            "too long. `inkless.migration.segment.wait.ms`.",
            high=DAY_MS,
        ),
    )


@dataclass(frozen=True, slots=True)
class Option:
    name: str
    type: type
    default: Any
    help: str
    more: str
    flag: str
    """On the command line, where it is not named as here."""
    low: int
    high: int
    """Bounds of a number, inclusive."""

    @property
    def choices(self) -> list[str]:
        """Of a choice; empty for a number or a flag."""
        return list(self.type) if issubclass(self.type, StrEnum) else []

    @property
    def is_number(self) -> bool:
        return self.type is int

    @property
    def allowed(self) -> str:
        if self.is_number:
            return f"{self.low} to {self.high}{' ms' if self.name.endswith('_ms') else ''}"
        return ", ".join(self.choices) or "true, false"


OPTIONS: dict[str, Option] = {
    f.name: Option(f.name, get_type_hints(MigrationOptions)[f.name], f.default, **f.metadata)
    for f in fields(MigrationOptions)
}


def options_page() -> str:
    """The table of docs/operating.md."""
    rows = ["| option | default | allowed | meaning |", "| --- | --- | --- | --- |"]
    for option in OPTIONS.values():
        default, meaning = str(option.default).lower(), f"{option.help} {option.more}".rstrip()
        rows.append(f"| `{option.name}` | `{default}` | {option.allowed} | {meaning} |")
    return "\n".join(rows)
