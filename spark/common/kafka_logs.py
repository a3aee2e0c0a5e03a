"""What each partition's leader says of its log: its start, and the lineage of leader epochs.

Tasks ask for many partitions at once: topics by the hundred, then each broker once for all that it
leads. A broker that does not answer fails the job; a partition that has no leader, or is another
topic by now, is a row with a problem.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING
from uuid import UUID

from kio.schema.errors import ErrorCode

from spark.common.rows import chunks, from_frame, map_rows, to_frame
from tideline.domain.ids import TopicPartition
from tideline.domain.remote_log import EpochStart
from tideline.kafka.client import KafkaCluster
from tideline.kafka.errors import KafkaError, KafkaUnavailable
from tideline.kafka.lineages import DEBUG_CONSUMER, PARTITIONS_AT_ONCE, WantedLineage, lineages
from tideline.kafka.observer import (
    STALE_EPOCH_ERRORS,
    KafkaObserver,
    OffsetSpec,
    PartitionLayout,
    TopicLayout,
    refusal,
)
from tideline.settings import KafkaSettings

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

TOPICS_AT_ONCE = 200
"""Of one request for metadata."""
LOOKS = 3
"""A leader may move between two requests of a look: its partitions are looked at again."""


@dataclass(frozen=True, slots=True)
class WantedLog:
    log_id: int
    topic: str
    topic_id: UUID
    partition: int
    boundary: int
    """End of the prefix, see ``PartitionRow.prefix_end``. Asked for the lineage only if its log
    starts below."""
    ask_replicas: bool = False
    """Whether every replica is asked if it has rolled there. What sets tieringComplete must know;
    what keeps it need not, because a replica with a stale high watermark serves nothing past it."""

    @property
    def log(self) -> TopicPartition:
        return TopicPartition(self.topic, self.partition)


@dataclass(frozen=True, slots=True)
class ObservedLog:
    """One partition's log in Kafka, or why it could not be observed."""

    log_id: int
    log_start: int = -1
    lineage: tuple[EpochStart, ...] = ()
    unrolled: str | None = None
    """Which replicas have not rolled to B0, or did not answer."""
    problem: str | None = None


async def observe(
    cluster: KafkaCluster, timeout_ms: int, wanted: Sequence[WantedLog]
) -> list[ObservedLog]:
    """Of all of ``wanted`` the log starts, then the lineages down to them, then the replicas.

    Raises :class:`KafkaUnavailable`.
    """
    found: dict[int, ObservedLog] = {}
    rest = list(wanted)
    for _ in range(LOOKS):
        look = _Look(cluster, timeout_ms, rest)
        found |= await look.logs()
        rest = look.moved
        if not rest:
            break
    return [found[one.log_id] for one in wanted]


