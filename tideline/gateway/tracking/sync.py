"""Keeps the view of tracked topics like Postgres, and acknowledges what is tracked.

What always holds: rows are applied in the order in which they were read, and only from the very
Postgres that was pinned (schedule 16); a topic is acknowledged only when it is in the fsynced
snapshot and everything that reached Kafka before it was tracked is done (schedules 6, 9, 18).
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Sequence
from contextlib import asynccontextmanager
from uuid import UUID

import structlog

from tideline.background import cancel_and_wait, keep
from tideline.control_plane import COMMITS_CHANNEL, CONTROL_CHANNEL, ControlPlane
from tideline.control_plane.errors import GatewayFenced, UnfitSession, UnknownToThisVersion
from tideline.control_plane.model import (
    Tombstone,
    TopicStatus,
    TrackedChanges,
    TrackedPartition,
    TrackedTopic,
)
from tideline.domain.history import ServerIdentity
from tideline.domain.ids import TopicIdPartition
from tideline.errors import RefusedError, TidelineError, is_outage
from tideline.gateway.listeners import Listeners
from tideline.gateway.tracking.lease import Lease
from tideline.gateway.tracking.postgres_watch import NotEstablished, PostgresWatch
from tideline.gateway.tracking.snapshot import SnapshotFile
from tideline.gateway.tracking.view import MAX_TOMBSTONES, TOMBSTONE_S, TrackingView

log = structlog.get_logger()
POLL_S = 3.0
START_PATIENCE_S = 8.0
"""How long a start waits for Postgres before it falls back on the snapshot."""
RETRY_S = 0.5
RECENT_S = 600.0
WHOLE_EVERY_S = 300.0
"""Everything is read this often, although changes tell all there is."""
TopicRound = tuple[str, UUID | None, int]
"""Name, id and round: an abort ends what was drained and acknowledged."""
RESTS, RESTS_AT_MOST_S = 9, 2.0
"""Times as long as a write of the snapshot took, before the next one."""
SINGLE_ROWS = 2
"""More changed partitions than this are read with whatever else has changed, by one query."""


class TrackingSync:
    """Owns the background work; :class:`TrackingView` is what requests look at."""

    def __init__(
        self,
        control_plane: ControlPlane,
        tracking: TrackingView,
        lease: Lease,
        snapshot: SnapshotFile,
        *,
        drain: Callable[[], Awaitable[None]],
        poll_s: float = POLL_S,
        postgres: PostgresWatch | None = None,
    ) -> None:
        self._control_plane = control_plane
        self._tracking = tracking
        self._lease = lease
        self._snapshot = snapshot
        self._drain = drain
        self._poll_s = poll_s
        self._postgres = postgres or PostgresWatch(control_plane, tracking, lease)
        self._reading = asyncio.Lock()
        self._writing = asyncio.Lock()
        self._drained: set[TopicRound] = set()
        self._drained_more = asyncio.Event()
        self._acknowledged: dict[TopicRound, UUID] = {}
        self._refused = False
        """Whether this process was not let in at its start."""
        self._heard_of_the_dead = False
        self._since: str | None = None
        """Where the next reading of changes goes on."""
        self._whole_at = 0.0
        self._hints: dict[str, None] = {}
        """In the order of their arrival, each once."""
        self._hinted = asyncio.Event()
        self.heard: Listeners[[bool]] = Listeners()
        """Called with true when logs may have moved that were quiet, with false when nobody would
        hear of that from now on."""
        self._due = asyncio.Event()
        self._changed = asyncio.Event()
        self._tasks: list[asyncio.Task[None]] = []
        lease.gained.add(self._due.set)
        lease.remove_snapshot = self._remove_snapshot

    async def start(self) -> None:
        """Returns when it is known which topics are tracked: from Postgres, else from the
        snapshot; with neither it waits, for as long as it takes (schedule 18). So it does from when
        Postgres, Kafka or the object store has refused this process, whatever comes after that: it
        may have been declared gone, and nobody waits for it."""
        stored = await asyncio.to_thread(self._snapshot.read)
        await self._postgres.recall(stored.identity if stored is not None else None)
        patience = START_PATIENCE_S if stored is not None else None
        try:
            async with asyncio.timeout(patience):
                await self._first_registration()
        except TimeoutError:
            if self._refused:
                await self._first_registration()
            else:
                assert stored is not None
                log.warning("tracking.from_snapshot", topics=len(stored.topics))
                self._tracking.replace_all(stored.topics)
                self._note_drained()
                self._lease.serves_unregistered = True
        self._tasks = [
            keep(self._keep_lease(), "lease"),
            keep(self._poll(), "tracking-poll"),
            keep(self._listen(), "tracking-listen"),
            keep(self._follow_hints(), "tracking-hints"),
            keep(self._acknowledge(), "tracking-acknowledge"),
            keep(self._keep_snapshot(), "tracking-snapshot"),
        ]

    async def close(self) -> None:
        await cancel_and_wait(*self._tasks)

    async def reload(self) -> None:
        """Read what has changed since the last reading, or everything: at first, after another
        registration, where Postgres does not know any more what has changed since, and once in a
        while. One statement where no topic has changed. Raises :class:`ControlPlaneUnavailable`.
        """
        async with self._one_reading():
            now = asyncio.get_running_loop().time()
            before = self._postgres.seen
            changes: TrackedChanges | None = None
            if self._since is not None and now < self._whole_at:
                changes = await self._control_plane.tracked_changes(self._since, before)
                if changes.upto is None:
                    changes = None
            dead: list[Tombstone] = []
            whole = answered = None
            if changes is not None and not changes.names:
                # A deletion would have changed a name: there is nothing more to ask.
                answered = before, changes.identity
            else:
                if changes is None:
                    since = await self._control_plane.tracked_changes_begin()
                    topics = await self._control_plane.tracked_topics()
                # After them: a deletion in between is then heard of, and a dead id outweighs a row.
                dead = await self._control_plane.deleted_topics(self._within_ms(), MAX_TOMBSTONES)
                if changes is None:
                    whole = await asyncio.to_thread(self._tracking.read_anew, topics)
            if not await self._is_the_same(answered):
                self._since = None
                return
            self._tracking.bury(tombstone.topic_id for tombstone in reversed(dead))
            if changes is not None:
                # A deletion since the changes were read: its route changes now, not at the next.
                buried = {
                    topic.name
                    for tombstone in dead
                    if tombstone.topic_id is not None
                    and (topic := self._tracking.topic_by_id(tombstone.topic_id)) is not None
                }
                self._tracking.replace_named(changes.names | buried, changes.topics)
                self._tracking.replace_rows(changes.rows)
                self._since = changes.upto
            else:
                assert whole is not None
                self._tracking.replace_all(whole)
                self._since, self._whole_at = since, now + WHOLE_EVERY_S
            self._heard_of_the_dead = True
        if changes is None or changes.names or dead:
            self._after_change()
        elif changes.rows:
            self._changed.set()

    @asynccontextmanager
    async def _one_reading(self) -> AsyncIterator[None]:
        async with self._reading:
            with self._postgres.noticing():
                yield

    async def _is_the_same(
        self, answered: tuple[ServerIdentity | None, ServerIdentity] | None = None
    ) -> bool:
        """See :meth:`PostgresWatch.is_the_same`. A standby that was promoted may lack what was
        acknowledged: it is said again."""
        before = self._postgres.pinned
        same = await self._postgres.is_the_same(answered)
        if before is not None and self._postgres.pinned != before:
            self._acknowledged.clear()
            self._due.set()
        return same

    def _within_ms(self) -> int:
        """How old tombstones may be: all that count at first, then those since the reads before,
        with room for commits that were slow."""
        seconds = RECENT_S if self._heard_of_the_dead else TOMBSTONE_S
        return int(seconds * 1000)

    async def reload_partition(self, at: TopicIdPartition) -> None:
        """Read one row anew. Raises :class:`ControlPlaneUnavailable`."""
        await self._reload_rows([at])

    async def _reload_rows(self, logs: Sequence[TopicIdPartition]) -> None:
        async with self._one_reading():
            rows = {}
            for at in logs:
                row = await self._row(at)
                if row is not None and self._tracking.topic_by_id(at.topic_id) is not None:
                    rows[at] = row
            if rows and await self._is_the_same():
                self._tracking.replace_rows(rows)
                self._changed.set()
        if len(rows) < len(logs):
            await self.reload()

    async def _row(self, at: TopicIdPartition) -> TrackedPartition | None:
        """``None`` also for one that this version cannot read: the reading of what has changed
        leaves it without a row, which refuses it."""
        try:
            return await self._control_plane.tracked_partition(at.topic_id, at.partition)
        except UnknownToThisVersion:
            return None

    async def _keep_lease(self) -> None:
        await self._first_registration()
        await self._lease.keep(self.learn_anew)

    async def _first_registration(self) -> None:
        """Until Postgres knows this process. Raises :class:`NotEstablished`; and, where requests
        are served from the snapshot already, whatever refuses this process: it ends with it."""
        reported_at = 0.0
        loop = asyncio.get_running_loop()
        while not self._lease.registered:
            try:
                await self._postgres.establish()
                await self._lease.renew(self.learn_anew)
            except NotEstablished:
                raise
            except TidelineError as error:
                # A session that cannot be used is as none: nobody has refused this gateway itself.
                if not is_outage(error) and not isinstance(error, UnfitSession):
                    if self._lease.serves_unregistered and not self._lease.waits_for_its_dead:
                        raise
                    self._refused = True
                if loop.time() - reported_at > 5:
                    reported_at = loop.time()
                    log.error("tracking.waits_for_postgres", error=str(error))
                await asyncio.sleep(RETRY_S)

    async def learn_anew(self) -> None:
        """A new incarnation exists in Postgres and does not serve yet."""
        self._heard_of_the_dead = False
        self._since = None
        self._acknowledged.clear()
        await self.reload()

    def _after_change(self) -> None:
        """Of topics; what only their partitions have changed needs no acknowledgement."""
        live = {_round_of(topic) for topic in self._tracking.topics()}
        self._drained &= live
        for gone in self._acknowledged.keys() - live:
            del self._acknowledged[gone]
        self._due.set()
        self._changed.set()

    async def until_drained(self, topic_id: UUID) -> None:
        """Returns when everything is done that reached Kafka before the topic was tracked in its
        present round, or when it is not tracked any more."""
        while (topic := self._tracking.topic_by_id(topic_id)) is not None:
            if _round_of(topic) in self._drained:
                return
            more = self._drained_more
            self._due.set()
            await more.wait()

    def _note_drained(self) -> None:
        self._drained = {_round_of(topic) for topic in self._tracking.topics()}
        self._tell_drained()

    def _tell_drained(self) -> None:
        self._drained_more.set()
        self._drained_more = asyncio.Event()

    async def _poll(self) -> None:
        while True:
            await asyncio.sleep(self._poll_s)
            for topic in self._tracking.topics():
                if topic.status is TopicStatus.TRACKING:
                    # The acknowledgement may have been lost in Postgres; repeats cost nothing.
                    self._acknowledged.pop(_round_of(topic), None)
            try:
                await self.reload()
            except TidelineError as error:
                log.warning("tracking.not_read", error=str(error))

    async def _listen(self) -> None:
        while True:
            try:
                both = [CONTROL_CHANNEL, COMMITS_CHANNEL]
                async for channel, payload in self._control_plane.listen(both, self._read_all):
                    if channel == COMMITS_CHANNEL:
                        self.heard(True)
                    else:
                        self._hints[payload] = None
                        self._hinted.set()
            except TidelineError as error:
                log.warning("tracking.not_listening", error=str(error))
            self.heard(False)
            await asyncio.sleep(RETRY_S)

    def _read_all(self) -> None:
        """What was sent before the listening began is lost."""
        self._hints[""] = None
        self._hinted.set()
        self.heard(True)

    async def _follow_hints(self) -> None:
        while True:
            await self._hinted.wait()
            self._hinted.clear()
            hints, self._hints = self._hints, {}
            try:
                await self._follow(hints)
            except TidelineError as error:
                log.warning("tracking.not_read", error=str(error))
                self._hints = hints | self._hints
                await asyncio.sleep(RETRY_S)
                self._hinted.set()

    async def _keep_snapshot(self) -> None:
        """Beside everything else: a slow disk must not hold back the news of a B0. It works a
        tenth of the time at most: each partition that migrates changes some times, and what comes
        meanwhile is one write."""
        loop = asyncio.get_running_loop()
        while True:
            await self._changed.wait()
            self._changed.clear()
            began = loop.time()
            try:
                await self._write_if_changed()
                await asyncio.sleep(min(RESTS * (loop.time() - began), RESTS_AT_MOST_S))
            except OSError as error:
                log.error("tracking.snapshot_not_written", error=str(error))
                await asyncio.sleep(RETRY_S)
                self._changed.set()

    async def _follow(self, hints: Collection[str]) -> None:
        logs = [at for hint in hints if (at := _log_of(hint)) is not None]
        if len(logs) != len(hints) or len(logs) > SINGLE_ROWS:
            await self.reload()
            return
        await self._reload_rows(logs)

    async def _acknowledge(self) -> None:
        """Acknowledge every tracked topic once per incarnation."""
        while True:
            await self._due.wait()
            self._due.clear()
            wanted = [
                topic
                for topic in self._tracking.topics()
                if self._acknowledged.get(_round_of(topic)) != self._lease.incarnation
                or _round_of(topic) not in self._drained
            ]
            if not wanted or not self._tracking.lease_valid():
                continue
            try:
                await self._acknowledge_now(wanted)
            except (TidelineError, OSError) as error:
                log.warning("tracking.not_acknowledged", error=str(error))
                await asyncio.sleep(RETRY_S)
                self._due.set()

    async def _acknowledge_now(self, topics: Sequence[TrackedTopic]) -> None:
        incarnation = self._lease.incarnation
        rounds = {_round_of(topic) for topic in topics}
        if not rounds <= self._drained:
            await self._drain()
            self._drained |= rounds & {_round_of(topic) for topic in self._tracking.topics()}
            self._tell_drained()
        await self._write_if_changed()
        for topic in topics:
            if _round_of(topic) not in self._drained:
                continue
            try:
                await self._control_plane.acknowledge_tracking(
                    self._lease.gateway_id, incarnation, topic.name, topic.round
                )
            except GatewayFenced:
                return  # The lease finds out by itself.
            except RefusedError as error:
                log.info("tracking.let_go", topic=topic.name, reason=str(error))
            self._acknowledged[_round_of(topic)] = incarnation
            log.info("tracking.acknowledged", topic=topic.name, incarnation=str(incarnation))

    async def _write_if_changed(self) -> None:
        """The snapshot on disk says what is tracked now, when this returns."""
        async with self._writing:
            if self._lease.released:
                return
            if (pinned := self._postgres.pinned) is not None:
                topics = self._tracking.topics()
                await asyncio.to_thread(self._snapshot.write, pinned, topics)

    async def _remove_snapshot(self) -> None:
        async with self._writing:
            await asyncio.to_thread(self._snapshot.remove)


def _round_of(topic: TrackedTopic) -> TopicRound:
    return topic.name, topic.topic_id, topic.round


def _log_of(hint: str) -> TopicIdPartition | None:
    kind, _, rest = hint.partition(":")
    topic_id, _, partition = rest.rpartition(":")
    if kind != "log" or not partition.isdigit():
        return None
    try:
        return TopicIdPartition(UUID(topic_id), int(partition))
    except ValueError:
        return None
