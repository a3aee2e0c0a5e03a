"""Looks at partitions that Postgres has no row of, before one is declared diskless."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Mapping
from uuid import UUID

from tideline.domain.grown import NewLog, first_in_the_way, why_not_taken_in
from tideline.errors import RefusedError, TidelineError
from tideline.kafka.errors import KafkaError, KafkaUnavailable
from tideline.kafka.observer import (
    DEBUG_CONSUMER,
    KafkaObserver,
    OffsetAnswer,
    OffsetSpec,
    TopicLayout,
)


class NotEmpty(RefusedError):
    """A partition that nobody knows held records: it may not begin diskless."""


def unknown_partitions(layout: TopicLayout, known: Collection[int]) -> list[int]:
    return sorted(set(layout.partitions) - set(known))


def new_logs(
    layout: TopicLayout, known: Collection[int], ends: Mapping[int, Mapping[int, int]]
) -> list[NewLog]:
    """``ends``: log end (exclusive) by partition and node."""
    return [
        NewLog(n, place.leader, place.replicas, dict(ends.get(n, {})))
        for n in unknown_partitions(layout, known)
        for place in (layout.partitions[n],)
    ]


async def look_at_new_logs(
    observer: KafkaObserver, name: str, topic_id: UUID, known: Collection[int]
) -> list[NewLog] | None:
    """Each partition that is not ``known``, by number, as its replicas say it; those that do not
    answer at the leader's epoch are missing. ``None``: the name is another topic's, or nobody's.

    Raises :class:`KafkaUnavailable` when nobody says which partitions there are.
    """
    try:
        layout = await observer.topic(name)
    except KafkaError as error:
        raise KafkaUnavailable(str(error)) from error
    if layout is None or layout.topic_id != topic_id:
        return None
    by_node: dict[int, list[int]] = defaultdict(list)
    for n in unknown_partitions(layout, known):
        for node in layout.partitions[n].replicas:
            by_node[node].append(n)
    ends: dict[int, dict[int, int]] = defaultdict(dict)
    for node, numbers in sorted(by_node.items()):
        try:
            answers = await observer.offsets_of(
                {name: numbers},
                OffsetSpec.LATEST,
                node=node,
                leader_epochs={(name, n): layout.partitions[n].leader_epoch for n in numbers},
                replica_id=DEBUG_CONSUMER,
            )
        except TidelineError:
            continue
        for (_, n), answer in answers.items():
            if isinstance(answer, OffsetAnswer):
                ends[n][node] = answer.offset
    return new_logs(layout, known, ends)


async def assert_always_empty(
    observer: KafkaObserver, name: str, topic_id: UUID, known: Collection[int], total: int
) -> int:
    """How many partitions the topic has, ``total`` at least: of all of them that are not ``known``
    every replica says that nothing was ever appended. Of a topic that is gone those that are known.

    Raises :class:`NotEmpty` over records, and :class:`KafkaUnavailable` while it is not known:
    trying again may help.
    """
    logs = await look_at_new_logs(observer, name, topic_id, known)
    if logs is None:
        return len(known)
    if (held := next((log for log in logs if log.held_records), None)) is not None:
        raise NotEmpty(why_not_taken_in(name, held))
    if (unknown := first_in_the_way(logs)) is not None:
        raise KafkaUnavailable(why_not_taken_in(name, unknown))
    found = len(known) + len(logs)
    if found < total:
        raise KafkaUnavailable(
            f"topic {name} ({topic_id}) has {found} partitions to one broker, not {total} yet"
        )
    return found
