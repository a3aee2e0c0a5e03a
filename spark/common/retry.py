"""Calls to the stores, tried again with backoff while the store is away, up to a deadline."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from tenacity import Retrying, retry_if_exception, stop_after_delay, wait_random_exponential

from tideline.errors import is_outage

T = TypeVar("T")
DEADLINE_S = 20.0
"""A restart of S3 or Postgres is bridged; a longer absence fails the task, and its claims expire:
whoever scheduled the job says so and tries it again. Well below the shortest claim that makes
sense."""


def retry(call: Callable[[], T], *, deadline_s: float = DEADLINE_S) -> T:
    """``call()``, repeated while nobody answers; the last error is raised.

    Every call given here is safe to repeat: registered keys, claims and finishes are fenced by
    their token, and an object is written once more under the same key with the same bytes.
    """
    return Retrying(
        retry=retry_if_exception(is_outage),
        wait=wait_random_exponential(multiplier=0.1, max=5.0),
        stop=stop_after_delay(deadline_s),
        reraise=True,
    )(call)
