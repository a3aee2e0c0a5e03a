"""Runs of verify over Postgres: what they look at, record and leave alone. Brokers' answers and the
reading of ranges are the test's own."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import count
from typing import Any
from uuid import UUID

import pytest
from kio.schema.errors import ErrorCode

from spark.common.entry import Job, Outcome
from spark.table import plan as plans
from spark.table.pieces import PIECE_BYTES, Piece
from spark.table.prefix import Prefix
from spark.verify import job as verify_job
from spark.verify.compare import Difference, RangeVerdict
from tests.contract.conftest import Database
from tests.contract.scenes import GatewayProcess, PostgresScene, batch
from tests.contract.tiering import jobs, jobs_settings
from tideline.control_plane.table_model import VerifyVerdict
from tideline.control_plane.tiering_model import PartitionRow
from tideline.domain.ids import TopicIdPartition
from tideline.domain.remote_log import EpochStart, RemoteLogIndex
from tideline.domain.table import TableRefused, TableUnreadable
from tideline.errors import TidelineError
from tideline.kafka.errors import KafkaError, MetadataNotUnderstood

B0 = 10


@dataclass
class Verified:
    """Runs, each with dice of its own, over a world that the test changes."""

    scene: PostgresScene
    database: Database
    damaged: set[tuple[str, int]] = field(default_factory=set)
    """Topic and offset of what is not as it is served."""
    looked_at: list[Piece] = field(default_factory=list)
    """By the last run."""
    not_uploaded: set[UUID] = field(default_factory=set)
    untold: dict[UUID, TidelineError] = field(default_factory=dict)
    asked: Callable[[], None] = lambda: None
    """Called before brokers answer."""
    _gateway: GatewayProcess | None = None
    _runs: Iterator[int] = field(default_factory=lambda: count(1))

    def run(self, sample: float = 1.0, topics: list[str] | None = None) -> Outcome:
        settings = jobs_settings(self.database).model_copy(
            update={"verify_bootstrap": (("127.0.0.1", 1),)}
        )
        self.looked_at.clear()
        job = Job("verify", settings, run_id=UUID(int=next(self._runs)))
        return verify_job.verify(job, topics, sample)

    def verdict(self, topic: str) -> VerifyVerdict | None:
        found = self.scene.jobs.verify_verdicts(topic)
        return found[0] if found else None

    def look_at(
        self, job: Job, pieces: Sequence[Piece], bootstrap: object, topics: dict[str, Any]
    ) -> None:
        self.looked_at += pieces
        for piece in pieces:
            first = tuple(
                Difference(piece.partition, offset, "damaged")
                for topic, offset in sorted(self.damaged)
                if topic == piece.topic and piece.start <= offset < piece.end
            )
            verdict = RangeVerdict(
                piece.topic, piece.partition, piece.place, piece.start, piece.end, 1,
                piece.end - piece.start, 100, False, len(first), first,
            )  # fmt: skip
            topics[piece.topic].add(verdict)

    def prefixes(self, _: object, rows: Any) -> dict[TopicIdPartition, Prefix]:
        """Nothing is left of a prefix, or all of it and it is not uploaded."""
        self.asked()
        found = {}
        for row in rows:
            if (error := self.untold.get(row.topic_id)) is not None:
                raise error
            whole = row.topic_id in self.not_uploaded
            found[row.log] = Prefix(0, (EpochStart(0, 0),)) if whole else Prefix(row.boundary)
        return found

    async def hybrid(self, batches: int, bytes_each: int = 100) -> tuple[str, TopicIdPartition]:
        """A topic of one partition: batches of one record from B0 on."""
        if self._gateway is None:
            self._gateway = await self.scene.gateway()
        log = await self.scene.hybrid_log(self._gateway, B0)
        for _ in range(batches):
            await self.scene.commit(self._gateway, batch(log, size=bytes_each))
        return self.row(log).topic, log

    def row(self, log: TopicIdPartition) -> PartitionRow:
        plane = self.scene.jobs
        return next(row for row in plane.partitions(*plane.log_id_range()) if row.log == log)


@pytest.fixture
def verified(
    postgres_scene: PostgresScene, database: Database, monkeypatch: pytest.MonkeyPatch
) -> Verified:
    it = Verified(postgres_scene, database)

    @contextmanager
    def connect(*_: object, **__: object) -> Iterator[Any]:
        with jobs(database) as plane:
            yield plane

    for module in (verify_job, plans):
        monkeypatch.setattr(module, "connect_jobs", connect)
    monkeypatch.setattr(verify_job, "must_own", lambda _: None)
    monkeypatch.setattr(verify_job, "_look_at", it.look_at)
    monkeypatch.setattr(plans, "prefixes", it.prefixes)
    monkeypatch.setattr(plans, "remote_segments", lambda *_: RemoteLogIndex())
    return it


async def test_a_damaged_range_is_looked_at_whatever_the_dice_say_until_it_was_read_and_was_right(
    verified: Verified,
) -> None:
    """By every sampled run behind the one that has found it, and the verdict keeps it."""
    topic, _ = await verified.hybrid(40, PIECE_BYTES)
    offset = B0 + 25
    verified.damaged.add((topic, offset))
    while verified.run(0.1).failed is None:
        assert offset not in [piece.start for piece in verified.looked_at]
    for _ in range(8):
        outcome = verified.run(0.1)
        assert offset in [piece.start for piece in verified.looked_at]
        assert len(verified.looked_at) < 10
        assert outcome.failed is not None
        assert f"at offset {offset}: damaged" in outcome.failed
        assert outcome.final
        verdict = verified.verdict(topic)
        assert verdict is not None
        assert [one["offset"] for one in verdict.detail] == [offset]
    verified.damaged.clear()
    assert verified.run(0.1).failed is None
    assert offset in [piece.start for piece in verified.looked_at]
    right = verified.verdict(topic)
    assert right is not None
    assert (right.differences, right.detail) == (0, [])


async def test_of_topics_with_a_hole_and_without_a_prefix_yet_neither_keeps_a_third_from_its_turn(
    verified: Verified,
) -> None:
    """A difference is recorded for the first, the second is named as left alone, and so is one
    of which a broker tells nothing."""
    holed, hole = await verified.hybrid(5, PIECE_BYTES)
    early, waits = await verified.hybrid(5)
    whole, _ = await verified.hybrid(5)
    away, led_by_nobody = await verified.hybrid(5)
    assert verified.run().failed is None
    verified.scene.lose(hole, B0 + 2, B0 + 3)
    verified.not_uploaded.add(waits.topic_id)
    verified.untold[led_by_nobody.topic_id] = KafkaError(
        ErrorCode.leader_not_available, f"{away}-0 has no leader"
    )
    outcome = verified.run()
    details: Any = outcome.details
    assert outcome.failed is not None
    assert f"the first in {holed}-0 at offset {B0 + 2}" in outcome.failed
    assert {piece.topic for piece in verified.looked_at} == {whole}
    assert {one["topic"]: one["differences"] for one in details["topics"]} == {whole: 0, holed: 1}
    verdict = verified.verdict(holed)
    assert verdict is not None
    assert verdict.differences == 1
    assert (verdict.detail[0]["partition"], verdict.detail[0]["offset"]) == (0, B0 + 2)
    assert "a hole" in verdict.detail[0]["what"]
    assert sorted(details["left_alone"]) == sorted([early, away])
    assert "in no finished remote segment" in details["left_alone"][early]
    assert "has no leader" in details["left_alone"][away]
    assert verified.scene.jobs.read_pins() == [], "nothing is pinned behind the run"
    with pytest.raises(TableRefused, match="in no finished remote segment"):
        verified.run(topics=[early])
    with pytest.raises(TableRefused, match="is not known to Tideline"):
        verified.run(topics=["misspelt"])
    assert verified.scene.jobs.read_pins() == [], "and nothing behind one that was refused"


async def test_a_run_that_could_look_at_nothing_has_failed_and_may_be_tried_again(
    verified: Verified,
) -> None:
    """Its login may have lost its rights: nobody would hear of it for a day."""
    topic, log = await verified.hybrid(5)
    verified.untold[log.topic_id] = KafkaError(ErrorCode.leader_not_available, "no leader")
    outcome = verified.run()
    assert outcome.failed is not None
    assert f"none of 1 topics could be looked at, the first is {topic}" in outcome.failed
    assert not outcome.final


async def test_a_record_about_one_topic_that_is_not_understood_keeps_no_other_from_its_turn(
    verified: Verified, monkeypatch: pytest.MonkeyPatch
) -> None:
    concerned, log = await verified.hybrid(5)
    whole, _ = await verified.hybrid(5)

    def segments(_: object, found: dict[TopicIdPartition, Prefix]) -> RemoteLogIndex:
        if log in found:
            raise MetadataNotUnderstood(3, 14, topic_id=log.topic_id)
        return RemoteLogIndex()

    monkeypatch.setattr(plans, "remote_segments", segments)
    outcome = verified.run()
    assert outcome.failed is None
    assert {piece.topic for piece in verified.looked_at} == {whole}
    left_alone: Any = outcome.details["left_alone"]
    assert "in partition 3 at offset 14" in left_alone[concerned]


@pytest.mark.parametrize("removed", [True, False])
async def test_what_kafka_has_removed_before_it_was_looked_at_is_no_difference(
    verified: Verified, monkeypatch: pytest.MonkeyPatch, removed: bool
) -> None:
    """Its indexes went with the segment, after the log start was asked for both times."""
    topic, log = await verified.hybrid(5)
    verified.not_uploaded.add(log.topic_id)
    looks = count()

    def away(*_: object, **__: object) -> list[Piece]:
        if removed and next(looks) == 1:
            verified.not_uploaded.clear()  # its log begins at B0
        raise TableUnreadable("its .txnindex is away", 2, B0 - 1)

    monkeypatch.setattr(plans.Plan, "pieces", away)
    details: Any = verified.run().details
    assert [one["differences"] for one in details["topics"]] == ([] if removed else [1])
    assert (topic in details["left_alone"]) is removed


async def test_what_retention_has_taken_while_a_topic_was_planned_is_asked_for_once_more(
    verified: Verified,
) -> None:
    topic, log = await verified.hybrid(5)
    verified.not_uploaded.add(log.topic_id)
    looks = count()

    def retention_moves() -> None:
        if next(looks) == 1:
            verified.not_uploaded.clear()

    verified.asked = retention_moves
    outcome = verified.run()
    assert outcome.failed is None
    assert outcome.details["left_alone"] == {}
    assert {piece.topic for piece in verified.looked_at} == {topic}
