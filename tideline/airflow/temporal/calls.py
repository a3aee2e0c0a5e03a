"""Calls of Temporal's client: connections that are shared, errors that a person can read."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING
from weakref import WeakKeyDictionary

from airflow.sdk.exceptions import AirflowException, AirflowFailException

if TYPE_CHECKING:
    from temporalio.client import Client

    from tideline.airflow.temporal.target import Target

CALL_TIMEOUT_S = 10.0


class TemporalSilent(AirflowException):
    """Temporal has not answered. Trying again may help."""


@dataclass(slots=True)
class _Shared:
    client: Client | None = None
    lock: asyncio.Lock = field(default_factory=asyncio.Lock)
    """Who comes while it is being made waits for it."""


_shared: WeakKeyDictionary[asyncio.AbstractEventLoop, dict[str, _Shared]] = WeakKeyDictionary()


async def connect(target: Target) -> Client:
    """One attempt. Raises :class:`TemporalSilent`."""
    from temporalio.client import Client
    from temporalio.service import RPCError

    try:
        async with asyncio.timeout(CALL_TIMEOUT_S):
            return await Client.connect(**target.options)
    except TimeoutError:
        raise TemporalSilent(f"Temporal at {target.address} does not answer in time") from None
    except (RPCError, RuntimeError) as error:
        why = str(error).partition(": tonic")[0]
        raise TemporalSilent(f"Temporal at {target.address} does not answer: {why}") from error


async def shared(target: Target) -> Client:
    """The connection of this event loop to ``target``, which connects again by itself after an
    outage: all triggers of a triggerer use one. Raises :class:`TemporalSilent` while there is
    none."""
    connections = _shared.setdefault(asyncio.get_running_loop(), {})
    connection = connections.setdefault(target.key, _Shared())
    async with connection.lock:
        if connection.client is None:
            connection.client = await connect(target)
    return connection.client


@contextmanager
def readable(target: Target, what: str) -> Iterator[None]:
    """Errors of a call about ``what``. Raises :class:`TemporalSilent`, or
    :class:`AirflowFailException` when no other try helps."""
    from temporalio.client import (
        WorkflowFailureError,
        WorkflowQueryFailedError,
        WorkflowQueryRejectedError,
        WorkflowUpdateFailedError,
        WorkflowUpdateRPCTimeoutOrCancelledError,
    )
    from temporalio.service import RPCError, RPCStatusCode

    final = {
        RPCStatusCode.NOT_FOUND,
        RPCStatusCode.INVALID_ARGUMENT,
        RPCStatusCode.FAILED_PRECONDITION,
        RPCStatusCode.PERMISSION_DENIED,
        RPCStatusCode.UNAUTHENTICATED,
        RPCStatusCode.UNIMPLEMENTED,
    }
    try:
        yield
    except (WorkflowFailureError, WorkflowUpdateFailedError) as error:
        raise AirflowFailException(f"{what}: {cause_of(error)}") from error
    except (WorkflowQueryFailedError, WorkflowQueryRejectedError) as error:
        raise AirflowFailException(f"{what}: {error}") from error
    except WorkflowUpdateRPCTimeoutOrCancelledError as error:
        raise TemporalSilent(
            f"{what}: no answer in time: does a worker poll its task queue?"
        ) from error
    except RPCError as error:
        message = f"{what}: Temporal at {target.address}: {error.message}"
        kind = AirflowFailException if error.status in final else TemporalSilent
        raise kind(message) from error


def cause_of(error: BaseException) -> str:
    """The innermost message that a workflow or an activity gave."""
    cause = getattr(error, "cause", None)
    while (deeper := getattr(cause, "cause", None)) is not None:
        cause = deeper
    if cause is None:
        return str(error)
    return str(getattr(cause, "message", None) or cause)
