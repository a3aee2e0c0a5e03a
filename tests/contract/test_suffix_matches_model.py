"""The SQL of the suffix does what the plane in memory says, step by step."""

from __future__ import annotations

import asyncio
import contextlib
from dataclasses import dataclass
from uuid import uuid4

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from tests.contract.conftest import Database
from tests.contract.twins import TwinScene
from tideline.control_plane.errors import OffsetOutOfRange
from tideline.control_plane.memory.suffix import Suffix
from tideline.control_plane.model import (
    BatchToCommit,
    CommitError,
    FindBatchesRequest,
    ListOffsetsKind,
)
from tideline.domain.pipelining import MAX_SEQUENCE, SEQUENCES, sequence_after
from tideline.domain.topic_configs import CREATE_TIME, LOG_APPEND_TIME

BOUNDARY = 10


@dataclass(frozen=True)
class Sent:
    """A batch to one of two partitions. ``sequence`` is relative to what would follow."""

    partition: int
    records: int
    timestamp: int
    size: int
    log_append_time: bool
    producer_id: int
    epoch: int
    sequence: str


SENT = st.builds(
    Sent,
    partition=st.integers(0, 1),
    records=st.integers(1, 4),
    timestamp=st.integers(0, 50),
    size=st.integers(61, 300),
    log_append_time=st.sampled_from([False, False, False, True]),
    producer_id=st.integers(-1, 2),
    epoch=st.integers(0, 2),
    sequence=st.sampled_from(
        ["next", "next", "next", "zero", "again", "gap", "near the wrap", "up to the wrap"]
    ),
)


def _base_sequence(sent: Sent, suffix: Suffix) -> int:
    entry = suffix.producers.get(sent.producer_id)
    last = entry.last_sequence if entry else 4
    match sent.sequence:
        case "next":
            return sequence_after(last)
        case "zero":
            return 0
        case "near the wrap":
            return MAX_SEQUENCE - 1
        case "up to the wrap":
            return MAX_SEQUENCE - sent.records + 1
    return last + 7 if last < MAX_SEQUENCE - 7 else 3


