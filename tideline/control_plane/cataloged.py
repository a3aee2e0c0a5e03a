"""The control plane with its catalog: what would be lost with Postgres is in the bucket before it
counts.

Each call says whether it creates such a fact where it is declared. Here are the records of those
that do; one that says so and has none does not exist here.

A fact is announced, Postgres is asked, and the fact is put again as one that counts. What Postgres
refuses stays announced, which is harmless: it carries a generation, or an offset, that no counted
record supports. A put that fails is a :class:`tideline.control_plane.catalog_writer.
CatalogUnavailable`, like a Postgres that does not answer.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Set
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any
from uuid import UUID

from tideline.control_plane.calls import TOLD, facts_of
from tideline.control_plane.catalog_writer import CatalogWriter
from tideline.control_plane.model import BoundaryToPersist, TrackedPartition, TrackingKind
from tideline.control_plane.plane import ControlPlane
from tideline.domain.catalog import (
    AcceptedGap,
    Boundary,
    BoundaryReset,
    HeldConfig,
    Limits,
    MigrationAborted,
    PrefixStart,
    Record,
    SuffixStart,
    Topic,
    TopicDeleted,
)
from tideline.domain.config_changes import limits_of
from tideline.domain.history import ServerIdentity
from tideline.domain.ids import TopicIdPartition

_FACTS = facts_of(ControlPlane)


def now_ms() -> int:
    return time.time_ns() // 1_000_000


class CatalogedControlPlane:
    """A :class:`tideline.control_plane.ControlPlane` over another one. Each call raises what that
    one raises, and ``CatalogUnavailable`` where it creates a fact."""

    def __init__(
        self, plane: ControlPlane, writer: CatalogWriter, clock_ms: Callable[[], int] = now_ms
    ) -> None:
        self._plane, self._writer, self._clock_ms = plane, writer, clock_ms
        self._history_id: UUID | None = None

    def __getattr__(self, name: str) -> Any:
        if _FACTS.get(name, TOLD) is not TOLD:
            return getattr(self._plane, name)
        raise AttributeError(f"{name} is not known to create no fact: say which in {__name__}")

    async def history_id(self) -> UUID:
        """Of the Postgres that is asked; a process that knows one does not outlive it."""
        if self._history_id is None:
            await self.identity()
        assert self._history_id is not None
        return self._history_id

    async def count(self, records: Iterable[Record]) -> None:
        """These count already."""
        history_id = await self.history_id()
        for record in records:
            await asyncio.to_thread(self._writer.count, history_id, record)

    async def catalog_keys(self) -> set[str]:
        """What counts in the bucket, for :meth:`count_missing`."""
        return await asyncio.to_thread(self._writer.keys)

    async def count_missing(self, there: Set[str], records: Iterable[Record]) -> int:
        """:meth:`count` those that are not ``there``; how many."""
        history_id = await self.history_id()
        missing = [r for r in records if self._writer.key_of(history_id, r) not in there]
        await self.count(missing)
        return len(missing)

    @asynccontextmanager
    async def _counting(self, *records: Record) -> AsyncIterator[None]:
        """Announced before the body, counted when it has ended well."""
        history_id = await self.history_id()
        for record in records:
            await asyncio.to_thread(self._writer.announce, history_id, record)
        yield
        await self.count(records)

    async def _view(self, log: TopicIdPartition) -> TrackedPartition | None:
        """The partition, if it has a B0."""
        view = await self._plane.tracked_partition(log.topic_id, log.partition)
        return view if view is not None and view.boundary >= 0 else None

    # The history

    async def identity(self, seen: ServerIdentity | None = None) -> ServerIdentity:
        found = await self._plane.identity(seen)
        self._history_id = found.history_id
        return found

    async def begin_history(self, begun_by: str, reason: str) -> UUID:
        """Its catalog is told by whoever keeps it (:mod:`tideline.control_plane.catalog_keeper`):
        the records before speak of a history that has ended."""
        self._history_id = await self._plane.begin_history(begun_by, reason)
        return self._history_id

    # Topics

    async def begin_tracking(
        self,
        name: str,
        topic_id: UUID | None,
        kind: TrackingKind,
        partitions: int,
        timestamp_type: str,
        max_message_bytes: int,
        run: str | None = None,
    ) -> int:
        about = (name, topic_id, kind, partitions, timestamp_type, max_message_bytes, run)
        if topic_id is None:
            return await self._plane.begin_tracking(*about)
        born = kind is TrackingKind.BORN_DISKLESS
        first = 0 if born else partitions
        async with self._counting(Topic(topic_id, name, born, partitions, first)):
            round_ = await self._plane.begin_tracking(*about)
            await self.count([self._limits(topic_id, timestamp_type, max_message_bytes)])
        return round_

    async def begin_migration(
        self,
        name: str,
        topic_id: UUID,
        partitions: int,
        timestamp_type: str,
        max_message_bytes: int,
        cluster_id: str,
        run: str | None = None,
    ) -> None:
        async with self._counting(Topic(topic_id, name, False, partitions, partitions)):
            await self._plane.begin_migration(
                name, topic_id, partitions, timestamp_type, max_message_bytes, cluster_id, run
            )
            await self.count([self._limits(topic_id, timestamp_type, max_message_bytes)])

    async def complete_creation(self, name: str, topic_id: UUID, partitions: int) -> None:
        async with self._counting(Topic(topic_id, name, True, partitions, 0)):
            await self._plane.complete_creation(name, topic_id, partitions)
            if (topic := await self._plane.tracked_topic(name)) is not None:
                limits = self._limits(topic_id, topic.timestamp_type, topic.max_message_bytes)
                await self.count([limits])

    async def add_partitions(self, name: str, topic_id: UUID, first: int, total: int) -> None:
        topic = await self._plane.tracked_topic(name)
        if topic is None or topic.topic_id != topic_id or total <= len(topic.partitions):
            return await self._plane.add_partitions(name, topic_id, first, total)
        born = topic.kind is TrackingKind.BORN_DISKLESS
        born_from = 0 if born else len(topic.partitions)
        async with self._counting(Topic(topic_id, name, born, total, born_from)):
            await self._plane.add_partitions(name, topic_id, first, total)

    async def delete_topic(
        self, topic_id: UUID, by: str = "gateway", why: str = "Kafka deleted it"
    ) -> None:
        """Kafka has decided: it counts without an answer of Postgres."""
        await self.count([TopicDeleted(topic_id, by, why)])
        await self._plane.delete_topic(topic_id, by, why)

    async def update_topic_limits(
        self,
        topic_id: UUID,
        *,
        timestamp_type: str | None = None,
        max_message_bytes: int | None = None,
        timestamp_before_max_ms: int | None = None,
        timestamp_after_max_ms: int | None = None,
    ) -> None:
        await self._plane.update_topic_limits(
            topic_id,
            timestamp_type=timestamp_type,
            max_message_bytes=max_message_bytes,
            timestamp_before_max_ms=timestamp_before_max_ms,
            timestamp_after_max_ms=timestamp_after_max_ms,
        )
        limits = (
            timestamp_type,
            max_message_bytes,
            timestamp_before_max_ms,
            timestamp_after_max_ms,
        )
        await self.count([Limits(topic_id, *limits, self._clock_ms())])

    def _limits(self, topic_id: UUID, timestamp_type: str, max_message_bytes: int) -> Limits:
        return Limits(topic_id, timestamp_type, max_message_bytes, None, None, self._clock_ms())

    # Configs. Kafka still has the user's value when the override is noted: nothing to announce.

    async def override_config(
        self,
        topic_id: UUID,
        key: str,
        override_value: str | None,
        user_value: str | None,
        round: int | None = None,
    ) -> None:
        await self._plane.override_config(topic_id, key, override_value, user_value, round)
        await self._note_config(topic_id, key)

    async def update_user_config(self, topic_id: UUID, key: str, user_value: str | None) -> bool:
        held = await self._plane.update_user_config(topic_id, key, user_value)
        if held:
            await self._note_config(topic_id, key)
        return held

    async def follow_default_limit(self, topic_id: UUID, key: str, seen: str, default: str) -> bool:
        follows = await self._plane.follow_default_limit(topic_id, key, seen, default)
        if follows:
            found: Mapping[str, Any] = limits_of({key: default}, [key])
            stays = Limits(topic_id, None, None, None, None, self._clock_ms())
            await self.count([replace(stays, **found)])
        return follows

    async def release_config(
        self, topic_id: UUID, key: str, user_value: str | None, round: int | None = None
    ) -> bool:
        released = await self._plane.release_config(topic_id, key, user_value, round)
        if released:
            await self._note_config(topic_id, key)
        return released

    async def _note_config(self, topic_id: UUID, key: str) -> None:
        """What Postgres has of it now."""
        at = self._clock_ms()
        held = (await self._plane.config_overrides_of(topic_id)).get(key)
        override, user = (held.override_value, held.user_value) if held else (None, None)
        await self.count([HeldConfig(topic_id, key, held is not None, override, user, at)])

    # B0

    async def initialize_diskless_migration(self, boundary: BoundaryToPersist) -> None:
        log = boundary.log
        record = Boundary(
            log.topic_id,
            log.partition,
            boundary.generation,
            boundary.leader_epoch,
            boundary.boundary,
            boundary.seeds,
            boundary.prefix_log_start,
            boundary.prefix_max_timestamp,
            boundary.prefix_max_timestamp_offset,
        )
        await self._set_boundary(
            record, lambda: self._plane.initialize_diskless_migration(boundary)
        )

    async def _set_boundary(self, record: Boundary, ask: Callable[[], Any]) -> None:
        """Counted at the epoch that Postgres has: a repeated call may come with a higher one."""
        history_id = await self.history_id()
        await asyncio.to_thread(self._writer.announce, history_id, record)
        await ask()
        view = await self._view(TopicIdPartition(record.topic_id, record.partition))
        if view is not None and view.boundary == record.boundary:
            record = replace(record, leader_epoch=view.boundary_epoch)
        await self.count([record])

    async def set_diskless_log_start_offset(
        self, log: TopicIdPartition, boundary: int, leader_epoch: int
    ) -> None:
        row = await self._plane.tracked_partition(log.topic_id, log.partition)

        async def ask() -> None:
            await self._plane.set_diskless_log_start_offset(log, boundary, leader_epoch)

        if row is None or (boundary < 0 and row.boundary < 0):
            await ask()
        elif boundary < 0:
            async with self._counting(_reset(log, row, row.generation)):
                await ask()
        else:
            at = (log.topic_id, log.partition, row.generation, leader_epoch, boundary)
            await self._set_boundary(Boundary(*at, None, 0, -1, -1), ask)

    async def reset_boundary(
        self, log: TopicIdPartition, generation: int, leader_epoch: int
    ) -> None:
        view = await self._view(log)
        if view is None:
            return await self._plane.reset_boundary(log, generation, leader_epoch)
        async with self._counting(_reset(log, view, generation)):
            await self._plane.reset_boundary(log, generation, leader_epoch)

    async def abort_migration(self, topic_id: UUID) -> None:
        found = [t for t in await self._plane.tracked_topics() if t.topic_id == topic_id]
        if not found:
            return await self._plane.abort_migration(topic_id)
        rows = sorted(found[0].partitions.items())
        generations = tuple((partition, row.generation) for partition, row in rows)
        async with self._counting(MigrationAborted(topic_id, generations)):
            await self._plane.abort_migration(topic_id)

    async def accept_gap(
        self,
        log: TopicIdPartition,
        generation: int,
        leader_epoch: int,
        first: int,
        end: int,
        decided_by: str,
        reason: str,
        details: Mapping[str, Any],
    ) -> None:
        about = (generation, leader_epoch, first, end)
        async with self._counting(AcceptedGap(log.topic_id, log.partition, *about)):
            await self._plane.accept_gap(log, *about, decided_by, reason, details)

    # Starts

    async def delete_records(self, log: TopicIdPartition, before_offset: int) -> int:
        """-1 becomes the high watermark that is read before, which the record names."""
        view = await self._view(log)
        if view is None:
            return await self._plane.delete_records(log, before_offset)
        before = view.high_watermark if before_offset == -1 else before_offset
        if (announced := suffix_start(log, view, before)) is not None:
            history_id = await self.history_id()
            await asyncio.to_thread(self._writer.announce, history_id, announced)
        start = await self._plane.delete_records(log, before)
        if start > view.boundary:
            await self.count([start_of(log, view, start)])
        return start

    async def advance_prefix_start(self, log: TopicIdPartition, log_start: int) -> None:
        record = prefix_start(log, await self._view(log), log_start)
        if record is None:
            return await self._plane.advance_prefix_start(log, log_start)
        async with self._counting(record):
            await self._plane.advance_prefix_start(log, log_start)


def suffix_start(log: TopicIdPartition, view: TrackedPartition, before: int) -> SuffixStart | None:
    """What to announce; ``None``: the start does not move, or Postgres refuses it."""
    if not view.suffix_start < before <= view.high_watermark:
        return None
    return start_of(log, view, before)


def start_of(log: TopicIdPartition, view: TrackedPartition, start: int) -> SuffixStart:
    return SuffixStart(log.topic_id, log.partition, view.boundary, start)


def prefix_start(
    log: TopicIdPartition, view: TrackedPartition | None, log_start: int
) -> PrefixStart | None:
    """``None``: there is no prefix that could move."""
    if view is None or view.boundary == 0 or log_start < 0:
        return None
    return PrefixStart(log.topic_id, log.partition, view.boundary, min(log_start, view.boundary))


def _reset(log: TopicIdPartition, row: TrackedPartition, generation: int) -> BoundaryReset:
    at = (log.topic_id, log.partition, generation)
    return BoundaryReset(*at, row.boundary, row.boundary_epoch)
