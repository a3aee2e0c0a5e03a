"""What an operator may change or end by decision while a migration runs, and how that crosses
Temporal. Each is kept with who decided it and why (``operator_actions``).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from tideline.domain.messages import TopicRef, Update
from tideline.domain.migration_input import (
    InvalidMigrationInput,
    Shape,
    parse_options,
    read_options,
    text,
    whole_number,
)
from tideline.domain.options import MigrationOptions


@dataclass(frozen=True, slots=True)
class Decider:
    """Who decides, and why. Neither is empty."""

    by: str
    why: str


@dataclass(frozen=True, slots=True)
class ConfigureRequest:
    """Input of the update ``configure``: only the options that change."""

    options: dict[str, Any]
    decider: Decider


@dataclass(frozen=True, slots=True)
class ConfigureOutcome:
    options: MigrationOptions
    """All of them, as they are now."""
    changed: dict[str, list[Any]] = field(default_factory=dict)
    """By name: before and after."""


@dataclass(frozen=True, slots=True)
class ConfigurationRecord:
    """What is to be kept of a ``configure``, a ``pause``, a ``resume`` or an ``abort``."""

    ref: TopicRef
    decider: Decider
    changed: dict[str, Any]
    """Options by name, before and after; of an abort, its decision."""
    action: str = "configure"
    partition: int | None = None
    """``None``: the whole topic."""


@dataclass(frozen=True, slots=True)
class CompletionRequest:
    """To freeze and seal although prefixes are not complete."""

    ref: TopicRef
    decider: Decider


@dataclass(frozen=True, slots=True)
class CompletionOutcome:
    incomplete: list[int]
    """Partitions whose prefix stays incomplete; none: there was nothing to force."""


@dataclass(frozen=True, slots=True)
class GapRequest:
    """To give up ``[first, end)`` of a partition, which nobody holds any more. The topic is the one
    whose workflow is asked."""

    partition: int
    first: int
    end: int
    decider: Decider

    def problem(self, boundaries: Sequence[int]) -> str | None:
        """Why it cannot be asked of a topic with these B0 by partition (-1: not known here, so
        Postgres compares it); ``None``: it can."""
        if not 0 <= self.partition < len(boundaries):
            return (
                f"partition {self.partition}: the migration has {len(boundaries)}, numbered from "
                "0 on; name one of them"
            )
        boundary = boundaries[self.partition]
        if not 0 <= self.first < self.end or self.end > boundary >= 0:
            known = f", which is {boundary}" if boundary >= 0 else ""
            return (
                f"first {self.first}, end {self.end} of partition {self.partition}: a gap is "
                f"[first, end) with 0 <= first < end <= B0{known}"
            )
        return None


@dataclass(frozen=True, slots=True)
class GapStep:
    """What is to be given up of which topic."""

    ref: TopicRef
    request: GapRequest


@dataclass(frozen=True, slots=True)
class GapOutcome:
    partition: int
    first: int
    end: int
    leader_epoch: int
    """At which nobody held it."""
    log_ends: dict[str, int] = field(default_factory=dict)
    """Of each replica, by node id, exclusive."""
    remote_end: int = -1
    """Where remote segments end, exclusive; -1: there are none."""


def _changes(name: str, value: object) -> dict[str, Any]:
    """Options by name, as they were written: only these change."""
    read_options(name, value)
    if not isinstance(value, Mapping) or not value:
        raise InvalidMigrationInput(f"{name}: none is named; name at least one")
    return dict(value)


_EXAMPLE = '{"by": "ada", "why": "incident 12"}'
DECIDER = Shape(Decider, {"by": text, "why": text}, _EXAMPLE)
_OFFSET = whole_number(0, 2**63 - 1)
UPDATES: dict[Update, Shape[Any]] = {
    **dict.fromkeys((Update.PAUSE, Update.RESUME, Update.ABORT, Update.COMPLETE), DECIDER),
    Update.CONFIGURE: Shape(
        ConfigureRequest,
        {"options": _changes, "decider": DECIDER.member},
        f'{{"options": {{"parallel_partitions": 2}}, "decider": {_EXAMPLE}}}',
    ),
    Update.ACCEPT_GAP: Shape(
        GapRequest,
        {
            "partition": whole_number(0, 2**31 - 1),
            "first": _OFFSET,
            "end": _OFFSET,
            "decider": DECIDER.member,
        },
        f'{{"partition": 3, "first": 100, "end": 120, "decider": {_EXAMPLE}}}',
    ),
}
"""Input of each update. Of which topic, the workflow that is asked knows."""


@dataclass(frozen=True, slots=True)
class Progress:
    """How far a migration is, as far as its options depend on it."""

    armed: bool
    """``flush.messages`` is set: the durability is in force."""
    all_crossed: bool
    frozen: bool


def changed_options(
    now: MigrationOptions, wanted: Mapping[str, Any]
) -> tuple[MigrationOptions, dict[str, list[Any]]]:
    """The options after the change, and what differs. Raises ``InvalidMigrationInput`` with field,
    rule and remedy."""
    parsed = parse_options(wanted)
    values = {name: getattr(parsed, name) for name in wanted if wanted[name] is not None}
    after = replace(now, **values)
    before, later = asdict(now), asdict(after)
    return after, {
        name: [before[name], later[name]] for name in values if before[name] != later[name]
    }


def differing_options(running: MigrationOptions, wanted: MigrationOptions) -> dict[str, list[Any]]:
    """By name, what a migration that runs has and what whoever joins it wanted; a join changes
    nothing."""
    has, asked = asdict(running), asdict(wanted)
    return {name: [has[name], asked[name]] for name in has if has[name] != asked[name]}


def joined_with_other_options(topic: str, differing: Mapping[str, list[Any]]) -> str:
    """In one line, for whoever joined; empty without a difference."""
    if not differing:
        return ""
    named = ", ".join(f"{name} is {has}, not {asked}" for name, (has, asked) in differing.items())
    return (
        f"{topic} migrates already, with other options: {named}. They stay as they are; "
        f"`tideline configure {topic}` changes them"
    )


def too_late(name: str, progress: Progress) -> str:
    """Why the option ``name`` cannot change any more, or empty."""
    match name:
        case "durability" if progress.armed:
            return (
                "durability: what it asks of the brokers is in force since before the first write "
                "pause; it cannot change under a boundary"
            )
        case (
            "open_transactions"
            | "drain_deadline_ms"
            | "quiesce_hold_ms"
            | "parallel_partitions"
            | "first_partitions"
        ):
            if progress.all_crossed:
                return f"{name}: every partition has its B0, it has no effect any more"
        case "segment_wait_ms" if progress.frozen:
            return "segment_wait_ms: the topic is being frozen, nothing waits for tiering any more"
    return ""
