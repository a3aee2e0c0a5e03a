"""What a change of a tracked topic's configs comes down to: refused with the reason, or enforced.

Kafka applies a config to its classic log; what is at or past B0 is Tideline's. A value that the
suffix cannot honour is refused before anything changes; the limits on batches are taken over, so
that what DescribeConfigs shows is what producers meet (seed 000, seed 001 for tiered storage).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Protocol

from tideline.domain.migration import UNDEFINED_OFFSET
from tideline.domain.topic_configs import (
    COPY_DISABLE,
    COPY_LAG_BYTES,
    COPY_LAG_MS,
    LOCAL_RETENTION_BYTES,
    LOCAL_RETENTION_MS,
    MAX_MESSAGE_BYTES,
    RETENTION_BYTES,
    TIMESTAMP_AFTER_MAX_MS,
    TIMESTAMP_BEFORE_MAX_MS,
    TIMESTAMP_TYPE,
    TopicLimits,
)

REMOTE_STORAGE = "remote.storage.enable"
DELETE_ON_DISABLE = "remote.log.delete.on.disable"
CLEANUP_POLICY = "cleanup.policy"
COMPRESSION_TYPE = "compression.type"
RETENTION_MS = "retention.ms"

LIMITS = (MAX_MESSAGE_BYTES, TIMESTAMP_TYPE, TIMESTAMP_BEFORE_MAX_MS, TIMESTAMP_AFTER_MAX_MS)
"""Enforced by gateways on each batch from the answer to the change on."""
JUDGED = (
    REMOTE_STORAGE,
    COPY_DISABLE,
    DELETE_ON_DISABLE,
    CLEANUP_POLICY,
    COMPRESSION_TYPE,
    RETENTION_MS,
    RETENTION_BYTES,
    LOCAL_RETENTION_MS,
    LOCAL_RETENTION_BYTES,
    COPY_LAG_MS,
    COPY_LAG_BYTES,
    *LIMITS,
)
"""Every key whose change on a tracked topic means something for the suffix."""
_KEPT = (
    (RETENTION_MS, LOCAL_RETENTION_MS, COPY_LAG_MS),
    (RETENTION_BYTES, LOCAL_RETENTION_BYTES, COPY_LAG_BYTES),
)
"""How much is kept at all, locally, and before it is uploaded."""
_AS_THE_TOTAL = -2
"""Of ``local.retention.*``: whatever the total is."""
_NO_LIMIT = -1


class Divided(Protocol):
    """A tracked partition, as far as configs of its topic depend on it."""

    @property
    def boundary(self) -> int: ...

    @property
    def partly_in_kafka(self) -> bool: ...


@dataclass(frozen=True, slots=True)
class Situation:
    """What a change meets."""

    migrates: bool
    """A partition has no B0 yet."""
    has_prefix: bool
    """Something below a B0, or a log that will be, is Kafka's to keep and to tier."""
    before: Mapping[str, str | None]
    """The user's values, or the defaults where none is set, of :data:`JUDGED`."""


def situation_of(rows: Iterable[Divided], before: Mapping[str, str | None]) -> Situation:
    """``rows``: the topic's partitions."""
    rows = tuple(rows)
    return Situation(
        migrates=any(row.boundary == UNDEFINED_OFFSET for row in rows),
        has_prefix=any(row.partly_in_kafka for row in rows),
        before=before,
    )


def problem_with_change(
    after: Mapping[str, str | None], situation: Situation, named: Iterable[str]
) -> str | None:
    """Why the change is refused: value, rule and remedy; ``None`` when it may be made.

    ``after`` has the values of :data:`JUDGED` that would hold, ``named`` the keys that change.
    """
    changed = {key for key in named if after.get(key) != situation.before.get(key)}
    for key in sorted(changed):
        value = after.get(key)
        if (why := problem_with_value(key, value, situation)) is not None:
            return f"{key}={value}: {why}"
    for total, local, lag in _KEPT:
        if changed & {total, local} and (why := _local_above_total(after, local, total)):
            return why
        if changed & {total, local, lag} and (why := _lag_above_local(after, lag, local, total)):
            return why
    return None


