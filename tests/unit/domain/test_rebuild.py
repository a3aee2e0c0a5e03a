"""What the bucket's footers tell is what Postgres was told; the rest is named, never guessed."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field, replace
from random import Random
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.contract.scenes import GatewayProcess, MemoryScene
from tests.contract.traffic import Traffic
from tideline.control_plane.model import BatchToCommit
from tideline.domain.ids import TopicIdPartition
from tideline.domain.producer_state import NOBODY_KNOWS, KnownProducers, entries_from_seeds
from tideline.domain.producer_tail import ProducerSeed
from tideline.domain.rebuild import KnownPlace, Rebuilt, rebuild
from tideline.domain.wal_footer import (
    UNANSWERED,
    WANTED,
    WITHDRAWN,
    BatchOutcome,
    EarlierCommit,
    Footer,
    FooterBatch,
)
from tideline.domain.wal_placing import DEEP, Hole
from tideline.domain.wal_producers import SURELY_KEPT_MS
from tideline.domain.wal_streams import Streams
from tideline.gateway.produce.commit_stream import described

HISTORY, TOPIC = UUID(int=1), UUID(int=2)
LOG = TopicIdPartition(TOPIC, 0)
NOBODY_YET = KnownProducers(are_all=True)


@dataclass
class Upload:
    """An object in the bucket, and what is to be committed."""

    key: str
    footer: Footer
    batches: list[BatchToCommit]


@dataclass
class Stream:
    """One gateway: what it has stored, what it has yet to commit, what it has yet to tell."""

    process: GatewayProcess
    sequence: int = 0
    uploads: list[Upload] = field(default_factory=list)
    pending: list[Upload] = field(default_factory=list)
    untold: list[EarlierCommit] = field(default_factory=list)
    committed_whole: set[str] = field(default_factory=set)


class Run:
    """Gateways that commit through the rules of the control plane, and keep their footers."""

    def __init__(self, random: Random, *, gateways: int = 3, unknown: float = 0.0) -> None:
        """What became of a part of the commits, ``unknown``, they never hear."""
        self.random, self.gateways = random, gateways
        self.unknown = unknown
        self.scene = MemoryScene()
        self.streams: list[Stream] = []
        self.logs: list[TopicIdPartition] = []
        self.traffic = Traffic(random, again=0.1, plain=0.5)

    async def play(self, steps: int) -> None:
        for _ in range(2):
            self.logs += (await self.scene.diskless_topic(2))[1]
        self.streams = [Stream(await self.scene.gateway()) for _ in range(self.gateways)]
        for _ in range(steps):
            stream = self.random.choice(self.streams)
            action = self.random.choice(("upload", "upload", "commit", "commit", "give up", "tell"))
            if action == "upload":
                await self.upload(stream, self.batches())
            elif action == "commit" and stream.pending:
                await self.commit(stream, stream.pending.pop(0))
            elif action == "give up" and stream.pending and self.random.random() < 0.3:
                self.give_up(stream, stream.pending.pop(0))
            elif action == "tell" and self.random.random() < 0.3:
                await self.upload(stream, [])

    def batches(self) -> list[BatchToCommit]:
        return self.traffic.batches(self.logs)

    async def upload(self, stream: Stream, batches: list[BatchToCommit]) -> None:
        earlier, stream.untold = tuple(stream.untold), []
        stream.sequence += 1
        for attempt in range(2 if batches and self.random.random() < 0.1 else 1):
            key = f"wal/{stream.process.gateway_id}-{stream.sequence}-{attempt}"
            footer = self.footer(stream, batches, earlier)
            footer = replace(footer, written_at_ms=footer.written_at_ms + attempt)
            upload = Upload(key, footer, batches)
            stream.uploads.append(upload)
        if batches:
            stream.pending.append(upload)

    def footer(
        self,
        stream: Stream,
        batches: list[BatchToCommit],
        earlier: tuple[EarlierCommit, ...],
    ) -> Footer:
        return Footer(
            HISTORY,
            stream.process.gateway_id,
            stream.process.incarnation,
            stream.sequence,
            self.scene.clock.now,
            tuple(map(described, batches)),
            earlier,
        )

    def give_up(self, stream: Stream, upload: Upload) -> None:
        self.state(stream, upload, [WITHDRAWN] * len(upload.batches))

    def state(self, stream: Stream, upload: Upload, outcomes: list[str]) -> None:
        """An object that nobody commits."""
        told = tuple(BatchOutcome(outcome, -1, -1) for outcome in outcomes)
        commit = EarlierCommit(upload.footer.sequence, upload.key, told)
        key = f"wal/{stream.process.gateway_id}-said-{len(stream.uploads)}"
        # Behind what is told by then: its own place tells nothing.
        earlier = (*stream.untold, commit)
        stream.uploads.append(Upload(key, self.footer(stream, [], earlier), []))

    async def commit(self, stream: Stream, upload: Upload) -> None:
        process = stream.process
        await self.scene.plane.register_object_keys(
            process.gateway_id, process.incarnation, [upload.key]
        )
        left = [b for b in upload.batches if self.random.random() < 0.95]
        if len(left) < len(upload.batches):
            wanted = {id(b) for b in left}
            if not left:
                self.give_up(stream, upload)
                return
            self.state(
                stream, upload, [WANTED if id(b) in wanted else WITHDRAWN for b in upload.batches]
            )
        # By identity: a retry may stand beside its equal.
        chosen = {id(b) for b in left}
        unheard = self.random.random() < self.unknown
        if unheard:
            self.state(
                stream,
                upload,
                [UNANSWERED if id(b) in chosen else WITHDRAWN for b in upload.batches],
            )
            if self.random.random() < 0.5:
                return
        answers = iter(await self.scene.commit(process, *left, key=upload.key))
        if unheard:
            return
        outcomes = []
        for one in upload.batches:
            if id(one) in chosen:
                told = next(answers)
                outcomes.append(BatchOutcome(str(told.error), told.base_offset, told.append_time))
            else:
                outcomes.append(BatchOutcome(WITHDRAWN, -1, -1))
        if all(told.error == "NONE" for told in outcomes):
            stream.committed_whole.add(upload.key)
        stream.untold.append(EarlierCommit(upload.footer.sequence, upload.key, tuple(outcomes)))

    async def finish(self) -> None:
        """Every commit is told, and what was given up has a later one behind it."""
        for stream in self.streams:
            await self.upload(stream, self.batches())
            while stream.pending:
                await self.commit(stream, stream.pending.pop(0))
            await self.upload(stream, [])

    def rows(self, log: TopicIdPartition) -> list[tuple[object, ...]]:
        suffix = self.scene.memory.topics.known_partition(log).suffix
        assert suffix is not None
        return [
            (b.base_offset, b.last_offset, b.object_key, b.byte_offset, b.byte_size,
             b.timestamp_type == "LogAppendTime", b.append_time, b.max_timestamp)
            for b in suffix.batches
        ]  # fmt: skip

    def fold(self, objects: list[Upload]) -> Rebuilt:
        self.random.shuffle(objects)
        streams = Streams()
        for upload in objects:
            streams.add(upload.key, 1_000, upload.footer)
        return rebuild(streams, dict.fromkeys(self.logs, 0), dict.fromkeys(self.logs, NOBODY_YET))


def rows_of(found: Rebuilt, log: TopicIdPartition, *, inferred: bool) -> list[tuple[object, ...]]:
    return [
        (b.base_offset, b.last_offset, b.object_key, b.footer.byte_offset, b.footer.byte_size,
         b.footer.log_append_time, b.append_time, b.max_timestamp)
        for b in found.logs[log].batches
        if b.inferred is inferred
    ]  # fmt: skip


@given(seed=st.integers(0, 2**32), steps=st.integers(0, 60))
def test_when_all_commits_are_told_the_fold_is_the_control_plane(seed: int, steps: int) -> None:
    run = Run(Random(seed))
    asyncio.run(run.play(steps))
    asyncio.run(run.finish())
    found = run.fold([upload for stream in run.streams for upload in stream.uploads])
    assert not found.open_objects
    assert not found.contradictions
    assert not found.gone
    for log in run.logs:
        partition = run.scene.memory.topics.known_partition(log)
        suffix = partition.suffix
        assert suffix is not None
        told = found.logs[log]
        assert rows_of(found, log, inferred=False) == run.rows(log)
        assert told.high_watermark == suffix.high_watermark
        assert told.producers == suffix.producers
        assert told.holes == ()
        assert [b.running_max_timestamp for b in told.batches] == [
            max(b.max_timestamp for b in suffix.batches[: n + 1])
            for n in range(len(suffix.batches))
        ]


@given(seed=st.integers(0, 2**32), steps=st.integers(0, 60))
def test_what_is_inferred_in_a_hole_lies_there_and_what_is_not_told_is_named(
    seed: int, steps: int
) -> None:
    """Nothing of the bucket is lost; Postgres is, before its last outcomes were told."""
    run = Run(Random(seed))
    asyncio.run(run.play(steps))
    objects = [upload for stream in run.streams for upload in stream.uploads]
    found = run.fold(objects)
    told = {e.object_key for u in objects for e in u.footer.earlier if not e.is_notice}
    named = {(o.log, o.wal_object.key) for o in found.open_objects}
    whole = {key for stream in run.streams for key in stream.committed_whole}
    assert not found.contradictions
    for log in run.logs:
        truth = run.rows(log)
        assert rows_of(found, log, inferred=False) == [row for row in truth if row[2] in told]
        for row in truth:
            if row[2] not in told:
                assert (log, str(row[2])) in named
        end = max((int(str(row[1])) for row in truth if row[2] in told), default=-1)
        places = {(row[0], row[1]) for row in truth}
        for inferred in rows_of(found, log, inferred=True):
            if int(str(inferred[0])) < end or str(inferred[2]) in whole:
                assert (inferred[0], inferred[1]) in places


@given(
    seed=st.integers(0, 2**32),
    steps=st.integers(0, 60),
    gateways=st.integers(1, 3),
    unknown=st.sampled_from([0.0, 0.2]),
)
def test_what_is_inferred_of_streams_in_order_is_what_was_committed(
    seed: int, steps: int, gateways: int, unknown: float
) -> None:
    """Decision 0022. Beyond the last offset that Postgres gave, it may never have been."""
    run = Run(Random(seed), gateways=gateways, unknown=unknown)
    asyncio.run(run.play(steps))
    found = run.fold([upload for stream in run.streams for upload in stream.uploads])
    assert not found.contradictions
    named = {(o.log, o.wal_object.key) for o in found.open_objects}
    for log in run.logs:
        truth = {(row[0], row[1], str(row[2])[:-1]) for row in run.rows(log)}
        end = max((int(str(row[1])) for row in truth), default=-1)
        here = {(b.base_offset, b.last_offset, b.object_key[:-1]) for b in found.logs[log].batches}
        assert {row for row in here if row[0] <= end} <= truth
        for _, _, key in truth - here:
            assert {(log, f"{key}0"), (log, f"{key}1")} & named


@given(seed=st.integers(0, 2**32), steps=st.integers(0, 60))
def test_of_one_stream_in_order_nothing_is_left_open(seed: int, steps: int) -> None:
    """Where no batch was refused: whether one was is for the producers' state to say, of which the
    bucket may not have all."""
    run = Run(Random(seed), gateways=1)
    run.traffic = Traffic(run.random, again=0.1, plain=0.9, disorder=0.0)
    asyncio.run(run.play(steps))
    found = run.fold([upload for stream in run.streams for upload in stream.uploads])
    refused = {o.log for o in found.open_objects if "sequences do not follow" in o.why}
    for log in {*run.logs} - refused:
        truth = [(row[0], row[1], str(row[2])[:-1]) for row in run.rows(log)]
        here = [(b.base_offset, b.last_offset, b.object_key[:-1]) for b in found.logs[log].batches]
        assert here[: len(truth)] == truth


@given(seed=st.integers(0, 2**32), steps=st.integers(0, 60), lost=st.integers(1, 4))
def test_objects_that_are_lost_leave_holes_or_an_early_end(
    seed: int, steps: int, lost: int
) -> None:
    run = Run(Random(seed))
    asyncio.run(run.play(steps))
    asyncio.run(run.finish())
    kept = [upload for stream in run.streams for upload in stream.uploads[:-lost]]
    found = run.fold(kept)
    told = {e.object_key for u in kept for e in u.footer.earlier if not e.is_notice}
    there = {upload.key for upload in kept}
    for log in run.logs:
        rows = run.rows(log)
        expected = [row for row in rows if row[2] in told & there]
        assert rows_of(found, log, inferred=False) == expected
        covered = {
            offset
            for b in found.logs[log].batches
            for offset in range(b.base_offset, b.last_offset + 1)
        }
        missing = {
            offset
            for hole in found.logs[log].holes
            for offset in range(hole.base_offset, hole.last_offset + 1)
        }
        assert covered.isdisjoint(missing)
        assert covered | missing == set(range(found.logs[log].high_watermark))
    gone = {g.key for g in found.gone}
    assert gone == told - there


# By hand


def a_batch(records: int, *, at: int = 0, producer: tuple[int, int] = (-1, -1)) -> FooterBatch:
    producer_id, base = producer
    last = base + records - 1 if producer_id >= 0 else -1
    epoch = 0 if producer_id >= 0 else -1
    return FooterBatch(TOPIC, 0, at, 10, records, producer_id, epoch, base, last, 5, False)


def an_object(
    gateway: int,
    sequence: int,
    *batches: FooterBatch,
    earlier: tuple[EarlierCommit, ...] = (),
) -> Footer:
    stream = UUID(int=100 + gateway)
    return Footer(HISTORY, gateway, stream, sequence, 50, batches, earlier)


def told(key: str, sequence: int, *bases: int) -> EarlierCommit:
    outcomes = tuple(BatchOutcome("NONE", base, 10 + base) for base in bases)
    return EarlierCommit(sequence, key, outcomes)


def folded(
    objects: dict[str, Footer], start: int = 0, producers: KnownProducers = NOBODY_YET
) -> Rebuilt:
    streams = Streams()
    for key, footer in objects.items():
        streams.add(key, 100, footer)
    return rebuild(streams, {LOG: start}, {LOG: producers})


def placed(found: Rebuilt) -> dict[str, int | None]:
    return {o.wal_object.key: o.placed_at for o in found.open_objects}


def a_log_with_a_hole(records: int) -> dict[str, Footer]:
    """Gateway 1 has told of offset 0 and of the one behind the hole."""
    return {
        "1a": an_object(1, 1, a_batch(1)),
        "1b": an_object(1, 2, a_batch(1)),
        "1c": an_object(1, 3, earlier=(told("1a", 1, 0), told("1b", 2, records + 1))),
    }


def test_the_only_object_that_fits_a_hole_is_placed_there_and_said_to_be_inferred() -> None:
    found = folded({**a_log_with_a_hole(3), "2a": an_object(2, 1, a_batch(2), a_batch(1, at=10))})
    assert placed(found) == {"2a": 1}
    assert [(b.base_offset, b.inferred) for b in found.logs[LOG].batches] == [
        (0, False),
        (1, True),
        (3, True),
        (4, False),
    ]
    assert [b.append_time for b in found.logs[LOG].batches] == [10, 14, 14, 14]


def test_two_objects_that_fit_a_hole_are_both_ambiguous() -> None:
    both = {"2a": an_object(2, 1, a_batch(3)), "3a": an_object(3, 1, a_batch(3))}
    found = folded({**a_log_with_a_hole(3), **both})
    assert placed(found) == {"2a": None, "3a": None}
    assert found.logs[LOG].holes == (Hole(1, 3),)
    assert {o.why for o in found.open_objects} == {
        "there is more than one way to fill offsets 1 to 3"
    }


def test_an_object_that_fits_in_part_makes_another_ambiguous() -> None:
    """Its second batch may have been refused: nothing is known of that producer."""
    part = an_object(3, 1, a_batch(2), a_batch(1, at=10, producer=(7, 3)))
    objects = {**a_log_with_a_hole(2), "2a": an_object(2, 1, a_batch(2)), "3a": part}
    found = folded(objects, producers=NOBODY_KNOWS)
    assert placed(found) == {"2a": None, "3a": None}


def test_a_hole_that_nothing_fits_says_that_an_object_is_missing() -> None:
    found = folded({**a_log_with_a_hole(5), "2a": an_object(2, 1, a_batch(3))})
    assert placed(found) == {"2a": None}
    assert "an object is missing" in found.open_objects[0].why


def test_an_object_of_a_stream_never_lies_before_what_is_told_of_the_stream() -> None:
    objects = a_log_with_a_hole(3)
    found = folded({**objects, "1d": an_object(1, 4, a_batch(3))})
    assert placed(found) == {"1d": None}


def test_sequences_decide_between_two_objects() -> None:
    objects = {
        "1a": an_object(1, 1, a_batch(1, producer=(7, 0))),
        "1b": an_object(1, 2, a_batch(1, producer=(7, 4))),
        "1c": an_object(1, 3, earlier=(told("1a", 1, 0), told("1b", 2, 4))),
        "2a": an_object(2, 1, a_batch(3, producer=(7, 1))),
        "3a": an_object(3, 1, a_batch(3, producer=(8, 0))),
    }
    # Producer 7 sent three records between the told ones: 3a would leave 2a out.
    found = folded(objects)
    assert placed(found)["2a"] is None, "3a may lie there and 2a be lost: it is not guessed"
    del objects["3a"]
    assert placed(folded(objects)) == {"2a": 1}


def test_what_is_alone_at_the_end_is_placed_there() -> None:
    objects = a_log_with_a_hole(0)
    assert placed(folded({**objects, "2a": an_object(2, 1, a_batch(4))})) == {"2a": 2}


def said(key: str, sequence: int, *outcomes: str) -> EarlierCommit:
    return EarlierCommit(sequence, key, tuple(BatchOutcome(o, -1, -1) for o in outcomes))


def test_of_one_stream_in_order_all_that_is_left_is_placed_at_the_end() -> None:
    tail = {
        "2a": an_object(2, 1, a_batch(4)),
        "2b": an_object(2, 2, a_batch(1), a_batch(2, at=10)),
    }
    assert placed(folded({**a_log_with_a_hole(0), **tail})) == {"2a": 2, "2b": 6}
    tail["3a"] = an_object(3, 1, a_batch(1))
    assert set(placed(folded({**a_log_with_a_hole(0), **tail})).values()) == {None}


def test_nothing_is_placed_at_a_start_that_was_moved_past_what_is_told() -> None:
    """Records were deleted up to offset 5 in the last second: 2a holds some of them."""
    streams = Streams()
    objects = {**a_log_with_a_hole(0), "2a": an_object(2, 1, a_batch(4))}
    for key, footer in objects.items():
        streams.add(key, 100, footer)
    assert placed(rebuild(streams, {LOG: 5}, moved={LOG})) == {"2a": None}
    assert placed(rebuild(streams, {LOG: 2}, moved={LOG})) == {"2a": 2}, "all below is told"


def test_what_is_said_to_be_given_up_or_left_out_is_passed_over() -> None:
    tail = {
        "2a": an_object(2, 1, a_batch(4)),
        "2b": an_object(2, 2, a_batch(1), a_batch(2, at=10)),
        "2c": an_object(2, 3, a_batch(5)),
        "2s": an_object(2, 3, earlier=(said("2a", 1, WITHDRAWN), said("2b", 2, WANTED, WITHDRAWN))),
    }
    found = folded({**a_log_with_a_hole(0), **tail})
    assert placed(found) == {"2b": 2, "2c": 3}
    assert [b.footer.record_count for b in found.logs[LOG].batches] == [1, 1, 1, 5]


def test_a_notice_of_another_number_of_batches_is_a_contradiction_that_is_told_once() -> None:
    tail = {
        "2a": an_object(2, 1, a_batch(4)),
        "2s": an_object(2, 1, earlier=(said("2a", 1, UNANSWERED, UNANSWERED),)),
    }
    streams = Streams()
    for key, footer in tail.items():
        streams.add(key, 100, footer)
    known = {one.key: {} for one in streams.tail() if one.key != "2a"}
    assert rebuild(streams, {LOG: 0}, known=known).contradictions == [
        "2a is told of with 2 batches, and has 1"
    ]


def test_what_was_sent_when_a_gateway_stopped_is_placed_and_what_was_not_is_not() -> None:
    tail = {
        "2a": an_object(2, 1, a_batch(4)),
        "2b": an_object(2, 2, a_batch(1)),
        "2s": an_object(2, 2, earlier=(said("2a", 1, UNANSWERED), said("2b", 2, WITHDRAWN))),
    }
    found = folded({**a_log_with_a_hole(0), **tail})
    assert placed(found) == {"2a": 2}
    assert [o.wal_object.unanswered for o in found.open_objects] == [True]


def test_another_attempt_of_what_was_noticed_was_never_committed() -> None:
    tail = {
        "2a": an_object(2, 1, a_batch(4)),
        "2b": an_object(2, 1, a_batch(4)),
        "2s": an_object(2, 1, earlier=(said("2b", 1, UNANSWERED),)),
    }
    found = folded({**a_log_with_a_hole(0), **tail})
    assert placed(found) == {"2b": 2}
    assert found.never_committed == ["2a"]


def test_of_several_attempts_only_the_last_one_may_be_committed() -> None:
    first = an_object(2, 1, a_batch(4))
    tail = {
        "2c": first,
        "2a": replace(first, written_at_ms=first.written_at_ms + 1),
        "2b": replace(first, written_at_ms=first.written_at_ms + 2),
    }
    found = folded({**a_log_with_a_hole(0), **tail})
    assert placed(found) == {"2b": 2}
    assert found.never_committed == ["2c", "2a"]


def test_objects_of_one_sequence_that_differ_are_not_placed_by_their_time() -> None:
    first = an_object(2, 1, a_batch(4))
    later = an_object(2, 1, a_batch(3))
    tail = {"2a": first, "2b": replace(later, written_at_ms=first.written_at_ms + 1)}
    found = folded({**a_log_with_a_hole(0), **tail})
    assert placed(found) == {"2a": None}
    assert found.never_committed == []


def test_a_commit_that_nobody_knows_of_stays_open_when_later_ones_are_told() -> None:
    """It may lie behind the last known offset of this log, and nothing orders it there."""
    tail = {
        "2a": an_object(2, 1, a_batch(4)),
        "2b": an_object(2, 2, replace(a_batch(1), partition=1)),
        "2s": an_object(2, 2, earlier=(said("2a", 1, UNANSWERED), told("2b", 2, 0))),
    }
    objects = {**a_log_with_a_hole(0), **tail}
    found = folded(objects)
    assert placed(found) == {"2a": 2}, "alone at the end"
    tail["3a"] = an_object(3, 1, a_batch(1))
    assert placed(folded({**objects, **tail})) == {"2a": None, "3a": None}


def test_what_comes_behind_a_commit_that_nobody_knows_of_may_lie_in_its_place() -> None:
    tail = {
        "2a": an_object(2, 1, a_batch(1)),
        "2b": an_object(2, 2, a_batch(1)),
        "2s": an_object(2, 1, earlier=(said("2a", 1, UNANSWERED),)),
    }
    assert placed(folded({**a_log_with_a_hole(0), **tail})) == {"2a": None, "2b": None}
    assert placed(folded({**a_log_with_a_hole(1), **tail})) == {"2a": None, "2b": None}
    tail["2b"] = an_object(2, 2, a_batch(2))
    assert placed(folded({**a_log_with_a_hole(2), **tail}))["2b"] == 1


def test_what_was_wanted_and_then_given_up_is_not_waited_for() -> None:
    """Any later outcome says that it was given up."""
    tail = {
        "2a": an_object(2, 1, a_batch(1), a_batch(1, at=10)),
        "2s": an_object(2, 1, earlier=(said("2a", 1, WANTED, WITHDRAWN),)),
        "2t": an_object(2, 2, earlier=(said("2b", 2, WITHDRAWN),)),
        "2c": an_object(2, 3, a_batch(1)),
    }
    found = folded({**a_log_with_a_hole(0), **tail})
    assert placed(found) == {"2c": 2}
    assert found.never_committed == ["2a"]


def test_a_commit_that_nobody_knows_of_may_lie_before_what_is_told_behind_it() -> None:
    tail = {
        "2a": an_object(2, 1, a_batch(1)),
        "2b": an_object(2, 2, a_batch(1)),
        "2s": an_object(2, 2, earlier=(said("2a", 1, UNANSWERED), told("2b", 2, 3))),
    }
    objects = {**a_log_with_a_hole(1), **tail}
    assert placed(folded(objects)) == {"2a": 1}
    objects["3a"] = an_object(3, 1, a_batch(1))
    assert placed(folded(objects)) == {"2a": None, "3a": None}
    objects = {**a_log_with_a_hole(0), **tail, "2s": an_object(
        2, 2, earlier=(said("2a", 1, UNANSWERED), told("2b", 2, 2))
    ), "2c": an_object(2, 3, a_batch(1))}  # fmt: skip
    assert placed(folded(objects)) == {"2a": None, "2c": 3}, "not at the end, then"


def test_a_batch_that_its_producer_sent_again_is_placed_once() -> None:
    tail = {
        "2a": an_object(2, 1, a_batch(2, producer=(7, 0))),
        "2b": an_object(2, 2, a_batch(2, producer=(7, 0)), a_batch(1, at=10)),
    }
    found = folded({**a_log_with_a_hole(0), **tail})
    assert [(b.object_key, b.base_offset) for b in found.logs[LOG].batches[2:]] == [
        ("2a", 2),
        ("2b", 4),
    ]


def test_where_sequences_stop_to_follow_the_rest_of_a_stream_stays_open() -> None:
    tail = {
        "2a": an_object(2, 1, a_batch(2, producer=(7, 0))),
        "2b": an_object(2, 2, a_batch(2, producer=(7, 4))),
        "2c": an_object(2, 3, a_batch(1)),
    }
    assert placed(folded({**a_log_with_a_hole(0), **tail})) == {"2a": 2, "2b": None, "2c": None}


def test_nothing_is_inferred_beside_an_object_that_cannot_be_read() -> None:
    streams = Streams()
    objects = {**a_log_with_a_hole(3), "2a": an_object(2, 1, a_batch(3))}
    for key, footer in objects.items():
        streams.add(key, 100, footer)
    streams.add_unreadable("stray", 10, "no footer")
    assert placed(rebuild(streams)) == {"2a": None}


def test_a_hole_that_an_object_that_is_gone_explains_is_not_filled() -> None:
    objects = a_log_with_a_hole(3)
    objects["3z"] = an_object(3, 2, earlier=(told("3a", 1, 1),))
    found = folded({**objects, "2a": an_object(2, 1, a_batch(3))})
    assert found.logs[LOG].holes == (Hole(1, 3),)
    assert placed(found) == {"2a": 5}, "at the end, where nothing else may lie"


def test_two_batches_for_one_offset_are_a_contradiction_and_neither_is_taken() -> None:
    objects = {
        "1a": an_object(1, 1, a_batch(2)),
        "2a": an_object(2, 1, a_batch(1)),
        "1b": an_object(1, 2, earlier=(told("1a", 1, 0),)),
        "2b": an_object(2, 2, earlier=(told("2a", 1, 1),)),
    }
    found = folded(objects)
    assert found.logs[LOG].batches == ()
    assert found.logs[LOG].reserved == 2, "both were given to somebody"
    assert ["offsets 1 to 1 of 2a were given to 1a too" in c for c in found.contradictions] == [
        True
    ]


@pytest.mark.parametrize("bases", [(), (0, 1)])
def test_outcomes_that_are_not_one_for_each_batch_are_a_contradiction(
    bases: tuple[int, ...],
) -> None:
    objects = {
        "1a": an_object(1, 1, a_batch(1)),
        "1b": an_object(1, 2, earlier=(told("1a", 1, *bases),)),
    }
    found = folded(objects)
    assert found.logs[LOG].batches == ()
    assert "with 1 batches, and is told of as object 1 with" in found.contradictions[0]


def test_a_commit_that_is_told_in_two_ways_counts_in_neither() -> None:
    objects = {
        "1a": an_object(1, 1, a_batch(1)),
        "1b": an_object(1, 2, earlier=(told("1a", 1, 0),)),
        "1c": an_object(1, 3, earlier=(told("1a", 1, 8),)),
    }
    found = folded(objects)
    assert found.logs[LOG].batches == ()
    assert "is told in two ways" in found.contradictions[0]
    assert found.logs[LOG].reserved >= 9, "behind the larger of the two"


def test_what_an_operator_gave_up_with_a_new_history_does_not_come_back() -> None:
    def of(history: int, stream: int, sequence: int, *parts: object) -> Footer:
        return replace(an_object(stream, sequence, *parts), history_id=UUID(int=history))

    old, new = UUID(int=5), UUID(int=6)
    objects = {
        "1a": of(5, 1, 1, a_batch(2)),
        "1b": of(5, 1, 2, a_batch(3)),
        "1c": replace(of(5, 1, 3), earlier=(told("1a", 1, 0), told("1b", 2, 2))),
        "1d": of(5, 1, 4, a_batch(1)),
        "2a": of(6, 2, 1, a_batch(1)),
        "2b": replace(of(6, 2, 2), earlier=(told("2a", 1, 2),)),
    }
    streams = Streams()
    for key, made in objects.items():
        streams.add(key, 1_000, made)
    found = rebuild(streams, {LOG: 0}, current=new)
    assert [b.object_key for b in found.logs[LOG].batches] == ["1a", "2a"]
    assert (found.contradictions, found.open_objects, found.given_up) == ([], [], {LOG: 1})
    assert rebuild(streams, {LOG: 0}, current=old).logs[LOG].reserved >= 5


def test_an_upload_that_was_given_up_long_before_the_end_keeps_no_offsets_there() -> None:
    late = EarlierCommit(1, "1a", (BatchOutcome("NONE", 0, 10**9),))
    objects = {
        "1a": an_object(1, 1, a_batch(1)),
        "1b": an_object(1, 2, earlier=(late,)),
        "2a": an_object(2, 1, a_batch(7)),
    }
    assert folded(objects).logs[LOG].reserved == 1
    objects["1b"] = an_object(1, 2, earlier=(told("1a", 1, 0),))
    objects["3a"] = an_object(3, 1, a_batch(2))
    assert folded(objects).logs[LOG].reserved == 1 + 7 + 2


def test_an_object_that_a_restored_postgres_knows_is_not_open() -> None:
    streams = Streams()
    streams.add("1a", 1_000, an_object(1, 1, a_batch(2)))
    streams.add("2a", 1_000, an_object(2, 1, a_batch(1)))
    known = {"1a": {0: KnownPlace(4, 77)}, "2a": {}}
    found = rebuild(streams, {LOG: 6}, known=known)
    assert [(b.base_offset, b.append_time) for b in found.logs[LOG].batches] == [(4, 77)]
    assert found.open_objects == []


def test_an_attempt_beside_the_one_that_a_restored_postgres_knows_is_not_open() -> None:
    """Also when all that was committed with it has been deleted."""
    for places in ({0: KnownPlace(6, 77)}, {}):
        streams = Streams()
        for key in ("1a", "1b"):
            streams.add(key, 1_000, an_object(1, 1, a_batch(2)))
        found = rebuild(streams, {LOG: 6}, known={"1b": places})
        rows = found.logs[LOG].batches if LOG in found.logs else ()
        assert [(b.base_offset, b.object_key) for b in rows] == [(6, "1b")] * len(places)
        assert found.open_objects == []


def test_objects_of_another_history_are_named_and_do_not_count() -> None:
    streams = Streams(histories=frozenset({UUID(int=9)}))
    streams.add("1a", 100, an_object(1, 1, a_batch(1)))
    found = rebuild(streams)
    assert found.logs == {}
    assert found.foreign == [("1a", HISTORY)]


def test_what_a_producer_wrote_below_b0_is_not_placed_again_above_it() -> None:
    """Its retry reached the suffix; the commit took it for a duplicate, and nobody has told so."""
    retried, fresh = a_batch(2, producer=(7, 3)), a_batch(1, at=10, producer=(7, 5))
    streams = Streams()
    streams.add("1a", 100, an_object(1, 1, retried, fresh))
    producers = KnownProducers(entries_from_seeds([ProducerSeed(7, 0, 3, 4, 8, 9, 1)], -1), True)
    (row,) = rebuild(streams, {LOG: 10}, {LOG: producers}).logs[LOG].batches
    assert (row.base_offset, row.footer.base_sequence) == (10, 5)


def test_what_does_not_follow_what_its_producer_wrote_below_b0_stays_open() -> None:
    streams = Streams()
    streams.add("1a", 100, an_object(1, 1, a_batch(1, producer=(7, 9))))
    producers = KnownProducers(entries_from_seeds([ProducerSeed(7, 0, 3, 4, 8, 9, 1)], -1), True)
    found = rebuild(streams, {LOG: 10}, {LOG: producers})
    assert found.logs[LOG].batches == ()
    assert [o.why for o in found.open_objects] == [
        "its sequences do not follow those of its producer at the end"
    ]


def test_a_producer_whose_state_had_expired_begins_anew() -> None:
    objects = {
        "1a": an_object(1, 1, a_batch(1, producer=(7, 0)), a_batch(1, at=10, producer=(7, 9))),
        "1b": an_object(1, 2, earlier=(told("1a", 1, 0, 1),)),
    }
    streams = Streams()
    for key, footer in objects.items():
        streams.add(key, 100, footer)
    before = {LOG: KnownProducers(entries_from_seeds([ProducerSeed(8, 0, 3, 4, 0, 1, 5)], -1))}
    producers = rebuild(streams, producers=before).logs[LOG].producers
    assert [b.base_sequence for b in producers[7].batches] == [9]
    assert [b.base_sequence for b in producers[8].batches] == [3]


def test_only_the_topics_asked_for_are_kept() -> None:
    streams = Streams(wanted=lambda topic_id: topic_id != TOPIC)
    streams.add("1a", 100, an_object(1, 1, a_batch(1)))
    streams.add("1b", 100, an_object(1, 2, earlier=(told("1a", 1, 0),)))
    found = rebuild(streams)
    assert (found.logs, found.objects, found.batches, found.contradictions) == ({}, 2, 1, [])


# What producers have written that is not in the bucket any more


def sent_again_behind(*rows: FooterBatch) -> dict[str, Footer]:
    """Offsets from 10 on hold ``rows``; then a stream's newest object holds what producer 7 may
    have written below them, and a batch behind it."""
    return {
        "1a": an_object(1, 1, *rows),
        "1b": an_object(1, 2, earlier=(told("1a", 1, *range(10, 10 + len(rows))),)),
        "2a": an_object(2, 1, a_batch(1, producer=(7, 3)), a_batch(1, at=10)),
        "2b": an_object(2, 2, a_batch(4)),
    }


def test_a_batch_of_which_the_first_copy_may_be_gone_is_placed_nowhere_nor_what_is_behind_it() -> (
    None
):
    """A commit takes it, or takes it for a duplicate: that moves what lies behind it by one."""
    found = folded(sent_again_behind(a_batch(1)), 10, KnownProducers())
    assert placed(found) == {"2a": None, "2b": None}
    assert found.open_objects[0].why == "what producer 7 wrote before is not in the bucket"
    assert found.logs[LOG].reserved == 11 + 2 + 4, "its offsets are given to nobody else"


def test_of_a_producer_without_state_at_the_start_every_batch_is_taken() -> None:
    found = folded(sent_again_behind(a_batch(1)), 10, KnownProducers(are_all=True))
    assert placed(found) == {"2a": 11, "2b": 13}


def test_what_a_producer_wrote_since_the_start_tells_that_it_sends_nothing_again() -> None:
    found = folded(sent_again_behind(a_batch(1, producer=(7, 2))), 10, KnownProducers())
    assert placed(found) == {"2a": 11, "2b": 13}


def test_what_a_producer_wrote_before_something_that_is_gone_tells_nothing() -> None:
    """Its batch is there because another log needs the object; what it wrote next is not."""
    objects = sent_again_behind(a_batch(1, producer=(7, 2)), a_batch(1), a_batch(1))
    whole = folded(objects, 12, KnownProducers())
    assert placed(whole) == {"2a": 13, "2b": 15}
    objects["1b"] = an_object(1, 2, earlier=(told("1a", 1, 9, 11, 12),))
    assert placed(folded(objects, 12, KnownProducers())) == {"2a": None, "2b": None}


def test_what_may_have_been_taken_in_part_leaves_a_hole_to_nobody_else() -> None:
    """One offset is missing: of 2a's second batch, if the first was a duplicate, or 3a's."""
    objects = sent_again_behind(a_batch(1))
    objects["1c"] = an_object(1, 3, a_batch(1), earlier=(told("1a", 1, 10),))
    objects["1d"] = an_object(1, 4, earlier=(told("1c", 3, 12),))
    objects["3a"] = an_object(3, 1, a_batch(1))
    del objects["2b"]
    assert placed(folded(objects, 10, KnownProducers())) == {"2a": None, "3a": None}
    # Who is new has sent nothing before.
    assert placed(folded(objects, 10, KnownProducers(are_all=True)))["3a"] == 11


def test_what_a_producer_sends_again_after_long_may_be_taken_anew() -> None:
    """Postgres forgets idle producers; whether it had is told nowhere."""
    repeat = a_batch(1, producer=(7, 3))
    for later, places in ((0, {"2a": 11, "2b": 12}), (1, {"2a": None, "2b": None})):
        objects = sent_again_behind(repeat)
        for key in ("2a", "2b"):
            written = 10 + 10 + SURELY_KEPT_MS + later  # 1a's append time is told as 20
            objects[key] = replace(objects[key], written_at_ms=written)
        assert placed(folded(objects, 10)) == places
    assert folded(objects, 10).logs[LOG].reserved == 11 + 2 + 4


def a_copy_told_behind_a_hole(taken_ms: int) -> dict[str, Footer]:
    """Two offsets are missing: of 2a and a batch behind it, or of 3a's one. What 2a begins with was
    taken behind them too, at offset 2 at ``taken_ms``."""
    at = BatchOutcome("NONE", 2, taken_ms)
    return {
        "1a": an_object(1, 1, a_batch(1, producer=(7, 3))),
        "1b": an_object(1, 2, earlier=(EarlierCommit(1, "1a", (at,)),)),
        "2a": an_object(2, 1, a_batch(1, producer=(7, 3)), a_batch(1, at=10)),
        "3a": an_object(3, 1, a_batch(2)),
    }


def test_what_was_taken_again_long_after_may_have_been_taken_before_too() -> None:
    """Postgres forgets idle producers: 2a may lie in the hole with both of its batches."""
    for later, places in ((0, {"2a": 3, "3a": 0}), (1, {"2a": None, "3a": None})):
        written = 50
        found = folded(a_copy_told_behind_a_hole(written + SURELY_KEPT_MS + later))
        assert placed(found) == places
    assert {o.why for o in found.open_objects} == {
        "there is more than one way to fill offsets 0 to 1"
    }
    assert found.logs[LOG].reserved == 3, "of what is as old as that nothing lies behind the end"


def test_what_may_have_been_taken_before_its_copy_is_placed_where_nothing_else_fits() -> None:
    objects = a_copy_told_behind_a_hole(50 + SURELY_KEPT_MS + 1)
    del objects["3a"]
    found = folded(objects)
    assert placed(found) == {"2a": 0}
    assert [b.footer.base_sequence for b in found.logs[LOG].batches] == [3, -1, 3]


def test_of_copies_that_came_long_after_each_other_the_one_close_to_it_refuses_a_batch() -> None:
    """However long before or after that another one was taken."""
    objects = a_copy_told_behind_a_hole(50 + SURELY_KEPT_MS)
    objects["1c"] = an_object(1, 3, a_batch(1, producer=(7, 3)))
    again = BatchOutcome("NONE", 3, 50 + 2 * SURELY_KEPT_MS + 1)
    objects["1d"] = an_object(1, 4, earlier=(EarlierCommit(3, "1c", (again,)),))
    assert placed(folded(objects)) == {"2a": None, "3a": 0}


def refused_in_part_before(*behind: FooterBatch) -> dict[str, Footer]:
    """A hole at offset 3, where the second batch of 2a lies; its first one was refused. What lies
    at offsets 0 to 2 and ``behind`` is told; 3a lies behind all."""
    rows = [a_batch(1, at=10 * n, producer=(7, n)) for n in range(3)]
    return {
        "1a": an_object(1, 1, *rows),
        "1b": an_object(1, 2, *behind),
        "1c": an_object(1, 3, earlier=(told("1a", 1, 0, 1, 2), told("1b", 2, 4))),
        "3a": an_object(3, 1, a_batch(1)),
    }


def test_what_follows_a_batch_that_came_only_later_may_have_been_refused() -> None:
    """The gateway that had 2a is gone; sequence 3 came by another one, behind it."""
    objects = refused_in_part_before(a_batch(1, producer=(7, 3)))
    objects["2a"] = an_object(2, 1, a_batch(1, producer=(7, 4)), a_batch(1, at=10))
    assert placed(folded(objects)) == {"2a": None, "3a": None}


def test_what_follows_a_batch_that_others_have_followed_may_have_been_refused() -> None:
    """Sequences 1 and 2 in one batch, of a client that had sent them in two."""
    objects = refused_in_part_before(a_batch(1))
    objects["2a"] = an_object(2, 1, a_batch(2, producer=(7, 1)), a_batch(1, at=10))
    assert placed(folded(objects)) == {"2a": None, "3a": None}


def test_what_follows_the_last_batch_before_a_hole_is_taken_whole() -> None:
    objects = refused_in_part_before(a_batch(1))
    objects["2a"] = an_object(2, 1, a_batch(1, producer=(7, 3)), a_batch(1, at=10))
    assert placed(folded(objects))["3a"] == 3, "2a is longer than the hole"


def test_a_hole_of_more_objects_than_are_looked_at_is_open_and_no_error() -> None:
    objects = a_log_with_a_hole(2 * DEEP)
    for number in range(2 * DEEP):
        objects[f"2-{number:04}"] = an_object(2, number, a_batch(1))
    found = folded(objects)
    assert {o.placed_at for o in found.open_objects} == {None}
    assert "too many ways" in found.open_objects[0].why
