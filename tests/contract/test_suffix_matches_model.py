"""The SQL of the suffix does what ``tideline.domain.suffix_log`` says, step by step."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from uuid import uuid4

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, precondition, rule, run_state_machine_as_test

from tests.contract.conftest import Database
from tests.contract.scenes import Scene
from tideline.control_plane import connect
from tideline.control_plane.errors import OffsetOutOfRange
from tideline.control_plane.model import (
    BatchToCommit,
    CommitError,
    FindBatchesRequest,
    ListOffsetsKind,
)
from tideline.domain.pipelining import MAX_SEQUENCE
from tideline.domain.producer_state import last_sequence_of, sequence_after
from tideline.domain.suffix_log import Appended, Produced, SuffixLog

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


def _base_sequence(sent: Sent, log: SuffixLog) -> int:
    entry = log.producers.get(sent.producer_id)
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


def _key(batch: Appended) -> tuple[int, int, int, int, int]:
    return (
        batch.base_offset,
        batch.last_offset,
        batch.byte_size,
        batch.append_time,
        batch.max_timestamp,
    )


def test_the_suffix_behaves_as_its_model(database: Database) -> None:
    with asyncio.Runner() as runner:
        connection = connect(database.settings(), application_name="model")
        plane = runner.run(connection.__aenter__())
        scene = Scene(plane, database.dsn)
        scene.clear()
        gateway = runner.run(scene.gateway())

        class Suffix(RuleBasedStateMachine):
            def __init__(self) -> None:
                super().__init__()
                _, topic = runner.run(scene.migrating_topic([gateway], partitions=2))
                self.logs = topic
                self.models = [SuffixLog(BOUNDARY), SuffixLog(BOUNDARY)]
                self.history: dict[tuple[int, int], list[Produced]] = {}
                self.last: tuple[str, list[BatchToCommit], object] | None = None
                for log in topic:
                    generation = runner.run(scene.quiesce(log, [gateway]))
                    runner.run(scene.persist(log, BOUNDARY, generation))

            def _produced(self, sent: Sent) -> Produced:
                if sent.producer_id < 0:
                    return Produced(sent.records, sent.size, sent.timestamp)
                history = self.history.setdefault((sent.partition, sent.producer_id), [])
                if sent.sequence == "again" and history:
                    # Up to seven batches back: two of them are no longer remembered.
                    return history[-7:][sent.timestamp % min(7, len(history))]
                base = _base_sequence(sent, self.models[sent.partition])
                made = Produced(
                    sent.records,
                    sent.size,
                    sent.timestamp,
                    sent.producer_id,
                    sent.epoch,
                    base,
                    last_sequence_of(base, sent.records),
                )
                history.append(made)
                return made

            @rule(file=st.lists(SENT, min_size=1, max_size=6))
            def commit(self, file: list[Sent]) -> None:
                # Sequences are chosen against the state before the file: later batches of one
                # producer in it may follow, repeat or gap.
                self._commit([(b.partition, self._produced(b), b.log_append_time) for b in file])

            def _commit(self, file: list[tuple[int, Produced, bool]]) -> None:
                batches = [
                    BatchToCommit(
                        self.logs[partition],
                        0,
                        made.byte_size,
                        made.record_count,
                        made.max_timestamp,
                        "LogAppendTime" if log_append_time else "CreateTime",
                        made.producer_id,
                        made.producer_epoch,
                        made.base_sequence,
                        made.last_sequence,
                    )
                    for partition, made, log_append_time in file
                ]
                key = f"wal/{uuid4()}"
                runner.run(
                    plane.register_object_keys(gateway.gateway_id, gateway.incarnation, [key])
                )
                outcomes = runner.run(scene.commit(gateway, *batches, key=key))
                appended = [o.append_time for o in outcomes if o.error == CommitError.NONE]
                now = max(appended, default=0)
                for (partition, made, log_append_time), outcome in zip(file, outcomes, strict=True):
                    model = self.models[partition]
                    expected = model.append(made, now, log_append_time=log_append_time)
                    assert outcome.error.value == expected.verdict.value
                    assert outcome.base_offset == expected.base_offset
                    assert outcome.append_time == expected.append_time
                    assert outcome.high_watermark == model.high_watermark
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
                model = self.models[partition]
                offset = max(0, getattr(model, near) + distance)
                request = FindBatchesRequest(self.logs[partition], offset, size)
                (found,) = runner.run(plane.find_batches([request]))
                error, batches = model.find(offset, size)
                assert (found.error, found.high_watermark) == (error, model.high_watermark)
                assert [
                    (b.base_offset, b.last_offset, b.byte_size, b.append_time, b.max_timestamp)
                    for b in found.batches
                ] == [_key(batch) for batch in batches]

            @rule(partition=st.integers(0, 1), timestamp=st.integers(0, 60))
            def look_up(self, partition: int, timestamp: int) -> None:
                model, log = self.models[partition], self.logs[partition]
                for kind, expected in (
                    (ListOffsetsKind.TIMESTAMP, model.at_timestamp(timestamp)),
                    (ListOffsetsKind.MAX_TIMESTAMP, model.of_max_timestamp()),
                ):
                    found = runner.run(plane.list_offsets(log, kind, timestamp))
                    if expected is None:
                        assert found.batch is None
                        assert found.offset == -1
                    else:
                        assert found.batch is not None
                        assert found.batch.base_offset == expected.base_offset
                        assert found.timestamp == expected.max_timestamp
                        assert found.offset >= model.start
                earliest = runner.run(plane.list_offsets(log, ListOffsetsKind.EARLIEST))
                latest = runner.run(plane.list_offsets(log, ListOffsetsKind.LATEST))
                assert (earliest.offset, latest.offset) == (model.start, model.high_watermark)

            @rule(partition=st.integers(0, 1), before=st.integers(0, 40))
            def delete_records(self, partition: int, before: int) -> None:
                log, model = self.logs[partition], self.models[partition]
                try:
                    expected = model.delete_records(before)
                except ValueError:
                    try:
                        runner.run(plane.delete_records(log, before))
                    except OffsetOutOfRange:
                        return
                    raise AssertionError("an offset past the end was accepted") from None
                assert runner.run(plane.delete_records(log, before)) == expected

            @rule()
            def prune(self) -> None:
                scene.jobs.prune_batches()

            @rule(partition=st.integers(0, 1), first=st.sampled_from([0, MAX_SEQUENCE - 2]))
            def produce_and_retry(self, partition: int, first: int) -> None:
                """A producer's life: eight batches over the wrap, then each of them again."""
                epoch = max((e.epoch for e in self.models[partition].producers.values()), default=0)
                sent = [
                    Produced(1, 100, 5, 9, epoch, n % (MAX_SEQUENCE + 1), n % (MAX_SEQUENCE + 1))
                    for n in range(first, first + 8)
                ]
                for batch in [*sent, *sent]:
                    self._commit([(partition, batch, False)])

            @rule()
            def expire_producers(self) -> None:
                scene.jobs.expire_producers(0)
                for model in self.models:
                    model.producers.clear()

        try:
            run_state_machine_as_test(
                Suffix,
                settings=settings(
                    max_examples=80,
                    stateful_step_count=15,
                    deadline=None,
                    suppress_health_check=list(HealthCheck),
                ),
            )
        finally:
            scene.jobs.close()
            runner.run(connection.__aexit__(None, None, None))
