"""Which topic configs Tideline holds at each stage of a topic's migration.

What always holds: only the reconciler writes configs, each write follows from what Postgres says
*now*, and a stage that Postgres no longer allows is refused. So a stalled attempt that wakes
late cannot undo a later step (schedules.md, 12), and an abort puts back exactly what the user
had, key by key: a key that was unset becomes unset again.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from tideline.domain.messages import ConfigStage
from tideline.domain.options import Durability

RETENTION_BYTES = "retention.bytes"
FLUSH_MESSAGES = "flush.messages"
LOCAL_RETENTION_BYTES = "local.retention.bytes"
LOCAL_RETENTION_MS = "local.retention.ms"
COPY_DISABLE = "remote.log.copy.disable"
COPY_LAG_MS = "remote.copy.lag.ms"
COPY_LAG_BYTES = "remote.copy.lag.bytes"
AT_ONCE = {COPY_LAG_MS: "0", COPY_LAG_BYTES: "0"}
"""A segment is uploaded as soon as it is rolled. What Kafka waits for otherwise (KIP-1241, 4.4):
until it is as old, or as far from the log's end; -1: as ``local.retention.*`` keeps it."""
MAX_MESSAGE_BYTES = "max.message.bytes"
DEFAULT_MAX_MESSAGE_BYTES = 1_048_588
"""Kafka's own default."""
TIMESTAMP_TYPE = "message.timestamp.type"
CREATE_TIME, LOG_APPEND_TIME = "CreateTime", "LogAppendTime"
"""Its values."""
NOT_TIERED = (
    "remote.storage.enable=false, and records lie below B0, which are served from tiered storage: "
    "set remote.storage.enable=true"
)
"""Rule and remedy (seed 000, "Prerequisites and validation" 1)."""

TIMESTAMP_BEFORE_MAX_MS = "message.timestamp.before.max.ms"
TIMESTAMP_AFTER_MAX_MS = "message.timestamp.after.max.ms"
DEFAULT_BEFORE_MAX_MS, DEFAULT_AFTER_MAX_MS = 2**63 - 1, 3_600_000
"""Kafka's own defaults (``LogConfig``, Kafka 4)."""

MANAGED_KEYS = (
    RETENTION_BYTES,
    FLUSH_MESSAGES,
    LOCAL_RETENTION_BYTES,
    LOCAL_RETENTION_MS,
    COPY_DISABLE,
    COPY_LAG_MS,
    COPY_LAG_BYTES,
    MAX_MESSAGE_BYTES,
)
"""Every key that a migration may ever touch. No other key is read or written."""


@dataclass(frozen=True, slots=True)
class TopicLimits:
    """What is enforced on a batch of the suffix, as Kafka's ``LogValidator`` would."""

    timestamp_type: str
    """``CreateTime`` or ``LogAppendTime``."""
    max_message_bytes: int
    timestamp_before_max_ms: int = DEFAULT_BEFORE_MAX_MS
    timestamp_after_max_ms: int = DEFAULT_AFTER_MAX_MS


SEAL_BYTES = "78"
"""``max.message.bytes`` of a sealed topic: the size of a control batch. Transaction markers still
get in; zero would wedge the coordinators of unrelated transactions (docs/kafka.md, "Sealing")."""


@dataclass(frozen=True, slots=True)
class TopicProgress:
    """What Postgres says of the topic, as far as its configs depend on it."""

    aborted: bool
    partitions: int
    crossed: int
    """Partitions whose B0 is set."""
    ready: int
    overrides: Mapping[str, str | None]
    """At present: key to override value (``config_overrides``)."""
    tiered: bool
    """``remote.storage.enable`` of the topic; an empty topic may be without it."""
    shows_copy_lag: bool = False
    """Every broker knows :data:`AT_ONCE`; one that does not refuses the whole change."""
    has_prefix: bool = False
    """Kafka has something below the B0 of a partition."""
    forced: bool = False
    """An operator had it completed although a prefix is not complete."""

    @property
    def all_crossed(self) -> bool:
        return self.crossed == self.partitions

    @property
    def all_ready(self) -> bool:
        return self.ready == self.partitions


