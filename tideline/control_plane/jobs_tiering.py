"""Split and merge: claims, tokens and the transactions that move the frontier (002 §4.7)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any
from uuid import UUID

from psycopg.types.json import Jsonb

from tideline.control_plane.jobs_connection import JobsConnection
from tideline.control_plane.jobs_model import (
    ClaimedBatch,
    ClaimedFile,
    MergeCandidate,
    MergePlan,
    NewSegment,
    ProducerSnapshotEntry,
    SplitFile,
    SplitFileToMerge,
    TieringScope,
    TieringStatusRow,
)
from tideline.domain.ids import TopicIdPartition


def _plan(row: Mapping[str, Any]) -> MergePlan:
    return MergePlan(
        **{
            **row,
            "files": tuple(SplitFileToMerge(**file) for file in row["files"]),
            "producers": tuple(ProducerSnapshotEntry(**entry) for entry in row["producers"]),
        }
    )


class JobsTiering:
    """Part of :class:`tideline.control_plane.jobs.JobsControlPlane`."""

    _connection: JobsConnection
    _tiered_prefix: str

    def claim_wal_files(
        self,
        worker: UUID,
        *,
        max_files: int,
        max_batches: int,
        claim_ms: int,
        cutoffs: Mapping[UUID, int],
    ) -> list[ClaimedFile]:
        """Claim the files that hold the oldest eligible batches; none: nothing is eligible.

        ``cutoffs``: topic id → ms; batches with a ``max_timestamp`` below it are eligible. A topic
        whose tiering was requested has every batch eligible that was committed until the request;
        a topic without a cutoff has no other. Never eligible: batches of paused or deleted topics,
        expired offsets, what is split already. At most ``max_batches``, but one whole file at
        least. A file that failed waits for its retry time, a parked one for an operator.

        A claim lasts ``claim_ms`` on the database's clock; then any worker may take it over under
        a new token. The claimed batches of a killed worker therefore come again.
        """
        rows = self._connection.fetch(
            "SELECT * FROM tideline.claim_wal_files(%s, %s, %s, %s, %s::uuid[], %s::bigint[])",
            worker, max_files, max_batches, claim_ms, list(cutoffs), list(cutoffs.values()),
        )  # fmt: skip
        files: dict[int, tuple[str, int, list[ClaimedBatch]]] = {}
        for row in rows:
            key, token = row.pop("object_key"), row.pop("token")
            _, _, batches = files.setdefault(row.pop("file_id"), (key, token, []))
            batches.append(ClaimedBatch(**row))
        return [
            ClaimedFile(file_id, key, token, tuple(batches))
            for file_id, (key, token, batches) in files.items()
        ]

    def register_split_keys(
        self, worker: UUID, file_id: int, token: int, keys: Sequence[str]
    ) -> None:
        """Announce random keys before their objects are uploaded, so that a killed worker's
        objects are found. Repeats succeed. Raises ``StaleClaim``, ``ObjectKeyRejected`` for a key
        that was used.
        """
        self._connection.fetch(
            "SELECT tideline.register_split_keys(%s, %s, %s, %s::text[])",
            worker, file_id, token, list(keys),
        )  # fmt: skip

    def finish_split(
        self, worker: UUID, file_id: int, token: int, splits: Sequence[SplitFile]
    ) -> None:
        """The objects are uploaded: their batches are SPLIT and the claim ends, in one
        transaction. The same call again succeeds. What expired meanwhile is left to gc.

        Raises ``StaleClaim`` when another worker has taken the claim over or gc has collected its
        keys (nothing changed); ``TieringMismatch`` when a run is not exactly a run of the file's
        batches.
        """
        self._connection.fetch(
            "SELECT tideline.finish_split(%s, %s, %s, %s)",
            worker, file_id, token,
            Jsonb([{**asdict(split), "topic_id": str(split.topic_id)} for split in splits]),
        )  # fmt: skip

    def release_claim(self, worker: UUID, file_id: int, token: int) -> None:
        """Give a claim back; its registered keys go to gc. A claim that is lost is no error."""
        self._connection.fetch("SELECT tideline.release_claim(%s, %s, %s)", worker, file_id, token)

    def merge_candidates(self) -> list[MergeCandidate]:
        """Partitions with split files from the merge frontier on, without a gap. Not those that
        are paused, deleted, parked or waiting for a retry. Also ends requests that are done.
        """
        return [
            MergeCandidate(**{**row, "segments_in_progress": tuple(row["segments_in_progress"])})
            for row in self._connection.fetch("SELECT * FROM tideline.merge_candidates()")
        ]

    def begin_merge(
        self,
        log: TopicIdPartition,
        worker: UUID,
        claim_ms: int,
        segment_id: UUID,
        max_bytes: int,
        max_batches: int,
    ) -> MergePlan | None:
        """Take the partition's merge token and plan the next segment, ``COPY_SEGMENT_STARTED``.

        Whole batches up to ``max_bytes`` and ``max_batches``, but at least one. ``None``: nothing
        is split there, the topic is paused or deleted, or another worker's claim holds. The same
        worker takes its own claim over: a task that died and is tried again fences the first try,
        whose segment goes to gc. Raises ``UnknownLog``, ``InvalidInput``.
        """
        rows = self._connection.fetch(
            "SELECT * FROM tideline.begin_merge(%s, %s, %s, %s, %s, %s, %s, %s)",
            log.topic_id, log.partition, worker, claim_ms, segment_id, self._tiered_prefix,
            max_bytes, max_batches,
        )  # fmt: skip
        return _plan(rows[0]) if rows else None

    def finish_merge(
        self, log: TopicIdPartition, token: int, segment: NewSegment
    ) -> tuple[str, ...]:
        """Every object is uploaded: register the segment, delete its batch rows and move the
        frontier, in one transaction. The same call again succeeds.

        Returns the keys (diskless bucket) of split files that nothing needs any more: delete the
        objects and call ``forget_dead_objects``, or leave them to gc. Raises ``StaleClaim`` (taken
        over, abandoned or collected), ``TieredRangeGone`` (retention removed all of the range),
        ``TieringMismatch`` (not the planned range), ``TopicDeleted``; then nothing changed: call
        :meth:`abandon_merge`.
        """
        view = asdict(segment)
        producers = view.pop("producers")
        rows = self._connection.fetch(
            "SELECT tideline.finish_merge(%s, %s, %s, %s, %s, %s, %s, %s, %s, %s, %s, %s, %s) "
            "AS object_key",
            log.topic_id, log.partition, token, *view.values(), Jsonb(list(producers)),
        )  # fmt: skip
        return tuple(row["object_key"] for row in rows)

    def abandon_merge(self, log: TopicIdPartition, token: int, reason: str) -> None:
        """End the claim; the segment's objects go to gc. A claim that is lost is no error."""
        self._connection.fetch(
            "SELECT tideline.abandon_merge(%s, %s, %s, %s)",
            log.topic_id, log.partition, token, reason,
        )  # fmt: skip

    def record_tiering_failure(
        self, scope: TieringScope, key: int, error: str, *, park_after: int, backoff_ms: int = 0
    ) -> int:
        """Count a failure in a row of a ``file_id`` (split) or ``log_id`` (merge).

        From ``park_after`` on it is parked: left alone and shown until an operator triggers or
        resumes the topic. Before, it is not handed out for ``backoff_ms``, doubled with each
        failure up to an hour. Returns the count.
        """
        (row,) = self._connection.fetch(
            "SELECT tideline.record_tiering_failure(%s, %s, %s, %s, %s) AS failures",
            scope.value, key, error, park_after, backoff_ms,
        )  # fmt: skip
        return int(row["failures"])

    def clear_tiering_failure(self, scope: TieringScope, key: int) -> None:
        """It worked: the count begins anew."""
        self._connection.fetch("SELECT tideline.clear_tiering_failure(%s, %s)", scope.value, key)

    def tiering_status(
        self, topic: str | None = None, cutoffs: Mapping[UUID, int] | None = None
    ) -> list[TieringStatusRow]:
        """Every partition with a suffix, or those of ``topic``. Without ``cutoffs`` only what was
        requested counts as eligible.
        """
        cutoffs = cutoffs or {}
        rows = self._connection.fetch(
            "SELECT * FROM tideline.tiering_status(%s, %s::uuid[], %s::bigint[])",
            topic, list(cutoffs), list(cutoffs.values()),
        )  # fmt: skip
        return [TieringStatusRow(**row) for row in rows]

    def pause_tiering(self, topic: str) -> None:
        """Nothing of the topic is claimed or planned any more; what runs ends. Raises
        ``UnknownTopic``."""
        self._connection.fetch("SELECT tideline.pause_tiering(%s)", topic)

    def resume_tiering(self, topic: str) -> None:
        """Undo a pause and un-park what failed. Raises ``UnknownTopic``."""
        self._connection.fetch("SELECT tideline.resume_tiering(%s)", topic)

    def request_tiering(self, topic: str) -> None:
        """Everything committed until now is to be tiered whatever its age and size; un-parks what
        failed. Raises ``UnknownTopic``."""
        self._connection.fetch("SELECT tideline.request_tiering(%s)", topic)
