"""One control plane, two partitions and two workers of tiering, with the model beside them."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field

from tests.contract.scenes import PostgresScene, batch
from tests.contract.tiering import Worker, seen_whole, segment_of
from tideline.control_plane.errors import TopicDeleted
from tideline.control_plane.jobs import JobsControlPlane
from tideline.control_plane.memory.partition import Partition
from tideline.control_plane.memory.suffix import MergeRun, Suffix
from tideline.control_plane.model import (
    BatchCoordinates,
    CommitError,
    FindBatchesRequest,
    FoundBatches,
    ListOffsetsKind,
    SegmentCoordinates,
    SuffixOffset,
)
from tideline.control_plane.tiering_model import (
    SEGMENT_SUFFIXES,
    ClaimedFile,
    MergePlan,
    NewSegment,
)
from tideline.domain.ids import TopicIdPartition
from tideline.errors import TidelineError

BOUNDARY = 10
"""B0 of the first partition; the second was born diskless."""
LATEST = 31
"""ms; above every timestamp."""


@dataclass
class FileClaim:
    worker: Worker
    file: ClaimedFile
    batches: list[tuple[int, int]]
    """Log and base offset of each."""
    live: bool = True
    """Its time has not run out."""


@dataclass
class Merge:
    log: int
    plan: MergePlan
    model: MergeRun


@dataclass
class WalFile:
    batches: list[tuple[int, BatchCoordinates]] = field(default_factory=list)
    claim: FileClaim | None = None
    """The newest, until it is finished or released."""


def _refusal(call: Callable[[], object]) -> str | None:
    try:
        call()
    except TidelineError as error:
        return type(error).__name__
    return None


def _of(partition: Partition) -> Suffix:
    assert partition.suffix is not None
    return partition.suffix


def _range(found: BatchCoordinates | None) -> tuple[int, int] | None:
    return None if found is None else (found.base_offset, found.last_offset)


class History:
    """Every step acts on SQL and on the model, and compares what they answer."""

    def __init__(
        self, runner: asyncio.Runner, scene: PostgresScene, jobs: JobsControlPlane
    ) -> None:
        self.runner, self.scene, self.jobs = runner, scene, jobs
        scene.clear()
        self.gateway = runner.run(scene.gateway())
        self.workers = [Worker(jobs), Worker(jobs)]
        crossed = runner.run(scene.hybrid_log(self.gateway, BOUNDARY))
        _, (born,) = runner.run(scene.diskless_topic())
        self.logs = [crossed, born]
        self.models = [
            Partition(crossed, "crossed"),
            Partition(born, "born"),
        ]
        self.models[0].open_suffix(BOUNDARY, 3, prefix_log_start=0)
        self.models[1].open_suffix(0, 0, prefix_log_start=0)
        names = {t.topic_id: t.name for t in runner.run(scene.plane.tracked_topics())}
        self.names = [names[log.topic_id] for log in self.logs]
        self.paused = [False, False]
        self.files: dict[int, WalFile] = {}
        self.claims: list[FileClaim] = []
        self.merges: list[Merge] = []
        self.stored: set[str] = set()
        """Objects that were uploaded, as far as anybody knows, and not deleted."""
        self.happened: Counter[str] = Counter()

    # Steps

    def commit(self, sent: list[tuple[int, int, int, int]]) -> None:
        """Log, records, timestamp and size of each batch of one WAL file."""
        outcomes = self.runner.run(
            self.scene.commit(
                self.gateway,
                *[
                    batch(self.logs[log], records=records, timestamp=timestamp, size=size)
                    for log, records, timestamp, size in sent
                ],
            )
        )
        ((file_id,),) = self.scene.sql("SELECT max(file_id) FROM wal_files")
        written = self.files[int(str(file_id))] = WalFile()
        for (log, records, timestamp, size), outcome in zip(sent, outcomes, strict=True):
            model = self.models[log]
            if model.deleted:
                assert outcome.error == CommitError.TOPIC_DELETED
                continue
            made = batch(self.logs[log], records=records, timestamp=timestamp, size=size)
            expected = model.commit(made, "wal", outcome.append_time)
            assert outcome.base_offset == expected.base_offset
            written.batches.append((log, _of(model).batches[-1]))

    def claim(self, worker: int, cutoff: int, max_files: int) -> None:
        cutoffs = [cutoff, LATEST + 15 - cutoff]
        files = self.workers[worker].claim(
            {log.topic_id: at for log, at in zip(self.logs, cutoffs, strict=True)},
            max_files=max_files,
        )
        requested = [self._requested_until(log) for log in self.logs]
        free = {
            file_id: eligible
            for file_id, written in self.files.items()
            if written.claim is None or not written.claim.live
            if (eligible := self._eligible(written, cutoffs, requested))
        }
        assert len(files) == min(max_files, len(free))
        for file in files:
            found = [(self.logs.index(b.log), b.base_offset) for b in file.batches]
            assert sorted(found) == free[file.file_id]
            claim = FileClaim(self.workers[worker], file, found)
            self.claims.append(claim)
            self.files[file.file_id].claim = claim

    def finish_split(self, pick: int) -> None:
        if not self.claims:
            return
        claim = self.claims[-1 - pick % len(self.claims)]
        written = self.files[claim.file.file_id]
        seen = _refusal(lambda: claim.worker.finish(claim.file))
        self.happened[f"split {seen}"] += 1
        if written.claim is claim:
            assert seen is None
            written.claim = None
            for log, base in claim.batches:
                _of(self.models[log]).split.add(base)
        elif not self._is_finished(claim):
            assert seen == "StaleClaim"

    def release(self, pick: int) -> None:
        if not self.claims:
            return
        claim = self.claims[-1 - pick % len(self.claims)]
        self.jobs.release_claim(claim.worker.worker, claim.file.file_id, claim.file.token)
        if self.files[claim.file.file_id].claim is claim:
            self.files[claim.file.file_id].claim = None

    def split(self, worker: int) -> None:
        """Claim and finish, uninterrupted."""
        before = len(self.claims)
        self.claim(worker, LATEST, 9)
        for n in range(len(self.claims) - before):
            self.finish_split(n)

    def lapse(self) -> None:
        """The time of every claim runs out."""
        for table in ("wal_file_claims", "merge_claims"):
            self.scene.sql(
                f"UPDATE {table} SET expires_at = now() - interval '1 s' "
                "WHERE expires_at IS NOT NULL"
            )
        for claim in self.claims:
            claim.live = False

    def begin_merge(self, worker: int, log: int, max_bytes: int) -> None:
        held = self.scene.sql(
            "SELECT 1 FROM merge_claims AS c JOIN logs AS l USING (log_id) "
            "WHERE l.topic_id = %s AND c.expires_at > now()",
            self.logs[log].topic_id,
        )
        plan = self.workers[worker].begin(self.logs[log], max_bytes=max_bytes)
        if held or self.paused[log]:
            assert plan is None
            return
        model = self._plan(log, plan.token if plan else 0, max_bytes)
        if plan is None or model is None:
            assert plan is None
            assert model is None
            return
        assert (plan.base_offset, plan.last_offset) == (model.base_offset, model.last_offset)
        assert plan.byte_size == sum(b.byte_size for b in model.batches)
        assert plan.batch_count == len(model.batches)
        assert [b.base_offset for b in plan.batches] == [b.base_offset for b in model.batches]
        self.merges.append(Merge(log, plan, model))
        self.stored |= {plan.object_key_stem + suffix for suffix in SEGMENT_SUFFIXES}

    def finish_merge(self, pick: int) -> None:
        if not self.merges:
            return
        merge = self.merges[-1 - pick % len(self.merges)]
        model, token = _of(self.models[merge.log]), merge.plan.token
        segment = segment_of(
            merge.plan, max_timestamp=max(b.max_timestamp for b in merge.model.batches)
        )
        seen = _refusal(lambda: self.jobs.finish_merge(self.logs[merge.log], token, segment))
        self.happened[f"merge {seen}"] += 1
        if any(known.segment_id == merge.plan.segment_id for known in model.segments):
            return  # told again; the object may have expired meanwhile
        if merge.plan.object_key_stem + ".log" not in self.stored and model.token == token:
            model.token = 0  # gc took it under a lapsed claim
        expected = _refusal(lambda: self._finish(merge, segment))
        assert seen == expected

    def _plan(self, log: int, token: int, max_bytes: int) -> MergeRun | None:
        model = self.models[log]
        return None if model.deleted else _of(model).plan(token, max_bytes)

    def _finish(self, merge: Merge, segment: NewSegment) -> None:
        model = self.models[merge.log]
        if model.deleted and _of(model).token == merge.plan.token:
            raise TopicDeleted("the topic was deleted")
        _of(model).finish(
            merge.model,
            SegmentCoordinates(
                segment.segment_id,
                merge.plan.object_key_stem,
                segment.base_offset,
                segment.last_offset,
                segment.size_bytes,
                segment.max_timestamp,
                segment.offset_index_bytes,
                segment.time_index_bytes,
            ),
        )

    def abandon(self, pick: int) -> None:
        if not self.merges:
            return
        merge = self.merges[-1 - pick % len(self.merges)]
        self.jobs.abandon_merge(self.logs[merge.log], merge.plan.token, "a test")
        if _of(self.models[merge.log]).token == merge.plan.token:
            _of(self.models[merge.log]).token = 0

    def merge(self, worker: int, log: int, max_bytes: int) -> None:
        """Begin and finish, uninterrupted."""
        before = len(self.merges)
        self.begin_merge(worker, log, max_bytes)
        if len(self.merges) > before:
            self.finish_merge(0)

    def steal(self, log: int) -> None:
        """The second worker takes over what the first one begins, and the first goes on."""
        self.claim(0, LATEST, 1)
        self.begin_merge(0, log, 400)
        self.lapse()
        self.claim(1, LATEST, 9)
        self.begin_merge(1, log, 10_000)
        for pick in (1, 0):
            self.finish_split(pick)
            self.finish_merge(pick)

    def delete_records(self, log: int, before: int) -> None:
        """``before``: so many offsets past the suffix's start."""
        model = self.models[log]
        if not model.deleted:
            offset = min(model.suffix_start + before, model.high_watermark)
            seen = self.jobs.delete_records(self.logs[log].topic_id, 0, offset)
            assert seen == model.delete_records(offset)

    def expire_prefix(self, start: int) -> None:
        if not self.models[0].deleted:
            self.jobs.advance_prefix_start(self.logs[0].topic_id, 0, start)
            self.models[0].advance_prefix(start)

    def request(self, log: int) -> None:
        if not self.models[log].deleted:
            self.jobs.request_tiering(self.names[log])

    def pause(self, log: int, paused: bool) -> None:
        if not self.models[log].deleted:
            steer = self.jobs.pause_tiering if paused else self.jobs.resume_tiering
            steer(self.names[log])
            self.paused[log] = paused

    def delete_topic(self, log: int) -> None:
        self.runner.run(self.scene.plane.delete_topic(self.logs[log].topic_id))
        self.models[log].deleted = True

    def collect(self, grace_ms: int) -> None:
        seen_whole(self.jobs)
        self.jobs.prune_batches()
        dead = {found.object_key for found in self.jobs.claim_dead_objects(grace_ms)}
        self.happened["collected"] += len(dead)
        assert dead <= self.stored
        assert not dead & self._needed()
        assert self.jobs.forget_dead_objects(list(dead)) == len(dead)
        self.stored -= dead
        gone = set(self.jobs.claim_dead_files(grace_ms))
        assert not gone & self._waiting(), "merge reads them out of their WAL objects"
        self.jobs.forget_dead_files(list(gone))

    # What must hold

    def check(self, timestamp: int) -> None:
        """The rows and the reads are the model's."""
        lo, hi = self.jobs.log_id_range()
        for row in self.jobs.partitions(lo, hi):
            model = self.models[self.logs.index(row.log)]
            assert row.deleted == model.deleted
            if not model.deleted:
                assert row.state == model.state.value
                assert row.tiered_start == _of(model).tiered_start
                assert row.suffix_start == model.suffix_start
                assert max(row.merge_frontier, row.suffix_start) == _of(model).frontier
        self._check_candidates()
        asked = [
            (model, FindBatchesRequest(self.logs[n], max(0, offset), 250))
            for n, model in enumerate(self.models)
            for offset in {
                model.suffix_start - 1, model.suffix_start, model.suffix_start + 2,
                _of(model).frontier - 1, _of(model).frontier, _of(model).frontier + 2,
                model.high_watermark,
            }
        ]  # fmt: skip
        answers = self.runner.run(self.scene.plane.find_batches([r for _, r in asked]))
        for (model, request), found in zip(asked, answers, strict=True):
            self._check_found(model, request, found)
        for n, model in enumerate(self.models):
            if not model.deleted:
                self._check_lookups(n, model, timestamp)

    def end(self) -> None:
        """Whatever was begun and left is collected to the last object, and nothing more."""
        self.lapse()
        self.collect(0)
        self.check(0)
        assert self.stored == self._needed()

    def _check_candidates(self) -> None:
        """What may be merged is told whole, however many segments come of it."""
        found = {
            self.logs.index(row.log): (row.base_offset, row.last_offset, row.bytes, row.batches)
            for row in self.jobs.merge_candidates()
        }
        for n, model in enumerate(self.models):
            if model.deleted or self.paused[n] or not (ready := _of(model).mergeable()):
                assert n not in found
            else:
                size = sum(batch.byte_size for batch in ready)
                assert found[n] == (ready[0].base_offset, ready[-1].last_offset, size, len(ready))

    def _check_found(
        self, model: Partition, request: FindBatchesRequest, found: FoundBatches
    ) -> None:
        if model.deleted:
            assert found.error == "TOPIC_DELETED"
            return
        error = _of(model).find_error(request.fetch_offset)
        batches = _of(model).find(request.fetch_offset, 1 << 30)
        assert (found.error, found.high_watermark) == (error, model.high_watermark)
        expected = [(b.base_offset, b.last_offset, b.byte_size) for b in batches]
        if found.segment is None:
            seen = [(b.base_offset, b.last_offset, b.byte_size) for b in found.batches]
        else:
            self.happened["read a segment"] += 1
            assert found.batches == ()
            held = self._held(found.segment, request.fetch_offset)
            seen = [(b.base_offset, b.last_offset, b.byte_size) for b in held]
        assert bool(seen) == bool(expected)
        assert seen == expected[: len(seen)]

    def _check_lookups(self, n: int, model: Partition, timestamp: int) -> None:
        plane = self.scene.plane
        found = self.runner.run(
            plane.list_offsets(self.logs[n], ListOffsetsKind.TIMESTAMP, timestamp)
        )
        assert self._first(found, timestamp) == _range(_of(model).at_timestamp(timestamp))
        found = self.runner.run(plane.list_offsets(self.logs[n], ListOffsetsKind.MAX_TIMESTAMP))
        candidates = [
            (b.max_timestamp, -b.base_offset)
            for segment in found.segments
            for b in self._held(segment, found.suffix_start)
        ]
        if found.batch is not None:
            candidates.append((found.batch.max_timestamp, -found.batch.base_offset))
        largest = _of(model).of_max_timestamp()
        assert max(candidates, default=None) == (
            largest and (largest.max_timestamp, -largest.base_offset)
        )

    def _first(self, answer: SuffixOffset, timestamp: int) -> tuple[int, int] | None:
        """What a reader makes of the candidates."""
        for segment in answer.segments:
            for found in self._held(segment, answer.suffix_start):
                if found.max_timestamp >= timestamp:
                    return _range(found)
        return _range(answer.batch)

    def _held(self, segment: SegmentCoordinates, start: int) -> list[BatchCoordinates]:
        """The batches of a segment's ``.log`` that reach ``start``."""
        (merge,) = (m for m in self.merges if m.plan.segment_id == segment.segment_id)
        batches = merge.model.batches
        assert segment.segment_id in {s.segment_id for s in _of(self.models[merge.log]).segments}
        assert (batches[0].base_offset, batches[-1].last_offset) == (
            segment.base_offset,
            segment.last_offset,
        )
        return [b for b in batches if b.last_offset >= start]

    def _waiting(self) -> set[str]:
        """WAL objects with batches that were planned and are not merged."""
        return {
            planned.object_key
            for merge in self.merges
            if not self.models[merge.log].deleted
            for planned in merge.plan.batches
            if planned.base_offset
            in {b.base_offset for b in _of(self.models[merge.log]).unmerged()}
        }

    def _needed(self) -> set[str]:
        """Objects that a reader or the next merge may read."""
        needed: set[str] = set()
        for merge in self.merges:
            model = self.models[merge.log]
            readable = {segment.segment_id for segment in _of(model).readable_segments()}
            if not model.deleted and merge.plan.segment_id in readable:
                needed |= {merge.plan.object_key_stem + suffix for suffix in SEGMENT_SUFFIXES}
        return needed

    def _requested_until(self, log: TopicIdPartition) -> int:
        """ms; what was committed until then is eligible whatever its age."""
        ((until,),) = self.scene.sql(
            "SELECT coalesce(epoch_ms(tiering_requested_at), -1) FROM topics WHERE topic_id = %s",
            log.topic_id,
        )
        return int(str(until))

    def _eligible(
        self, written: WalFile, cutoffs: list[int], requested: list[int]
    ) -> list[tuple[int, int]]:
        return sorted(
            (log, found.base_offset)
            for log, found in written.batches
            if not (self.models[log].deleted or self.paused[log])
            and found.base_offset not in _of(self.models[log]).split
            and found.last_offset >= self.models[log].suffix_start
            and (found.max_timestamp < cutoffs[log] or found.append_time <= requested[log])
        )

    def _is_finished(self, claim: FileClaim) -> bool:
        return any(base in _of(self.models[log]).split for log, base in claim.batches)
