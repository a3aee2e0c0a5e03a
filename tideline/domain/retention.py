"""The retention that a topic's user wants, and where the whole log of a hybrid topic begins.

What goes by it is decided in ``spark/retention/frames.py``.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from tideline.domain.topic_configs import RETENTION_BYTES

RETENTION_MS = "retention.ms"
CLEANUP_POLICY = "cleanup.policy"
UNLIMITED = -1


@dataclass(frozen=True, slots=True)
class Policy:
    """Effective retention of one topic; −1: unlimited."""

    retention_ms: int = UNLIMITED
    retention_bytes: int = UNLIMITED

    @property
    def unlimited(self) -> bool:
        """Nothing of the log ever goes."""
        return self.retention_ms < 0 and self.retention_bytes < 0


def policy_of(
    configs: Mapping[str, str | None],
    held: Mapping[str, str | None],
    broker_default_bytes: int = UNLIMITED,
) -> Policy:
    """The retention that the topic's user wants.

    ``configs``: effective configs in Kafka. ``held``: the user's own values of configs that
    Tideline has overridden (from tracking on ``retention.bytes`` is −1 in Kafka, KAFKA-20732);
    ``None`` there: the user had set none, so that the brokers' default counts. A topic whose
    ``cleanup.policy`` has no ``delete`` keeps everything. Raises ``ValueError`` for a value that
    is no integer.
    """
    rules = {rule.strip() for rule in (configs.get(CLEANUP_POLICY) or "delete").split(",")}
    if "delete" not in rules:
        return Policy()
    size: str | int | None = configs.get(RETENTION_BYTES)
    if RETENTION_BYTES in held:
        own = held[RETENTION_BYTES]
        size = broker_default_bytes if own is None else own
    age = held.get(RETENTION_MS) or configs.get(RETENTION_MS)
    return Policy(_limit(RETENTION_MS, age), _limit(RETENTION_BYTES, size))


def _limit(key: str, value: str | int | None) -> int:
    if value is None:
        return UNLIMITED
    try:
        return max(int(value), UNLIMITED)
    except ValueError:
        raise ValueError(f"{key}={value!r} is not an integer") from None


def log_start(prefix_start: int, boundary: int, suffix_start: int) -> int:
    """Earliest readable offset of the whole log. ``prefix_start``: Kafka's log start offset, which
    may lie past B0; ``boundary``: B0, negative while it is unset."""
    if boundary < 0 or prefix_start < boundary:
        return prefix_start
    return max(boundary, suffix_start)


def gap_before_boundary(reached: int, boundary: int) -> str:
    """Why nothing of the suffix goes yet, in an operator's words."""
    return (
        f"offsets [{reached}, {boundary}) of the prefix are in no readable remote segment: the "
        "suffix keeps everything until they are tiered or gone (see `tideline coverage`)"
    )
