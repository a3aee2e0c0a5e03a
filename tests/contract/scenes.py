"""What most contract tests begin with: gateways, topics, and a quiesced partition."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from itertools import count
from typing import Protocol
from uuid import UUID, uuid4

import psycopg

from tideline.control_plane import ControlPlane
from tideline.control_plane.jobs import JobsControlPlane
from tideline.control_plane.memory import MemoryControlPlane
from tideline.control_plane.memory.partition import QuiesceState
from tideline.control_plane.model import (
    BatchToCommit,
    BoundaryToPersist,
    CommittedBatch,
    TrackingKind,
)
from tideline.domain.ids import TopicIdPartition
from tideline.domain.migration import Phase
from tideline.domain.producer_tail import ProducerSeed
from tideline.domain.quiescence import LeaseReading
from tideline.settings import JobsSettings

TABLES = (
    "asked_births", "reported_deletions",
    "watch_findings", "migration_places", "migration_limits", "job_successes", "job_attempts",
    "read_pins", "verify_verdicts",
    "gc_runs", "orphan_reports", "lessened_files",
    "coverage_results", "marked_objects", "tiering_failures", "producer_snapshots",
    "merged_segments", "merge_claims", "split_files", "wal_file_claims", "tiering_work",
    "operator_actions", "config_overrides", "migration_requests", "migration_phases",
    "quiesce_acks", "quiesce_witnesses", "tracking_acks", "tracking_runs",
    "producer_expiry", "producer_state", "batches", "wal_files",
    "logs", "topics", "ended_incarnations", "gateways",
    "cluster_attestations",
)  # fmt: skip


CLUSTER = "contract"
"""Id of the Kafka cluster that the scenes' topics are in."""


@dataclass
class GatewayProcess:
    """One gateway process."""

    gateway_id: int
    incarnation: UUID = field(default_factory=uuid4)


def seed(producer_id: int = 7, *, epoch: int = 0, last_offset: int = 9) -> ProducerSeed:
    """A batch of ten records that ends at ``last_offset``."""
    return ProducerSeed(producer_id, epoch, 0, 9, last_offset - 9, last_offset, 1_000)


def batch(
    log: TopicIdPartition,
    *,
    records: int = 1,
    timestamp: int = 1_000,
    timestamp_type: str = "CreateTime",
    producer: tuple[int, int, int] | None = None,
    size: int = 100,
) -> BatchToCommit:
    """``producer``: id, epoch and base sequence of an idempotent one."""
    identity = {}
    if producer is not None:
        producer_id, epoch, base = producer
        identity = {
            "producer_id": producer_id,
            "producer_epoch": epoch,
            "base_sequence": base,
            "last_sequence": (base + records - 1) % 2**31,
        }
    return BatchToCommit(log, 0, size, records, timestamp, timestamp_type, **identity)


class Upkeep(Protocol):
    """What the jobs do to suffixes and WAL keys."""

    def expire_producers(self, idle_ms: int, limit: int = 1_000) -> int: ...
    def prune_batches(self, limit: int = 1_000) -> int: ...
    def forget_uncommitted_keys(self, grace_ms: int, limit: int = 1_000) -> int: ...
    def claim_dead_files(self, grace_ms: int, limit: int = 1_000) -> list[str]: ...
    def forget_dead_files(self, keys: Sequence[str]) -> int: ...
    def forget_tracking_changes(self, kept_ms: int) -> int: ...


class Clock:
    """The time of a plane in memory, in ms: goes on a little with each look."""

    def __init__(self) -> None:
        self.now = 1_700_000_000_000

    def __call__(self) -> int:
        self.now += 1
        return self.now


