"""The Postgres that is compared with a bucket, and written: a restored one, or one with an empty
schema.

One connection, of a role that has the rights of ``tideline_owner``: the functions of
``infra/postgres/functions/rebuild.sql`` are granted to nobody. What is written of one log is one
transaction.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any
from uuid import UUID

import psycopg
from psycopg.rows import DictRow, dict_row
from psycopg.types.json import Jsonb

from tideline.control_plane.calls import (
    SERVER_IDENTITY,
    document,
    mapper,
    parameters,
    statement,
)
from tideline.control_plane.errors import translate
from tideline.control_plane.pool import conninfo
from tideline.control_plane.session_check import must_be_fit
from tideline.domain.catalog import Boundary, MergedSegment
from tideline.domain.catalog_fold import born_boundary
from tideline.domain.history import ServerIdentity
from tideline.domain.ids import TopicIdPartition
from tideline.domain.log_batch import LogBatch
from tideline.domain.producer_state import (
    ProducerEntry,
    RememberedBatch,
    StoredProducerState,
    in_order,
)
from tideline.domain.rebuild import KnownPlace
from tideline.domain.rebuild_plan import KnownBatch, KnownLog
from tideline.settings import ControlPlaneSettings

STATEMENT_TIMEOUT_MS = 600_000
"""A statement moves :data:`AT_ONCE` rows, or looks at all rows of one log."""
AT_ONCE = 20_000


@dataclass(frozen=True, slots=True)
class Holder:
    """A gateway that is registered as active, at the counter at which it was seen."""

    gateway_id: int
    incarnation: UUID
    renewals: int
    lease_ms: int
    address: str


class RebuildPostgres:
    """Raises the typed errors of :mod:`tideline.control_plane.errors`. Not safe to share between
    threads."""

    def __init__(self, settings: ControlPlaneSettings) -> None:
        timeout = {"postgres_statement_timeout_ms": STATEMENT_TIMEOUT_MS}
        self._conninfo = conninfo(settings.model_copy(update=timeout), "tideline-rebuild")
        self._connection: psycopg.Connection[DictRow] | None = None

    def close(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    # What is there

    def identity(self) -> ServerIdentity:
        return SERVER_IDENTITY.read(self._call("server_identity", None, None))

    def holders(self) -> list[Holder]:
        rows = self._call("list_gateways")
        return list(map(mapper(Holder), (row for row in rows if row["status"] == "active")))

    def logs(self) -> list[KnownLog]:
        """Every log, without its batches and producers."""
        return [
            KnownLog(
                TopicIdPartition(row.pop("topic_id"), row.pop("partition")), row.pop("topic"), **row
            )
            for row in self._call("rebuild_known_logs")
        ]

    def batches(self, log: TopicIdPartition) -> Iterator[KnownBatch]:
        """In offset order, page by page."""
        after = -1
        while True:
            rows = self._call("rebuild_known_batches", log, after, AT_ONCE)
            yield from map(mapper(KnownBatch), rows)
            if len(rows) < AT_ONCE:
                return
            after = rows[-1]["last_offset"]

    def producers(self, log: TopicIdPartition) -> dict[int, ProducerEntry]:
        return {
            row["producer_id"]: ProducerEntry(
                row["producer_epoch"],
                tuple(
                    itertools.starmap(
                        RememberedBatch,
                        zip(
                            row["base_sequences"],
                            row["last_sequences"],
                            row["base_offsets"],
                            row["append_times"],
                            strict=True,
                        ),
                    )
                ),
                row["updated_at"],
                row["unlocated_sequence"],
            )
            for row in self._call("rebuild_known_producers", log)
        }

    def objects(self, keys: Iterable[str]) -> dict[str, dict[int, KnownPlace]]:
        """Of ``keys`` those that were committed, with what is left of them."""
        found: dict[str, dict[int, KnownPlace]] = {}
        for some in _chunks(keys):
            for row in self._call("rebuild_known_objects", some):
                places = found.setdefault(row["object_key"], {})
                if row["byte_offset"] >= 0:
                    places[row["byte_offset"]] = KnownPlace(row["base_offset"], row["append_time"])
        return found

    # What is written

    def begin(self, by: str, reason: str, watched: Sequence[Holder], beat: int) -> None:
        """Halt the history, and fence ``watched``. Raises ``RebuildRefused`` while anybody lives
        who was not seen to stand still at these counters and at ``beat``."""
        self._call(
            "begin_rebuild",
            by,
            reason,
            [holder.gateway_id for holder in watched],
            [holder.incarnation for holder in watched],
            [holder.renewals for holder in watched],
            beat,
        )

    def topics(self, documents: Sequence[Mapping[str, object]]) -> None:
        self._call("rebuild_topics", _json(documents))

    def overrides(
        self, topic_id: UUID, documents: Sequence[Mapping[str, object]], let_go: Iterable[str]
    ) -> None:
        self._call("rebuild_overrides", topic_id, _json(documents), sorted(let_go))

    def tombstones(self, deleted: Mapping[UUID, str]) -> None:
        self._call("rebuild_tombstones", list(deleted), list(deleted.values()))

    def files(self, documents: Iterable[Mapping[str, object]]) -> None:
        for some in _chunks(documents, 1_000):
            self._call("rebuild_files", _json(some))

    def carriers(self, told: Mapping[str, str]) -> None:
        """By the key of the object that is told of."""
        for some in _chunks(told.items()):
            self._call("rebuild_carriers", [key for key, _ in some], [by for _, by in some])

    def log(
        self, log: TopicIdPartition, generation: int, boundary: int, told: Boundary | None
    ) -> None:
        """``boundary``: B0, -1 while it migrates. ``told``: what is set together with it."""
        if told is None:
            self._call("rebuild_log", log, generation, boundary, 0, None, 0, -1, -1)
            return
        seeded = told.seeds is not None and told != born_boundary(log)
        self._call(
            "rebuild_log",
            log,
            generation,
            boundary,
            told.leader_epoch,
            document(in_order(told.seeds or ())) if seeded else None,
            told.prefix_log_start,
            told.prefix_max_timestamp,
            told.prefix_max_timestamp_offset,
        )

    def starts(self, log: TopicIdPartition, suffix: int, prefix: int, accepted_gap: int) -> None:
        self._call("rebuild_starts", log, suffix, prefix, accepted_gap)

    def segment(
        self,
        log: TopicIdPartition,
        tiered_prefix: str,
        segment: MergedSegment,
        producers: Sequence[StoredProducerState],
    ) -> None:
        self._call(
            "rebuild_segment",
            log,
            tiered_prefix,
            segment.segment_id,
            segment.base_offset,
            segment.last_offset,
            segment.size_bytes,
            segment.max_timestamp,
            segment.record_count,
            segment.batch_count,
            segment.offset_index_bytes,
            segment.time_index_bytes,
            document(producers),
        )

    def add_batches(self, log: TopicIdPartition, rows: Iterable[LogBatch]) -> None:
        for some in _chunks(rows):
            self._call(
                "rebuild_batches",
                log,
                [row.base_offset for row in some],
                [row.last_offset for row in some],
                [row.object_key for row in some],
                [row.footer.byte_offset for row in some],
                [row.footer.byte_size for row in some],
                [row.footer.log_append_time for row in some],
                [row.append_time for row in some],
                [row.max_timestamp for row in some],
                [row.running_max_timestamp for row in some],
            )

    def end_log(
        self,
        log: TopicIdPartition,
        high_watermark: int,
        max_timestamp: int,
        producers: Mapping[int, ProducerEntry],
    ) -> None:
        entries = [_producer(number, entry) for number, entry in producers.items()]
        self._call("rebuild_end_of_log", log, high_watermark, max_timestamp, _json(entries))

    @contextmanager
    def transaction(self) -> Iterator[None]:
        """All calls in it, or none."""
        try:
            with self._connect().transaction():
                yield
        except (psycopg.Error, OSError) as error:
            raise translate(error) from error

    def _call(self, function: str, *arguments: object) -> list[DictRow]:
        given = parameters(arguments)
        try:
            return self._connect().execute(statement(function, len(given)), given).fetchall()
        except (psycopg.Error, OSError) as error:
            raise translate(error) from error

    def _connect(self) -> psycopg.Connection[DictRow]:
        if self._connection is None:
            opened = psycopg.connect(self._conninfo, autocommit=True, row_factory=dict_row)
            must_be_fit(self._conninfo, opened)
            self._connection = opened
        return self._connection


def _chunks(values: Iterable[Any], size: int = AT_ONCE) -> Iterator[list[Any]]:
    remaining = iter(values)
    while some := list(itertools.islice(remaining, size)):
        yield some


def _json(documents: Iterable[Mapping[str, object]]) -> Jsonb:
    return Jsonb(list(documents))


def _producer(number: int, entry: ProducerEntry) -> dict[str, object]:
    return {
        "producer_id": number,
        "producer_epoch": entry.epoch,
        "base_sequences": [batch.base_sequence for batch in entry.batches],
        "last_sequences": [batch.last_sequence for batch in entry.batches],
        "base_offsets": [batch.base_offset for batch in entry.batches],
        "append_times": [batch.append_time for batch in entry.batches],
        "updated_at": entry.updated_at,
        "unlocated_sequence": entry.unlocated_sequence,
    }
