"""What the control plane refuses, and why: one class per SQLSTATE of class ``TL``.

The messages are the database's: value and rule from the error, remedy from its hint.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import TypeVar

import psycopg
from psycopg.errors import Diagnostic
from psycopg_pool import PoolClosed, PoolTimeout, TooManyRequests

from tideline import __version__
from tideline.domain.history import WrongHistory
from tideline.errors import (
    ExitCode,
    FencedError,
    RefusedError,
    TidelineError,
    UnreachableError,
    UsageError,
)

ERRORS: dict[str, type[TidelineError]] = {}
"""Every SQLSTATE that the functions raise, and the class below that stands for it."""

E = TypeVar("E", bound=TidelineError)


def _sqlstate(state: str) -> Callable[[type[E]], type[E]]:
    def register(error: type[E]) -> type[E]:
        ERRORS[state] = error
        return error

    return register


class ControlPlaneUnavailable(UnreachableError):
    """Postgres did not answer in time, or the connection broke. The outcome is unknown."""


class LoginRefused(ControlPlaneUnavailable):
    """Postgres does not let this process in: password, ``pg_hba.conf``, database, a right that
    every connection needs. To a call that is under way it is as if nobody had answered: its
    outcome is unknown. Whoever starts by it is refused."""

    exit_code = ExitCode.REFUSED
    is_outage = False


class UnfitSession(LoginRefused):
    """Postgres lets this process in, but to no session that it could use: a pooler in transaction
    mode is in between, or a setting is in force that changes what statements do."""


class ControlPlaneFailure(TidelineError):
    """Postgres answered with an error that no rule explains: trying again does not help."""


class OtherSchema(ControlPlaneFailure):
    """A function is asked that the database has not, or not with these arguments: program and
    schema are of different versions."""


class UnknownToThisVersion(ControlPlaneFailure):
    """Postgres answered something, a new value of an enumeration for example, that only a newer
    version of the program knows."""


@_sqlstate("TL001")
class UnknownLog(RefusedError):
    """The partition has no row: it is not tracked."""


@_sqlstate("TL002")
class TopicDeleted(RefusedError):
    """The topic id was deleted in Kafka (schedule 19)."""


@_sqlstate("TL003")
class StaleGeneration(FencedError):
    """A newer generation of the partition exists."""


@_sqlstate("TL004")
class StaleLeaderEpoch(FencedError):
    """B0 was set at a higher leader epoch (seed 000, I2)."""


@_sqlstate("TL005")
class BoundaryAlreadySet(RefusedError):
    """B0 is set and immutable (seed 000, I2)."""


@_sqlstate("TL006")
class BoundaryBelowAcknowledged(RefusedError):
    """A gateway has acknowledged an offset at or past the proposed B0 (schedule 14)."""


@_sqlstate("TL007")
class QuiesceNotClosed(RefusedError):
    """The generation is open, void, past its deadline or not acknowledged by every gateway."""


@_sqlstate("TL008")
class GatewayFenced(FencedError):
    """The incarnation was replaced or fenced; it must register anew."""


@_sqlstate("TL009")
class GatewayRetired(RefusedError):
    """An operator attested that this gateway id is cut off."""


@_sqlstate("TL010")
class AbortRefused(RefusedError):
    """A partition has crossed B0, or the topic still migrates."""


@_sqlstate("TL011")
class SeedMismatch(RefusedError):
    """B0 is set with other producer seeds."""


@_sqlstate("TL012")
class SeedNotBelowBoundary(RefusedError):
    """A seed reaches B0 or past it (schedule 5)."""


@_sqlstate("TL013")
class ResetRefused(RefusedError):
    """The suffix holds data, or there is no prefix (schedule 7)."""


@_sqlstate("TL014")
class TopicIdentityConflict(RefusedError):
    """Another live topic is tracked under the name."""


@_sqlstate("TL015")
class TrackingIncomplete(RefusedError):
    """A gateway has not acknowledged the topic yet."""


@_sqlstate("TL016")
class NotMigrating(RefusedError):
    """The migration was aborted or never begun."""


@_sqlstate("TL017")
class ObjectKeyRejected(RefusedError):
    """The key is not registered, belongs to another gateway, or is being deleted (schedule 17)."""


@_sqlstate("TL018")
class InvalidInput(UsageError):
    """An argument is outside its range."""


@_sqlstate("TL019")
class UnknownTopic(RefusedError):
    """The topic is not tracked."""


@_sqlstate("TL020")
class OffsetOutOfRange(RefusedError):
    """The offset lies outside the log."""


@_sqlstate("TL021")
class UnknownGateway(RefusedError):
    """No gateway was registered under the id."""


@_sqlstate("TL022")
class BoundaryUnset(RefusedError):
    """The partition has no suffix yet."""


@_sqlstate("TL023")
class PartitionsMigrating(RefusedError):
    """Partitions cannot be added while the topic migrates (schedule 22)."""


@_sqlstate("TL024")
class StaleClaim(FencedError):
    """Another worker took the claim over, or its objects were collected."""


@_sqlstate("TL025")
class TieredRangeGone(RefusedError):
    """Retention has removed the whole range of a segment before it was registered."""


@_sqlstate("TL026")
class TieringMismatch(RefusedError):
    """What was split or merged is not what the control plane knows of the range."""


@_sqlstate("TL040")
class ClusterNotAttested(RefusedError):
    """Nobody attests that clients reach this cluster's brokers only through gateways."""


