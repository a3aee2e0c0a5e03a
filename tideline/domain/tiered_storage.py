"""Tiered storage of a topic, switched off and on again on stock Kafka (seed 001, KIP-950).

What is here: the states, the steps from one to another, which configs each step sets, and what
Kafka refuses, in Kafka's own words and order (``LogConfig.validateTopicLogConfigValues``, 4.2).

What always holds: local retention is at the total whenever Kafka may take something for tiered
that is not. Kafka keeps the highest tiered offset of before: it neither uploads up to there again
nor keeps it locally, so that enabling again would lose it (schedules.md, 11).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from types import MappingProxyType

from tideline.domain.config_changes import (
    CLEANUP_POLICY,
    DELETE_ON_DISABLE,
    REMOTE_STORAGE,
    RETENTION_MS,
    Situation,
    items,
    problem_with_value,
)
from tideline.domain.coverage import OffsetRange
from tideline.domain.topic_configs import (
    COPY_DISABLE,
    LOCAL_RETENTION_BYTES,
    LOCAL_RETENTION_MS,
    RETENTION_BYTES,
)

AS_THE_TOTAL = "-2"
"""Of ``local.retention.*``: as much as the topic keeps at all."""
HELD = MappingProxyType({LOCAL_RETENTION_MS: AS_THE_TOTAL, LOCAL_RETENTION_BYTES: AS_THE_TOTAL})
JUDGED = (
    REMOTE_STORAGE,
    COPY_DISABLE,
    DELETE_ON_DISABLE,
    CLEANUP_POLICY,
    RETENTION_MS,
    RETENTION_BYTES,
    LOCAL_RETENTION_MS,
    LOCAL_RETENTION_BYTES,
)
"""Every config that Kafka's rules look at. No other one is written."""
Configs = Mapping[str, str | None]


class TieringState(StrEnum):
    """Of a topic. ``deleting`` is no state of Kafka's: a broker knows only that it is off."""

    ENABLED = "enabled"
    READ_ONLY = "read-only"
    """Nothing more is uploaded; what is there is read, and expires by the topic's retention."""
    DISABLED = "disabled"
    DELETING = "deleting"
    """Disabled, while segments or objects of the topic are left in remote storage."""


class Target(StrEnum):
    """What may be asked for."""

    READ_ONLY = "read-only"
    DISABLED = "disabled"
    """And what is in remote storage is deleted: Kafka knows no other way of being off."""
    ENABLED = "enabled"


class Step(StrEnum):
    """One thing after the other; a step that is done already changes nothing."""

    SET_READ_ONLY = "set read-only"
    TURN_OFF = "turn off"
    FINISH_DELETION = "finish deletion"
    """Wait for Kafka to delete; what it leaves behind is collected after a grace."""
    HOLD = "hold local retention"
    """Enable with the local retention at the total."""
    PROVE = "prove coverage"
    """Wait until all that Kafka takes for tiered is, or has expired."""
    RELEASE = "release local retention"


@dataclass(frozen=True, slots=True)
class Path:
    """From a state to a target: steps in their order, or why there is no way."""

    steps: tuple[Step, ...] = ()
    refused: str = ""


_ENABLE = (Step.HOLD, Step.PROVE, Step.RELEASE)
_NOTHING_TO_KEEP = Path(
    refused="tiered storage is off, and nothing is kept in remote storage that could be read; "
    "enable it, and make it read-only when something was tiered"
)
PATHS: Mapping[tuple[TieringState, Target], Path] = MappingProxyType(
    {
        (TieringState.ENABLED, Target.READ_ONLY): Path((Step.SET_READ_ONLY,)),
        (TieringState.READ_ONLY, Target.READ_ONLY): Path((Step.SET_READ_ONLY,)),
        (TieringState.DISABLED, Target.READ_ONLY): _NOTHING_TO_KEEP,
        (TieringState.DELETING, Target.READ_ONLY): _NOTHING_TO_KEEP,
        (TieringState.ENABLED, Target.DISABLED): Path((Step.TURN_OFF, Step.FINISH_DELETION)),
        (TieringState.READ_ONLY, Target.DISABLED): Path((Step.TURN_OFF, Step.FINISH_DELETION)),
        (TieringState.DISABLED, Target.DISABLED): Path((Step.FINISH_DELETION,)),
        (TieringState.DELETING, Target.DISABLED): Path((Step.FINISH_DELETION,)),
        # Also of a topic that is enabled: somebody may have enabled it by hand.
        (TieringState.ENABLED, Target.ENABLED): Path(_ENABLE),
        (TieringState.READ_ONLY, Target.ENABLED): Path(_ENABLE),
        (TieringState.DISABLED, Target.ENABLED): Path(_ENABLE),
        # What is being deleted and what is tiered anew must not be mixed up (scenario 1).
        (TieringState.DELETING, Target.ENABLED): Path((Step.FINISH_DELETION, *_ENABLE)),
    }
)


def state_of(configs: Configs, *, anything_left: bool) -> TieringState:
    """``configs``: effective ones; ``anything_left``: segments or objects in remote storage."""
    if is_true(configs.get(REMOTE_STORAGE)):
        return (
            TieringState.READ_ONLY if is_true(configs.get(COPY_DISABLE)) else TieringState.ENABLED
        )
    return TieringState.DELETING if anything_left else TieringState.DISABLED


@dataclass(frozen=True, slots=True)
class LocalRetention:
    """The topic's own ``local.retention.*`` as the user has set it; ``None``: unset."""

    ms: str | None = None
    bytes: str | None = None

    def configs(self) -> dict[str, str | None]:
        return {LOCAL_RETENTION_MS: self.ms, LOCAL_RETENTION_BYTES: self.bytes}


