"""Retention of some partitions, carried out: Kafka's prefix first, then the suffix.

The order keeps the log one log: the suffix loses nothing before Kafka has said that its log
starts at B0 or later. Killed anywhere, the next run sees what was done and goes on; a start never
moves back, so nothing is done twice.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from uuid import UUID

from spark.common.retry import insist
from tideline.control_plane.jobs import JobsControlPlane
from tideline.domain.ids import TopicPartition
from tideline.errors import RefusedError
from tideline.kafka.admin import Deletion, NotDeleted, RecordDeletion


@dataclass(frozen=True, slots=True)
class RemovalOrder:
    """What goes of one partition. Offsets are exclusive ends; ``None``: nothing there."""

    log_id: int
    topic: str
    topic_id: UUID
    partition: int
    boundary: int
    prefix_start: int
    """Kafka's log start as it was observed."""
    prefix_moved: bool
    """Kafka has moved it by itself (its own expiry, DeleteRecords), and Postgres does not know."""
    prefix_before: int | None
    suffix_before: int | None


@dataclass(frozen=True, slots=True)
class Removed:
    """What became of an order. ``None``: that start was not touched."""

    log_id: int
    prefix_start: int | None = None
    suffix_start: int | None = None
    problem: str | None = None
    retriable: bool = False
    """The next run is expected to succeed where this one did not."""


async def remove(
    orders: Sequence[RemovalOrder], deletion: RecordDeletion, plane: JobsControlPlane
) -> list[Removed]:
    """Carry out ``orders``. A partition that is refused does not hold up the others.

    Raises what an unreachable Postgres or cluster raises.
    """
    asked = [
        Deletion(o.topic, o.topic_id, o.partition, o.prefix_before)
        for o in orders
        if o.prefix_before is not None
    ]
    answers = await deletion.delete(asked) if asked else {}
    return [_finish(o, answers.get(TopicPartition(o.topic, o.partition)), plane) for o in orders]


def _finish(
    order: RemovalOrder, answer: int | NotDeleted | None, plane: JobsControlPlane
) -> Removed:
    if isinstance(answer, NotDeleted):
        return Removed(order.log_id, problem=answer.reason, retriable=not answer.gone)
    log_start = order.prefix_start if answer is None else answer
    suffix_start = None
    try:
        if order.boundary >= 0 and (answer is not None or order.prefix_moved):
            insist(lambda: plane.advance_prefix_start(order.topic_id, order.partition, log_start))
        if (before := order.suffix_before) is not None:
            if log_start < order.boundary:
                return Removed(
                    order.log_id,
                    answer,
                    problem=f"Kafka's log starts at {log_start}, below B0 {order.boundary}",
                    retriable=True,
                )
            suffix_start = insist(
                lambda: plane.delete_records(order.topic_id, order.partition, before)
            )
    except RefusedError as error:
        return Removed(order.log_id, answer, problem=str(error))
    return Removed(order.log_id, answer, suffix_start)
