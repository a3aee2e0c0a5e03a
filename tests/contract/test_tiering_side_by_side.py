"""Two workers, garbage collection, retention and commits at once, on real connections."""

from __future__ import annotations

import asyncio
import itertools
import random
import threading
from contextlib import suppress

from tests.contract.conftest import Database
from tests.contract.scenes import PostgresScene, batch
from tests.contract.tiering import Tiered, Worker, jobs
from tideline.control_plane.errors import StaleClaim, TieredRangeGone
from tideline.domain.ids import TopicIdPartition

COMMITS = 60
PARTITIONS = 3


async def test_every_offset_stays_readable_and_everything_is_tiered(
    postgres_scene: PostgresScene, database: Database
) -> None:
    gateway = await postgres_scene.gateway()
    _, logs = await postgres_scene.diskless_topic(PARTITIONS)
    done = threading.Event()

    def tier(seed: int) -> None:
        chance = random.Random(seed)
        with jobs(database) as plane:
            worker = Worker(plane)
            while not done.is_set():
                worker.split(logs[0].topic_id)
                for candidate in plane.merge_candidates():
                    with suppress(StaleClaim, TieredRangeGone):
                        worker.merge(candidate.log, max_batches=chance.randint(1, 9))

    def collect() -> None:
        with jobs(database) as plane:
            while not done.is_set():
                plane.delete_records(logs[0].topic_id, 0, -1)
                plane.prune_batches()
                dead = [found.object_key for found in plane.claim_dead_objects(60_000)]
                plane.forget_dead_objects(dead)
                plane.forget_dead_files(plane.claim_dead_files(60_000))

    async def read(tiered: Tiered, log: TopicIdPartition) -> None:
        """From the suffix's start to its end, without a hole, all the while."""
        while not done.is_set():
            found = await tiered.read(log)
            for before, after in itertools.pairwise(found):
                assert after[1] == before[2] + 1, (log, before, after)

    with jobs(database) as plane:
        tiered = Tiered(postgres_scene, gateway, Worker(plane))
        others = [
            asyncio.create_task(asyncio.to_thread(work, *arguments))
            for work, arguments in ((tier, (1,)), (tier, (2,)), (collect, ()))
        ]
        others += [asyncio.create_task(read(tiered, log)) for log in logs[1:]]
        try:
            for n in range(COMMITS):
                await postgres_scene.commit(
                    gateway, *[batch(log, records=n % 3 + 1) for log in logs for _ in range(2)]
                )
        finally:
            done.set()
            outcomes = await asyncio.gather(*others, return_exceptions=True)
        assert [outcome for outcome in outcomes if outcome is not None] == []
        tiered.worker.split(logs[0].topic_id)
        postgres_scene.sql(
            "UPDATE merge_claims SET expires_at = now() WHERE expires_at IS NOT NULL"
        )
        for log in logs:
            while tiered.worker.merge(log):
                pass
        end = sum(2 * (n % 3 + 1) for n in range(COMMITS))
        for log in logs[1:]:
            found = await tiered.read(log)
            assert {where for where, _, _ in found} == {"segment"}
            assert (found[0][1], found[-1][2]) == (0, end - 1)
        assert all(row[0] == "segment" for row in await tiered.read(logs[0]))


def test_a_connection_that_postgres_ends_is_replaced(
    postgres_scene: PostgresScene, database: Database
) -> None:
    with jobs(database) as plane:
        assert plane.merge_candidates() == []
        postgres_scene.sql(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity "
            "WHERE application_name = 'tiering-test'"
        )
        assert plane.merge_candidates() == []