def problem_with_value(key: str, value: str | None, situation: Situation) -> str | None:
    """Why the suffix cannot honour the value, and the remedy; ``None`` when it can."""
    match key:
        case "remote.storage.enable" if _is_false(value) and situation.has_prefix:
            return (
                "everything below B0 is in Kafka's tiered storage and would not be served any "
                "more. To end the migration run `tideline abort` before the first B0; to drop "
                "the history delete the records up to B0 first"
            )
        case "remote.log.delete.on.disable" if not _is_false(value) and situation.has_prefix:
            return (
                "with it `remote.storage.enable=false` at a broker deletes everything below B0, "
                "which Kafka refuses without it; leave it false"
            )
        case "remote.log.copy.disable" if not _is_false(value):
            if situation.migrates:
                return (
                    "the prefix of a topic that migrates must reach remote storage; leave it "
                    "false, Tideline ends the copying itself when all of it is there"
                )
            return (
                "the suffix is archived by Tideline's own jobs, which do not read it; stop them "
                "with `tideline tiering pause TOPIC`"
            )
        case "cleanup.policy" if "compact" in items(value):
            return "compaction of diskless data is not supported; set it to delete on the topic"
        case "compression.type" if value not in (None, "producer"):
            return (
                "the suffix keeps batches as producers wrote them; set it to producer on the topic"
            )
    return None


def _local_above_total(
    after: Mapping[str, str | None], local_key: str, total_key: str
) -> str | None:
    """Kafka's own rule (``LogConfig.validateRemoteStorageRetention*``), which Kafka cannot check
    while it holds Tideline's values."""
    if _is_false(after.get(REMOTE_STORAGE)):
        return None
    local, total = _number(after.get(local_key)), _number(after.get(total_key))
    if local is None or total is None or local == _AS_THE_TOTAL or total == _NO_LIMIT:
        return None
    if local == _NO_LIMIT or local > total:
        return (
            f"{local_key}={local}: more is kept locally than {total_key}={total} keeps at all; "
            f"lower it, or set it to {_AS_THE_TOTAL}"
        )
    return None


def _lag_above_local(
    after: Mapping[str, str | None], lag_key: str, local_key: str, total_key: str
) -> str | None:
    """Kafka's own rule (KIP-1241), which it would apply when Tideline gives the value back."""
    if _is_false(after.get(REMOTE_STORAGE)):
        return None
    lag, local = _number(after.get(lag_key)), _number(after.get(local_key))
    kept = _number(after.get(total_key)) if local == _AS_THE_TOTAL else local
    if lag is None or kept is None or kept < 0 or lag <= kept:
        return None
    return (
        f"{lag_key}={lag}: what is kept locally ({local_key}={local}, {total_key}="
        f"{after.get(total_key)}) goes before it is uploaded; lower it to {kept}, or set it to 0"
    )


def limits_of(after: Mapping[str, str | None], named: Iterable[str]) -> dict[str, str | int]:
    """The limits among ``named``, as ``update_topic_limits`` takes them.

    Raises ``ValueError`` for one that Kafka would not have taken either.
    """
    found: dict[str, str | int] = {}
    for key in sorted(set(named) & set(LIMITS)):
        value = after.get(key)
        if value is not None:
            name = _ARGUMENTS[key]
            found[name] = value if key == TIMESTAMP_TYPE else int(value)
    return found


def shown_limits(limits: TopicLimits) -> dict[str, str]:
    """The limits in force, by key, as DescribeConfigs has them."""
    return {key: str(getattr(limits, name)) for key, name in _ARGUMENTS.items()}


_ARGUMENTS = {
    MAX_MESSAGE_BYTES: "max_message_bytes",
    TIMESTAMP_TYPE: "timestamp_type",
    TIMESTAMP_BEFORE_MAX_MS: "timestamp_before_max_ms",
    TIMESTAMP_AFTER_MAX_MS: "timestamp_after_max_ms",
}


def items(value: str | None) -> list[str]:
    """The entries of a config that is a list."""
    return [entry.strip() for entry in (value or "").split(",") if entry.strip()]


def _is_false(value: str | None) -> bool:
    return (value or "false").strip().lower() == "false"


def _number(value: str | None) -> int | None:
    try:
        return int(value) if value is not None else None
    except ValueError:
        return None
