"""Keys of segments are understood in both layouts; foreign keys are left out."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from datetime import UTC, datetime
from uuid import UUID

import pytest

from tideline.domain.ids import TopicIdPartition, topic_id_to_base64
from tideline.domain.log_gap import is_copied
from tideline.object_store.client import ObjectEntry, ObjectMissing
from tideline.object_store.inventory import (
    SegmentInventory,
    copies_prefix,
    group_by_segment,
    partition_prefix,
)
from tideline.settings import ObjectStoreSettings

SEGMENT = UUID(int=9)
LOG = TopicIdPartition(UUID(int=1), 0)
SETTINGS = ObjectStoreSettings.of(
    {"TIDELINE_S3_BUCKET": "wal", "TIDELINE_S3_TIERED_BUCKET": "tiered"}
)
NAME = f"segments/orders-x/0/{5:020d}-{topic_id_to_base64(SEGMENT)}"


def test_the_objects_of_a_segment_belong_together() -> None:
    listing = [(f"{NAME}.log", 77), (f"{NAME}.index", 1), (f"{NAME}.leader-epoch-checkpoint", 2)]
    found = group_by_segment(iter(listing))
    assert found[SEGMENT].log_bytes == 77
    assert found[SEGMENT].kinds == {"index", "leader-epoch-checkpoint"}


def test_indexes_without_a_log_are_no_complete_segment() -> None:
    assert group_by_segment(iter([(f"{NAME}.index", 1)]))[SEGMENT].log_bytes is None


def test_foreign_keys_are_left_out() -> None:
    listing = [("readme.txt", 1), ("segments/orders-x/0/5-short.log", 1), (f"{NAME}.LOG", 1)]
    assert group_by_segment(iter(listing)) == {}


def test_a_key_prefix_may_end_with_a_slash_or_not() -> None:
    log = TopicIdPartition(UUID(int=1), 3)
    end = f"orders-{topic_id_to_base64(log.topic_id)}/3/"
    assert partition_prefix("", "orders", log) == end
    assert partition_prefix("a", "orders", log) == partition_prefix("a/", "orders", log)
    assert partition_prefix("a/", "orders", log) == f"a/{end}"


class Buckets:
    """Sizes of objects by bucket and key; copies in the order in which they were made."""

    def __init__(self) -> None:
        self.sizes: dict[tuple[str, str], int] = {}
        self.copied: list[str] = []

    def connect(self) -> None:
        """Nothing to do."""

    def list_objects(self, bucket: str, prefix: str) -> Iterator[ObjectEntry]:
        for (where, key), size in sorted(self.sizes.items()):
            if where == bucket and key.startswith(prefix):
                yield ObjectEntry(key, size, datetime(2026, 1, 1, tzinfo=UTC))

    def delete(self, bucket: str, keys: Iterable[str]) -> None:
        for key in keys:
            self.sizes.pop((bucket, key), None)

    def copy(self, bucket: str, key: str, to_bucket: str, to_key: str) -> None:
        if (bucket, key) not in self.sizes:
            raise ObjectMissing(f"bucket {bucket}: copy {key}: no such key")
        self.sizes[to_bucket, to_key] = self.sizes[bucket, key]
        self.copied.append(key.rpartition(".")[2])


@pytest.fixture
def buckets() -> Buckets:
    """Two segments of one partition, 9 and 10."""
    buckets = Buckets()
    for number in (9, 10):
        name = f"{number:020d}-{topic_id_to_base64(UUID(int=number))}"
        for kind, size in (("log", 77), ("index", 1), ("timeindex", 2)):
            key = f"{partition_prefix(SETTINGS.s3_tiered_prefix, 'orders', LOG)}{name}.{kind}"
            buckets.sizes["tiered", key] = size
    return buckets


@pytest.fixture
def inventory(buckets: Buckets, monkeypatch: pytest.MonkeyPatch) -> SegmentInventory:
    monkeypatch.setattr(
        "tideline.object_store.inventory.ObjectStoreClient", lambda *_, **__: buckets
    )
    return SegmentInventory(SETTINGS)


async def test_of_the_named_segments_every_object_is_copied_the_log_last(
    inventory: SegmentInventory, buckets: Buckets
) -> None:
    kept = await inventory.keep("orders", LOG, {SEGMENT})
    assert (kept.segments, kept.objects, kept.bytes, kept.copied) == (1, 3, 80, 3)
    assert kept.address == f"s3://wal/{copies_prefix('orders', LOG)}"
    assert buckets.copied == ["index", "timeindex", "log"]
    copies = await inventory.copies("orders", LOG)
    originals = await inventory.objects("orders", LOG)
    assert set(copies) == {SEGMENT}
    assert is_copied(originals[SEGMENT], copies[SEGMENT])


async def test_what_is_there_in_its_size_is_not_copied_again(
    inventory: SegmentInventory, buckets: Buckets
) -> None:
    await inventory.keep("orders", LOG, {SEGMENT})
    (cut,) = [key for key in buckets.sizes if key[0] == "wal" and key[1].endswith(".log")]
    buckets.sizes[cut] = 5
    assert (await inventory.keep("orders", LOG, {SEGMENT})).copied == 1
    assert (await inventory.keep("orders", LOG, {SEGMENT})).copied == 0


async def test_an_object_that_a_broker_deletes_meanwhile_is_an_error(
    inventory: SegmentInventory, buckets: Buckets, monkeypatch: pytest.MonkeyPatch
) -> None:
    listed = list(buckets.list_objects("tiered", ""))
    buckets.sizes.clear()
    monkeypatch.setattr(
        buckets, "list_objects", lambda bucket, _: iter(listed if bucket == "tiered" else [])
    )
    with pytest.raises(ObjectMissing):
        await inventory.keep("orders", LOG, {SEGMENT})


async def test_the_segments_of_one_partition_go_log_objects_first_and_nothing_else_does(
    inventory: SegmentInventory, buckets: Buckets
) -> None:
    prefix = partition_prefix(SETTINGS.s3_tiered_prefix, "orders", LOG)
    buckets.sizes["tiered", f"{prefix}readme.txt"] = 1
    keys = await inventory.keys("orders", LOG)
    assert [key.endswith(".log") for key in keys] == [True, True, False, False, False, False]
    await inventory.delete(keys)
    assert list(buckets.sizes) == [("tiered", f"{prefix}readme.txt")]
    await inventory.delete(keys)
