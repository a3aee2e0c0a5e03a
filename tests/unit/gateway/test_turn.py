"""What the event loop does at most of one kind of work in one turn."""

from __future__ import annotations

import asyncio

from tideline.gateway.turn import TurnBudget


async def test_what_is_spent_in_a_turn_is_there_again_in_the_next() -> None:
    budget = TurnBudget(1.0)
    assert not budget.is_spent
    budget.spend(0.6)
    assert not budget.is_spent, "a piece that is begun is done"
    budget.spend(0.6)
    assert budget.is_spent
    await asyncio.sleep(0)
    assert not budget.is_spent
    budget.spend(0.6)
    assert not budget.is_spent


def test_a_loop_that_ended_within_a_turn_leaves_nothing_spent() -> None:
    budget = TurnBudget(1.0)

    async def spends() -> None:
        budget.spend(2.0)
        assert budget.is_spent

    async def has_all() -> bool:
        return not budget.is_spent

    with asyncio.Runner() as runner:
        runner.get_loop().run_until_complete(spends())
    assert asyncio.run(has_all())