def refusal(stage: ConfigStage, progress: TopicProgress) -> str | None:
    """Why ``stage`` may not be reached now, or ``None`` when it may."""
    if progress.aborted:
        if stage is not ConfigStage.RESTORED:
            return "the migration was aborted: only the user's own configs may be put back"
        return None
    crossed = f"{progress.crossed} of {progress.partitions} partitions have a boundary"
    match stage:
        case ConfigStage.RESTORED if progress.crossed:
            return f"{crossed}: a migration only goes forward from there"
        case ConfigStage.RESTORED:
            return "the migration is not aborted: another one has begun since"
        case ConfigStage.TRACKED | ConfigStage.ARMED if progress.all_crossed:
            return f"{crossed}: the topic is past this stage"
        case ConfigStage.CROSSED | ConfigStage.ROLLING if not progress.all_crossed:
            return f"{crossed}: this stage needs all of them"
        case ConfigStage.CROSSED | ConfigStage.ROLLING if _frozen(progress):
            return "copying is frozen already: the topic is past this stage"
        case ConfigStage.FROZEN if not (progress.all_ready or progress.forced):
            return (
                f"{progress.ready} of {progress.partitions} partitions have a complete prefix in "
                "remote storage: freezing before that would strand local data"
            )
    return None


def waits_for(stage: ConfigStage, progress: TopicProgress) -> str | None:
    """What an operator has to do before ``stage`` can be reached, or ``None``. The log is sealed
    when its roll is asked for: nothing is appended that would ever roll it instead."""
    if stage is ConfigStage.ROLLING and progress.has_prefix and not progress.tiered:
        return NOT_TIERED
    return None


def _frozen(progress: TopicProgress) -> bool:
    """Of a topic that is not tiered nothing is frozen: its seal holds from the crossing on."""
    return progress.overrides.get(COPY_DISABLE) == "true" and (
        progress.all_ready or progress.forced
    )


_SEALED = frozenset({ConfigStage.CROSSED, ConfigStage.ROLLING, ConfigStage.FROZEN})
"""Every partition has its B0: what a producer still appends to the classic log, past the gateways,
would be acknowledged by Kafka and served to nobody."""


def desired(
    stage: ConfigStage, progress: TopicProgress, durability: Durability
) -> dict[str, str | None]:
    """The overrides of ``stage``: key to value. A managed key that is missing here
    is the user's own.

    Stages of one migration only add to or replace what an earlier one holds, so an earlier stage
    that runs again (a retry, a workflow started anew) keeps what a later one has overridden.
    """
    # KAFKA-20732: a new leader may expire live segments by size, so size retention is Tideline's.
    overrides: dict[str, str | None] = {RETENTION_BYTES: "-1"}
    if stage in _SEALED:
        # Not before the last partition has crossed: the others still take classic produces.
        overrides[MAX_MESSAGE_BYTES] = SEAL_BYTES
    at_once = AT_ONCE if progress.tiered and progress.shows_copy_lag else {}
    match stage:
        case ConfigStage.RESTORED:
            return {}
        case ConfigStage.TRACKED:
            overrides |= {
                key: progress.overrides[key]
                for key in (FLUSH_MESSAGES, LOCAL_RETENTION_BYTES, *AT_ONCE)
                if key in progress.overrides
                and progress.overrides.get(MAX_MESSAGE_BYTES) != SEAL_BYTES
            }
        case ConfigStage.ARMED:
            if durability is Durability.FSYNCED:
                overrides[FLUSH_MESSAGES] = "1"
            if durability is Durability.TIERED and progress.tiered:
                # B0 waits for the whole prefix, so the roll cannot wait for B0.
                overrides[LOCAL_RETENTION_BYTES] = "0"
                overrides |= at_once
        case ConfigStage.CROSSED:
            overrides |= at_once
            if LOCAL_RETENTION_BYTES in progress.overrides:
                overrides[LOCAL_RETENTION_BYTES] = progress.overrides[LOCAL_RETENTION_BYTES]
        case ConfigStage.ROLLING:
            overrides |= at_once
            if progress.tiered:
                overrides[LOCAL_RETENTION_BYTES] = "0"
        case ConfigStage.FROZEN:
            if progress.tiered:
                overrides |= {
                    COPY_DISABLE: "true",
                    LOCAL_RETENTION_BYTES: "-2",
                    LOCAL_RETENTION_MS: "-2",
                }
    return overrides


@dataclass(frozen=True, slots=True)
class ConfigChange:
    """One entry of an IncrementalAlterConfigs: set to ``value``, or removed when ``None``."""

    key: str
    value: str | None


def differences(
    target: Mapping[str, str | None], found: Mapping[str, str | None]
) -> tuple[ConfigChange, ...]:
    """What to write so that ``found`` (the topic's dynamic configs) becomes ``target``.

    Only keys of ``target`` are compared; ``None`` in either means "not set on the topic".
    """
    return tuple(
        ConfigChange(key, value) for key, value in sorted(target.items()) if found.get(key) != value
    )
