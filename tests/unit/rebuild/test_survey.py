"""What is said of each log of a bucket when no Postgres is there."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import cast
from uuid import UUID, uuid4

import pytest

from tests.unit.rebuild.buckets import (
    HISTORY,
    OTHER,
    TOPIC,
    Bucket,
    Stream,
    footer_batch,
    look,
    note_orders_and_births,
)
from tideline.domain.catalog import SuffixStart, TopicDeleted
from tideline.domain.ids import TopicIdPartition
from tideline.domain.producer_state import ProducerEntry
from tideline.domain.rebuild import KnownPlace
from tideline.domain.rebuild_plan import KnownBatch, KnownLog, Verdict
from tideline.rebuild import report
from tideline.rebuild.postgres import RebuildPostgres
from tideline.rebuild.reader import BucketReader
from tideline.rebuild.survey import Choices, Survey, survey

LOG = TopicIdPartition(TOPIC, 0)


@pytest.fixture
def bucket() -> Bucket:
    made = Bucket()
    note_orders_and_births(made)
    return made


def test_a_bucket_that_tells_everything_is_fine(bucket: Bucket) -> None:
    stream = Stream(bucket)
    stream.commit(10, footer_batch(TOPIC, records=3), footer_batch(TOPIC, at=10))
    stream.commit(0, footer_batch(OTHER))
    stream.store()
    found = look(bucket)
    assert report.is_fine(found)
    assert report.blockers(found) == []
    plan = found.plans[LOG]
    assert (plan.verdict, plan.high_watermark, len(plan.add)) == (Verdict.BEHIND, 14, 2)


def test_an_object_that_is_lost_is_a_hole_and_nothing_behind_it_moves(bucket: Bucket) -> None:
    stream = Stream(bucket)
    lost = stream.commit(10, footer_batch(TOPIC, records=3))
    stream.commit(13, footer_batch(TOPIC))
    stream.store()
    del bucket.objects[lost]
    found = look(bucket)
    assert not report.is_fine(found)
    assert found.plans[LOG].verdict is Verdict.HOLES
    (log,) = (one for one in report.document(found)["logs"] if one["topic"] == "orders")
    assert (log["holes"], log["high_watermark"]) == ([[10, 12]], 14)
    assert "    nothing known from offset 10 to 12" in list(report.lines(found))


def test_offsets_of_commits_that_nobody_tells_are_left_free(bucket: Bucket) -> None:
    one, other = Stream(bucket), Stream(bucket, gateway_id=2)
    one.commit(10, footer_batch(TOPIC, records=2))
    one.store()
    one.store(footer_batch(TOPIC, records=3))
    other.store(footer_batch(TOPIC, records=4))
    found = look(bucket)
    assert found.plans[LOG].verdict is Verdict.OPEN
    assert (found.plans[LOG].end, found.plans[LOG].high_watermark) == (12, 19)
    given_up = look(bucket, give_up_open=True)
    assert (given_up.plans[LOG].verdict, given_up.plans[LOG].high_watermark) == (Verdict.BEHIND, 12)


def test_an_object_without_a_footer_forbids_writing(bucket: Bucket) -> None:
    stream = Stream(bucket)
    stream.commit(10, footer_batch(TOPIC))
    stream.store()
    bucket.objects["wal/stray"] = b"y" * 100
    found = look(bucket)
    assert not report.is_fine(found)
    assert "wal/stray" in report.blockers(found)[0]


def test_a_record_of_the_catalog_that_cannot_be_read_forbids_writing(bucket: Bucket) -> None:
    key = next(key for key in bucket.objects if "/boundary/" in key)
    bucket.objects[key] = bucket.objects[key][:-1]
    found = look(bucket)
    assert key in report.blockers(found)[0]


def test_batches_of_a_topic_that_nobody_knows_are_told_and_have_no_place(bucket: Bucket) -> None:
    stranger = uuid4()
    stream = Stream(bucket)
    stream.commit(0, footer_batch(stranger))
    stream.store()
    found = look(bucket)
    assert found.plans[TopicIdPartition(stranger, 0)].verdict is Verdict.UNKNOWN_TOPIC
    assert not report.is_fine(found)


def test_a_deleted_topic_is_not_brought_back(bucket: Bucket) -> None:
    stream = Stream(bucket)
    stream.commit(0, footer_batch(OTHER))
    stream.store()
    bucket.note(TopicDeleted(OTHER, "the worker", "Kafka deleted it"))
    found = look(bucket)
    assert [log.topic_id for log in found.plans] == [TOPIC]
    assert report.is_fine(found)


def begins_at_13(bucket: Bucket) -> Stream:
    """Records were deleted up to there, and the object that held them."""
    stream = Stream(bucket)
    gone = stream.commit(10, footer_batch(TOPIC, records=3))
    stream.commit(13, footer_batch(TOPIC))
    stream.store()
    del bucket.objects[gone]
    bucket.note(SuffixStart(TOPIC, 0, 10, 13))
    return stream


def test_what_retention_removed_is_no_hole(bucket: Bucket) -> None:
    begins_at_13(bucket)
    found = look(bucket)
    assert report.is_fine(found)
    assert found.plans[LOG].high_watermark == 14


class PostgresAfter:
    """A Postgres that holds what ``found`` has told it to write."""

    def __init__(self, found: Survey) -> None:
        self._found = found

    def logs(self) -> list[KnownLog]:
        return [
            replace(
                plan.known,
                high_watermark=plan.high_watermark,
                suffix_start=self._found.grounds[log].known.suffix_start,
                producers=plan.producers,
            )
            for log, plan in self._found.plans.items()
            if plan.known is not None
        ]

    def producers(self, log: TopicIdPartition) -> Mapping[int, ProducerEntry]:
        return self._found.plans[log].producers

    def objects(self, keys: Iterable[str]) -> dict[str, dict[int, KnownPlace]]:
        return {}

    def batches(self, log: TopicIdPartition) -> list[KnownBatch]:
        return [
            KnownBatch(
                row.base_offset,
                row.last_offset,
                row.object_key,
                row.footer.byte_offset,
                row.footer.byte_size,
                row.running_max_timestamp,
            )
            for row in self._found.plans[log].add
        ]


def test_what_a_rebuild_left_open_is_not_placed_behind_the_offsets_that_it_left_free(
    bucket: Bucket,
) -> None:
    """What the producer wrote before offset 13 is deleted; Postgres, as it was rebuilt, does not
    know it either, and takes it for one that is new."""
    stream = begins_at_13(bucket)
    again = replace(
        footer_batch(TOPIC), producer_id=7, producer_epoch=0, base_sequence=3, last_sequence=3
    )
    stream.store(again, footer_batch(TOPIC, at=10))
    first = look(bucket)
    assert (first.plans[LOG].end, first.plans[LOG].high_watermark) == (14, 16)
    postgres = cast(RebuildPostgres, PostgresAfter(first))
    second = survey(BucketReader(bucket, "wal", ""), postgres, Choices())
    assert (second.plans[LOG].add, second.plans[LOG].inferred) == ((), 0)
    assert [o.placed_at for o in second.rebuilt.open_objects] == [None]


def test_only_the_topics_that_are_asked_for_are_told(bucket: Bucket) -> None:
    stream = Stream(bucket)
    stream.commit(10, footer_batch(TOPIC))
    stream.commit(0, footer_batch(OTHER))
    stream.store()
    assert list(look(bucket, topics=frozenset({"orders"})).plans) == [LOG]


def test_the_report_is_one_json_document(bucket: Bucket) -> None:
    for gateway in (1, 2):
        stream = Stream(bucket, gateway, history=UUID(int=99))
        stream.store(footer_batch(TOPIC), key=f"wal/{gateway}")
    told = report.document(look(bucket, current=HISTORY))
    assert json.loads(json.dumps(told)) == told
    assert told["fine"] is False
