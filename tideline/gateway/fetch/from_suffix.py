"""The part of a fetch that lies at or past B0: in a merged segment, or in WAL objects.

What always holds: an answer comes from one of them, the one that held the offset in one snapshot of
the control plane; an object that was deleted since makes the offset be looked up once more, and is
then an error, never an empty answer.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass

import structlog

from tideline.background import cancel_and_wait, spawn
from tideline.control_plane import ControlPlane
from tideline.control_plane.model import (
    SUFFIX_HOLE,
    BatchCoordinates,
    FindBatchesRequest,
    FoundBatches,
)
from tideline.domain.answers import READ_AGAIN, Asked, Behaviour, handling, is_past_the_end
from tideline.domain.fetch_order import FetchBytes
from tideline.domain.ids import TopicIdPartition
from tideline.domain.pace import QUIET_S
from tideline.domain.request_handling import FETCH_FAILURE, FIND_ERRORS, KafkaErrorCode, RouteKind
from tideline.errors import TidelineError
from tideline.gateway.fetch.batch_reader import why_unreadable
from tideline.gateway.fetch.partition import PartitionFetch, PartitionResult
from tideline.gateway.fetch.suffix_reader import UNREADABLE, SuffixReader
from tideline.gateway.messages import named
from tideline.gateway.metrics import BOUND_REACHED, DISKLESS_READS, SUFFIX_UNREADABLE, TIERED_READS
from tideline.gateway.tracking.view import TrackingView
from tideline.kafka.batches import ZSTD_SINCE_FETCH, uses_zstd
from tideline.object_store import ObjectMissing

FOLLOWED_S, FOLLOW_EVERY_S = 5.0, 1.0
"""How long after a fetch of its prefix a partition's high watermark is asked for, and how often."""
SHOWN_WITHIN_S = 0.5
"""How long the first of these fetches waits for it. Without Postgres the prefix is served all the
same, and B0 is shown as the end."""

MOST_NAMED = 5
"""Partitions in a line of the log."""
ASKED_PER_S = 40_000
"""Logs that polls ask for, together: 3 µs of a core each. With 10,000 that are waited for, commits
elsewhere are found by four polls in a second, and not by twenty that fill the event loop."""


MOVES_FOR_S = 2 * QUIET_S
"""So long a log that moved is asked for as one that moves: a commit that is not told of follows
another one within :data:`QUIET_S`."""


class _Waiter:
    __slots__ = ("event", "positions")

    def __init__(self, positions: Mapping[TopicIdPartition, int]) -> None:
        self.positions = positions
        self.event = asyncio.Event()


