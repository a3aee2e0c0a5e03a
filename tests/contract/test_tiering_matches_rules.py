"""What SQL claims for split and plans for merge is what the rules of the domain say, over random
logs; and each offset is read from where they place it."""

from __future__ import annotations

import random
from collections.abc import AsyncIterator
from dataclasses import dataclass
from itertools import takewhile

import pytest

from tests.contract.conftest import Database
from tests.contract.scenes import PostgresScene, batch
from tests.contract.tiering import Tiered, Worker, jobs
from tests.tiering_rule import Eligibility, PartitionTiering, eligibility, place_of, segment_reach
from tideline.control_plane.tiering_model import BatchRow, PartitionRow
from tideline.domain.ids import TopicIdPartition
from tideline.domain.tiering import LogBounds, Place

ROUNDS = 12
SEEDS = range(3)


@pytest.fixture
async def tiered(postgres_scene: PostgresScene, database: Database) -> AsyncIterator[Tiered]:
    with jobs(database) as plane:
        yield Tiered(postgres_scene, await postgres_scene.gateway(), Worker(plane))


@dataclass
class Model:
    """Two partitions of one topic under random traffic."""

    tiered: Tiered
    name: str
    logs: list[TopicIdPartition]
    rnd: random.Random
    paused: bool = False
    claimed: int = 0
    merged: int = 0
    refused: int = 0
    """Batches that a claim left where they were."""

    def rows(self) -> list[PartitionRow]:
        lo, hi = self.tiered.plane.log_id_range()
        return list(self.tiered.plane.partitions(lo, hi))

    def batches(self, row: PartitionRow) -> list[BatchRow]:
        return list(self.tiered.plane.batches(row.log_id, row.log_id + 1))

    def append_times(self, row: PartitionRow) -> dict[int, int]:
        found = self.tiered.scene.sql(
            "SELECT last_offset, append_time FROM batches WHERE log_id = %s", row.log_id
        )
        return {int(str(last)): int(str(when)) for last, when in found}

    async def traffic(self) -> None:
        for _ in range(self.rnd.randint(1, 4)):
            await self.tiered.scene.commit(
                self.tiered.gateway,
                *[
                    batch(
                        self.rnd.choice(self.logs),
                        records=self.rnd.randint(1, 4),
                        timestamp=self.rnd.choice([100, 500, 900]),
                        size=self.rnd.randint(70, 400),
                    )
                    for _ in range(self.rnd.randint(1, 5))
                ],
            )

    def steer(self) -> None:
        plane = self.tiered.plane
        match self.rnd.randint(0, 8):
            case 0:
                plane.pause_tiering(self.name)
                self.paused = True
            case 1:
                plane.request_tiering(self.name)
            case 2:
                row = self.rnd.choice(self.rows())
                before = self.rnd.randint(row.suffix_start, row.high_watermark)
                plane.delete_records(row.topic_id, row.partition, before)
            case _ if self.paused:
                plane.resume_tiering(self.name)
                self.paused = False
            case _:
                pass

    def expected_claim(self, cutoff: int | None) -> set[tuple[int, int]]:
        """(log id, base offset) of every batch that the rules let go."""
        found = set()
        for row in self.rows():
            partition = PartitionTiering(
                suffix_start=row.suffix_start,
                high_watermark=row.high_watermark,
                cutoff_ms=cutoff,
                requested_at_ms=row.tiering_requested_at,
                paused=row.tiering_paused,
                deleted=row.deleted,
            )
            when = self.append_times(row)
            found |= {
                (row.log_id, one.base_offset)
                for one in self.batches(row)
                if eligibility(
                    partition,
                    last_offset=one.last_offset,
                    max_timestamp=one.max_timestamp,
                    append_time=when[one.last_offset],
                    split=one.split_id is not None,
                )
                is Eligibility.ELIGIBLE
            }
        return found

    def split(self, cutoff: int | None) -> None:
        """Claim everything, compare, finish most of it."""
        worker = self.tiered.worker
        expected = self.expected_claim(cutoff)
        cutoffs = {} if cutoff is None else {self.logs[0].topic_id: cutoff}
        files = worker.claim(cutoffs, max_files=1_000, max_batches=100_000)
        claimed = [(one.log_id, one.base_offset) for file in files for one in file.batches]
        assert len(claimed) == len(set(claimed))
        assert set(claimed) == expected
        self.claimed += len(claimed)
        self.refused += sum(len(self.batches(row)) for row in self.rows()) - len(claimed)
        for file in files:
            if self.rnd.random() < 0.8:
                worker.finish(file)
            else:
                worker.plane.release_claim(worker.worker, file.file_id, file.token)

    def merge(self, limit: int) -> None:
        for row in self.rows():
            frontier = max(row.merge_frontier, row.suffix_start)
            left = [one for one in self.batches(row) if one.last_offset >= frontier]
            split = list(takewhile(lambda one: one.split_id is not None, left))
            base = split[0].base_offset if split else frontier
            reach = () if row.tiering_paused else segment_reach(split, base, limit)
            plan = self.tiered.worker.merge(row.log, max_bytes=limit)
            if plan is None:
                assert reach == ()
                continue
            assert (plan.base_offset, plan.last_offset) == (base, reach[-1].last_offset)
            assert plan.byte_size == sum(one.byte_size for one in reach)
            assert plan.batch_count == len(reach)
            self.merged += plan.batch_count

    async def check_places(self) -> None:
        for row in self.rows():
            log = LogBounds(
                log_start=row.boundary,
                boundary=row.boundary,
                suffix_start=row.suffix_start,
                tiered_high_offset=row.tiered_high_offset,
                high_watermark=row.high_watermark,
            )
            read = await self.tiered.read(row.log)
            served: dict[int, Place] = {}
            for kind, first, last in read:
                place = Place.MERGED if kind == "segment" else Place.WAL
                for offset in range(max(first, row.suffix_start), last + 1):
                    assert offset not in served, "no offset is answered twice"
                    served[offset] = place
            expected = {n: place_of(log, n) for n in range(row.high_watermark)}
            assert served == {n: place for n, place in expected.items() if place is not None}


@pytest.mark.parametrize("seed", SEEDS)
async def test_random_logs_are_tiered_as_the_rules_say(tiered: Tiered, seed: int) -> None:
    name, logs = await tiered.scene.diskless_topic(partitions=2)
    model = Model(tiered, name, logs, random.Random(seed))
    for _ in range(ROUNDS):
        await model.traffic()
        model.steer()
        model.split(model.rnd.choice([None, 500, 10_000, 10_000]))
        for _ in range(3):
            model.merge(model.rnd.choice([1, 600, 1_500, 1 << 30]))
        await model.check_places()
    assert min(model.claimed, model.refused, model.merged) > 20