def test_the_suffix_behaves_as_its_model(database: Database) -> None:
    happened: set[CommitError] = set()
    with asyncio.Runner() as runner:
        connection = TwinScene.connected(database)
        scene = runner.run(connection.__aenter__())
        plane = scene.plane
        gateway = runner.run(scene.gateway())

        class SuffixOfBoth(RuleBasedStateMachine):
            def __init__(self) -> None:
                super().__init__()
                _, self.logs = runner.run(scene.migrating_topic([gateway], partitions=2))
                self.history: dict[tuple[int, int], list[BatchToCommit]] = {}
                self.last: tuple[str, list[BatchToCommit], object] | None = None
                for log in self.logs:
                    generation = runner.run(scene.quiesce(log, [gateway]))
                    runner.run(scene.persist(log, BOUNDARY, generation))

            def suffix(self, partition: int) -> Suffix:
                found = scene.memory.topics.known_partition(self.logs[partition]).suffix
                assert isinstance(found, Suffix)
                return found

            def _batch(self, sent: Sent) -> BatchToCommit:
                log = self.logs[sent.partition]
                kind = LOG_APPEND_TIME if sent.log_append_time else CREATE_TIME
                shape = (log, 0, sent.size, sent.records, sent.timestamp, kind)
                if sent.producer_id < 0:
                    return BatchToCommit(*shape)
                history = self.history.setdefault((sent.partition, sent.producer_id), [])
                if sent.sequence == "again" and history:
                    # Up to seven batches back: two of them are no longer remembered.
                    return history[-7:][sent.timestamp % min(7, len(history))]
                base = _base_sequence(sent, self.suffix(sent.partition))
                last = (base + sent.records - 1) % SEQUENCES
                made = BatchToCommit(*shape, sent.producer_id, sent.epoch, base, last)
                history.append(made)
                return made

            @rule(file=st.lists(SENT, min_size=1, max_size=6))
            def commit(self, file: list[Sent]) -> None:
                # Sequences are chosen against the state before the file: later batches of one
                # producer in it may follow, repeat or gap.
                self._commit([self._batch(sent) for sent in file])

            def _commit(self, batches: list[BatchToCommit]) -> None:
                key = f"wal/{uuid4()}"
                runner.run(
                    plane.register_object_keys(gateway.gateway_id, gateway.incarnation, [key])
                )
                outcomes = runner.run(scene.commit(gateway, *batches, key=key))
                happened.update(outcome.error for outcome in outcomes)
                self.last = (key, batches, outcomes)

            @precondition(lambda self: self.last is not None)
            @rule()
            def retry_the_last_commit(self) -> None:
                assert self.last is not None
                key, batches, outcomes = self.last
                assert runner.run(scene.commit(gateway, *batches, key=key)) == outcomes

            @rule(
                partition=st.integers(0, 1),
                near=st.sampled_from(["boundary", "start", "high_watermark"]),
                distance=st.integers(-4, 4),
                size=st.integers(0, 900),
            )
            def find(self, partition: int, near: str, distance: int, size: int) -> None:
                offset = max(0, getattr(self.suffix(partition), near) + distance)
                request = FindBatchesRequest(self.logs[partition], offset, size)
                runner.run(plane.find_batches([request]))

            @rule(partition=st.integers(0, 1), timestamp=st.integers(0, 60))
            def look_up(self, partition: int, timestamp: int) -> None:
                for kind in ListOffsetsKind:
                    runner.run(plane.list_offsets(self.logs[partition], kind, timestamp))

            @rule(partition=st.integers(0, 1), before=st.integers(-1, 40))
            def delete_records(self, partition: int, before: int) -> None:
                with contextlib.suppress(OffsetOutOfRange):
                    runner.run(plane.delete_records(self.logs[partition], before))

            @rule(partition=st.integers(0, 1), log_start=st.integers(0, BOUNDARY))
            def expire_prefix(self, partition: int, log_start: int) -> None:
                runner.run(plane.advance_prefix_start(self.logs[partition], log_start))

            @rule()
            def prune(self) -> None:
                scene.jobs.prune_batches()

            @rule(partition=st.integers(0, 1), first=st.sampled_from([0, MAX_SEQUENCE - 2]))
            def produce_and_retry(self, partition: int, first: int) -> None:
                """A producer's life: eight batches over the wrap, then each of them again."""
                producers = self.suffix(partition).producers.values()
                epoch = max((entry.epoch for entry in producers), default=0)
                shape = (self.logs[partition], 0, 100, 1, 5, CREATE_TIME, 9, epoch)
                numbers = [n % SEQUENCES for n in range(first, first + 8)]
                sent = [BatchToCommit(*shape, n, n) for n in numbers]
                for batch in [*sent, *sent]:
                    self._commit([batch])

            @rule()
            def expire_producers(self) -> None:
                for _ in range(3):
                    scene.set_clock_forward(minutes=100)
                    scene.jobs.expire_producers(0)

            @invariant()
            def the_rows_are_alike(self) -> None:
                ends = runner.run(plane.high_watermarks(self.logs))
                below = {log: end - 1 for log, end in list(ends.items())[:1]}
                runner.run(plane.high_watermarks(self.logs, ends | below))
                for log in self.logs:
                    runner.run(plane.tracked_partition(log.topic_id, log.partition))

        try:
            run_state_machine_as_test(
                SuffixOfBoth,
                settings=settings(
                    max_examples=80,
                    stateful_step_count=15,
                    deadline=None,
                    suppress_health_check=list(HealthCheck),
                ),
            )
            # One life in order, so that what must happen at all has happened.
            life = SuffixOfBoth()
            for first in (0, MAX_SEQUENCE - 2):
                life.produce_and_retry(0, first)
            life.the_rows_are_alike()
        finally:
            runner.run(connection.__aexit__(None, None, None))
    assert happened >= {
        CommitError.NONE,
        CommitError.DUPLICATE,
        CommitError.OUT_OF_ORDER_SEQUENCE,
    }
