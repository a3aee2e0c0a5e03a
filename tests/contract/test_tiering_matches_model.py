"""However split, merge, retention and garbage collection interleave, with claims lost midway:
readers see the log that they would see without tiering, and no object leaks or goes early."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from uuid import UUID

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule, run_state_machine_as_test

from tests.contract.conftest import Database
from tests.contract.scenes import Scene, batch
from tests.contract.tiering import Worker, jobs, segment_of
from tideline.control_plane import connect
from tideline.control_plane.jobs_model import (
    SEGMENT_SUFFIXES,
    ClaimedFile,
    MergePlan,
    SplitFile,
)
from tideline.control_plane.model import (
    CommitError,
    FindBatchesRequest,
    ListOffsetsKind,
    SegmentCoordinates,
    SuffixOffset,
)
from tideline.domain.ids import TopicIdPartition
from tideline.domain.suffix_log import Appended, Produced, SuffixLog
from tideline.domain.tiered_suffix import Plan, TieredSuffix
from tideline.errors import TidelineError

BOUNDARY = 10
LOGS = st.integers(0, 1)
WORKERS = st.integers(0, 1)
PICK = st.integers(0, 7)
"""Which of the claims or plans that were ever handed out."""


@dataclass
class FileClaim:
    worker: Worker
    file: ClaimedFile
    splits: list[SplitFile]
    live: bool = True


@dataclass
class Merge:
    log: int
    plan: MergePlan
    model: Plan


@dataclass
class Written:
    """A WAL file: which batches of which log."""

    batches: list[tuple[int, Appended]] = field(default_factory=list)
    claim: FileClaim | None = None


def _refusal(call: object, *arguments: object) -> str | None:
    try:
        call(*arguments)  # type: ignore[operator]
    except TidelineError as error:
        return type(error).__name__
    return None


def test_tiering_is_invisible_to_readers_and_leaks_nothing(database: Database) -> None:
    with asyncio.Runner() as runner, jobs(database) as hands:
        connection = connect(database.settings(), application_name="model")
        plane = runner.run(connection.__aenter__())
        scene = Scene(plane, database.dsn)

        class Tiering(RuleBasedStateMachine):
            def __init__(self) -> None:
                super().__init__()
                scene.clear()
                self.gateway = runner.run(scene.gateway())
                self.workers = [Worker(hands), Worker(hands)]
                crossed = runner.run(scene.hybrid_log(self.gateway, BOUNDARY))
                _, (born,) = runner.run(scene.diskless_topic())
                self.logs: list[TopicIdPartition] = [crossed, born]
                self.models = [
                    TieredSuffix(SuffixLog(BOUNDARY), prefix_start=0),
                    TieredSuffix(SuffixLog(0)),
                ]
                self.names = [str(name) for (name,) in scene.sql("SELECT name FROM topics")]
                self.paused = [False, False]
                self.files: dict[int, Written] = {}
                self.claims: list[FileClaim] = []
                self.merges: list[Merge] = []
                self.keys: dict[str, tuple[int, set[int]]] = {}
                self.contents: dict[UUID, tuple[Appended, ...]] = {}
                self.stored: set[str] = set()

            @rule(
                sent=st.lists(
                    st.tuples(LOGS, st.integers(1, 3), st.integers(0, 30), st.integers(61, 99)),
                    min_size=1,
                    max_size=5,
                )
            )
            def commit(self, sent: list[tuple[int, int, int, int]]) -> None:
                batches = [
                    batch(self.logs[log], records=records, timestamp=timestamp, size=size)
                    for log, records, timestamp, size in sent
                ]
                outcomes = runner.run(scene.commit(self.gateway, *batches))
                ((file_id,),) = scene.sql("SELECT max(file_id) FROM wal_files")
                written = Written()
                for (log, records, timestamp, size), outcome in zip(sent, outcomes, strict=True):
                    model = self.models[log]
                    if model.deleted:
                        assert outcome.error == CommitError.TOPIC_DELETED
                        continue
                    expected = model.log.append(
                        Produced(records, size, timestamp), outcome.append_time
                    )
                    assert outcome.base_offset == expected.base_offset
                    written.batches.append((log, model.log.batches[-1]))
                self.files[int(str(file_id))] = written

            def _eligible(self, written: Written, cutoffs: list[int]) -> list[tuple[int, int]]:
                return sorted(
                    (log, found.base_offset)
                    for log, found in written.batches
                    if not (self.models[log].deleted or self.paused[log])
                    and found.base_offset not in self.models[log].split
                    and found.last_offset >= self.models[log].log.start
                    and found.max_timestamp < cutoffs[log]
                )

            @rule(worker=WORKERS, cutoff=st.integers(0, 31), max_files=st.integers(1, 3))
            def claim(self, worker: int, cutoff: int, max_files: int) -> None:
                cutoffs = [cutoff, 31 - cutoff]
                files = self.workers[worker].claim(
                    {log.topic_id: c for log, c in zip(self.logs, cutoffs, strict=True)},
                    max_files=max_files,
                )
                open_files = {
                    file_id: eligible
                    for file_id, written in self.files.items()
                    if written.claim is None or not written.claim.live
                    if (eligible := self._eligible(written, cutoffs))
                }
                assert len(files) == min(max_files, len(open_files))
                for file in files:
                    found = [(self.logs.index(b.log), b.base_offset) for b in file.batches]
                    assert sorted(found) == open_files[file.file_id]
                    claim = FileClaim(
                        self.workers[worker], file, self.workers[worker].register(file)
                    )
                    self.claims.append(claim)
                    self.files[file.file_id].claim = claim
                    for split in claim.splits:
                        log = self.logs.index(TopicIdPartition(split.topic_id, split.partition))
                        self.keys[split.object_key] = (
                            log,
                            {
                                b.base_offset
                                for b in file.batches
                                if b.log == self.logs[log]
                                and split.base_offset <= b.base_offset <= split.last_offset
                            },
                        )
                        self.stored.add(split.object_key)

            @rule(pick=PICK, how=st.sampled_from(["finish", "finish", "finish", "release"]))
            def end_a_claim(self, pick: int, how: str) -> None:
                if not self.claims:
                    return
                claim = self.claims[-1 - pick % len(self.claims)]
                written = self.files[claim.file.file_id]
                if how == "release":
                    hands.release_claim(claim.worker.worker, claim.file.file_id, claim.file.token)
                    if written.claim is claim:
                        written.claim = None
                    return
                seen = _refusal(claim.worker.finish, claim.file, claim.splits)
                if written.claim is claim and self._registered(claim):
                    assert seen is None
                    written.claim = None
                    for split in claim.splits:
                        log, bases = self.keys[split.object_key]
                        for base in bases:
                            self.models[log].mark_split(base)
                elif not self._finished(claim):
                    assert seen == "StaleClaim"

            def _registered(self, claim: FileClaim) -> bool:
                """Not collected under an expired claim."""
                return all(split.object_key in self.stored for split in claim.splits)

            def _finished(self, claim: FileClaim) -> bool:
                return any(
                    base in self.models[self.keys[s.object_key][0]].split
                    for s in claim.splits
                    for base in self.keys[s.object_key][1]
                )

            @rule()
            def claims_lapse(self) -> None:
                for table in ("wal_file_claims", "merge_claims"):
                    scene.sql(
                        f"UPDATE {table} SET expires_at = now() - interval '1 s' "
                        "WHERE expires_at IS NOT NULL"
                    )
                for claim in self.claims:
                    claim.live = False

            @rule(worker=WORKERS, log=LOGS, max_bytes=st.sampled_from([1, 200, 400, 10_000]))
            def begin_a_merge(self, worker: int, log: int, max_bytes: int) -> None:
                held = scene.sql(
                    "SELECT c.worker FROM merge_claims AS c JOIN logs AS l USING (log_id) "
                    "WHERE l.topic_id = %s AND c.expires_at > now()",
                    self.logs[log].topic_id,
                )
                plan = self.workers[worker].begin(self.logs[log], max_bytes=max_bytes)
                if held not in ([], [(self.workers[worker].worker,)]) or self.paused[log]:
                    assert plan is None
                    return
                token = plan.token if plan else 0
                model = self.models[log].plan(token, max_bytes)
                if plan is None or model is None:
                    assert plan is None
                    assert model is None
                    return
                assert (plan.base_offset, plan.last_offset) == (
                    model.base_offset,
                    model.last_offset,
                )
                assert plan.byte_size == sum(b.byte_size for b in model.batches)
                assert plan.batch_count == len(model.batches)
                held_by = {b for f in plan.files for b in self.keys[f.object_key][1]}
                assert held_by >= {b.base_offset for b in model.batches}
                self.merges.append(Merge(log, plan, model))
                self.contents[plan.segment_id] = model.batches
                self.stored |= {plan.object_key_stem + s for s in SEGMENT_SUFFIXES}

            @rule(pick=PICK, how=st.sampled_from(["finish", "finish", "finish", "abandon"]))
            def end_a_merge(self, pick: int, how: str) -> None:
                if not self.merges:
                    return
                merge = self.merges[-1 - pick % len(self.merges)]
                model, log = self.models[merge.log], self.logs[merge.log]
                if how == "abandon":
                    hands.abandon_merge(log, merge.plan.token, "the test says so")
                    if model.token == merge.plan.token:
                        model.token = 0
                    return
                segment = segment_of(
                    merge.plan, max_timestamp=max(b.max_timestamp for b in merge.model.batches)
                )
                if merge.model.batches in model.segments:
                    assert _refusal(hands.finish_merge, log, merge.plan.token, segment) is None
                    return
                if merge.plan.object_key_stem + ".log" not in self.stored:
                    model.token = 0 if model.token == merge.plan.token else model.token
                expected = model.finish(merge.model)
                seen = _refusal(hands.finish_merge, log, merge.plan.token, segment)
                assert seen == (expected.value if expected else None)

            @rule(log=LOGS, near=st.sampled_from(["start", "frontier"]), distance=st.integers(0, 4))
            def delete_records(self, log: int, near: str, distance: int) -> None:
                model = self.models[log]
                base = model.frontier if near == "frontier" else model.log.start
                before = min(base + distance, model.log.high_watermark)
                if not model.deleted:
                    seen = hands.delete_records(self.logs[log].topic_id, 0, before)
                    assert seen == model.log.delete_records(before)

            @rule(start=st.integers(0, BOUNDARY))
            def the_prefix_expires(self, start: int) -> None:
                if not self.models[0].deleted:
                    hands.advance_prefix_start(self.logs[0].topic_id, 0, start)
                    self.models[0].advance_prefix(start)

            @rule()
            def prune(self) -> None:
                hands.prune_batches()

            @rule(grace=st.sampled_from([0, 0, 3_600_000]))
            def collect(self, grace: int) -> None:
                dead = {found.key for found in hands.claim_dead_objects(grace)}
                assert dead <= self.stored
                assert not dead & self._needed()
                hands.forget_dead_objects(list(dead))
                self.stored -= dead
                files = hands.claim_dead_files(grace)
                hands.forget_dead_files(files)

            @rule(log=LOGS, pause=st.booleans())
            def pause_or_resume(self, log: int, pause: bool) -> None:
                if self.models[log].deleted:
                    return
                name = runner.run(self._name(self.logs[log]))
                (hands.pause_tiering if pause else hands.resume_tiering)(name)
                self.paused[log] = pause

            async def _name(self, log: TopicIdPartition) -> str:
                topics = await plane.tracked_topics()
                return next(t.name for t in topics if t.topic_id == log.topic_id)

            @rule(log=LOGS, really=st.integers(0, 9))
            def delete_the_topic(self, log: int, really: int) -> None:
                if really == 0:
                    runner.run(plane.delete_topic(self.logs[log].topic_id))
                    self.models[log].deleted = True

            def _needed(self) -> set[str]:
                """Keys that a reader or the next merge may read."""
                needed: set[str] = set()
                for merge in self.merges:
                    model = self.models[merge.log]
                    if not model.deleted and merge.model.batches in model.readable_segments():
                        needed |= {merge.plan.object_key_stem + s for s in SEGMENT_SUFFIXES}
                for key, (log, bases) in self.keys.items():
                    model = self.models[log]
                    if not model.deleted and any(
                        b.base_offset in bases and b.base_offset in model.split
                        for b in model.unmerged()
                    ):
                        needed.add(key)
                return needed

            @rule(log=LOGS, distance=st.integers(-2, 6), size=st.integers(0, 400))
            def find(self, log: int, distance: int, size: int) -> None:
                model = self.models[log]
                offset = max(0, min(model.frontier, model.log.start + 3) + distance)
                (found,) = runner.run(
                    plane.find_batches([FindBatchesRequest(self.logs[log], offset, size)])
                )
                if model.deleted:
                    assert found.error == "TOPIC_DELETED"
                    return
                error, batches = model.log.find(offset, 1 << 30)
                assert (found.error, found.high_watermark) == (error, model.log.high_watermark)
                if found.segment is None:
                    seen = [(b.base_offset, b.last_offset, b.byte_size) for b in found.batches]
                    assert bool(seen) == bool(batches)
                else:
                    held = self.contents[found.segment.segment_id]
                    assert found.batches == ()
                    assert (held[0].base_offset, held[-1].last_offset) == (
                        found.segment.base_offset,
                        found.segment.last_offset,
                    )
                    seen = [
                        (b.base_offset, b.last_offset, b.byte_size)
                        for b in held
                        if b.last_offset >= offset
                    ]
                expected = [(b.base_offset, b.last_offset, b.byte_size) for b in batches]
                assert seen == expected[: len(seen)]

            @rule(log=LOGS, timestamp=st.integers(0, 31))
            def look_up(self, log: int, timestamp: int) -> None:
                model = self.models[log]
                if model.deleted:
                    return
                by_time = runner.run(
                    plane.list_offsets(self.logs[log], ListOffsetsKind.TIMESTAMP, timestamp)
                )
                assert self._first(by_time, timestamp) == model.log.at_timestamp(timestamp)
                by_size = runner.run(
                    plane.list_offsets(self.logs[log], ListOffsetsKind.MAX_TIMESTAMP)
                )
                largest = max(
                    (b for s in by_size.segments for b in self._held(s, by_size.suffix_start)),
                    key=lambda b: (b.max_timestamp, -b.base_offset),
                    default=None,
                )
                candidates = [
                    (b.max_timestamp, -b.base_offset)
                    for b in (largest, by_size.batch)
                    if b is not None
                ]
                expected = model.log.of_max_timestamp()
                assert max(candidates, default=None) == (
                    expected and (expected.max_timestamp, -expected.base_offset)
                )

            def _held(self, segment: SegmentCoordinates, start: int) -> list[Appended]:
                return [b for b in self.contents[segment.segment_id] if b.last_offset >= start]

            def _first(self, answer: SuffixOffset, timestamp: int) -> Appended | None:
                """What a reader makes of the candidates."""
                for segment in answer.segments:
                    for found in self._held(segment, answer.suffix_start):
                        if found.max_timestamp >= timestamp:
                            return found
                if answer.batch is None:
                    return None
                at = answer.batch
                return Appended(
                    at.base_offset, at.last_offset, at.byte_size, at.append_time, at.max_timestamp
                )

            @invariant()
            def the_row_says_what_the_model_says(self) -> None:
                lo, hi = hands.log_id_range()
                for row in hands.partitions(lo, hi):
                    model = self.models[self.logs.index(row.log)]
                    if model.deleted:
                        continue
                    assert (row.state, row.tiered_start, row.suffix_start) == (
                        model.state.value,
                        model.tiered_start,
                        model.log.start,
                    )
                    assert max(row.merge_frontier, row.suffix_start) == model.frontier
                    assert row.boundary == model.log.boundary

            def teardown(self) -> None:
                """Whatever was begun and left: collected to the last object, and nothing more."""
                self.claims_lapse()
                for log in (0, 1):
                    self.find(log, 0, 0)
                self.prune()
                self.collect(0)
                assert self.stored == self._needed()

        try:
            run_state_machine_as_test(
                Tiering,
                settings=settings(
                    max_examples=60,
                    stateful_step_count=30,
                    deadline=None,
                    suppress_health_check=list(HealthCheck),
                ),
            )
        finally:
            runner.run(connection.__aexit__(None, None, None))
