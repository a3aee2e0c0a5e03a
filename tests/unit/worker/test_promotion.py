"""The worker looks into the bucket for gateways that stay away after a promotion."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from typing import Any
from uuid import UUID, uuid4

import pytest

from tests.contract.scenes import GatewayProcess, MemoryScene, batch
from tests.unit.rebuild.buckets import NOT_COMMITTED, TOPIC, Bucket, Stream, footer_batch
from tideline.domain.history import WrongHistory
from tideline.object_store.client import ObjectEntry, ObjectStoreUnavailable
from tideline.settings import ObjectStoreSettings
from tideline.worker.promotion import CLOCKS_DIFFER, GONE_AFTER_S, PromotionCheck


@dataclass
class DatedBucket(Bucket):
    """Its objects were put now, but for those that are :attr:`old`."""

    old: set[str] = field(default_factory=set)

    def list_objects(
        self, bucket: str, prefix: str, start_after: str | None = None
    ) -> Iterator[ObjectEntry]:
        if self.away:
            raise ObjectStoreUnavailable("away")
        before_the_beats = datetime.fromtimestamp(0, UTC) - 2 * CLOCKS_DIFFER
        for entry in super().list_objects(bucket, prefix, start_after):
            is_old = entry.key in self.old
            yield replace(entry, last_modified=before_the_beats) if is_old else entry


class World:
    """A gateway that is gone, one that lives, and a promotion."""

    def __init__(self) -> None:
        self.scene, self.bucket, self.now = MemoryScene(), DatedBucket(), 0.0
        store: Any = self.bucket
        settings = ObjectStoreSettings(s3_bucket="wal", s3_tiered_bucket="tiered")
        self.check = PromotionCheck(self.scene.plane, store, settings, lambda: self.now)

    async def begin(self) -> World:
        self.gone, self.lives = await self.scene.gateway(), await self.scene.gateway()
        self.stream = Stream(self.bucket, self.gone.gateway_id, self.gone.incarnation)
        return self

    async def register(self, *keys: str) -> None:
        process = self.gone
        await self.scene.plane.register_object_keys(process.gateway_id, process.incarnation, keys)

    async def promote(self) -> None:
        self.scene.promote()
        await self.renew(self.lives)
        await self.check.look()
        self.now += GONE_AFTER_S

    async def renew(self, process: GatewayProcess) -> None:
        await self.scene.plane.renew_lease(process.gateway_id, process.incarnation)

    async def settled(self) -> bool:
        return (await self.scene.plane.identity()).settled


@pytest.fixture
async def world() -> World:
    return await World().begin()


async def test_who_needs_seconds_to_connect_is_waited_for(world: World) -> None:
    await world.register("wal/1")
    world.stream.store(footer_batch(TOPIC), key="wal/1")
    await world.promote()
    world.now -= 1
    await world.check.look()
    await world.renew(world.gone)
    assert await world.settled()
    world.now += 2 * GONE_AFTER_S
    await world.check.look()
    assert (await world.scene.plane.identity()).halted is None


async def test_who_had_nothing_under_way_is_not_missed(world: World) -> None:
    await world.register("wal/never-put")
    await world.promote()
    assert not await world.settled()
    await world.check.look()
    assert await world.settled()


@pytest.mark.parametrize("registered", [True, False], ids=["registered", "key lost, too"])
async def test_an_object_that_may_have_been_told_halts_the_history(
    world: World, registered: bool
) -> None:
    if registered:
        await world.register("wal/1")
    world.stream.store(footer_batch(TOPIC), key="wal/1")
    await world.promote()
    with pytest.raises(WrongHistory, match="wal/1"):
        await world.check.look()
    assert "wal/1" in str((await world.scene.plane.identity()).halted)
    assert not await world.settled()


async def test_an_object_that_cannot_be_read_is_none_that_was_not_told(world: World) -> None:
    await world.register("wal/cut")
    world.bucket.objects["wal/cut"] = b"the head of it"
    await world.promote()
    with pytest.raises(WrongHistory, match="wal/cut"):
        await world.check.look()


async def test_what_its_gateway_has_given_up_was_told_to_nobody(world: World) -> None:
    """So says an object that nobody commits, under a key that Postgres does not know."""
    await world.register("wal/1")
    world.stream.store(footer_batch(TOPIC), key="wal/1")
    world.stream.committed("wal/1", 1, NOT_COMMITTED)
    world.stream.store(key="wal/statement")
    await world.promote()
    await world.check.look()
    assert await world.settled()


async def test_orphans_of_long_ago_and_of_other_histories_are_no_evidence(world: World) -> None:
    world.stream.store(footer_batch(TOPIC), key="wal/orphan")
    world.bucket.old.add("wal/orphan")
    Stream(world.bucket, 9, uuid4(), UUID(int=77)).store(footer_batch(TOPIC), key="wal/given-up")
    await world.promote()
    await world.check.look()
    assert await world.settled()
    assert "wal/orphan" not in {key for key, _ in world.bucket.asked}


async def test_while_the_store_is_away_nothing_is_decided(world: World) -> None:
    world.bucket.away = True
    await world.promote()
    with pytest.raises(ObjectStoreUnavailable):
        await world.check.look()
    assert not await world.settled()
    world.bucket.away = False
    await world.check.look()
    assert await world.settled()


async def test_what_is_committed_is_not_missing(world: World) -> None:
    _, (log,) = await world.scene.diskless_topic()
    key = world.stream.store(footer_batch(log.topic_id))
    await world.register(key)
    await world.scene.commit(world.gone, batch(log), key=key)
    await world.promote()
    await world.check.look()
    assert await world.settled()
