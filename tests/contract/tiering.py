"""Split and merge without bytes: what the jobs tell the control plane, and what a reader sees."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from uuid import UUID, uuid4

from pydantic import SecretStr

from spark.tiering.split_files import runs
from tests.contract.conftest import Database
from tests.contract.scenes import GatewayProcess, PostgresScene, batch
from tideline.control_plane.errors import StaleClaim
from tideline.control_plane.jobs import JobsControlPlane
from tideline.control_plane.model import BatchCoordinates, FindBatchesRequest
from tideline.control_plane.tiering_model import (
    ClaimedFile,
    MergePlan,
    NewSegment,
    SplitRun,
)
from tideline.domain.ids import TopicIdPartition
from tideline.domain.producer_state import StoredProducerState
from tideline.settings import JobsSettings

ALL_OLD = 10**15
"""ms; a cutoff that every batch is older than."""
CLAIM_MS = 60_000
PREFIX = "in/"
EVERYTHING = 1 << 40


def jobs_settings(database: Database, role: str | None = "tideline_jobs") -> JobsSettings:
    """``role`` ``None``: the superuser."""
    dsn = database.dsn if role is None else database.as_role(role)
    return JobsSettings.model_validate(
        {
            "postgres_dsn": SecretStr(dsn),
            "kafka_bootstrap": "127.0.0.1:1",
            "s3_tiered_prefix": PREFIX,
        }
    )


@contextmanager
def jobs(database: Database, role: str | None = "tideline_jobs") -> Iterator[JobsControlPlane]:
    """Postgres' calls alone: there is no bucket here."""
    with closing(JobsControlPlane(jobs_settings(database, role), "tiering-test")) as plane:
        yield plane


def segment_of(
    plan: MergePlan, producers: tuple[StoredProducerState, ...] = (), max_timestamp: int = 1_000
) -> NewSegment:
    """What a worker that built exactly the plan tells."""
    return NewSegment(
        segment_id=plan.segment_id,
        base_offset=plan.base_offset,
        last_offset=plan.last_offset,
        size_bytes=plan.byte_size,
        max_timestamp=max_timestamp,
        record_count=plan.last_offset - plan.base_offset + 1,
        batch_count=plan.batch_count,
        offset_index_bytes=8,
        time_index_bytes=12,
        snapshot_bytes=6,
        epoch_checkpoint_bytes=10,
        producers=producers,
    )


def seen_whole(plane: JobsControlPlane) -> None:
    """Every merged segment is found to be as it was sent, as a run of the collection does it."""
    plane.note_segments_seen([one.segment_id for one in plane.unseen_segments(0, 1_000)])


@dataclass
class Worker:
    """One driver of split and merge, under its own id."""

    plane: JobsControlPlane
    worker: UUID = field(default_factory=uuid4)

    def claim(
        self,
        cutoffs: Mapping[UUID, int],
        *,
        max_files: int = 10,
        max_batches: int = 1_000,
        claim_ms: int = CLAIM_MS,
        from_ms: int | None = None,
    ) -> list[ClaimedFile]:
        return self.plane.claim_wal_files(
            self.worker,
            max_files=max_files,
            max_batches=max_batches,
            claim_ms=claim_ms,
            cutoffs=cutoffs,
            from_ms=from_ms,
        )

    def finish(self, file: ClaimedFile, split: Sequence[SplitRun] | None = None) -> list[SplitRun]:
        """Record what was claimed, or ``split``. Raises ``StaleClaim`` as merge does, so that lost
        claims of both look the same."""
        recorded = list(runs(file)) if split is None else list(split)
        if not self.plane.finish_split(self.worker, [file], recorded):
            raise StaleClaim(f"claim {file.token} of WAL file {file.file_id} is lost")
        return recorded

    def split(self, *topics: UUID, cutoff: int = ALL_OLD) -> list[SplitRun]:
        """Everything eligible of ``topics``."""
        made: list[SplitRun] = []
        while files := self.claim(dict.fromkeys(topics, cutoff)):
            for file in files:
                made += self.finish(file)
        return made

    def begin(
        self,
        log: TopicIdPartition,
        *,
        max_bytes: int = EVERYTHING,
        max_batches: int = 1_000,
        claim_ms: int = CLAIM_MS,
        segment_id: UUID | None = None,
    ) -> MergePlan | None:
        ids = [segment_id or uuid4()]
        plans = self.plane.begin_merge(log, self.worker, claim_ms, ids, max_bytes, max_batches)
        return plans[0] if plans else None

    def begun(self, log: TopicIdPartition, **limits: int) -> MergePlan:
        plan = self.begin(log, **limits)  # type: ignore[arg-type]
        assert plan is not None
        return plan

    def merge(self, log: TopicIdPartition, **limits: int) -> MergePlan | None:
        """One segment, if there is anything to merge, which is then seen whole."""
        plan = self.begin(log, **limits)  # type: ignore[arg-type]
        if plan is not None:
            self.plane.finish_merge(log, plan.token, segment_of(plan))
            seen_whole(self.plane)
        return plan


@dataclass
class Tiered:
    """A scene with a gateway that commits and a worker that tiers."""

    scene: PostgresScene
    gateway: GatewayProcess
    worker: Worker

    @property
    def plane(self) -> JobsControlPlane:
        return self.worker.plane

    async def commit(self, log: TopicIdPartition, batches: int = 1, **shape: int) -> int:
        """Batches in one WAL file; its id."""
        await self.scene.commit(self.gateway, *[batch(log, **shape) for _ in range(batches)])  # type: ignore[arg-type]
        ((file_id,),) = self.scene.sql("SELECT max(file_id) FROM wal_files")
        assert isinstance(file_id, int)
        return file_id

    async def diskless(self, files: int = 3, batches: int = 2) -> TopicIdPartition:
        """A partition born diskless, with files of batches of one record and 100 bytes."""
        _, (log,) = await self.scene.diskless_topic()
        for _ in range(files):
            await self.commit(log, batches)
        return log

    async def read(self, log: TopicIdPartition) -> list[tuple[str, int, int]]:
        """Where each offset from the suffix's start on is: ``segment`` or ``wal``, base, last."""
        found: list[tuple[str, int, int]] = []
        row = await self.scene.plane.tracked_partition(log.topic_id, log.partition)
        assert row is not None
        offset = row.suffix_start
        while offset < row.high_watermark:
            (answer,) = await self.scene.plane.find_batches(
                [FindBatchesRequest(log, offset, 1 << 30)]
            )
            assert answer.error == "NONE"
            if answer.segment is not None:
                assert answer.batches == ()
                assert answer.segment.base_offset <= offset <= answer.segment.last_offset
                found.append(("segment", answer.segment.base_offset, answer.segment.last_offset))
            else:
                assert answer.batches, f"offset {offset} of {log} is nowhere"
                found += [("wal", *_range(b)) for b in answer.batches]
            assert found[-1][2] >= offset
            offset = found[-1][2] + 1
        return found

    def states(self, log: TopicIdPartition) -> tuple[str, int, int, int]:
        """State, tiered start, tiered high offset and suffix start."""
        ((lo, hi),) = self.scene.sql(
            "SELECT log_id, log_id + 1 FROM logs WHERE topic_id = %s AND partition = %s",
            log.topic_id,
            log.partition,
        )
        (row,) = self.plane.partitions(int(str(lo)), int(str(hi)))
        return row.state, row.tiered_start, row.tiered_high_offset, row.suffix_start


def _range(found: BatchCoordinates) -> tuple[int, int]:
    return found.base_offset, found.last_offset
