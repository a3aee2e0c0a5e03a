"""WAL files with real batches in a real control plane, and an object store in memory."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from itertools import count
from typing import Any
from uuid import UUID, uuid4

from pydantic import SecretStr

from spark.tiering.merge_partition import MergeOrder
from spark.tiering.services import Services
from tests.contract.conftest import Database
from tests.contract.scenes import GatewayProcess, PostgresScene, seed
from tests.contract.tiering import seen_whole
from tests.unit.kafka.segment_batches import Spec, build
from tideline.control_plane import connect
from tideline.control_plane.jobs import JobsControlPlane
from tideline.control_plane.model import BatchToCommit, CommitError
from tideline.control_plane.tiering_model import MergeCandidate
from tideline.domain.ids import TopicIdPartition
from tideline.kafka.batches import iter_batches, patch
from tideline.object_store.client import (
    ObjectEntry,
    ObjectMissing,
    ObjectStoreRefused,
    ObjectTooShort,
    ObjectTruncated,
)
from tideline.object_store.signature import Body, pieces, size
from tideline.settings import JobsSettings

DISKLESS, TIERED, PREFIX = "diskless", "tiered", "in/"
EPOCH = 3
"""Leader epoch at B0 of a migrated partition; that of one born diskless is 0."""
NO_LEADER_EPOCH = -1
"""What a producer sends."""
NEAR_THE_WRAP = 2**31 - 5
ALL_OLD = 10**15
"""ms; a cutoff that everything is older than."""


class MemoryStore:
    """A :class:`spark.tiering.services.Store` of dictionaries."""

    def __init__(self) -> None:
        self.objects: dict[tuple[str, str], bytes] = {}
        self.parts: dict[str, dict[int, bytes]] = {}
        """Of uploads that are not completed."""
        self._uploads = count()

    def get(
        self, bucket: str, key: str, start: int | None = None, size: int | None = None
    ) -> bytes:
        if (bucket, key) not in self.objects:
            raise ObjectMissing(f"bucket {bucket}: get {key}: there is no such object")
        body = self.objects[bucket, key]
        first = start or 0
        found = body[first : len(body) if size is None else first + size]
        if size is not None and len(found) < size:
            kind = ObjectTruncated if found else ObjectTooShort
            raise kind(f"get {key}: {len(found)} bytes came, not {size}")
        return found

    def put(self, bucket: str, key: str, body: bytes) -> None:
        self.objects[bucket, key] = body

    def begin_parts(self, bucket: str, key: str) -> str:
        # Not how many there are: those that are completed are gone, and their ids stay theirs.
        self.parts[upload := f"upload-{next(self._uploads)}"] = {}
        return upload

    def put_part(self, bucket: str, key: str, upload: str, number: int, body: Body) -> str:
        self.parts[upload][number] = b"".join(pieces(body))
        return f"{number}-{size(body)}"

    def complete_parts(self, bucket: str, key: str, upload: str, tags: Sequence[str]) -> None:
        if upload not in self.parts:
            raise ObjectStoreRefused(f"there is no upload {upload}")
        parts = self.parts.pop(upload)
        assert list(tags) == [f"{n}-{len(parts[n])}" for n in range(1, len(parts) + 1)]
        self.objects[bucket, key] = b"".join(parts[n] for n in sorted(parts))

    def abort_parts(self, bucket: str, key: str, upload: str) -> None:
        self.parts.pop(upload, None)

    def size(self, bucket: str, key: str) -> int:
        if (bucket, key) not in self.objects:
            raise ObjectMissing(key)
        return len(self.objects[bucket, key])

    def list_objects(
        self, bucket: str, prefix: str, start_after: str | None = None
    ) -> Iterator[ObjectEntry]:
        for key in self.keys(bucket, prefix):
            yield ObjectEntry(key, len(self.objects[bucket, key]), datetime.now(UTC))

    def delete(self, bucket: str, keys: Iterable[str]) -> None:
        for key in keys:
            self.objects.pop((bucket, key), None)

    def keys(self, bucket: str, prefix: str = "") -> list[str]:
        """In order."""
        return sorted(k for b, k in self.objects if b == bucket and k.startswith(prefix))


class Killed(BaseException):
    """The process dies here. Nothing that it would have done on an error is done."""


class Mortal:
    """Passes calls on, until the process is killed right before or right after one of them."""

    def __init__(self, target: object, tick: Callable[[bool], None]) -> None:
        self._target, self._tick = target, tick

    def __getattr__(self, name: str) -> Any:
        method = getattr(self._target, name)

        def call(*arguments: Any, **named: Any) -> Any:
            self._tick(False)
            answer = method(*arguments, **named)
            self._tick(True)
            return answer

        return call


def jobs_settings(database: Database, **values: object) -> JobsSettings:
    """Of the jobs' role."""
    return JobsSettings.model_validate(
        {
            "postgres_dsn": SecretStr(database.as_role("tideline_jobs")),
            "kafka_bootstrap": "127.0.0.1:1",
            "s3_bucket": DISKLESS,
            "s3_tiered_bucket": TIERED,
            "s3_tiered_prefix": PREFIX,
            **values,
        }
    )