class HighWatermarks:
    """What is known of the suffixes' high watermarks (next offsets), and the fetches that wait for
    records to come.

    Commits of this gateway wake them at once; those of others are found by one batched query about
    everything that is waited for, which answers what has moved past what is known here: every
    ``poll_s`` (less often past :data:`ASKED_PER_S`) while something moves or no notification would
    be heard, else every ``quiet_s`` and when a gateway tells that a quiet log has moved
    (:mod:`tideline.gateway.produce.news`). What always holds: behind each notification, and behind
    :data:`MOVES_FOR_S` after each move, there is one more query about every log that somebody
    waits for who had looked before. There is no NOTIFY in a commit: it would serialise the commits
    of all gateways.
    """

    def __init__(
        self, source: ControlPlane, tracking: TrackingView, *, poll_s: float, quiet_s: float = 0.0
    ) -> None:
        self._source = source
        self._poll_s, self._quiet_s = poll_s, quiet_s
        self._hears = False
        self._due_after = 0.0
        """Who began to look at or before this, on the event loop's clock, is to ask once more."""
        self._asked_at = 0.0
        self._woken = asyncio.Event()
        self._known: dict[TopicIdPartition, int] = {}
        self._waiters: dict[TopicIdPartition, dict[_Waiter, None]] = {}
        """In the order in which they began to wait, which is that in which they are woken."""
        self._followed: dict[TopicIdPartition, float] = {}
        """Partitions of which the prefix is read, and until when, on the event loop's clock."""
        self._follow_at = self._wait_again_at = 0.0
        self._polling: asyncio.Task[None] | None = None
        self._tracking = tracking
        tracking.changed.add(self._routes_changed)

    def known(self, log: TopicIdPartition) -> int:
        """The highest high watermark observed, or -1."""
        return self._known.get(log, -1)

    def observe(self, log: TopicIdPartition, high_watermark: int) -> None:
        """Note what a commit, a fetch or a poll answered, and wake who waits for it."""
        if high_watermark <= self._known.get(log, -1):
            return
        self._known[log] = high_watermark
        self._due(asyncio.get_running_loop().time() + MOVES_FOR_S)
        for waiter in self._waiters.get(log, ()):
            if high_watermark > waiter.positions[log]:
                waiter.event.set()

    def hear(self, heard: bool) -> None:
        """A log that was quiet may have moved; or, if not ``heard``, nobody would tell that."""
        self._hears = heard
        self._due(asyncio.get_running_loop().time())

    def _due(self, after: float) -> None:
        self._due_after = max(self._due_after, after)
        self._woken.set()

    def _routes_changed(self, logs: frozenset[TopicIdPartition]) -> None:
        """Whoever waits looks again. What is no suffix is not served here any more, or begins
        anew after a reset."""
        for log in logs:
            for waiter in self._waiters.get(log, ()):
                waiter.event.set()
            if self._tracking.partition(log.topic_id, log.partition).kind is not RouteKind.SUFFIX:
                self._known.pop(log, None)
                self._followed.pop(log, None)

    async def wait(
        self, positions: Mapping[TopicIdPartition, int], timeout_s: float, looked_at: float = -1.0
    ) -> bool:
        """Until one of ``positions`` (next offsets wanted) is below its high watermark, or the
        time is over. Returns whether something changed. ``looked_at``: when the look began that
        found the positions, on the event loop's clock; nobody has looked for those without."""
        waiter = _Waiter(positions)
        for log in positions:
            self._waiters.setdefault(log, {})[waiter] = None
        if any(self.known(log) > at for log, at in positions.items()):
            waiter.event.set()
        if looked_at <= self._due_after:
            self._woken.set()
        self._start_polling()
        try:
            async with asyncio.timeout(timeout_s):
                await waiter.event.wait()
            return True
        except TimeoutError:
            return False
        finally:
            for log in positions:
                waiters = self._waiters[log]
                waiters.pop(waiter, None)
                if not waiters:
                    del self._waiters[log]

    async def follow(self, logs: Sequence[TopicIdPartition]) -> None:
        """Their prefixes are read: what :meth:`known` says of them is at most as old as the pauses
        between two questions, from the first answer on, which is waited for a moment."""
        if not logs:
            return
        loop = asyncio.get_running_loop()
        if not self._followed:
            self._woken.set()  # the pause may be that of who waits for a notification
        self._followed |= dict.fromkeys(logs, loop.time() + FOLLOWED_S)
        self._start_polling()
        unknown = {log: -1 for log in logs if self.known(log) < 0}
        if not unknown or loop.time() < self._wait_again_at:
            return
        if not await self.wait(unknown, SHOWN_WITHIN_S):
            self._wait_again_at = loop.time() + FOLLOWED_S

    def _start_polling(self) -> None:
        if self._polling is None or self._polling.done():
            self._polling = spawn(self._poll(), "suffix-poll", vital=True)

    async def _pause(self, asked: int) -> None:
        """Before the next query, behind one for ``asked`` logs."""
        pause = max(self._poll_s, asked / ASKED_PER_S)
        await asyncio.sleep(pause)
        if not self._hears or self._asked_at <= self._due_after:
            return
        longest = min(self._quiet_s, FOLLOW_EVERY_S) if self._followed else self._quiet_s
        with suppress(TimeoutError):
            async with asyncio.timeout(longest - pause):
                await self._woken.wait()

    def _wanted(self) -> list[TopicIdPartition]:
        """Those that are waited for, and from time to time those that are followed."""
        now = asyncio.get_running_loop().time()
        self._followed = {log: until for log, until in self._followed.items() if until > now}
        if now < self._follow_at:
            return list(self._waiters)
        self._follow_at = now + FOLLOW_EVERY_S
        return list(dict.fromkeys((*self._waiters, *self._followed)))

    async def _poll(self) -> None:
        """While anybody waits. A query that fails is asked again: waiting is bounded elsewhere."""
        wanted: list[TopicIdPartition] = []
        while self._waiters or self._followed:
            await self._pause(len(wanted))
            self._woken.clear()
            self._asked_at = asyncio.get_running_loop().time()
            if not (wanted := self._wanted()):
                continue
            try:
                known = {log: self._known[log] for log in wanted if log in self._known}
                found = await self._source.high_watermarks(wanted, known)
            except TidelineError:
                self._due(asyncio.get_running_loop().time())
                continue
            for log, high_watermark in found.items():
                self.observe(log, high_watermark)

    async def close(self) -> None:
        if self._polling is not None:
            await cancel_and_wait(self._polling)


