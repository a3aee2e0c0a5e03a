"""Footers are read with few bytes each and bounded; nothing is concluded from half a bucket."""

from __future__ import annotations

from uuid import UUID, uuid4

import pytest

from tests.unit.rebuild.buckets import Bucket
from tideline.domain.wal_footer import (
    TAIL_READ,
    BatchOutcome,
    EarlierCommit,
    Footer,
    FooterBatch,
    encode,
)
from tideline.domain.wal_streams import Streams
from tideline.object_store.client import ObjectStoreUnavailable
from tideline.rebuild.reader import BucketReader

TOPIC, STREAM = uuid4(), uuid4()


def wal_object(sequence: int, batches: int = 1, earlier: tuple[EarlierCommit, ...] = ()) -> bytes:
    made = tuple(
        FooterBatch(TOPIC, 0, n * 10, 10, 1, -1, -1, -1, -1, 1_000, False) for n in range(batches)
    )
    footer = Footer(UUID(int=1), 1, STREAM, sequence, 5, made, earlier)
    return b"x" * (10 * batches) + encode(footer)


def read(bucket: Bucket, prefix: str = "", parallel: int = 4) -> Streams:
    streams = Streams()
    BucketReader(bucket, "wal", prefix, parallel).footers(streams)
    return streams


def test_every_object_under_the_prefix_is_read_once_and_no_other() -> None:
    objects = {f"house/wal/{n:03}": wal_object(n) for n in range(100)}
    bucket = Bucket({**objects, "wal/other": wal_object(1), "house/runs/a": b"result"})
    streams = read(bucket, "house/")
    assert (streams.objects, streams.batches) == (100, 100)
    assert sorted(key for key, _ in bucket.asked) == sorted(objects)
    assert bucket.most_at_once <= 4


def test_a_long_footer_is_asked_for_again_with_what_it_takes_and_no_more() -> None:
    outcomes = tuple(BatchOutcome("NONE", n, 1) for n in range(10_000))
    told = EarlierCommit(1, "wal/1", outcomes)
    bucket = Bucket({"wal/1": wal_object(1), "wal/2": wal_object(2, 2, (told,))})
    streams = read(bucket)
    assert [size for key, size in bucket.asked if key == "wal/2"] == [
        TAIL_READ,
        len(bucket.objects["wal/2"]) - 20,
    ]
    assert streams.unreadable == []


def test_an_object_without_a_footer_is_told_with_the_reason_and_never_guessed() -> None:
    whole = wal_object(1)
    bucket = Bucket({"wal/cut": whole[:-1], "wal/empty": b"", "wal/old": b"y" * 100_000})
    streams = read(bucket)
    assert [found.key for found in streams.unreadable] == ["wal/cut", "wal/empty", "wal/old"]
    assert all("not with a footer" in found.why for found in streams.unreadable)
    assert list(streams.told()) == []


def test_what_the_collection_deletes_meanwhile_is_not_there() -> None:
    bucket = Bucket({"wal/1": wal_object(1), "wal/2": wal_object(2)}, gone=frozenset({"wal/1"}))
    assert read(bucket).objects == 1


def test_a_store_that_is_away_ends_the_reading() -> None:
    bucket = Bucket({"wal/1": wal_object(1)}, away=True)
    with pytest.raises(ObjectStoreUnavailable):
        read(bucket)


def test_metadata_records_come_whole_and_in_the_order_of_their_keys() -> None:
    bucket = Bucket({f"meta/{n:02}": bytes([n]) * n for n in range(20)})
    found = list(BucketReader(bucket, "wal", "", 3).documents())
    assert [(entry.key, body) for entry, body in found] == sorted(bucket.objects.items())
