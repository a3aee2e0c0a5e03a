"""What is repeated, how often, and for how long."""

from __future__ import annotations

import asyncio
import time

import pytest
from tenacity import stop_after_attempt, stop_after_delay, wait_none

from tideline.retries import retried


class Flaky:
    """Fails so many times, with these errors."""

    def __init__(self, *errors: BaseException) -> None:
        self.errors = list(errors)
        self.calls = 0

    async def __call__(self) -> int:
        self.calls += 1
        if self.errors:
            raise self.errors.pop(0)
        return self.calls


async def test_a_call_that_succeeds_is_made_once() -> None:
    call = Flaky()
    assert await retried(call, OSError, wait=wait_none()) == 1


async def test_a_call_is_repeated_while_it_fails_so() -> None:
    call = Flaky(OSError("one"), OSError("two"))
    assert await retried(call, (OSError, KeyError), wait=wait_none()) == 3


@pytest.mark.parametrize("before", [0, 1])
async def test_another_error_ends_it(before: int) -> None:
    call = Flaky(*(OSError() for _ in range(before)), ValueError("no"))
    with pytest.raises(ValueError, match="no"):
        await retried(call, OSError, wait=wait_none())
    assert call.calls == before + 1


async def test_the_first_attempt_counts() -> None:
    call = Flaky(OSError("one"), OSError("two"), OSError("three"))
    with pytest.raises(OSError, match="two"):
        await retried(call, OSError, wait=wait_none(), stop=stop_after_attempt(2))
    call = Flaky(OSError("one"))
    with pytest.raises(OSError, match="one"):
        await retried(call, OSError, wait=wait_none(), stop=stop_after_attempt(1))
    assert call.calls == 1


async def test_the_time_of_the_first_attempt_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [100.0]
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    call = Flaky(OSError("one"), OSError("two"))

    async def slow() -> int:
        now[0] += 6.0
        return await call()

    with pytest.raises(OSError, match="two"):
        await retried(slow, OSError, wait=wait_none(), stop=stop_after_delay(10.0))
    assert call.calls == 2


@pytest.mark.parametrize("before", [0, 1])
async def test_a_cancellation_is_no_failure(before: int) -> None:
    call = Flaky(*(OSError() for _ in range(before)), asyncio.CancelledError())
    with pytest.raises(asyncio.CancelledError):
        await retried(call, OSError, wait=wait_none())
    assert call.calls == before + 1
