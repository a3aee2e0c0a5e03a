"""Which release of Apache Kafka brokers are of, as nearly as they say it: by the highest
``metadata.version`` that they support (``org.apache.kafka.server.common.MetadataVersion``)."""

from __future__ import annotations

_FIRST_LEVELS = ((22, "4.0"), (26, "4.1"), (28, "4.2"), (30, "4.3"), (31, "4.4"))
LAST_KNOWN = 33
"""Of 4.4; a higher level is of a later release."""
TRIED = ("4.0", "4.1", "4.2", "4.3", "4.4")
"""On which topics have crossed; all else is tested with 4.2."""
EXPIRES_BY_SIZE_RIGHT = 31
"""From 4.4 on a change of leader lets no live segment expire by size (KAFKA-20732)."""


UPGRADE = "upgrade the brokers to 4.0 or later"
NOT_TOLD = 0
"""The level of brokers that tell none, and lack what each one from 4.0 on has: those of ZooKeeper
mode. No broker supports less than 1."""


def described(level: int) -> str:
    return f"Kafka {release_of(level)} (metadata.version {level or 'not told'})"


def why_too_old(level: int | None) -> str | None:
    """What is said to who starts; ``None``: nothing, an unknown release is not a no."""
    if level is None or not is_too_old(level):
        return None
    return f"{described(level)}, and Tideline needs 4.0 or later: {UPGRADE}"


def release_of(level: int) -> str:
    if level < _FIRST_LEVELS[0][0]:
        return "before 4.0"
    if level > LAST_KNOWN:
        return "after 4.4"
    return next(name for first, name in reversed(_FIRST_LEVELS) if level >= first)


def is_too_old(level: int) -> bool:
    """Brokers before 4.0 lack what Tideline asks for (KIP-1073, KIP-1058), and may be of ZooKeeper
    mode."""
    return level < _FIRST_LEVELS[0][0]