@_sqlstate("TL041")
class GapAcceptedAlready(RefusedError):
    """More than this range was given up before, and consumers were told so."""


@_sqlstate("TL042")
class CompletionRefused(RefusedError):
    """A partition has no B0: a sealed log would take none of its records."""


@_sqlstate("TL043")
class NothingToCallOff(RefusedError):
    """No request of the topic waits to be started."""


@_sqlstate("TL027")
class GatewayIdHeld(RefusedError):
    """Another incarnation holds the gateway id, and may be alive."""


@_sqlstate("TL028")
class RoundOver(FencedError):
    """The round of tracking was aborted, or the migration's run may begin none any more."""


@_sqlstate("TL050")
class WrongCluster(WrongHistory):
    """The control plane belongs to another Kafka cluster."""


@_sqlstate("TL051")
class NotItsGateway(RefusedError):
    """A process speaks for a gateway that its login role is not."""


@_sqlstate("TL052")
class TimelineUnsettled(ControlPlaneUnavailable):
    """A standby was promoted, and it is not known yet whether it lacks a commit that was
    acknowledged (schedule 16)."""


@_sqlstate("TL060")
class RebuildRefused(RefusedError):
    """Somebody lives in the history that is to be rebuilt, or nobody has halted it."""


TRANSIENT_SQLSTATES = frozenset(
    {
        "40001",  # serialization_failure
        "40P01",  # deadlock_detected
        "55P03",  # lock_not_available
        "57014",  # query_canceled: statement_timeout
        "57P01",  # admin_shutdown
        "57P02",  # crash_shutdown
        "57P03",  # cannot_connect_now
        "57P05",  # idle_session_timeout
        "53300",  # too_many_connections
        "25006",  # read_only_sql_transaction: a standby, until the failover is over
    }
)


UNDEFINED_FUNCTION = "42883"
OPERATOR_INTERVENTION = "57P"
"""A server that stops at once tells it to its clients as a warning (``quickdie``)."""


_SAID_AT_LOGIN = re.compile(r"failed: [^:\n]{1,40}:  (.+)")
"""libpq gives no code before there is a connection, but quotes a server by severity, colon and two
spaces; what it says itself has another form."""
_COMES_BACK = re.compile(
    r"the database system is |too many |remaining connection slots|terminating "
)
"""Of what servers say at a login: they start, stop or are full. In other words, of a server's own
language, it is taken for a refusal until the server lets the process in."""


def refused_login(error: psycopg.Error) -> str | None:
    """What a server has said that it does not let in; ``None``: none has, or it will."""
    said = _SAID_AT_LOGIN.findall(str(error))
    return next((why for why in said if not _COMES_BACK.search(why)), None)


def ends_connection(said: Diagnostic) -> bool:
    """Whether the server closes the connection after these words."""
    is_fatal = said.severity_nonlocalized in ("FATAL", "PANIC")
    return is_fatal or (said.sqlstate or "").startswith(OPERATOR_INTERVENTION)


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
        if not state and (why := refused_login(error)) is not None:
            return LoginRefused(f"Postgres lets nobody in with these settings: {why}")
        if not state and isinstance(error, (psycopg.OperationalError, psycopg.InterfaceError)):
            return ControlPlaneUnavailable(f"Postgres connection: {error}")
        if state == UNDEFINED_FUNCTION and "function tideline." in str(error):
            return OtherSchema(
                f"Postgres has another version of the schema than tideline {__version__}, which "
                f"runs here, expects: {str(error).splitlines()[0]} ({state}). Start the version "
                "of this program that belongs to the schema; docs/install.md, Upgrading, has the "
                "order"
            )
        return ControlPlaneFailure(f"Postgres: {str(error).strip()} ({state or 'no SQLSTATE'})")
    if isinstance(error, TimeoutError):
        return ControlPlaneUnavailable("Postgres did not answer in time")
    return ControlPlaneUnavailable(f"Postgres connection: {error}")
