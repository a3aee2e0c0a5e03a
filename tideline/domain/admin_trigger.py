"""The topic configs through which an Admin client talks to Tideline, and their rules.

``diskless.enable`` is the trigger (seed 000, "Trigger"); ``diskless.migration.state`` is shown:
writing it as it was read changes nothing, and no other value can be written. Neither is known to
Kafka: the gateway takes them out of requests and puts them into answers.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping

from tideline.domain.config_changes import JUDGED, problem_with_value, situation_of
from tideline.domain.migration import MigrationState
from tideline.domain.topic_configs import (
    COPY_DISABLE,
    COPY_LAG_BYTES,
    COPY_LAG_MS,
    FLUSH_MESSAGES,
    LOCAL_RETENTION_BYTES,
    LOCAL_RETENTION_MS,
    MAX_MESSAGE_BYTES,
    RETENTION_BYTES,
)

DISKLESS_ENABLE = "diskless.enable"
MIGRATION_STATE = "diskless.migration.state"
OWN_KEYS = (DISKLESS_ENABLE, MIGRATION_STATE)
MARK = b"diskless."
"""Bytes that a request must contain to name one of :data:`OWN_KEYS`."""


def wants_diskless(value: str | None) -> bool:
    """The meaning of a value of ``diskless.enable``. Raises ``ValueError`` with the remedy."""
    if value is not None and (meaning := value.strip().lower()) in ("true", "false"):
        return meaning == "true"
    raise ValueError(f"{DISKLESS_ENABLE}={value!r} is not a boolean: write true or false")


FORWARD_ONLY = (
    f"{DISKLESS_ENABLE}=false: a topic does not come back from diskless storage. Before any "
    "partition has crossed, `tideline abort TOPIC` ends the migration and restores the topic. "
    f"Where a tool removes what is not written down, write {DISKLESS_ENABLE}=true down"
)
SWITCHED_OFF = (
    f"{DISKLESS_ENABLE}=true asks for a migration, which cannot be undone, and clients may not ask "
    "for one here (TIDELINE_GATEWAY_TRIGGER=off): ask whoever runs this cluster to run "
    "`tideline migrate TOPIC`"
)
CONTROLS_IN_CLIENT_ID = (
    f"{DISKLESS_ENABLE}=true is recorded with who asked for it, and the client id has control "
    "characters: ask again with another client.id"
)


def state_written_back(value: str | None, shown: Collection[MigrationState]) -> None:
    """``diskless.migration.state`` as a client writes it: nothing follows from one of ``shown``,
    which tools write back as they read it. Raises ``ValueError`` for anything else."""
    if value not in shown:
        raise ValueError(
            f"{MIGRATION_STATE}={value!r} shows how far a migration is and cannot be written: "
            "leave it out"
        )


def _integer(least: int, most: int) -> Callable[[str], str | None]:
    def check(value: str) -> str | None:
        try:
            number = int(value)
        except ValueError:
            return f"is not a number: write one from {least} to {most}"
        if least <= number <= most:
            return None
        return f"is out of range: write a number from {least} to {most}"

    return check


def _boolean(value: str) -> str | None:
    return None if value.lower() in ("true", "false") else "is not a boolean: write true or false"


_LONG, _INT = 2**63 - 1, 2**31 - 1
_OVERRIDDEN: Mapping[str, Callable[[str], str | None]] = {
    RETENTION_BYTES: _integer(-1, _LONG),
    FLUSH_MESSAGES: _integer(1, _LONG),
    LOCAL_RETENTION_BYTES: _integer(-2, _LONG),
    LOCAL_RETENTION_MS: _integer(-2, _LONG),
    COPY_DISABLE: _boolean,
    COPY_LAG_MS: _integer(-1, _LONG),
    COPY_LAG_BYTES: _integer(-1, _LONG),
    MAX_MESSAGE_BYTES: _integer(0, _INT),
}


def problem_with_override(key: str, value: str) -> str | None:
    """What is wrong with a user's value of a config that Tideline overrides, or ``None``.

    Kafka cannot be asked: what it has at present is Tideline's value. The bounds are those of
    Kafka's ``TopicConfig``.
    """
    check = _OVERRIDDEN.get(key)
    reason = check(value) if check else None
    return None if reason is None else f"{key}={value!r} {reason}"


_PRECEDENCE = (
    MigrationState.MIGRATING,
    MigrationState.HYBRID,
    MigrationState.DISKLESS_ONLY,
)


def shown_beside(diskless: bool) -> tuple[MigrationState, ...]:
    """The states of topics whose ``diskless.enable`` is this."""
    return _PRECEDENCE if diskless else (MigrationState.TIERED_ONLY,)


def topic_state(partitions: Iterable[MigrationState]) -> MigrationState:
    """One word for a whole topic: it migrates while any partition does, and is hybrid while any
    has a tiered prefix."""
    found = set(partitions)
    return next((state for state in _PRECEDENCE if state in found), MigrationState.TIERED_ONLY)


def refusal_at_birth(
    name: str,
    given: Mapping[str, str | None],
    defaults: Mapping[str, str | None],
    internal: bool,
) -> str | None:
    """Why a topic cannot be created diskless, or ``None``.

    ``given`` is what the request sets, ``defaults`` what the cluster gives to a topic that sets
    nothing.
    """
    if internal:
        return f"{name} is a topic of Kafka's own: it cannot be diskless"
    effective = {**defaults, **given}
    situation = situation_of((), effective)  # no partition has anything in Kafka
    for key in JUDGED:
        if (why := problem_with_value(key, effective.get(key), situation)) is not None:
            whose = "" if key in given else " is the cluster's default for new topics"
            return f"{key}={effective[key]}{whose}: {why}"
    return None