@dataclass
class _Look:
    """One look at many logs, in the order in which it must be."""

    cluster: KafkaCluster
    timeout_ms: int
    wanted: Sequence[WantedLog]
    moved: list[WantedLog] = field(default_factory=list)
    """Those whose leader moved meanwhile."""
    _found: dict[int, ObservedLog] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._observer = KafkaObserver(self.cluster, self.timeout_ms)

    async def logs(self) -> dict[int, ObservedLog]:
        """By log id."""
        topics = await self._topics()
        led = [
            (one, layout)
            for one in self.wanted
            if (layout := self._layout(one, topics[one.topic])) is not None
        ]
        starts = await self._offsets(
            [(one, layout.leader) for one, layout in led], OffsetSpec.EARLIEST
        )
        below = []
        for one, layout in led:
            start = starts[layout.leader, one.log]
            if isinstance(start, ErrorCode):
                self._refused(one, start, f"offset EARLIEST of {one.log} on broker {layout.leader}")
                continue
            self._found[one.log_id] = ObservedLog(one.log_id, start)
            if start < one.boundary:
                below.append((one, layout))
        await self._add_lineages(below)
        await self._add_unrolled([(o, at) for o, at in below if o.ask_replicas])
        return self._found

    async def _topics(self) -> dict[str, TopicLayout | str | None]:
        """By name; a text says why one could not be asked for."""
        ids = {one.topic: one.topic_id for one in self.wanted}
        found: dict[str, TopicLayout | str | None] = {}
        for names in chunks(ids, TOPICS_AT_ONCE):
            try:
                found |= await self._observer.topics(names)
            except KafkaError:
                # Of one of them: asked one by one, the others are not held up.
                found |= dict.fromkeys(names)
        for name, topic_id in ids.items():
            layout = found[name]
            if not isinstance(layout, TopicLayout) or layout.topic_id != topic_id:
                try:
                    found[name] = await self._observer.topic(name)
                except KafkaError as error:
                    found[name] = str(error)
        return found

    def _layout(self, one: WantedLog, topic: TopicLayout | str | None) -> PartitionLayout | None:
        problem = None
        if isinstance(topic, str):
            problem = topic
        elif topic is None or topic.topic_id != one.topic_id:
            problem = "Kafka has no such topic any more"
        else:
            layout = topic.partitions.get(one.partition)
            if layout is not None and layout.leader >= 0:
                return layout
            problem = "the partition has no leader"
        self._found[one.log_id] = ObservedLog(one.log_id, problem=problem)
        return None

    async def _offsets(
        self, asked: Iterable[tuple[WantedLog, int]], spec: OffsetSpec
    ) -> dict[tuple[int, TopicPartition], int | ErrorCode]:
        """One offset of each log on the node beside it."""
        by_node: dict[int, list[TopicPartition]] = defaultdict(list)
        for one, node in asked:
            by_node[node].append(one.log)
        found = await asyncio.gather(
            *(self._offsets_on(node, logs, spec) for node, logs in by_node.items())
        )
        return {(node, log): at for node, some in found for log, at in some.items()}

    async def _offsets_on(
        self, node: int, logs: Sequence[TopicPartition], spec: OffsetSpec
    ) -> tuple[int, Mapping[TopicPartition, int | ErrorCode]]:
        found: dict[TopicPartition, int | ErrorCode] = {}
        for some in chunks(logs, PARTITIONS_AT_ONCE):
            by_topic: dict[str, list[int]] = defaultdict(list)
            for log in some:
                by_topic[log.topic].append(log.partition)
            answers = await self._observer.offsets_of(
                by_topic, spec, node=node, replica_id=DEBUG_CONSUMER
            )
            for log in some:
                answer = answers.get(
                    (log.topic, log.partition), ErrorCode.unknown_topic_or_partition
                )
                found[log] = answer if isinstance(answer, ErrorCode) else answer.offset
        return node, found

    async def _add_lineages(self, logs: Sequence[tuple[WantedLog, PartitionLayout]]) -> None:
        wanted = [
            WantedLineage(
                one.log, layout.leader, layout.leader_epoch, self._found[one.log_id].log_start
            )
            for one, layout in logs
        ]
        found = await lineages(self.cluster, wanted, self.timeout_ms)
        for one, _ in logs:
            lineage = found[one.log]
            if isinstance(lineage, ErrorCode):
                self._refused(one, lineage, f"leader epochs of {one.log}")
            else:
                self._found[one.log_id] = replace(self._found[one.log_id], lineage=lineage)

    async def _add_unrolled(self, logs: Sequence[tuple[WantedLog, PartitionLayout]]) -> None:
        by_node: dict[int, list[WantedLog]] = defaultdict(list)
        for one, layout in logs:
            for node in layout.replicas:
                by_node[node].append(one)

        async def ask(node: int) -> Mapping[TopicPartition, int | ErrorCode] | str:
            try:
                logs = [one.log for one in by_node[node]]
                return (await self._offsets_on(node, logs, OffsetSpec.EARLIEST_LOCAL))[1]
            except (KafkaError, KafkaUnavailable) as error:
                return str(error)

        nodes = sorted(by_node)
        answers = dict(zip(nodes, await asyncio.gather(*map(ask, nodes)), strict=True))
        for one, layout in logs:
            behind = []
            for node in sorted(layout.replicas):
                told = answers[node]
                start = told if isinstance(told, str) else told[one.log]
                if isinstance(start, ErrorCode):
                    what = f"offset EARLIEST_LOCAL of {one.log} on broker {node}"
                    start = str(refusal(start, what))
                if isinstance(start, str):
                    behind.append(f"replica {node} did not answer: {start}")
                elif start < one.boundary:
                    behind.append(
                        f"replica {node} has not rolled to B0: it still has offset {start}"
                    )
            unrolled = "; ".join(behind) or None
            self._found[one.log_id] = replace(self._found[one.log_id], unrolled=unrolled)

    def _refused(self, one: WantedLog, code: ErrorCode, what: str) -> None:
        self._found[one.log_id] = ObservedLog(one.log_id, problem=str(refusal(code, what)))
        if code in STALE_EPOCH_ERRORS:
            self.moved.append(one)


def observed_logs(
    spark: SparkSession, settings: KafkaSettings, wanted: Sequence[WantedLog], tasks: int
) -> list[ObservedLog]:
    """The partitions as their leaders see them, asked from the executors.

    A list and no frame: what is observed first must stay what it was, and a frame that lost a
    block would be made anew later. Raises as :func:`observe`, through Spark.
    """
    if not wanted:
        return []

    async def ask(logs: Sequence[WantedLog]) -> list[ObservedLog]:
        async with KafkaCluster.of(settings, "tideline-jobs") as cluster:
            return await observe(cluster, settings.kafka_request_timeout_ms, logs)

    def work(logs: Iterator[WantedLog]) -> list[ObservedLog]:
        return asyncio.run(ask(list(logs)))

    frame = to_frame(spark, WantedLog, wanted, tasks)
    return from_frame(ObservedLog, map_rows(frame, WantedLog, ObservedLog, work))