log = structlog.get_logger()
FIND_PATIENCE_S = 2.0
"""While Postgres is away, the prefix partitions of the same fetch wait no longer than this."""
OBJECTS_PER_ANSWER = 64
"""Objects of which one answer reads batches. A partition of a topic with little traffic has one
batch per object; without a bound a consumer that catches up would wait for hundreds of GETs."""
LOCATE_PATIENCE_S = 10.0
"""Reading a segment's index and the bytes behind it; a consumer gives up after 30 s by default."""


class SuffixSide:
    """Finds coordinates in the control plane, then reads bytes once for the whole answer."""

    def __init__(
        self,
        tracking: TrackingView,
        reader: SuffixReader,
        watermarks: HighWatermarks,
        version: int,
    ) -> None:
        self._tracking = tracking
        self._reader = reader
        self._watermarks = watermarks
        self._version = version
        self._looked_at = math.inf

    async def find(
        self, asked: Sequence[PartitionFetch], max_bytes: int
    ) -> dict[PartitionFetch, PartitionResult]:
        """What there is now, without reading a byte of it."""
        refused = self._refused(asked)
        if refused:
            asked = [one for one in asked if one not in refused]
        if not asked:
            return refused
        self._looked_at = min(self._looked_at, asyncio.get_running_loop().time())
        requests = [
            FindBatchesRequest(_log(one), one.offset, max(1, min(one.max_bytes, max_bytes)))
            for one in asked
        ]
        try:
            async with asyncio.timeout(FIND_PATIENCE_S):
                found = await self._reader.find(requests)
        except (TidelineError, TimeoutError) as error:
            log.warning(
                "fetch.suffix_not_found",
                logs=_named(asked),
                error=str(error) or "no answer in time",
            )
            return refused | {one: PartitionResult.refusal(FETCH_FAILURE) for one in asked}
        answers = dict(zip(asked, found, strict=True))
        tiered = [n for n, rows in enumerate(found) if rows.segment is not None]
        try:
            async with asyncio.timeout(LOCATE_PATIENCE_S):
                located = await self._reader.locate(
                    [requests[n] for n in tiered], [found[n] for n in tiered], max_bytes
                )
        except TimeoutError:
            log.warning(
                "fetch.segments_not_located",
                logs=_named([asked[n] for n in tiered]),
                segments=len(tiered),
            )
            located = [FoundBatches(UNREADABLE, -1, -1) for _ in tiered]
        answers |= zip((asked[n] for n in tiered), located, strict=True)
        return refused | {one: self._found(one, rows) for one, rows in answers.items()}

    def _refused(self, asked: Sequence[PartitionFetch]) -> dict[PartitionFetch, PartitionResult]:
        """What may not be looked for any more: it may have waited long."""
        refused = {}
        for one in asked:
            at = _log(one)
            route = self._tracking.partition(at.topic_id, at.partition)
            rule = handling(Asked.FETCH_SUFFIX, route, self._tracking.lease)
            if rule.behaviour is Behaviour.REFUSE:
                refused[one] = PartitionResult.refusal(named(rule.error, one.at.key))
        return refused

    def sent_on(self, asked: PartitionFetch, node: int) -> PartitionResult:
        """No records, but a replica that is nearer to the consumer (KIP-392), told at once."""
        end = self._watermarks.known(_log(asked))
        return PartitionResult(
            high_watermark=end, last_stable_offset=end, nearer=node, settled=True
        )

    def _found(self, asked: PartitionFetch, rows: FoundBatches) -> PartitionResult:
        at = _log(asked)
        code = named(FIND_ERRORS.get(rows.error, FETCH_FAILURE), asked.at.key)
        if rows.error == SUFFIX_HOLE:
            unreadable("hole", at, asked.offset)
        if code is KafkaErrorCode.OFFSET_OUT_OF_RANGE and asked.offset > rows.high_watermark:
            known, lease = self._watermarks.known(at), self._tracking.lease
            if not is_past_the_end(rows.high_watermark, known, lease):
                code = READ_AGAIN
        if code is not KafkaErrorCode.NONE:
            return PartitionResult.refusal(code)
        self._watermarks.observe(at, rows.high_watermark)
        route = self._tracking.partition(at.topic_id, at.partition)
        return PartitionResult(
            high_watermark=rows.high_watermark,
            last_stable_offset=rows.high_watermark,
            log_start=rows.log_start,
            found=rows,
            epoch=route.boundary_epoch,
            expected_bytes=sum(batch.byte_size for batch in rows.batches),
            # What follows a segment is in another object: waiting does not make this answer longer.
            settled=rows.segment is not None,
        )

    async def wait(self, found: Mapping[PartitionFetch, PartitionResult], timeout_s: float) -> bool:
        """Until there is more than was found, or the time is over."""
        positions = {_log(one): answer.high_watermark for one, answer in found.items()}
        return await self._watermarks.wait(positions, timeout_s, self._looked_at)

    async def read(
        self, answers: dict[PartitionFetch, PartitionResult], chosen: Sequence[Chosen]
    ) -> None:
        """Fill in the records of what :func:`choose` has chosen of ``answers``."""
        gone = await self._fill(chosen)
        if gone:
            size = sum(part.bytes for part in gone)
            again = await self.find([part.asked for part in gone], size)
            answers |= again
            for part in await self._fill(choose(again, size)):
                unreadable("missing", _log(part.asked), part.batches[0].base_offset)
                part.answer.fail(FETCH_FAILURE)
        for answer in answers.values():
            answer.is_read = answer.found is not None

    async def _fill(self, parts: Sequence[Chosen]) -> list[Chosen]:
        """Read ``parts``; those whose first object is gone are answered."""
        gone = []
        wanted = [(part.batches, part.answer.epoch) for part in parts]
        for part, read in zip(parts, await self._reader.read(wanted), strict=True):
            found = part.answer.found
            (DISKLESS_READS if found is None or found.segment is None else TIERED_READS).inc()
            if not read.records and isinstance(read.failure, ObjectMissing):
                log.info(
                    "fetch.found_anew",
                    log=str(_log(part.asked)),
                    offset=part.asked.offset,
                    why=str(read.failure),
                )
                gone.append(part)
            elif not read.records and read.failure is not None:
                unreadable(
                    why_unreadable(read.failure), _log(part.asked), part.asked.offset, read.failure
                )
                part.answer.fail(FETCH_FAILURE)
            elif self._version < ZSTD_SINCE_FETCH and uses_zstd(read.records):
                part.answer.fail(KafkaErrorCode.UNSUPPORTED_COMPRESSION_TYPE)
            else:
                # What follows a batch that cannot be read is left to the fetch that begins there.
                part.answer.records = read.records
        return gone