def local_retention(own: Configs) -> LocalRetention:
    """Of the configs that are set on the topic itself."""
    return LocalRetention(own.get(LOCAL_RETENTION_MS), own.get(LOCAL_RETENTION_BYTES))


def configs_of(step: Step, users: LocalRetention, *, held: bool = False) -> dict[str, str | None]:
    """What ``step`` sets on the topic (``None``: unsets), all in one request. ``held``: a step
    before it holds local retention, which this one gives back unless it holds it, too."""
    match step:
        case Step.SET_READ_ONLY:
            return {COPY_DISABLE: "true", **HELD}
        case Step.TURN_OFF:
            off: dict[str, str | None] = {REMOTE_STORAGE: "false", DELETE_ON_DISABLE: "true"}
            return off | (users.configs() if held else {})
        case Step.HOLD:
            # Without the policy of before a later `remote.storage.enable=false` alone is refused
            # again, instead of deleting everything.
            return {REMOTE_STORAGE: "true", COPY_DISABLE: None, DELETE_ON_DISABLE: None, **HELD}
        case Step.RELEASE:
            return users.configs()
    return {}


def is_true(value: str | None) -> bool:
    """As Kafka reads a boolean config; unset is false."""
    return (value or "false").strip().lower() == "true"


# What Kafka refuses

NOT_WITHOUT_DELETING = (
    "It is invalid to disable remote storage without deleting remote data. If you want to keep the "
    "remote data and turn to read only, please set `remote.storage.enable=true,"
    "remote.log.copy.disable=true`. If you want to disable remote storage and delete all remote "
    "data, please set `remote.storage.enable=false,remote.log.delete.on.disable=true`."
)
SWITCHED_OFF = (
    "Tiered Storage functionality is disabled in the broker. Topic cannot be configured with remote"
    " log storage."
)
NOT_COMPACTED = (
    "Remote log storage only supports topics with cleanup.policy=delete or cleanup.policy being an "
    "empty list."
)


def kafkas_refusal(
    before: Configs, after: Configs, *, system_enabled: bool | None = True
) -> str | None:
    """Kafka's own message for a change from ``before`` to ``after``, ``None`` when it takes it.

    Both are effective configs with the values of :data:`JUDGED`. ``system_enabled``:
    ``remote.log.storage.system.enable`` of the brokers; unknown counts as on, Kafka then decides.
    """
    if not is_true(after.get(REMOTE_STORAGE)):
        turned_off = is_true(before.get(REMOTE_STORAGE))
        if turned_off and not is_true(after.get(DELETE_ON_DISABLE)):
            return NOT_WITHOUT_DELETING
        return None
    if system_enabled is False:
        return SWITCHED_OFF
    if items(after.get(CLEANUP_POLICY)) not in ([], ["delete"]):
        return NOT_COMPACTED
    return (
        _local_above_total(after, LOCAL_RETENTION_BYTES, RETENTION_BYTES)
        or _local_above_total(after, LOCAL_RETENTION_MS, RETENTION_MS)
        or _unequal_while_read_only(after)
    )


def _local_above_total(after: Configs, local_key: str, total_key: str) -> str | None:
    local, total = _number(after, local_key, -2), _number(after, total_key, -1)
    # The one rule looks for an unlimited total, the other for any negative one; -1 is both.
    if total < 0 or local == -2:
        return None
    if local == -1:
        why = f"Value must not be -1 as {total_key} value is set as {total}."
    elif local > total:
        why = f"Value must not be more than {total_key} property value: {total}"
    else:
        return None
    return f"Invalid value {local} for configuration {local_key}: {why}"


def _unequal_while_read_only(after: Configs) -> str | None:
    if not is_true(after.get(COPY_DISABLE)):
        return None
    for local_key, total_key in (
        (LOCAL_RETENTION_BYTES, RETENTION_BYTES),
        (LOCAL_RETENTION_MS, RETENTION_MS),
    ):
        if _number(after, local_key, -2) not in (-2, _number(after, total_key, -1)):
            return (
                f"When `remote.log.copy.disable` is set to true, the `{local_key}` and "
                f"`{total_key}` must be set to the identical value because there will be no more "
                "logs copied to the remote storage."
            )
    return None


def _number(configs: Configs, key: str, default: int) -> int:
    value = configs.get(key)
    return default if value is None else int(value)


# What Kafka takes for tiered


def highest_claimed(
    answers: Mapping[int, int], finished_once: Mapping[int, int], lineage: Mapping[int, OffsetRange]
) -> int:
    """The highest offset (inclusive) that a broker takes, or may come to take, for tiered; -1:
    none. ``answers``: what each replica says now, which comes late after a restart and after
    enabling. ``finished_once``: by leader epoch the highest offset of a segment that was ever
    complete in remote storage, deleted since or not: Kafka never forgets it. ``lineage``: the
    offsets of the log's own epochs."""
    remembered = [
        min(offset, own.end - 1)
        for epoch, offset in finished_once.items()
        if (own := lineage.get(epoch)) is not None and offset >= own.start
    ]
    return max([*answers.values(), *remembered], default=-1)


def refused_while_tracked(target: Target, situation: Situation) -> str | None:
    """Why the tiered storage of a topic that migrates, or has, is not switched, and what to do
    instead; ``None`` when it may be."""
    if target is Target.DISABLED:
        return problem_with_value(REMOTE_STORAGE, "false", situation)
    if target is Target.READ_ONLY:
        return problem_with_value(COPY_DISABLE, "true", situation)
    if not situation.has_prefix:
        return (
            "nothing of it is in Kafka's log: Tideline's own jobs archive it, see docs/tiering.md"
        )
    return (
        "Tideline steers the copying of its prefix itself, and has ended it if all of it is in "
        "remote storage; `tideline status TOPIC` shows where it stands"
    )
