"""Whatever is called, refused, repeated or cut off by a bucket that is away: what the catalog tells
as a fact is what the control plane has."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import Any

from hypothesis import example, given, settings
from hypothesis import strategies as st

from tests.contract.scenes import GatewayProcess, batch, seed
from tests.unit.control_plane.catalog_world import CatalogedScene
from tideline.control_plane.catalog_keeper import tell_missing
from tideline.control_plane.catalog_writer import CatalogUnavailable
from tideline.domain.ids import TopicIdPartition
from tideline.errors import RefusedError, UsageError

CALLS = (
    *("cross", "cross", "cross", "quiesce", "persist", "persist", "stale", "reset", "reset"),
    *("abort", "commit", "commit", "delete", "delete", "prefix", "gap"),
)
_CALLS = st.lists(
    st.tuples(
        st.sampled_from(CALLS),
        st.integers(0, 1),
        st.integers(0, 12),
    ),
    min_size=5,
    max_size=25,
)


class Drive:
    """Two partitions of one topic, and what a test calls on them."""

    def __init__(self, scene: CatalogedScene, gateway: GatewayProcess, logs: Any) -> None:
        self.scene, self.gateway, self.logs = scene, gateway, logs

    async def call(self, what: str, log: TopicIdPartition, number: int) -> None:
        plane = self.scene.plane
        row = await self.scene.memory.tracked_partition(log.topic_id, log.partition)
        assert row is not None
        match what:
            case "quiesce":
                await self.scene.quiesce(log, [self.gateway], number)
            case "cross":
                generation = await self.scene.quiesce(log, [self.gateway], number - 1)
                await self.scene.persist(log, number, generation, epoch=number)
            case "persist":
                seeds = [seed(last_offset=number - 1)] if number > 9 else []
                await self.scene.persist(log, number, row.generation, epoch=number, seeds=seeds)
            case "stale":
                await self.scene.persist(log, number, row.generation - 1)
            case "reset":
                await plane.reset_boundary(log, row.generation, row.boundary_epoch + number)
            case "abort":
                await plane.abort_migration(log.topic_id)
            case "commit":
                await self.scene.commit(self.gateway, batch(log, records=number + 1))
            case "delete":
                await plane.delete_records(log, row.boundary + number if number else -1)
            case "prefix":
                await plane.advance_prefix_start(log, number)
            case "gap":
                epoch, end = row.boundary_epoch, row.boundary
                await plane.accept_gap(
                    log, row.generation, epoch, min(number, end - 1), end, "ops", "lost", {}
                )


async def _driven(
    calls: list[tuple[str, int, int]], fails: list[bool]
) -> tuple[CatalogedScene, list[TopicIdPartition]]:
    """``fails``: which puts do; whoever called is killed then, and does not call again."""
    scene = CatalogedScene()
    gateway = await scene.gateway()
    _, logs = await scene.migrating_topic([gateway], 2)
    drive = Drive(scene, gateway, logs)
    scene.bucket.fails = iter(fails)
    for what, partition, number in calls:
        with suppress(RefusedError, UsageError, CatalogUnavailable):
            await drive.call(what, logs[partition], number)
    scene.bucket.fails = iter(())
    return scene, logs


TOLD_AGAIN = [("cross", 0, 0), ("cross", 1, 1), ("gap", 1, 0), ("cross", 1, 0), ("persist", 1, 1)]
"""A boundary that has a gap is set again, in a later generation."""


@settings(max_examples=300, deadline=None)
@example(TOLD_AGAIN)
@given(_CALLS)
def test_with_a_bucket_that_answers_the_catalog_tells_every_fact(
    calls: list[tuple[str, int, int]],
) -> None:
    async def check() -> None:
        scene, logs = await _driven(calls, [])
        for log in logs:
            facts = await scene.facts(log)
            row = await scene.memory.tracked_partition(log.topic_id, log.partition)
            assert row is not None
            told = facts.boundary.boundary if facts.boundary else -1
            assert told == row.boundary
            assert facts.suffix_start == row.suffix_start
            assert facts.accepted_gap_from == row.accepted_gap_from
            if facts.boundary is not None:
                assert facts.boundary.leader_epoch == row.boundary_epoch

    asyncio.run(check())


@settings(max_examples=300, deadline=None)
@given(_CALLS, st.lists(st.booleans(), max_size=60))
def test_what_is_missing_after_failed_puts_is_named_or_told_by_the_keeper(
    calls: list[tuple[str, int, int]], fails: list[bool]
) -> None:
    async def check() -> None:
        scene, logs = await _driven(calls, fails)
        for log in logs:
            row = await scene.memory.tracked_partition(log.topic_id, log.partition)
            assert row is not None
            before = (await scene.catalog()).logs[log]
            told = before.boundary.boundary if before.boundary else -1
            assert told == row.boundary or before.undecided
            assert before.announced_start >= row.suffix_start or before.undecided
        await tell_missing(scene.cataloged)
        for log in logs:
            facts = await scene.facts(log)
            row = await scene.memory.tracked_partition(log.topic_id, log.partition)
            assert row is not None
            told = facts.boundary.boundary if facts.boundary else -1
            assert told == row.boundary or facts.undecided
            assert row.boundary < 0 or told == row.boundary
            assert told < 0 or told != row.boundary or facts.suffix_start == row.suffix_start

    asyncio.run(check())