class Scene(ABC):
    """Builds situations through the plane's interface, whichever plane it is."""

    plane: ControlPlane
    jobs: Upkeep

    def __init__(self) -> None:
        self._numbers = count(1)

    @abstractmethod
    def expire_quiesce(self, log: TopicIdPartition) -> None:
        """Let the deadline pass without waiting for it."""

    @abstractmethod
    def set_clock_forward(self, minutes: int) -> None:
        """The database's clock shows so many minutes more, which nobody has lived through."""

    @abstractmethod
    def age_commits(self, ms: int) -> None:
        """Every commit was so much longer ago."""

    @abstractmethod
    def producers(self) -> list[int]:
        """Ids of the producers that are remembered in any log."""

    @abstractmethod
    def starts(self, log: TopicIdPartition) -> tuple[int, int]:
        """First readable offset of the whole log, and in tiered storage (-1: none)."""

    @abstractmethod
    def time_phase(self, log: TopicIdPartition, phase: Phase, began: float, ended: float) -> None:
        """A phase that has ended began and ended then, Unix time."""

    @abstractmethod
    def lose(self, log: TopicIdPartition, first: int, last: int) -> None:
        """The batches that end at ``first`` to ``last`` are gone, as nothing but damage does it."""

    @abstractmethod
    def promote(self) -> None:
        """A standby is the primary now. It has every row."""

    async def gateway(self, gateway_id: int | None = None) -> GatewayProcess:
        """One that has registered, over another one whose lease it has watched lapse and whose
        state directory it has."""
        process = GatewayProcess(gateway_id or next(self._numbers))
        before = await self.reading(process.gateway_id)
        await self.plane.register_gateway(
            process.gateway_id,
            process.gateway_id,
            process.incarnation,
            "127.0.0.1:9",
            "1",
            3_000,
            before,
        )
        if before is not None:
            await self.plane.account_incarnations(
                process.gateway_id, [before.incarnation], "dead by its lock"
            )
        return process

    async def reading(self, gateway_id: int) -> LeaseReading | None:
        """The gateway's renewal counter as it is now."""
        for g in await self.plane.list_gateways():
            if g.gateway_id == gateway_id:
                return LeaseReading(gateway_id, g.incarnation, g.renewals, g.lease_ms)
        return None

    async def fence(self, process: GatewayProcess, reason: str = "lapsed") -> bool:
        """Fence it at the counter that it has now."""
        seen = await self.reading(process.gateway_id)
        assert seen is not None
        return await self.plane.fence_gateway(
            process.gateway_id, process.incarnation, seen.renewals, reason
        )

    async def tracking_topic(self, partitions: int = 1) -> tuple[str, list[TopicIdPartition]]:
        """A topic whose migration has begun; no gateway has acknowledged it."""
        name, topic_id = f"topic-{next(self._numbers)}", uuid4()
        await self.plane.attest_cluster(CLUSTER, "the tests", "there is no broker at all")
        await self.plane.begin_migration(
            name, topic_id, partitions, "CreateTime", 1_048_588, CLUSTER
        )
        return name, [TopicIdPartition(topic_id, p) for p in range(partitions)]

    async def migrating_topic(
        self, gateways: Sequence[GatewayProcess], partitions: int = 1
    ) -> tuple[str, list[TopicIdPartition]]:
        """A topic that every gateway tracks."""
        name, logs = await self.tracking_topic(partitions)
        for process in gateways:
            await self.plane.acknowledge_tracking(process.gateway_id, process.incarnation, name)
        await self.plane.activate_topic(name)
        return name, logs

    async def diskless_topic(
        self, partitions: int = 1, name: str | None = None
    ) -> tuple[str, list[TopicIdPartition]]:
        name, topic_id = name or f"topic-{next(self._numbers)}", uuid4()
        await self.plane.begin_tracking(
            name, topic_id, TrackingKind.BORN_DISKLESS, partitions, "CreateTime", 1_048_588
        )
        return name, [TopicIdPartition(topic_id, p) for p in range(partitions)]

    async def quiesce(
        self,
        log: TopicIdPartition,
        gateways: Sequence[GatewayProcess],
        highest: int = -1,
        hold_ms: int = 60_000,
    ) -> int:
        """The next generation, closed and acknowledged by ``gateways``."""
        generation = await self.plane.next_generation(log)
        await self.plane.close_generation(log, generation, hold_ms)
        for process in gateways:
            await self.plane.acknowledge_quiesce(
                process.gateway_id, process.incarnation, log, generation, highest, highest + 1
            )
        return generation

    async def persist(
        self,
        log: TopicIdPartition,
        boundary: int,
        generation: int,
        *,
        epoch: int = 3,
        seeds: Sequence[ProducerSeed] = (),
    ) -> None:
        await self.plane.initialize_diskless_migration(
            BoundaryToPersist(log, boundary, epoch, generation, tuple(seeds), prefix_log_start=0)
        )

    async def hybrid_log(
        self, gateway: GatewayProcess, boundary: int = 10, seeds: Sequence[ProducerSeed] = ()
    ) -> TopicIdPartition:
        """A partition that has just crossed at ``boundary``."""
        _, (log,) = await self.migrating_topic([gateway])
        generation = await self.quiesce(log, [gateway], boundary - 1)
        await self.persist(log, boundary, generation, seeds=seeds)
        return log

    async def commit(
        self, process: GatewayProcess, *batches: BatchToCommit, key: str | None = None
    ) -> list[CommittedBatch]:
        """Register a key unless one is given, and commit."""
        if key is None:
            key = f"wal/{uuid4()}"
            await self.plane.register_object_keys(process.gateway_id, process.incarnation, [key])
        return await self.plane.commit_file(
            process.gateway_id, process.incarnation, key, 1_000, batches
        )