@dataclass
class Appended:
    """One batch as its producer sent it, and where it was put."""

    raw: bytes
    base_offset: int
    last_offset: int
    append_time: int | None
    """``None``: CreateTime."""
    epoch: int

    @property
    def stored(self) -> bytes:
        """As every reader must see it."""
        body = bytearray(self.raw)
        patch(body, self.base_offset, self.epoch, self.append_time)
        return bytes(body)


@dataclass
class World:
    """A control plane with partitions, and what was ever appended to them."""

    scene: PostgresScene
    runner: asyncio.Runner
    plane: JobsControlPlane
    settings: JobsSettings
    gateway: GatewayProcess
    store: MemoryStore = field(default_factory=MemoryStore)
    appended: dict[TopicIdPartition, list[Appended]] = field(
        default_factory=lambda: defaultdict(list)
    )
    epochs: dict[TopicIdPartition, int] = field(default_factory=dict)
    _following: dict[tuple[TopicIdPartition, int], int] = field(default_factory=dict)

    @classmethod
    @contextmanager
    def factory(cls, database: Database) -> Iterator[Callable[[], World]]:
        """Makes worlds that begin with empty tables and one gateway."""
        jobs = jobs_settings(database)
        tiering = JobsControlPlane(jobs, "tiering-test")
        with asyncio.Runner() as runner:
            control_plane = connect(database.settings(), application_name="tiering-test")
            plane = runner.run(control_plane.__aenter__())

            def begin() -> World:
                scene = PostgresScene(plane, database.dsn)
                clear(scene)
                gateway = runner.run(scene.gateway())
                return cls(scene, runner, tiering, jobs, gateway)

            try:
                yield begin
            finally:
                tiering.close()
                runner.run(control_plane.__aexit__(None, None, None))

    def born_diskless(self, partitions: int = 1) -> list[TopicIdPartition]:
        _, logs = self.runner.run(self.scene.diskless_topic(partitions))
        for log in logs:
            self.epochs[log] = 0
        return logs

    def migrated(self, boundary: int = 10, *, seeded: Sequence[int] = ()) -> TopicIdPartition:
        """``seeded``: producers that have written the ten records right below the boundary."""
        seeds = [seed(producer, last_offset=boundary - 1) for producer in seeded]
        log = self.runner.run(self.scene.hybrid_log(self.gateway, boundary, seeds))
        self.epochs[log] = EPOCH
        self._following |= {(log, s.producer_id): s.last_sequence + 1 for s in seeds}
        return log

    def services(self, plane: object | None = None, store: object | None = None) -> Services:
        return Services(
            plane=plane or self.plane,  # type: ignore[arg-type]
            store=store or self.store,  # type: ignore[arg-type]
            diskless_bucket=DISKLESS,
            tiered_bucket=TIERED,
            park_after=3,
        )

    def append(self, *batches: tuple[TopicIdPartition, Spec]) -> str:
        """One WAL file with these batches in this order; its key."""
        body, coordinates = bytearray(), []
        raws = []
        for log, spec in batches:
            timed = spec.log_append_time is not None
            sequence = -1
            if spec.producer_id >= 0:
                sequence = self._following.get((log, spec.producer_id), NEAR_THE_WRAP)
                following = (sequence + len(spec.timestamps)) % 2**31
                self._following[log, spec.producer_id] = following
            raw = build(
                replace(spec, base_sequence=sequence, log_append_time=None), 0, NO_LEADER_EPOCH
            )
            (header,) = iter_batches(raw)
            producer = (
                (header.producer_id, header.producer_epoch, header.base_sequence,
                 header.last_sequence) if spec.producer_id >= 0 else ()
            )  # fmt: skip
            coordinates.append(
                BatchToCommit(
                    log,
                    len(body),
                    len(raw),
                    spec.offsets,
                    header.max_timestamp,
                    "LogAppendTime" if timed else "CreateTime",
                    *producer,
                )
            )
            raws.append((log, raw, spec.offsets, timed))
            body += raw
        key = f"wal/{uuid4()}"
        gateway, plane = self.gateway, self.scene.plane
        self.runner.run(plane.register_object_keys(gateway.gateway_id, gateway.incarnation, [key]))
        self.store.put(DISKLESS, key, bytes(body))
        outcomes = self.runner.run(self.scene.commit(gateway, *coordinates, key=key))
        for (log, raw, offsets, timed), outcome in zip(raws, outcomes, strict=True):
            assert outcome.error == CommitError.NONE, outcome
            self.appended[log].append(
                Appended(
                    raw,
                    outcome.base_offset,
                    outcome.base_offset + offsets - 1,
                    outcome.append_time if timed else None,
                    self.epochs[log],
                )
            )
        return key

    def expected(self, log: TopicIdPartition) -> bytes:
        """The whole suffix, as every reader must see it."""
        return b"".join(batch.stored for batch in self.appended[log])

    def merged(self, log: TopicIdPartition) -> bytes:
        """The ``.log`` objects of the partition's finished segments, in order."""
        stems = self.scene.sql(
            "SELECT object_key_stem FROM merged_segments JOIN logs USING (log_id)"
            " WHERE topic_id = %s AND partition = %s AND state = 'COPY_SEGMENT_FINISHED'"
            " ORDER BY base_offset",
            log.topic_id, log.partition,
        )  # fmt: skip
        return b"".join(self.store.objects[TIERED, f"{stem}.log"] for (stem,) in stems)

    def rows_left(self) -> int:
        """Batch rows in Postgres."""
        return int(str(self.scene.sql("SELECT count(*) FROM batches")[0][0]))

    def expire_claims(self) -> None:
        """Let every claim lapse without waiting for it, and failures be tried again."""
        for table in ("wal_file_claims", "merge_claims"):
            self.scene.sql(
                f"UPDATE {table} SET expires_at = now() - interval '1 s'"
                " WHERE expires_at IS NOT NULL"
            )
        self.scene.sql("UPDATE tiering_failures SET retry_at = now() - interval '1 s'")

    def cutoffs(self) -> dict[UUID, int]:
        return {log.topic_id: ALL_OLD for log in self.epochs}

    def collect(self) -> None:
        """What gc does, twice, without a grace: rows first, then objects."""
        plane = self.plane
        for _ in range(2):
            seen_whole(plane)
            plane.prune_batches()
            while keys := plane.claim_dead_files(0):
                self.store.delete(DISKLESS, keys)
                plane.forget_dead_files(keys)
            while dead := plane.claim_dead_objects(0):
                for found in dead:
                    bucket = DISKLESS if found.bucket == "diskless" else TIERED
                    self.store.delete(bucket, [found.object_key])
                plane.forget_dead_objects([found.object_key for found in dead])


def order(
    candidate: MergeCandidate, limit_bytes: int = 1 << 30, interval: int = 4096
) -> MergeOrder:
    """To merge all of ``candidate``."""
    return MergeOrder(
        candidate.topic, candidate.topic_id, candidate.partition, candidate.log_id,
        candidate.bytes, True, limit_bytes, 1, interval,
    )  # fmt: skip


def clear(scene: PostgresScene) -> None:
    """Empty tables, those of tiering first."""
    scene.sql(
        "TRUNCATE wal_file_claims, split_files, merge_claims, merged_segments,"
        " producer_snapshots, tiering_failures, marked_objects, coverage_results, tiering_totals,"
        " tiering_work"
    )
    scene.clear()


def files_of(
    logs: Sequence[TopicIdPartition], specs: Sequence[Spec], per_file: int
) -> list[list[tuple[TopicIdPartition, Spec]]]:
    """Batches dealt to partitions in turn, cut into files."""
    dealt = [(logs[n % len(logs)], spec) for n, spec in enumerate(specs)]
    return [dealt[n : n + per_file] for n in range(0, len(dealt), per_file)]
