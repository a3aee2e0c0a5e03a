"""Record batches of tracked partitions on their way into object storage.

Batches of many partitions are gathered until 250 ms behind the last object or 8 MiB, at once after
a silence, put as one object, and committed in one call that assigns their offsets. What always
holds: uploads run side by side but commits go in the order of the objects; a commit of unknown
outcome is repeated
under its key until its outcome is known; when a batch fails, everything accepted behind it of its
producer and partition fails too (schedule 10). Each object tells what it holds, and what became of
the commits before it; the last ones before a pause are told by an object of their own, and what was
given up or left out is in the bucket before anything is committed behind it (decision 0022).
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import TypeAlias
from uuid import UUID

import structlog
from tenacity import stop_after_delay, wait_random_exponential

from tideline.background import spawn
from tideline.control_plane import ControlPlane
from tideline.control_plane.errors import (
    ControlPlaneUnavailable,
    GatewayFenced,
    ObjectKeyRejected,
)
from tideline.control_plane.model import (
    BatchToCommit,
    CommitError,
    CommittedBatch,
    StreamPlace,
)
from tideline.domain.ids import TopicIdPartition
from tideline.domain.pace import paced
from tideline.domain.pipelining import RefusedSequences
from tideline.domain.request_handling import Failure
from tideline.domain.wal_footer import EarlierCommit
from tideline.errors import RefusedError, TidelineError
from tideline.gateway import metrics
from tideline.gateway.fetch.from_suffix import HighWatermarks
from tideline.gateway.fetch.object_reader import ObjectCache
from tideline.gateway.listeners import Listeners
from tideline.gateway.produce.appends import (
    Append,
    AppendDropped,
    AppendFailed,
    WalObject,
    placed,
)
from tideline.gateway.produce.commit_stream import CommitStream
from tideline.gateway.produce.news import CommitNews
from tideline.gateway.produce.object_keys import ObjectKeys
from tideline.gateway.produce.teller import Teller
from tideline.gateway.room import Room
from tideline.gateway.tracking.lease import Lease
from tideline.object_store import ObjectStoreUnavailable
from tideline.object_store.async_store import ObjectStore
from tideline.retries import retried

log = structlog.get_logger()
_FAST_RETRY = wait_random_exponential(multiplier=0.05, max=1.0)
RefusedProduces: TypeAlias = RefusedSequences[tuple[TopicIdPartition, object]]
"""By partition and client connection: what failed or was refused and will come again. What was sent
behind it is refused until it comes."""
_TRANSIENT = (ControlPlaneUnavailable, ObjectStoreUnavailable)
STATED_WITHIN_S = 2.0
"""What must be told before a commit has so long at least, whatever its upload has taken."""

COPIES = 2
"""Of a batch that is under way: itself, and within the object that is put."""


class WalWriter:
    """The one ordered commit stream of a gateway."""

    def __init__(
        self,
        store: ObjectStore,
        control_plane: ControlPlane,
        keys: ObjectKeys,
        lease: Lease,
        cache: ObjectCache,
        watermarks: HighWatermarks,
        refused: RefusedProduces,
        stream: CommitStream,
        *,
        max_bytes: int,
        max_delay_s: float,
        buffer_max_bytes: int,
        parallel_uploads: int,
        upload_patience_s: float,
        clock: Callable[[], float] = time.monotonic,
        room: Room | None = None,
    ) -> None:
        self._room = room or Room()
        self._store = store
        self._control_plane = control_plane
        self._keys = keys
        self._lease = lease
        self._cache = cache
        self._watermarks = watermarks
        self._news = CommitNews(control_plane)
        self._refused = refused
        self._stream = stream
        self._max_bytes = max_bytes
        self._max_delay_s = max_delay_s
        self._buffer_max_bytes = buffer_max_bytes
        self._upload_slots = asyncio.Semaphore(parallel_uploads)
        self._upload_patience_s = upload_patience_s
        self._clock = clock
        self._buffer: list[Append] = []
        self._buffer_bytes = 0
        self._unfinished_bytes = 0
        self._pipeline: deque[WalObject] = deque()
        self._timer: asyncio.Handle | None = None
        self._cut_at = float("-inf")
        """When the last object was begun, in the loop's seconds."""
        self._committer: asyncio.Task[None] | None = None
        self._refill: asyncio.Task[None] | None = None
        self._teller = Teller(
            stream, control_plane, lease, self._put, self._put_aside, self._commit_known
        )
        self.made_room: Listeners[[]] = Listeners()
        """Called when something has left the buffer and it is not full."""
        metrics.WAL_OLDEST.set_function(self.oldest_s)
        metrics.WAL_BUFFERED.set_function(lambda: self._unfinished_bytes)
        lease.fenced.add(self.drop_all)
        lease.gained.add(self._teller.inherit)

    @property
    def has_room(self) -> bool:
        """Whether another batch may be accepted; otherwise it waits before the writer."""
        return self._unfinished_bytes < self._buffer_max_bytes

    def has_room_for(self, size: int) -> bool:
        """Whether batches of ``size`` bytes together may be accepted one after the other."""
        return self._unfinished_bytes + size < self._buffer_max_bytes

    @property
    def unfinished_bytes(self) -> int:
        """Accepted and neither committed nor failed."""
        return self._unfinished_bytes

    def oldest_s(self) -> float:
        """Since the oldest of what is accepted and not finished was; 0: there is none. Any thread
        may ask."""
        under_way = (tuple(obj.appends) for obj in tuple(self._pipeline)[:1])
        accepted = [a.accepted for some in (*under_way, tuple(self._buffer)) for a in some]
        return self._clock() - min(accepted) if accepted else 0.0

    def append(self, append: Append) -> asyncio.Future[CommittedBatch]:
        """Accept a batch, at the end of its partition's order. The future resolves with what the
        commit said of it, or raises :class:`AppendFailed` or :class:`AppendDropped`."""
        append.accepted = self._clock()
        self._buffer.append(append)
        self._buffer_bytes += len(append.batch)
        self._unfinished_bytes += len(append.batch)
        self._room.take("wal", COPIES * len(append.batch))
        if not self.has_room:
            metrics.BOUND_REACHED.labels("wal").inc()
        if self._buffer_bytes >= self._max_bytes:
            self._cut()
        elif self._timer is None:
            loop = asyncio.get_running_loop()
            # After a silence: gather what else this turn of the loop brings, then go.
            at = paced(loop.time(), self._cut_at, self._max_delay_s)
            self._timer = loop.call_at(at, self._cut)
        return append.outcome

    def hurry(self) -> None:
        """Put what is gathered as soon as this turn of the loop is over."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = asyncio.get_running_loop().call_soon(self._cut)

    def drop_all(self) -> None:
        """The incarnation is fenced: nothing of what is under way may be answered."""
        for append in self._drain_everything():
            self._finish(append, AppendDropped("this gateway's incarnation was fenced"))
        self._report_room()

    async def close(self, patience_s: float) -> None:
        """Finish what is under way within ``patience_s``, and tell its outcomes; the rest fails as
        transient."""
        end = self._clock() + patience_s
        self._cut()
        if self._committer is not None:
            await asyncio.wait([self._committer], timeout=patience_s)
        await self._teller.finish(max(0.0, end - self._clock()))
        for append in self._drain_everything():
            self._finish(append, AppendFailed(Failure.TRANSIENT, "the gateway is stopping"))
        await self._teller.left()
        for task in (self._committer, self._refill):
            if task is not None:
                task.cancel()

    def _drain_everything(self) -> list[Append]:
        appends = [append for obj in self._pipeline for append in obj.appends] + self._buffer
        for obj in self._pipeline:
            if obj.upload is not None:
                obj.upload.cancel()
        self._teller.leave(self._stream.closing([obj.left_over() for obj in self._pipeline]))
        self._pipeline.clear()
        if self._committer is not None:
            self._committer.cancel()
            self._committer = None
        self._teller.stop()
        self._take_buffer()
        return appends

    def _take_buffer(self) -> list[Append]:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        taken, self._buffer, self._buffer_bytes = self._buffer, [], 0
        return taken

    def _cut(self) -> None:
        """Make an object of what is gathered, and start its upload."""
        appends = self._take_buffer()
        if not appends:
            return
        self._cut_at = asyncio.get_running_loop().time()
        appends.sort(key=lambda append: (append.log.topic_id.bytes, append.log.partition))
        self._teller.object_begins()
        obj = WalObject(appends, self._stream.next())
        obj.upload = spawn(self._upload(obj), "wal-upload")
        self._pipeline.append(obj)
        if self._committer is None or self._committer.done():
            self._committer = spawn(self._commit_in_order(), "wal-commit", vital=True)

    async def _upload(self, obj: WalObject) -> None:
        """Put one object within bounds. Raises what the last attempt raised."""
        async with self._upload_slots:
            await self._fill(obj)
            if not obj.body:
                return
            started = self._clock()
            obj.given_up_at = asyncio.get_running_loop().time() + self._upload_patience_s
            body = partial(self._next_body, obj)
            await self._put_under(self._take_key, body, partial(setattr, obj, "key"))
            self._stream.stored(obj.ending)
            metrics.WAL_UPLOAD_SECONDS.observe(self._clock() - started)

    def _next_body(self, obj: WalObject) -> bytes:
        """What is put next. An attempt may have been stored although nobody heard of it: the later
        one says so, because it is the one that is committed."""
        if obj.key:
            obj.again = True
            obj.end_with(self._stream.again(obj.ending))
        return obj.body

    async def _put(self, body: bytes, named: Callable[[str], None]) -> None:
        await self._put_under(self._take_key, lambda: body, named)

    async def _put_aside(self, body: bytes) -> None:
        await self._put_under(self._any_key, lambda: body, lambda _: None)

    async def _put_under(
        self,
        take_key: Callable[[], Awaitable[str]],
        next_body: Callable[[], bytes],
        named: Callable[[str], None],
    ) -> None:
        """``next_body`` is called once for each attempt, before its key is ``named``."""

        async def put() -> int:
            # A key for each attempt: one that was given up may end at the server later,
            # and a server that keeps what it got of it would lay that over the whole.
            key, body = await take_key(), next_body()
            named(key)
            await self._store.put(key, body)
            return len(body)

        # A producer waits at most produce_timeout_ms: an upload that cannot end before is given
        # up, so that its producers hear a definite, retriable answer.
        stop = stop_after_delay(self._upload_patience_s)
        metrics.WAL_BYTES.inc(await retried(put, _TRANSIENT, wait=_FAST_RETRY, stop=stop))

    async def _fill(self, obj: WalObject) -> None:
        """Make the body; none when all batches were withdrawn while the object waited."""
        # Whoever is withdrawn gives its bytes back, now or while the footer is made: places and
        # bytes are of one moment.
        obj.appends = [append for append in obj.appends if append.wanted]
        if not obj.appends:
            return
        batches, position = [append.batch for append in obj.appends], 0
        for append in obj.appends:
            obj.placed.append(placed(append, position))
            position += len(append.batch)
        obj.ending = await self._stream.ending(obj.sequence, obj.placed)
        obj.body = b"".join([*batches, obj.ending.footer])

    async def _take_key(self) -> str:
        key = self._keys.take()
        while key is None:
            await self._keys.refill()
            key = self._keys.take()
        if self._keys.low and (self._refill is None or self._refill.done()):
            self._refill = spawn(self._refill_quietly(), "wal-keys")
        return key

    async def _any_key(self) -> str:
        return self._keys.unregistered()

    async def _refill_quietly(self) -> None:
        try:
            await self._keys.refill()
        except TidelineError as error:
            log.warning("wal.keys_not_registered", error=str(error))

    async def _commit_in_order(self) -> None:
        while self._pipeline:
            obj = self._pipeline[0]
            outcome = await self._outcome(obj)
            if not self._pipeline or self._pipeline[0] is not obj:
                return  # everything was dropped, and the cancellation of this task swallowed
            self._pipeline.popleft()
            if isinstance(outcome, Exception):
                self._failed(obj, outcome)
            else:
                self._committed(obj, outcome)
            self._report_room()
            self._teller.committed(idle=not self._pipeline)

    async def _outcome(self, obj: WalObject) -> list[CommittedBatch] | Exception:
        assert obj.upload is not None
        try:
            await obj.upload
            return await self._commit(obj)
        except TidelineError as error:
            return error
        except Exception as error:
            log.exception("wal.unexpected")
            return error

    async def _commit(self, obj: WalObject) -> list[CommittedBatch]:
        """Commit what is still wanted of ``obj``."""
        appends = obj.appends
        obj.live = [place for place, append in enumerate(appends) if append.wanted]
        obj.appends = [appends[place] for place in obj.live]
        if not obj.live:
            return []
        batches = [obj.placed[place] for place in obj.live]
        stream = self._stream.place(obj.sequence, len(obj.placed), obj.live)
        first = self._stream.before(
            obj.sequence, obj.key, len(obj.placed), obj.live, again=obj.again
        )
        if first:
            await self._state(first, obj.given_up_at)
            if not self._pipeline or self._pipeline[0] is not obj:
                # Its stream has said meanwhile that it was not sent, and the cancellation of this
                # task was swallowed.
                raise AppendDropped("it was dropped before its commit")
        started = self._clock()
        incarnation = self._lease.incarnation
        obj.sent = True
        obj.sent_at = asyncio.get_running_loop().time()
        committed = await self._commit_known(incarnation, obj.key, obj.size, batches, stream)
        metrics.WAL_COMMIT_SECONDS.observe(self._clock() - started)
        return committed

    async def _state(self, first: Sequence[EarlierCommit], until: float) -> None:
        """What has to be in the bucket before a commit. Of time it has what the upload has left,
        and little of its own: producers of what waits for it are to hear a definite answer while
        they wait."""
        at_least = asyncio.get_running_loop().time() + STATED_WITHIN_S
        try:
            async with asyncio.timeout_at(max(until, at_least)):
                await self._teller.state(first)
        except TimeoutError:
            raise ObjectStoreUnavailable("what came before could not be told in time") from None

    async def _commit_known(
        self,
        incarnation: UUID,
        key: str,
        size: int,
        batches: Sequence[BatchToCommit],
        stream: StreamPlace,
    ) -> list[CommittedBatch]:
        """Commit one object, again and again while the outcome is unknown."""

        def commit() -> Awaitable[list[CommittedBatch]]:
            return self._control_plane.commit_file(
                self._lease.gateway_id,
                incarnation=incarnation,
                object_key=key,
                size=size,
                batches=batches,
                stream=stream,
            )

        return await retried(commit, ControlPlaneUnavailable, wait=_FAST_RETRY)

    def _committed(self, obj: WalObject, committed: Sequence[CommittedBatch]) -> None:
        if obj.live:
            self._stream.told_by(obj.ending)
        self._stream.committed(obj.sequence, obj.key, len(obj.placed), obj.live, committed)
        metrics.WAL_OBJECTS.labels("committed" if obj.live else "withdrawn").inc()
        if obj.live:
            metrics.WAL_OBJECT_BYTES.observe(obj.size)
            self._cache.put(obj.key, 0, obj.body)
        now = self._clock()
        for append, outcome in zip(obj.appends, committed, strict=True):
            if outcome.error is CommitError.NONE:
                self._watermarks.observe(append.log, outcome.high_watermark)
            metrics.WAL_APPEND_SECONDS.observe(now - append.accepted)
            self._finish(append, outcome)
        moved = [
            append.log
            for append, outcome in zip(obj.appends, committed, strict=True)
            if outcome.error is CommitError.NONE
        ]
        self._news.committed(dict.fromkeys(moved), obj.sent_at)

    def _failed(self, obj: WalObject, error: Exception) -> None:
        """``obj`` is not committed: neither is what was accepted behind its batches."""
        metrics.WAL_OBJECTS.labels("failed").inc()
        log.warning("wal.object_failed", key=obj.key, batches=len(obj.appends), error=str(error))
        if obj.sent and not isinstance(error, ObjectKeyRejected):
            self._stream.unanswered(obj.sequence, obj.key, len(obj.placed), obj.live)
        else:
            self._stream.not_committed(obj.sequence, obj.key, len(obj.placed))
        if isinstance(error, GatewayFenced):
            for append in obj.appends:
                self._finish(append, AppendDropped(str(error)))
            return
        failure = Failure.TRANSIENT if isinstance(error, _TRANSIENT) else Failure.HARD
        if isinstance(error, RefusedError):
            failure = Failure.TRANSIENT  # The key was given up (schedule 17): a new one will do.
        orders = {append.order for append in obj.appends}
        behind = [a for later in self._pipeline for a in later.appends if a.order in orders]
        behind += [append for append in self._buffer if append.order in orders]
        self._buffer = [append for append in self._buffer if append.order not in orders]
        self._buffer_bytes = sum(len(append.batch) for append in self._buffer)
        for append in obj.appends + behind:
            if not append.outcome.done():
                self._refused.refuse((append.log, append.source), append.producer)
            self._finish(append, AppendFailed(failure, str(error)))

    def _finish(self, append: Append, outcome: CommittedBatch | TidelineError) -> None:
        self._unfinished_bytes -= len(append.batch)
        self._room.give("wal", COPIES * len(append.batch))
        append.batch = b""
        if append.outcome.done():
            return
        if isinstance(outcome, CommittedBatch):
            append.outcome.set_result(outcome)
        else:
            append.outcome.set_exception(outcome)

    def _report_room(self) -> None:
        if self.has_room:
            self.made_room()
