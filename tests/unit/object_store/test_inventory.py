"""Keys of segments are understood in both layouts; foreign keys are left out."""

from __future__ import annotations

from uuid import UUID

from tideline.domain.ids import TopicIdPartition, topic_id_to_base64
from tideline.object_store.inventory import group_by_segment, partition_prefix

SEGMENT = UUID(int=9)
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
