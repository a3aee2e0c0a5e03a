"""A worker tells how replicas lie over the racks, and moves them where a setting allows it."""

from __future__ import annotations

from prometheus_client import CollectorRegistry

from tests.unit.migration.test_replicas import BORN, HYBRID, Bench, bench, topic
from tideline.worker.replicas import ReplicaGauges, ReplicaWatch


class Watched:
    """A watch over a bench, and what its gauges say."""

    def __init__(self, b: Bench, at_once: int = 0) -> None:
        self.registry = CollectorRegistry()
        self.watch = ReplicaWatch(b.keeper, at_once, ReplicaGauges(self.registry))

    def gauge(self, name: str, **labels: str) -> float | None:
        return self.registry.get_sample_value(f"kafka_controller_diskless_{name}", labels)


async def test_factors_and_racks_are_told_and_nothing_is_moved() -> None:
    async with bench(BORN, HYBRID) as b:
        watched = Watched(b)
        await watched.watch.look()
    assert watched.gauge("effective_rf", topic="born") == 1
    assert watched.gauge("effective_rf", topic="hybrid") == 2
    assert watched.gauge("rack_aware", topic="hybrid", partition="0") == 1
    assert watched.gauge("rack_aware", topic="hybrid", partition="1") == 0
    assert watched.gauge("rf1_topics_total") == 1
    assert watched.registry.get_sample_value("inkless_replicas_last_look_timestamp_seconds")
    assert b.kafka.begun == []


async def test_a_topic_that_is_gone_is_not_told_of_any_more() -> None:
    async with bench(BORN) as b:
        watched = Watched(b)
        await watched.watch.look()
        del b.kafka.placed["born"]
        await watched.watch.look()
    assert watched.gauge("effective_rf", topic="born") is None
    assert watched.gauge("rf1_topics_total") == 0


async def test_where_it_is_allowed_each_look_begins_so_many_moves_until_all_are_even() -> None:
    async with bench(BORN, looks_to_move=0) as b:
        watched = Watched(b, at_once=2)
        for _ in range(4):
            found = await watched.watch.look()
    assert all(a.rack_aware for a in found.partitions)
    assert b.kafka.most_at_once <= 2
    assert [len(begun) for begun in b.kafka.begun] == [2, 1]


async def test_nothing_is_asked_of_other_topics_while_nothing_is_to_be_moved() -> None:
    async with bench(topic("hybrid", (10, True))) as b:
        await Watched(b, at_once=2).watch.look()
    assert b.kafka.metadata_asked == [["hybrid"]]
