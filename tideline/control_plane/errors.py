"""What the control plane refuses, and why: one class per SQLSTATE of class ``TL``.

The messages are the database's: value and rule from the error, remedy from its hint.
"""

from __future__ import annotations

import psycopg
from psycopg_pool import PoolClosed, PoolTimeout, TooManyRequests

from tideline.errors import FencedError, RefusedError, TidelineError, UnreachableError, UsageError


class ControlPlaneUnavailable(UnreachableError):
    """Postgres did not answer in time, or the connection broke. The outcome is unknown."""


class ControlPlaneFailure(TidelineError):
    """Postgres answered with an error that no rule explains: trying again does not help."""


class UnknownLog(RefusedError):
    """The partition has no row: it is not tracked."""


class TopicDeleted(RefusedError):
    """The topic id was deleted in Kafka (schedule 19)."""


class StaleGeneration(FencedError):
    """A newer generation of the partition exists."""


class StaleLeaderEpoch(FencedError):
    """B0 was set at a higher leader epoch (seed 000, I2)."""


class BoundaryAlreadySet(RefusedError):
    """B0 is set and immutable (seed 000, I2)."""


class BoundaryBelowAcknowledged(RefusedError):
    """A gateway has acknowledged an offset at or past the proposed B0 (schedule 14)."""


class QuiesceNotClosed(RefusedError):
    """The generation is open, void, past its deadline or not acknowledged by every gateway."""


class GatewayFenced(FencedError):
    """The incarnation was replaced or fenced; it must register anew."""


class GatewayRetired(RefusedError):
    """An operator attested that this gateway id is cut off."""


class AbortRefused(RefusedError):
    """A partition has crossed B0, or the topic still migrates."""


class SeedMismatch(RefusedError):
    """B0 is set with other producer seeds."""


class SeedNotBelowBoundary(RefusedError):
    """A seed reaches B0 or past it (schedule 5)."""


class ResetRefused(RefusedError):
    """The suffix holds data, or there is no prefix (schedule 7)."""


class TopicIdentityConflict(RefusedError):
    """Another live topic is tracked under the name."""


class TrackingIncomplete(RefusedError):
    """A gateway has not acknowledged the topic yet."""


class NotMigrating(RefusedError):
    """The migration was aborted or never begun."""


class ObjectKeyRejected(RefusedError):
    """The key is not registered, belongs to another gateway, or is being deleted (schedule 17)."""


class InvalidInput(UsageError):
    """An argument is outside its range."""


class UnknownTopic(RefusedError):
    """The topic is not tracked."""


class OffsetOutOfRange(RefusedError):
    """The offset lies outside the log."""


class UnknownGateway(RefusedError):
    """No gateway was registered under the id."""


class BoundaryUnset(RefusedError):
    """The partition has no suffix yet."""


class PartitionsMigrating(RefusedError):
    """Partitions cannot be added while the topic migrates (schedule 22)."""


class StaleClaim(FencedError):
    """Another worker took the claim over, or its objects were collected."""


class TieredRangeGone(RefusedError):
    """Retention has removed the whole range of a segment before it was registered."""


class TieringMismatch(RefusedError):
    """What was split or merged is not what the control plane knows of the range."""


ERRORS: dict[str, type[TidelineError]] = {
    "TL001": UnknownLog,
    "TL002": TopicDeleted,
    "TL003": StaleGeneration,
    "TL004": StaleLeaderEpoch,
    "TL005": BoundaryAlreadySet,
    "TL006": BoundaryBelowAcknowledged,
    "TL007": QuiesceNotClosed,
    "TL008": GatewayFenced,
    "TL009": GatewayRetired,
    "TL010": AbortRefused,
    "TL011": SeedMismatch,
    "TL012": SeedNotBelowBoundary,
    "TL013": ResetRefused,
    "TL014": TopicIdentityConflict,
    "TL015": TrackingIncomplete,
    "TL016": NotMigrating,
    "TL017": ObjectKeyRejected,
    "TL018": InvalidInput,
    "TL019": UnknownTopic,
    "TL020": OffsetOutOfRange,
    "TL021": UnknownGateway,
    "TL022": BoundaryUnset,
    "TL023": PartitionsMigrating,
    "TL024": StaleClaim,
    "TL025": TieredRangeGone,
    "TL026": TieringMismatch,
}
"""Every SQLSTATE that the migrations raise."""

TRANSIENT_SQLSTATES = frozenset(
    {
        "40001",  # serialization_failure
        "40P01",  # deadlock_detected
        "55P03",  # lock_not_available
        "57014",  # query_canceled: statement_timeout
        "57P01",  # admin_shutdown
        "57P02",  # crash_shutdown
        "57P03",  # cannot_connect_now
        "53300",  # too_many_connections
        "25006",  # read_only_sql_transaction: a standby, until the failover is over
    }
)


def translate(error: Exception) -> TidelineError:
    """The typed error of what psycopg or its pool raised.

    A syntax error, a missing function or a missing right is no transient failure: it becomes
    :class:`ControlPlaneFailure`.
    """
    if isinstance(error, (PoolTimeout, PoolClosed, TooManyRequests)):
        return ControlPlaneUnavailable(f"Postgres gave no connection in time: {error}")
    if isinstance(error, psycopg.Error):
        state = error.sqlstate or ""
        if state in ERRORS:
            hint = error.diag.message_hint
            text = f"{error.diag.message_primary}. {hint}" if hint else str(error)
            return ERRORS[state](text)
        if state in TRANSIENT_SQLSTATES or state.startswith("08"):
            return ControlPlaneUnavailable(f"Postgres: {error.diag.message_primary} ({state})")
        if not state and isinstance(error, (psycopg.OperationalError, psycopg.InterfaceError)):
            return ControlPlaneUnavailable(f"Postgres connection: {error}")
        return ControlPlaneFailure(f"Postgres: {str(error).strip()} ({state or 'no SQLSTATE'})")
    if isinstance(error, TimeoutError):
        return ControlPlaneUnavailable("Postgres did not answer in time")
    return ControlPlaneUnavailable(f"Postgres connection: {error}")
