"""How many topics migrate at once is one number over all triggers, kept by the control plane."""

from __future__ import annotations

import asyncio
from uuid import UUID

from tests.contract.scenes import Scene
from tideline.domain.places import MigrationPlace, PlaceHolder

LONG = 3_600_000
"""ms; nobody is in doubt."""


def topic(number: int, run: str = "first") -> PlaceHolder:
    return PlaceHolder(UUID(int=number), f"orders-{number}", run)


async def ask(scene: Scene, number: int, places: int, run: str = "first") -> MigrationPlace:
    return await scene.plane.take_migration_place(topic(number, run), places, LONG)


async def test_topics_beyond_the_places_wait_in_the_order_in_which_they_asked(scene: Scene) -> None:
    assert await ask(scene, 9, 2) == MigrationPlace(True, 0)
    assert await ask(scene, 8, 2) == MigrationPlace(True, 0)
    assert await ask(scene, 7, 2) == MigrationPlace(False, 0)
    assert await ask(scene, 6, 2) == MigrationPlace(False, 1)
    assert await ask(scene, 7, 2) == MigrationPlace(False, 0)
    assert await scene.plane.leave_migration_place(UUID(int=9), "first")
    # Whoever asks next, the place is the older one's.
    assert await ask(scene, 6, 2) == MigrationPlace(False, 0)
    assert await ask(scene, 7, 2) == MigrationPlace(True, 0)
    assert await ask(scene, 9, 2) == MigrationPlace(False, 1)


async def test_asking_again_takes_no_second_place(scene: Scene) -> None:
    for _ in range(3):
        assert (await ask(scene, 1, 2)).taken
    assert (await ask(scene, 2, 2)).taken


async def test_more_places_let_those_that_wait_go_and_fewer_take_none_away(scene: Scene) -> None:
    for number in range(4):
        await ask(scene, number, 1)
    assert (await ask(scene, 3, 3)) == MigrationPlace(False, 0)
    assert [(await ask(scene, number, 1)).taken for number in range(4)] == [True] * 3 + [False]


async def test_whoever_stops_waiting_holds_nobody_up(scene: Scene) -> None:
    for number in range(3):
        await ask(scene, number, 1)
    assert await scene.plane.leave_migration_place(UUID(int=1), "first")
    assert await ask(scene, 2, 1) == MigrationPlace(False, 0)


async def test_a_place_is_given_back_by_the_run_that_has_it_alone(scene: Scene) -> None:
    await ask(scene, 1, 1)
    # The workflow was terminated and started again: the place is the later run's.
    assert (await ask(scene, 1, 1, run="second")).taken
    assert not await scene.plane.leave_migration_place(UUID(int=1), "first")
    assert not (await ask(scene, 2, 1)).taken
    assert await scene.plane.leave_migration_place(UUID(int=1), "second")
    assert not await scene.plane.leave_migration_place(UUID(int=1), "second")
    assert (await ask(scene, 2, 1)).taken


async def test_who_has_a_place_and_was_not_heard_of_is_named_to_one_that_asks(scene: Scene) -> None:
    await ask(scene, 1, 1)
    found = await scene.plane.take_migration_place(topic(2), 1, 0)
    assert found == MigrationPlace(False, 0, (topic(1),))
    assert await ask(scene, 3, 1) == MigrationPlace(False, 1)
    # One that waits and is gone gets the place in its turn, and is looked for then.
    await scene.plane.leave_migration_place(UUID(int=1), "first")
    found = await scene.plane.take_migration_place(topic(3), 1, 0)
    assert found == MigrationPlace(False, 0, (topic(2),))


async def test_many_that_ask_at_once_get_as_many_places_as_there_are(scene: Scene) -> None:
    asked = [ask(scene, number, 3) for number in range(10)]
    answers = await asyncio.gather(*asked)
    assert sum(answer.taken for answer in answers) == 3
    assert sorted(answer.before for answer in answers if not answer.taken) == list(range(7))


async def limit(scene: Scene, topics: int | None, partitions: int | None) -> None:
    await scene.plane.set_migration_limits(topics, partitions, "ada", "a busy evening")


async def test_what_operators_allow_holds_instead_of_the_setting_and_at_once(scene: Scene) -> None:
    assert await scene.plane.migration_limits() is None
    await ask(scene, 1, 5)
    await limit(scene, 1, None)
    answer = await ask(scene, 2, 5)
    assert (answer.taken, answer.places) == (False, 1)
    assert (await ask(scene, 1, 5)).taken  # nothing is taken away
    await limit(scene, None, 3)
    assert (await ask(scene, 2, 5)).taken
    held = await scene.plane.migration_limits()
    assert held is not None
    assert (held.topics, held.partitions) == (None, 3)
    assert (held.set_by, held.reason) == ("ada", "a busy evening")


async def test_topics_that_cross_share_the_partitions_that_operators_allow(scene: Scene) -> None:
    """All shares together are the limit, whatever it is; a topic that has crossed leaves the
    others its share."""
    gateway = await scene.gateway()
    logs = [(await scene.migrating_topic([gateway]))[1][0] for _ in range(3)]
    for log in logs:
        holder = PlaceHolder(log.topic_id, "", "first")
        await scene.plane.take_migration_place(holder, 3, LONG)

    async def shares() -> list[int | None]:
        return [await scene.plane.migration_share(log.topic_id) for log in logs]

    assert await shares() == [None] * 3
    for partitions, expected in ((7, [3, 2, 2]), (2, [1, 1, 0]), (0, [0, 0, 0])):
        await limit(scene, None, partitions)
        assert await shares() == expected
    await limit(scene, None, 7)
    await scene.persist(logs[0], 10, await scene.quiesce(logs[0], [gateway], 9))
    assert (await shares())[1:] == [4, 3]
    assert await scene.plane.migration_share(UUID(int=99)) is None
    await limit(scene, None, None)
    assert await shares() == [None] * 3
