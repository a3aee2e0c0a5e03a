"""Retention carried out: the prefix first, then the suffix; a refusal holds up nobody else."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from uuid import UUID

from spark.retention.tasks import RemovalOrder, Removed, remove
from tideline.control_plane.errors import OffsetOutOfRange
from tideline.domain.ids import TopicPartition
from tideline.kafka.admin import Deletion, NotDeleted

TOPIC = UUID(int=1)


def order(
    log_id: int = 0,
    *,
    prefix_start: int = 0,
    prefix: int | None = None,
    suffix: int | None = None,
    boundary: int = 100,
    prefix_end: int | None = None,
    moved: bool = False,
) -> RemovalOrder:
    return RemovalOrder(
        log_id, "t", TOPIC, log_id, boundary, boundary if prefix_end is None else prefix_end,
        prefix_start, moved, prefix, suffix,
    )  # fmt: skip


@dataclass
class Kafka:
    """Answers what it is told to, else what was asked for."""

    answers: dict[int, int | NotDeleted] = field(default_factory=dict)
    asked: list[Deletion] = field(default_factory=list)

    async def delete(self, wanted: Sequence[Deletion]) -> dict[TopicPartition, int | NotDeleted]:
        self.asked += wanted
        return {d.name: self.answers.get(d.partition, d.before_offset) for d in wanted}


@dataclass
class Postgres:
    calls: list[tuple[str, int, int]] = field(default_factory=list)
    refusing: bool = False

    def advance_prefix_start(self, topic_id: UUID, partition: int, log_start: int) -> None:
        self.calls.append(("prefix", partition, log_start))

    def delete_records(self, topic_id: UUID, partition: int, before_offset: int) -> int:
        if self.refusing:
            raise OffsetOutOfRange("past the high watermark")
        self.calls.append(("suffix", partition, before_offset))
        return before_offset


async def carried_out(
    *orders: RemovalOrder, kafka: Kafka | None = None, postgres: Postgres | None = None
) -> tuple[list[Removed], list[tuple[str, int, int]]]:
    plane = postgres or Postgres()
    done = await remove(orders, kafka or Kafka(), plane)  # type: ignore[arg-type]
    return done, plane.calls


async def test_the_prefix_goes_before_the_suffix() -> None:
    done, calls = await carried_out(order(prefix=100, suffix=130))
    assert calls == [("prefix", 0, 100), ("suffix", 0, 130)]
    assert done == [Removed(0, 100, 130)]


async def test_the_suffix_keeps_everything_while_kafka_keeps_some_of_the_prefix() -> None:
    done, calls = await carried_out(order(prefix=100, suffix=130), kafka=Kafka({0: 60}))
    assert calls == [("prefix", 0, 60)]
    assert done[0].retriable
    assert "below B0 100" in str(done[0].problem)


async def test_a_prefix_that_is_gone_up_to_an_accepted_gap_lets_the_suffix_go() -> None:
    done, calls = await carried_out(order(prefix=80, prefix_end=80, suffix=130))
    assert calls == [("prefix", 0, 100), ("suffix", 0, 130)]
    assert done == [Removed(0, 80, 130)]


async def test_a_partition_that_is_refused_does_not_hold_up_another() -> None:
    kafka = Kafka({0: NotDeleted("the partition has no leader")})
    done, calls = await carried_out(order(0, prefix=50), order(1, prefix=60), kafka=kafka)
    assert calls == [("prefix", 1, 60)]
    assert done == [
        Removed(0, problem="the partition has no leader", retriable=True),
        Removed(1, 60),
    ]


async def test_a_topic_that_was_deleted_meanwhile_is_nothing_to_try_again() -> None:
    kafka = Kafka({0: NotDeleted("Kafka has no such topic any more", gone=True)})
    done, _ = await carried_out(order(prefix=50), kafka=kafka)
    assert not done[0].retriable


async def test_kafkas_own_expiry_is_told_to_the_control_plane() -> None:
    done, calls = await carried_out(order(prefix_start=40, moved=True))
    assert (calls, done) == ([("prefix", 0, 40)], [Removed(0)])


async def test_without_a_boundary_only_kafka_is_asked() -> None:
    kafka = Kafka()
    _, calls = await carried_out(order(prefix=50, boundary=-1), kafka=kafka)
    assert calls == []
    assert [(d.name, d.topic_id, d.before_offset) for d in kafka.asked] == [
        (TopicPartition("t", 0), TOPIC, 50)
    ]


async def test_once_the_prefix_is_gone_kafka_is_not_asked() -> None:
    kafka = Kafka()
    _, calls = await carried_out(order(prefix_start=100, suffix=130), kafka=kafka)
    assert (kafka.asked, calls) == ([], [("suffix", 0, 130)])


async def test_a_refusal_of_the_control_plane_is_told_and_not_tried_again() -> None:
    done, _ = await carried_out(
        order(prefix_start=100, suffix=130), postgres=Postgres(refusing=True)
    )
    assert (done[0].problem, done[0].retriable) == ("past the high watermark", False)
