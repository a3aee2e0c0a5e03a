"""The control plane in Postgres, called from an event loop: gateways, the worker, the CLI.

Each method is one call of a SQL function (infra/postgres), as it is declared in
:class:`tideline.control_plane.plane.ControlPlane`; here are those that are more than that.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from uuid import UUID

from tideline.control_plane import row_readers
from tideline.control_plane.calls import (
    Function,
    array_literal,
    columns,
    literals,
    mapper,
    rows,
)
from tideline.control_plane.model import (
    BatchToCommit,
    CommitDurability,
    CommittedBatch,
    FindBatchesRequest,
    FoundBatches,
    LogProducer,
    Standby,
    StreamPlace,
    TrackedTopic,
)
from tideline.control_plane.plane import ControlPlane
from tideline.control_plane.pool import Lanes, Pool
from tideline.domain.connections import ConnectionRoom
from tideline.domain.ids import TopicIdPartition
from tideline.domain.topic_configs import LOG_APPEND_TIME


class PostgresControlPlane(ControlPlane):
    def __init__(self, pool: Pool | Lanes) -> None:
        self._pool = pool
        self._call = pool.call

    async def tracked_topics(self) -> list[TrackedTopic]:
        return await self._call(
            Function("tracked_topics", row_readers.tracked_topics, many=True), None
        )

    async def commit_file(
        self,
        gateway_id: int,
        incarnation: UUID,
        object_key: str,
        size: int,
        batches: Sequence[BatchToCommit],
        stream: StreamPlace | None = None,
    ) -> list[CommittedBatch]:
        log = literals("log.topic_id", "log.partition")
        shape = literals("byte_offset", "byte_size", "record_count", "max_timestamp")
        by_append = array_literal(batch.timestamp_type == LOG_APPEND_TIME for batch in batches)
        producer = literals("producer_id", "producer_epoch", "base_sequence", "last_sequence")
        answer = await self._call(
            Function("commit_file", row_readers.committed, lane="commits"),
            gateway_id,
            incarnation,
            object_key,
            size,
            *log(batches),
            *shape(batches),
            by_append,
            *producer(batches),
            None if stream is None else stream.sequence,
            None if stream is None or not stream.withdrawn else list(stream.withdrawn),
            [] if stream is None else list(stream.tells),
        )
        self._pool.acknowledged(object_key)
        return answer

    async def find_batches(self, requests: Sequence[FindBatchesRequest]) -> list[FoundBatches]:
        if not requests:
            return []
        function = Function("find_batches", row_readers.found_batches, lane="reads")
        names = ("log.topic_id", "log.partition", "fetch_offset", "max_bytes")
        return await self._call(function, *literals(*names)(requests))

    async def high_watermarks(
        self,
        logs: Sequence[TopicIdPartition],
        known: Mapping[TopicIdPartition, int] | None = None,
    ) -> dict[TopicIdPartition, int]:
        if not logs:
            return {}
        function = Function("high_watermarks", row_readers.high_watermarks, lane="reads")
        below = array_literal((known or {}).get(log, -1) for log in logs)
        return await self._call(function, *literals("topic_id", "partition")(logs), below)

    async def describe_producers(
        self, logs: Sequence[TopicIdPartition], limit: int
    ) -> dict[TopicIdPartition, list[LogProducer]]:
        if not logs:
            return {}
        function = Function("describe_producers", row_readers.log_producers)
        return await self._call(function, *columns("topic_id", "partition")(logs), limit)

    async def connection_room(self) -> ConnectionRoom:
        (found,) = await self._pool.fetch(
            b"SELECT current_setting('max_connections')::int AS max_connections,"
            b" current_setting('superuser_reserved_connections')::int"
            b" + coalesce(current_setting('reserved_connections', true), '0')::int AS reserved,"
            b" rolname AS role, rolconnlimit AS role_limit"
            b" FROM pg_roles WHERE rolname = session_user"
        )
        return mapper(ConnectionRoom)(found)

    async def check_synchronous_commit(self) -> CommitDurability:
        found = await self._pool.fetch(
            b"SELECT name, setting FROM pg_settings WHERE name IN "
            b"('fsync', 'full_page_writes', 'synchronous_commit', 'synchronous_standby_names')"
        )
        settings = {row["name"]: row["setting"] for row in found}
        standbys = await self._call(Function("attached_standbys", rows(Standby)))
        return _durability(settings, tuple(standbys))

    async def tell_of_commits(self) -> None:
        await self._pool.fetch(b"SELECT pg_notify('tideline_commits', '')", retry=False)

    def listen(
        self, channels: Sequence[str], on_listening: Callable[[], None] | None = None
    ) -> AsyncIterator[tuple[str, str]]:
        return self._pool.listen(channels, on_listening)


def _durability(settings: dict[str, str], standbys: tuple[Standby, ...]) -> CommitDurability:
    """Preflight asks: B0 and acknowledgements must outlive a crash (schedule 16)."""
    if settings["fsync"] != "on" or settings["full_page_writes"] != "on":
        risk = "fsync or full_page_writes is off: a crash of the host loses commits"
    elif (waits := settings["synchronous_commit"]) in ("off", "local"):
        risk = f"synchronous_commit is {waits}: a crash or failover loses commits"
    elif names := settings["synchronous_standby_names"]:
        return CommitDurability(True, f"commits wait for {names}", settings, standbys)
    else:
        found = "commits wait for the disk; without synchronous_standby_names do not fail over"
        return CommitDurability(True, f"{found} to a standby", settings, standbys)
    return CommitDurability(False, f"{risk}. Turn it on in postgresql.conf.", settings, standbys)