@dataclass(frozen=True, slots=True)
class Chosen:
    """Batches of one partition that fit in the answer."""

    asked: PartitionFetch
    answer: PartitionResult
    batches: Sequence[BatchCoordinates]

    @property
    def bytes(self) -> int:
        return sum(batch.byte_size for batch in self.batches)


def choose(
    answers: Mapping[PartitionFetch, PartitionResult],
    max_bytes: int,
    unread_bytes: int | None = None,
) -> list[Chosen]:
    """What goes into one answer: up to ``max_bytes``, in the order of ``answers``. Records that are
    here are shortened; the batches that are to be read are returned, up to ``unread_bytes`` (None:
    no other bound) out of :data:`OBJECTS_PER_ANSWER` objects, which the partitions share."""
    chosen = []
    budget = FetchBytes(max_bytes)
    unread = FetchBytes(max_bytes if unread_bytes is None else unread_bytes)
    objects: set[str] = set()
    share = max(1, OBJECTS_PER_ANSWER // max(1, sum(a.found is not None for a in answers.values())))
    for asked, answer in answers.items():
        if answer.found is None or answer.is_read:
            answer.shorten(budget)
            unread.nothing_yet = budget.nothing_yet
            continue
        batches: list[BatchCoordinates] = []
        may_open = min(len(objects) + share, OBJECTS_PER_ANSWER)
        for batch in answer.found.batches:
            size = batch.byte_size
            if size > min(budget.most(size), unread.most(size)):
                break
            if batch.object_key not in objects and len(objects) >= may_open:
                BOUND_REACHED.labels("objects").inc()
                break
            objects.add(batch.object_key)
            batches.append(batch)
            budget.serve(size)
            unread.serve(size)
        if batches:
            chosen.append(Chosen(asked, answer, batches))
    return chosen


def unreadable(
    why: str, at: TopicIdPartition, offset: int, failure: TidelineError | None = None
) -> None:
    """Say that offsets which the suffix has cannot be given to anybody."""
    SUFFIX_UNREADABLE.labels(why).inc()
    say = log.warning if why == "unavailable" else log.error
    say("fetch.suffix_not_read", why=why, log=str(at), offset=offset, error=str(failure or why))


def _named(asked: Sequence[PartitionFetch]) -> str:
    """For the log, which has room for some."""
    some = ", ".join(str(_log(one)) for one in asked[:MOST_NAMED])
    return some if len(asked) <= MOST_NAMED else f"{some} and {len(asked) - MOST_NAMED} more"


def _log(asked: PartitionFetch) -> TopicIdPartition:
    assert asked.at.log is not None
    return asked.at.log
