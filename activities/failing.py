"""How an activity fails: a typed error that tells its workflow what may be done about it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from temporalio.exceptions import ApplicationError, ApplicationErrorCategory

from tideline.domain import failures
from tideline.errors import FencedError, RefusedError, TidelineError, UnreachableError
from tideline.kafka.errors import KafkaError
from tideline.kafka.observer import LeaderMoved


def failure(kind: str, message: str) -> ApplicationError:
    """The error of one of the kinds in :mod:`tideline.domain.failures`."""
    return ApplicationError(
        message,
        type=kind,
        non_retryable=kind in failures.NON_RETRYABLE,
        # A wait is no defect: it neither fills the logs nor raises the failure metric.
        category=ApplicationErrorCategory.BENIGN
        if kind == failures.WAITING
        else ApplicationErrorCategory.UNSPECIFIED,
    )


def waiting(reason: str) -> ApplicationError:
    """The wait's bound has passed; the reason stands in the evidence too."""
    return failure(failures.WAITING, reason)


def translate(error: TidelineError) -> ApplicationError:
    """An adapter's error as the workflow should see it."""
    match error:
        case LeaderMoved():
            kind = failures.STALE_LEADER_EPOCH
        case UnreachableError():
            kind = failures.UNREACHABLE
        case KafkaError() if error.retriable:
            kind = failures.UNREACHABLE
        case FencedError():
            kind = failures.STALE_GENERATION
        case RefusedError() | KafkaError():
            kind = failures.REFUSED
        case _:
            kind = failures.REFUSED
    return failure(kind, str(error))


@contextmanager
def typed_failures() -> Iterator[None]:
    """Turn the adapters' errors into typed ones; anything else stays a plain, retried bug."""
    try:
        yield
    except TidelineError as error:
        raise translate(error) from error
