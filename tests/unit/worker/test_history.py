"""The worker keeps the beats, tells the fleet, and ends when Postgres is another one."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

import pytest
from prometheus_client import CollectorRegistry

from tests.unit.test_ownership import Buckets, Installation
from tideline import ownership
from tideline.control_plane.model import CommitDurability
from tideline.domain.history import WrongHistory
from tideline.object_store.client import ObjectStoreUnavailable
from tideline.worker.history import HistoryKeeper


async def keeper_of(installation: Installation, position_s: float = 30.0) -> HistoryKeeper:
    buckets: Any = installation.buckets
    history = await installation.start()
    return HistoryKeeper(
        installation.plane, buckets, installation.settings, history, CollectorRegistry(),
        position_s=position_s,
    )  # fmt: skip


async def test_beats_reach_the_bucket_now_and_then() -> None:
    buckets: Any = Buckets()
    installation = Installation(buckets)
    keeper = await keeper_of(installation)
    for _ in range(keeper.beats_per_position - 1):
        await keeper.beat()
    assert ownership.fleet_position(buckets, installation.settings) is None
    await keeper.beat()
    told = ownership.fleet_position(buckets, installation.settings)
    assert told is not None
    assert told.beat == (await installation.plane.identity()).beat == keeper.beats_per_position + 1


async def test_standbys_are_looked_at_once_for_each_position() -> None:
    """Also while the bucket takes none."""
    keeper = await keeper_of(Installation(Buckets()))
    looked, look = 0, keeper._plane.check_synchronous_commit

    async def counted() -> CommitDurability:
        nonlocal looked
        looked += 1
        return await look()

    async def refused(_: object) -> None:
        raise ObjectStoreUnavailable("the bucket is away")

    keeper._plane.check_synchronous_commit = counted  # type: ignore[method-assign]
    await keeper.beat()
    assert looked == 1
    keeper._tell = refused  # type: ignore[method-assign, assignment]
    for _ in range(2 * keeper.beats_per_position - 1):
        with suppress(ObjectStoreUnavailable):
            await keeper.beat()
    assert looked == 2


async def test_the_standbys_of_a_primary_that_was_promoted_are_looked_at_with_its_first_beat() -> (
    None
):
    installation = Installation(Buckets())
    keeper = await keeper_of(installation)
    plane, looked = installation.plane, 0
    look = plane.check_synchronous_commit

    async def counted() -> CommitDurability:
        nonlocal looked
        looked += 1
        return await look()

    plane.check_synchronous_commit = counted  # type: ignore[method-assign]
    for _ in range(2):
        await keeper.beat()
    assert looked == 1
    plane.server = (plane.server[0], plane.server[1] + 1)
    for _ in range(2):
        await keeper.beat()
    assert looked == 2


@pytest.mark.parametrize("position_s", [1.0, 2.0, 7.0, 30.0, 300.0])
async def test_no_more_than_what_is_set_lies_between_two_positions(position_s: float) -> None:
    """A rebuild relies on it: it watches for little longer."""
    keeper = await keeper_of(Installation(Buckets()), position_s)
    assert 0 < keeper.beats_per_position * keeper.every_s <= position_s


async def test_a_worker_ends_when_postgres_has_gone_back() -> None:
    installation = Installation(Buckets())
    keeper = await keeper_of(installation)
    await keeper.beat()
    await keeper.beat()
    installation.plane.history.beats.popitem()
    await installation.plane.beat_history()
    with pytest.raises(WrongHistory, match="has not got beat 3"):
        await keeper.beat()


async def test_of_two_databases_only_the_one_that_the_fleet_has_seen_goes_on() -> None:
    """The volume was copied: ids, system and timeline are the same, the commits since are not."""
    buckets: Any = Buckets()
    one, copy = Installation(buckets), Installation(buckets)
    keeper, of_the_copy = await keeper_of(one), await keeper_of(copy)
    copy.plane.history.written = 1_000  # its next tokens are others
    for _ in range(keeper.beats_per_position):
        await keeper.beat()
    for _ in range(keeper.beats_per_position - 1):
        await of_the_copy.beat()
    with pytest.raises(WrongHistory, match="the fleet has seen"):
        await of_the_copy.beat()
