"""Pauses take turns; nothing waits for ever for its turn."""

from __future__ import annotations

import asyncio
from uuid import UUID

import pytest

from tests.support.waiting import within
from tideline.domain.ids import TopicIdPartition
from tideline.migration.connections import PauseSlots, monotonic_ms

A, B, C = (TopicIdPartition(UUID(int=1), n) for n in range(3))


async def test_the_next_pause_begins_when_the_one_before_is_over() -> None:
    slots, order = PauseSlots(monotonic_ms), []

    async def pause(key: TopicIdPartition) -> None:
        await slots.enter(key, 10_000, 10_000)
        order.append(("in", key))
        await asyncio.sleep(0)
        order.append(("out", key))
        await slots.leave(key)

    await asyncio.gather(pause(A), pause(B), pause(C))
    assert [what for what, _ in order] == ["in", "out"] * 3
    assert {key for _, key in order} == {A, B, C}


async def test_a_holder_may_enter_again_at_once() -> None:
    slots = PauseSlots(monotonic_ms)
    await slots.enter(A, 10_000, 10_000)
    await within("the slot that A has", slots.enter(A, 10_000, 10_000))


async def test_a_slot_ends_with_the_hold_of_a_pause_that_nobody_ended() -> None:
    slots = PauseSlots(monotonic_ms)
    await slots.enter(A, 20, 10_000)
    await within("the slot that A had", slots.enter(B, 10_000, 10_000))


async def test_a_wait_that_lasts_too_long_goes_on_without_a_slot() -> None:
    slots = PauseSlots(monotonic_ms)
    await slots.enter(A, 10_000, 10_000)
    await within("B to go on without a slot", slots.enter(B, 10_000, 20))


async def test_a_step_that_fails_gives_its_slot_back() -> None:
    slots = PauseSlots(monotonic_ms)
    await slots.enter(A, 10_000, 10_000)
    with pytest.raises(RuntimeError):
        async with slots.left_on_failure(A):
            raise RuntimeError("the leader moved")
    await within("the slot that A had", slots.enter(B, 10_000, 10_000))
