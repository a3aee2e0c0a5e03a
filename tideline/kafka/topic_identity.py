"""Which topic ids Kafka has, and how many partitions a topic: asked by id, of every broker, at a
known offset of its metadata.

A broker that has just started, or lags behind the controller, does not know the newest topics: that
it knows none of an id says nothing. A *whole look* asks every broker after each has fetched the
metadata log up to what the quorum had committed when the look began; it gives an answer or none,
never half of one. An id never comes back (KIP-516), so two whole looks that both miss it are proof.
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from uuid import UUID

from kio.schema.describe_quorum.v2 import request as dq
from kio.schema.describe_quorum.v2.response import DescribeQuorumResponse
from kio.schema.errors import ErrorCode
from kio.schema.metadata.v12 import request as md
from kio.schema.metadata.v12.response import MetadataResponse
from kio.schema.types import TopicName
from kio.static.primitive import i32

from tideline.kafka.client import KafkaCluster, KafkaConnection
from tideline.kafka.errors import KafkaError, KafkaUnavailable

METADATA_LOG = "__cluster_metadata"
CAUGHT_UP_S = 5.0
"""How long a broker may lag behind the quorum before a look is given up."""
LAG_POLL_S = 0.05
TOPICS_AT_ONCE = 200
"""Per request, so that no answer takes long to decode."""
BETWEEN_LOOKS_S = 0.5
"""A broker serves what it has fetched a moment later."""


class Presence(StrEnum):
    """What is known of one topic id."""

    PRESENT = "present"
    GONE = "gone"
    """Two whole looks found no broker that knows it."""
    UNKNOWN = "unknown"
    """A broker did not answer, lags, or the brokers do not agree."""


@dataclass(frozen=True, slots=True)
class Look:
    """One whole look."""

    metadata_offset: int
    """Committed by the quorum when the look began (exclusive); every broker had fetched it."""
    brokers: tuple[int, ...]
    present: frozenset[UUID]
    """The ids that at least one broker knows."""
    under: Mapping[str, frozenset[UUID]] = field(default_factory=dict)
    """The ids that brokers have under each name that was asked for; none: no such topic."""


@dataclass(frozen=True, slots=True)
class Finding:
    """What is known of one topic id, and on which grounds."""

    presence: Presence
    why: str
    looks: tuple[Look, ...] = ()


class TopicIdentity:
    """Asks the brokers directly. Changes nothing."""

    def __init__(self, cluster: KafkaCluster, timeout_ms: int = 10_000) -> None:
        self._cluster = cluster
        self._timeout_ms = timeout_ms

    async def look(self, ids: Collection[UUID], names: Collection[str] = ()) -> Look:
        """One whole look at ``ids``, and at what stands under ``names``.

        Raises :class:`KafkaUnavailable` when a broker does not answer or does not catch up,
        :class:`KafkaError` when one refuses to say.
        """
        offset, _ = await self._quorum()
        nodes = tuple(sorted(await self._cluster.nodes()))
        await self._caught_up(nodes, offset)
        wanted = sorted(ids)
        views = await asyncio.gather(*(self._known_to(node, wanted) for node in nodes))
        under = {name: frozenset[UUID]() for name in names}
        for node in nodes if names else ():
            found = await self._ids_at(await self._cluster.node(node), sorted(names))
            if missing := set(names) - set(found):
                raise KafkaUnavailable(f"broker {node} does not say what {min(missing)!r} is")
            under |= {n: under[n] | {one} for n, one in found.items() if one is not None}
        return Look(offset, nodes, frozenset[UUID]().union(*views), under)

    async def find(self, topic_id: UUID) -> Finding:
        """Whether Kafka has the topic id, by up to two whole looks. Raises nothing of Kafka's:
        what cannot be learned is ``UNKNOWN``."""
        looks: list[Look] = []
        for number in range(2):
            if number:
                await asyncio.sleep(BETWEEN_LOOKS_S)
            try:
                looks.append(await self.look([topic_id]))
            except (KafkaUnavailable, KafkaError) as error:
                return Finding(Presence.UNKNOWN, str(error), tuple(looks))
            if topic_id in looks[-1].present:
                why = f"a broker knows topic id {topic_id}"
                return Finding(Presence.PRESENT, why, tuple(looks))
        first, second = looks
        why = (
            f"brokers {', '.join(map(str, second.brokers))} do not know topic id {topic_id}, by "
            f"two looks at metadata offsets {first.metadata_offset} and {second.metadata_offset}"
        )
        return Finding(Presence.GONE, why, tuple(looks))

    async def partitions(self, topic_id: UUID) -> int:
        """How many partitions the topic has: the most that a broker knows, after each has fetched
        what the quorum had committed when this was asked. 0: no broker knows the topic. Raises as
        :meth:`look`."""
        look = await self.look([topic_id])
        await asyncio.sleep(BETWEEN_LOOKS_S)
        counts = await asyncio.gather(*(self._count(node, topic_id) for node in look.brokers))
        return max(counts, default=0)

    async def _count(self, node: int, topic_id: UUID) -> int:
        connection = await self._cluster.node(node)
        request = _metadata((md.MetadataRequestTopic(topic_id=topic_id, name=None),))
        answer = await connection.send(request, timeout_ms=self._timeout_ms)
        assert isinstance(answer, MetadataResponse)
        return max((len(t.partitions) for t in answer.topics if t.topic_id == topic_id), default=0)

    async def ids_of(self, names: Sequence[str]) -> dict[str, UUID | None]:
        """The id under each name as *one* broker has it; ``None``: it knows no such topic. A name
        whose answer is another error is left out. Raises :class:`KafkaUnavailable`."""
        return await self._ids_at(await self._cluster.any(), names)

    async def _ids_at(
        self, connection: KafkaConnection, names: Sequence[str]
    ) -> dict[str, UUID | None]:
        found: dict[str, UUID | None] = {}
        for start in range(0, len(names), TOPICS_AT_ONCE):
            some = names[start : start + TOPICS_AT_ONCE]
            request = _metadata(
                tuple(md.MetadataRequestTopic(topic_id=None, name=TopicName(n)) for n in some)
            )
            answer = await connection.send(request, timeout_ms=self._timeout_ms)
            assert isinstance(answer, MetadataResponse)
            for topic in answer.topics:
                if topic.name is None:
                    continue
                if topic.error_code is ErrorCode.unknown_topic_or_partition:
                    found[str(topic.name)] = None
                elif topic.error_code in _READABLE and topic.topic_id is not None:
                    found[str(topic.name)] = topic.topic_id
        return found

    async def _quorum(self) -> tuple[int, Mapping[int, int]]:
        """The high watermark of the metadata log, and how far each node has fetched it."""
        request = dq.DescribeQuorumRequest(
            topics=(
                dq.TopicData(
                    topic_name=TopicName(METADATA_LOG),
                    partitions=(dq.PartitionData(partition_index=i32(0)),),
                ),
            )
        )
        connection = await self._cluster.any()
        answer = await connection.send(request, timeout_ms=self._timeout_ms)
        assert isinstance(answer, DescribeQuorumResponse)
        codes = [answer.error_code]
        codes += [p.error_code for topic in answer.topics for p in topic.partitions]
        for code in codes:
            if code is not ErrorCode.none:
                raise KafkaError(code, "the metadata quorum")
        partitions = [p for topic in answer.topics for p in topic.partitions]
        if not partitions or partitions[0].high_watermark < 0:
            raise KafkaUnavailable("the metadata quorum names no high watermark: it has no leader")
        (log,) = partitions
        ends = {
            int(r.replica_id): int(r.log_end_offset) for r in (*log.observers, *log.current_voters)
        }
        return int(log.high_watermark), ends

    async def _caught_up(self, nodes: Sequence[int], offset: int) -> None:
        loop = asyncio.get_running_loop()
        deadline = loop.time() + CAUGHT_UP_S
        while True:
            _, ends = await self._quorum()
            behind = [node for node in nodes if ends.get(node, -1) < offset]
            if nodes and not behind:
                return
            if loop.time() > deadline:
                raise KafkaUnavailable(
                    f"broker {', '.join(map(str, behind)) or '(none)'} has not fetched the "
                    f"metadata up to offset {offset} within {CAUGHT_UP_S:.0f} s: what it does "
                    "not know proves nothing; bring it back or wait"
                )
            await asyncio.sleep(LAG_POLL_S)

    async def _known_to(self, node: int, ids: Sequence[UUID]) -> set[UUID]:
        known: set[UUID] = set()
        for start in range(0, len(ids), TOPICS_AT_ONCE):
            some = ids[start : start + TOPICS_AT_ONCE]
            request = _metadata(
                tuple(md.MetadataRequestTopic(topic_id=one, name=None) for one in some)
            )
            connection = await self._cluster.node(node)
            answer = await connection.send(request, timeout_ms=self._timeout_ms)
            assert isinstance(answer, MetadataResponse)
            answered = {topic.topic_id: topic.error_code for topic in answer.topics}
            for one in some:
                code = answered.get(one)
                if code is None:
                    raise KafkaUnavailable(f"broker {node} did not say whether it knows {one}")
                if code in _READABLE:
                    known.add(one)
                elif code is not ErrorCode.unknown_topic_id:
                    raise KafkaError(code, f"metadata of topic id {one} on broker {node}")
        return known


_READABLE = frozenset({ErrorCode.none, ErrorCode.leader_not_available})
"""The topic exists; whether a partition has a leader is not the question."""


def _metadata(topics: tuple[md.MetadataRequestTopic, ...]) -> md.MetadataRequest:
    return md.MetadataRequest(
        topics=topics,
        allow_auto_topic_creation=False,
        include_topic_authorized_operations=False,
    )