class MemoryScene(Scene):
    """A plane in memory, and its clock."""

    def __init__(self) -> None:
        super().__init__()
        self.clock = Clock()
        self.plane = self.jobs = self.memory = MemoryControlPlane(self.clock)

    def expire_quiesce(self, log: TopicIdPartition) -> None:
        partition = self.memory.topics.known_partition(log)
        if partition.quiesce is QuiesceState.CLOSED:
            partition.deadline_ms = self.clock.now - 1_000

    def set_clock_forward(self, minutes: int) -> None:
        self.clock.now += minutes * 60_000

    def age_commits(self, ms: int) -> None:
        for file in self.memory.files.by_key.values():
            file.committed_ms -= ms

    def producers(self) -> list[int]:
        return sorted(
            n for partition in self.memory.topics.partitions() for n in partition.producers
        )

    def starts(self, log: TopicIdPartition) -> tuple[int, int]:
        partition = self.memory.topics.known_partition(log)
        return partition.log_start, partition.suffix.tiered_start if partition.suffix else -1

    def time_phase(self, log: TopicIdPartition, phase: Phase, began: float, ended: float) -> None:
        phases = self.memory.topics.known_partition(log).phases
        times = [datetime.fromtimestamp(at, UTC) for at in (began, ended)]
        phases[phase] = replace(phases[phase], started_at=times[0], ended_at=times[1])

    def lose(self, log: TopicIdPartition, first: int, last: int) -> None:
        suffix = self.memory.topics.known_partition(log).suffix
        assert suffix is not None
        suffix.batches = [b for b in suffix.batches if not first <= b.last_offset <= last]

    def promote(self) -> None:
        system, timeline = self.memory.server
        self.memory.server = (system, timeline + 1)


class PostgresScene(Scene):
    """A plane in Postgres, whose tables the test sees as the superuser."""

    jobs: JobsControlPlane

    def __init__(self, plane: ControlPlane, dsn: str) -> None:
        super().__init__()
        self.plane = plane
        self.dsn = dsn
        settings = {"postgres_dsn": dsn, "kafka_bootstrap": "127.0.0.1:1"}
        self.jobs = JobsControlPlane(JobsSettings.model_validate(settings), "contract-test")

    def sql(self, query: str, *parameters: object) -> list[tuple[object, ...]]:
        with psycopg.connect(self.dsn, options="-c search_path=tideline") as connection:
            cursor = connection.execute(query.encode(), parameters)
            return cursor.fetchall() if cursor.description else []

    def clear(self) -> None:
        self.sql("; ".join(f"DELETE FROM {table}" for table in TABLES))
        self.sql("UPDATE installation SET halted = NULL, timeline = current_timeline()")

    def promote(self) -> None:
        """What is noted is of the timeline before."""
        for table in ("installation", "gateways"):
            self.sql(f"UPDATE {table} SET timeline = timeline - 1")

    def expire_quiesce(self, log: TopicIdPartition) -> None:
        self.sql(
            "UPDATE logs SET quiesce_deadline = now() - interval '1 s' "
            "WHERE topic_id = %s AND partition = %s AND quiesce = 'closed'",
            log.topic_id,
            log.partition,
        )

    def set_clock_forward(self, minutes: int) -> None:
        passed = f"interval '{minutes} min'"
        self.sql(f"UPDATE producer_state SET updated_at = updated_at - {passed}")
        self.sql(
            f"UPDATE producer_expiry SET last_run = last_run - {passed}, "
            f"not_before = not_before - {passed}"
        )

    def age_commits(self, ms: int) -> None:
        self.sql(f"UPDATE wal_files SET committed_at = committed_at - interval '{ms} ms'")

    def producers(self) -> list[int]:
        rows = self.sql("SELECT producer_id FROM producer_state ORDER BY producer_id")
        return [int(str(producer_id)) for (producer_id,) in rows]

    def starts(self, log: TopicIdPartition) -> tuple[int, int]:
        ((log_start, tiered_start),) = self.sql(
            "SELECT log_start_offset, tiered_log_start_offset FROM logs "
            "WHERE topic_id = %s AND partition = %s",
            log.topic_id,
            log.partition,
        )
        return int(str(log_start)), int(str(tiered_start))

    def time_phase(self, log: TopicIdPartition, phase: Phase, began: float, ended: float) -> None:
        self.sql(
            "UPDATE migration_phases AS m SET started_at = to_timestamp(%s), "
            "ended_at = to_timestamp(%s) FROM logs AS l WHERE l.log_id = m.log_id "
            "AND l.topic_id = %s AND l.partition = %s AND m.phase = %s",
            began,
            ended,
            log.topic_id,
            log.partition,
            phase.value,
        )

    def lose(self, log: TopicIdPartition, first: int, last: int) -> None:
        self.sql(
            "DELETE FROM batches USING logs AS l WHERE batches.log_id = l.log_id "
            "AND topic_id = %s AND partition = %s AND last_offset BETWEEN %s AND %s",
            log.topic_id,
            log.partition,
            first,
            last,
        )
