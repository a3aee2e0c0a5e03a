"""One fetch that names a tracked topic: both sides are asked at once, and put together.

It ends like Kafka's ``DelayedFetch``: as soon as both sides together have enough bytes, at an
outcome that waiting cannot improve, or when its time is over. Kafka is asked for short whiles only,
so that a partition whose B0 becomes known during a long poll is served by the suffix from the next
one on. What always holds: a side that does not answer holds the other one up for no longer than the
client is willing to wait (or :data:`FIRST_ANSWER_S`), and its partitions then have no news in the
answer, which is neither an error nor an end of the log.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from contextlib import ExitStack
from typing import Any, Protocol

from tideline.background import cancel_and_wait, spawn
from tideline.domain.answers import Behaviour, asked_by_fetch, handling
from tideline.domain.authorization import Verdict
from tideline.domain.quotas import QuotaKind
from tideline.domain.request_handling import FETCH_FAILURE, RouteKind, position_of
from tideline.gateway.context import ApiKey, RequestContext
from tideline.gateway.fetch.from_kafka import KafkaSide
from tideline.gateway.fetch.from_suffix import Chosen, HighWatermarks, SuffixSide, choose
from tideline.gateway.fetch.late_answers import LateAnswers
from tideline.gateway.fetch.partition import (
    MAX_BYTES,
    PartitionFetch,
    PartitionResult,
    as_structure,
    current_route,
)
from tideline.gateway.fetch.suffix_reader import SuffixReader
from tideline.gateway.fetch.tracked_sessions import Answered, Row
from tideline.gateway.leaders import LeaderNaming
from tideline.gateway.messages import (
    Messages,
    error,
    group_by_topic,
    in_milliseconds,
    key_fields,
    messages,
    milliseconds,
    named,
)
from tideline.gateway.paired_broker import PairedBroker
from tideline.gateway.quotas import ClientQuotas
from tideline.gateway.rights import Judged, TopicRights
from tideline.gateway.room import Room
from tideline.gateway.tracking.quiesce import Fences
from tideline.gateway.tracking.view import TrackingView
from tideline.kafka.decoding import AT_ONCE_PARTITIONS, WALKED_AT_ONCE_BYTES
from tideline.kafka.fetch_answer import PLAIN_SINCE, PlainPartition, plain_answer

KAFKA_ROUND_S = 0.1
"""How long Kafka may hold one round of a tracked fetch; Kafka serves a connection one by one."""
LAST_ROUND_S = 0.02
"""Nearer to the end of the client's patience Kafka is not asked again beside the suffix: its answer
would come too late."""
BREATH_S = 0.01
BESIDE_S = 0.1
"""How long one side that has enough waits for the other one's first look. A connection whose last
answer went without one of them gives it all the time that its client has: nobody starves."""
FIRST_ANSWER_S = 0.5
"""How long the first look of both sides may take for a client that does not wait itself: Kafka's
own ``remote.fetch.max.wait.ms``."""

Answers = dict[PartitionFetch, PartitionResult]


class Serving(Protocol):
    """The parts of a gateway that a fetch uses."""

    @property
    def tracking(self) -> TrackingView: ...
    @property
    def fences(self) -> Fences: ...
    @property
    def reader(self) -> SuffixReader: ...
    @property
    def watermarks(self) -> HighWatermarks: ...
    @property
    def paired_broker(self) -> PairedBroker: ...
    @property
    def leaders(self) -> LeaderNaming: ...
    @property
    def room(self) -> Room: ...
    @property
    def quotas(self) -> ClientQuotas: ...
    @property
    def rights(self) -> TopicRights: ...


class _Side:
    """The partitions of one side, the question about them that is under way, and the answers."""

    def __init__(self, name: str) -> None:
        self._name = name
        self.asked: list[PartitionFetch] = []
        self.answers: Answers = {}
        self.task: asyncio.Task[Answers] | None = None

    @property
    def idle(self) -> bool:
        """Whether there is something to ask, and nothing is asked."""
        return bool(self.asked) and self.task is None

    def begin(self, question: Coroutine[Any, Any, Answers]) -> None:
        self.task = spawn(question, self._name)

    def take(self) -> None:
        """Take the answers, if they have come; raises what the question ended by."""
        if self.task is not None and self.task.done():
            task, self.task = self.task, None
            self.answers = task.result()

    def divide(self, asked: list[PartitionFetch]) -> bool:
        """From now on these lie here. Returns whether others did."""
        if asked == self.asked:
            return False
        stayed = dict.fromkeys(self.asked)
        self.asked = asked
        # What has been elsewhere meanwhile is another log.
        self.answers = {
            one: self.answers[one] for one in asked if one in stayed and one in self.answers
        }
        return True

    async def leave(self) -> None:
        """Nobody waits for its question any more."""
        if self.task is not None:
            task, self.task = self.task, None
            await cancel_and_wait(task)


class TrackedFetch:
    """One Fetch request that names a tracked topic."""

    def __init__(
        self,
        context: RequestContext,
        request: Any,
        asked: list[PartitionFetch],
        parts: Serving,
        answered: Answered,
    ) -> None:
        """``answered``: what of the answer the client is told, by its session."""
        self.context = context
        self.request = request
        self.tracking = parts.tracking
        self.room = parts.room
        self._reader = parts.reader
        self._rights = parts.rights
        self._judged = Judged({})
        self.leaders = parts.leaders
        self.watermarks = parts.watermarks
        self.rack = str(getattr(request, "rack_id", ""))
        self.zone = self.leaders.zones.of(context.header.client_id, self.rack)
        self.messages: Messages = messages(ApiKey.FETCH, context.header.api_version)
        self.asked = asked
        self._answered = answered
        self._quotas = parts.quotas
        most = min(float(MAX_BYTES), self._quotas.most(QuotaKind.FETCH, context))
        self._max_bytes = min(int(request.max_bytes), int(most))
        self._min_bytes = min(int(request.min_bytes), self._max_bytes)
        self._told: Answers = {}
        """Partitions that neither side is asked about."""
        self._of_kafka, self._of_suffix = _Side("fetch-kafka"), _Side("fetch-suffix")
        self._takes_breath = False
        self._late = context.connection.state(LateAnswers)
        self._held = ExitStack()
        """Of the room, for bytes of the suffix that were read before it was known how many fit."""
        self._held_of_kafka = 0
        """Bytes of the room, for records that Kafka has answered."""
        self.kafka = KafkaSide(
            context,
            request,
            self.messages,
            parts.tracking,
            parts.fences,
            parts.watermarks,
            parts.paired_broker,
            parts.room,
        )
        self.suffix = SuffixSide(
            parts.tracking, parts.reader, parts.watermarks, context.header.api_version
        )

    async def answer(self) -> bytes:
        """The response."""
        with self._held:
            try:
                answers = await self._served()
            finally:
                # Of one side that failed, of an answer without it, or of a client that went away.
                await self._of_kafka.leave()
                await self._of_suffix.leave()
                self._hold_of_kafka(0)
            return await self._respond(answers)

    async def _served(self) -> Answers:
        loop = asyncio.get_running_loop()
        began = loop.time()
        patience = max(0.0, self.request.max_wait.total_seconds())
        deadline = began + patience
        limit = began + max(patience, FIRST_ANSWER_S)
        await self._divide()
        looking = await self._look(patience, limit)
        while not self._is_enough(answers := self._answers()):
            self._put_back()
            first = any(not task.done() for task in looking)
            now = loop.time()
            left = (limit if first else deadline) - now
            if left <= 0 or not (self._of_kafka.asked or self._of_suffix.asked):
                break
            if self.room.full and self._held_of_kafka:
                break  # what is held for it is wanted
            await self._divide()
            await self._wait(left, deadline - now)
        self._late.went_without = any(not task.done() for task in looking)
        return answers

    def _put_back(self) -> None:
        """It is not enough yet: what was read is not held in memory while the client waits."""
        for answer in self._of_suffix.answers.values():
            if answer.is_read:
                answer.is_read, answer.records = False, b""
        self._held.close()

    async def _divide(self) -> None:
        """Each partition to the side that its offset lies on now, if the client may read it."""
        in_kafka, in_suffix = [], []
        self._told = {}
        routes = [(asked, current_route(asked, self.tracking)) for asked in self.asked]
        await self._judge()
        for asked, route in routes:
            if (denied := self._judged.refusal(asked.at)) is not None:
                self._told[asked] = PartitionResult.refusal(denied)
                continue
            asked.offset = position_of(route, asked.offset)
            rule = handling(asked_by_fetch(route, asked.offset), route, self.tracking.lease)
            if rule.behaviour is Behaviour.REFUSE:
                self._told[asked] = PartitionResult.refusal(named(rule.error, asked.at.key))
            elif rule.asks_kafka and route.ready and not self._reader.may_read_tiered():
                self._told[asked] = PartitionResult.refusal(FETCH_FAILURE)
            elif rule.asks_kafka:
                in_kafka.append(asked)
            elif (node := await self._nearer(asked)) is None:
                in_suffix.append(asked)
            else:
                self._told[asked] = self.suffix.sent_on(asked, node)
        self._of_kafka.divide(in_kafka)
        if self._of_suffix.divide(in_suffix):
            await self._of_suffix.leave()  # it would not hear of those that have come

    async def _judge(self) -> None:
        """Kafka asks once for each fetch; a topic may join the tracked set while it waits. Who says
        that it is a broker is refused as Kafka refuses who has no CLUSTER_ACTION: brokers replicate
        from each other, and what they may see of a log that ends at B0 is nobody's here."""
        known = self._judged.verdicts
        names = {a.at.topic.name for a in self.asked if a.at.topic is not None}
        if self.kafka.replica >= 0:
            self._judged = Judged(dict.fromkeys(names, Verdict.DENIED))
        elif not names <= known.keys():
            judged = await self._rights.judge(self.context, names - known.keys())
            self._judged = Judged({**known, **judged.verdicts})

    async def _nearer(self, asked: PartitionFetch) -> int | None:
        """The replica in the consumer's zone that it is sent on to."""
        if asked.at.log is None:
            return None
        return await self.leaders.nearer(asked.at.log, self.rack)

    async def _look(self, patience_s: float, limit: float) -> list[asyncio.Task[Answers]]:
        """Both sides as they are now, at once. Who is asked alone is waited for as long as it
        takes, and Kafka may wait itself; of two the first, and if it has enough the other for a
        while, until ``limit`` (on the event loop's clock) at most. Returns the looks that are not
        over."""
        kafka, suffix = self._of_kafka, self._of_suffix
        both = bool(kafka.asked and suffix.asked)
        if kafka.asked:
            alone = not (suffix.asked or self._told)
            wait_s = min(patience_s, KAFKA_ROUND_S) if alone else 0.0
            kafka.begin(self._asked_kafka(wait_s))
        if suffix.asked:
            suffix.begin(self._found_and_read() if both else self._found())
        await self._next(limit if both else None)
        if self._under_way() and self._is_enough(self._answers()):
            soon = asyncio.get_running_loop().time() + BESIDE_S
            await self._next(limit if self._late.went_without else min(limit, soon))
        return self._under_way()

    def _under_way(self) -> list[asyncio.Task[Answers]]:
        sides = (self._of_kafka, self._of_suffix)
        return [side.task for side in sides if side.task is not None]

    async def _next(self, limit: float | None) -> None:
        """Until a question that is under way is answered, or until ``limit``, on the event loop's
        clock."""
        if not (tasks := self._under_way()):
            return
        left = None if limit is None else max(0.0, limit - asyncio.get_running_loop().time())
        await asyncio.wait(tasks, timeout=left, return_when=asyncio.FIRST_COMPLETED)
        self._of_kafka.take()
        self._of_suffix.take()
        self._hold_of_kafka(sum(answer.size for answer in self._of_kafka.answers.values()))

    def _hold_of_kafka(self, size: int) -> None:
        if size > self._held_of_kafka:
            self.room.take("answers", size - self._held_of_kafka)
        elif size < self._held_of_kafka:
            self.room.give("answers", self._held_of_kafka - size)
        self._held_of_kafka = size

    async def _wait(self, left_s: float, patience_s: float) -> None:
        """Until either side has news, or the time is over; Kafka is asked again within what is left
        of the client's patience."""
        kafka, suffix = self._of_kafka, self._of_suffix
        both = bool(kafka.asked and suffix.asked)
        spare = LAST_ROUND_S if both else 0.0
        if kafka.idle and patience_s > spare:
            kafka.begin(self._asked_kafka(min(patience_s - spare, KAFKA_ROUND_S)))
        if suffix.idle:
            suffix.begin(self._found_once_there_is_more(left_s))
        # One side alone answers in its own time.
        await self._next(asyncio.get_running_loop().time() + left_s if both else None)

    async def _asked_kafka(self, wait_s: float) -> Answers:
        if self._takes_breath:
            await asyncio.sleep(BREATH_S)
        loop = asyncio.get_running_loop()
        began = loop.time()
        asked = list(self._of_kafka.asked)
        answers = await self.kafka.ask(asked, wait_s, self._min_bytes, self._max_bytes)
        # Kafka may have records that may not be shown: then it does not wait itself.
        self._takes_breath = wait_s > 0 and loop.time() - began < BREATH_S
        return answers

    async def _found(self) -> Answers:
        return await self.suffix.find(self._of_suffix.asked, self._max_bytes)

    async def _found_and_read(self) -> Answers:
        """With the bytes, so that the object store is read while Kafka is. What is left unread by a
        fetch that does not wait for it any longer is in the cache when the next one comes."""
        found = await self._found()
        size = sum(answer.size for answer in found.values())
        if size:
            granted = self._held.enter_context(self.room.answer(min(size, self._max_bytes)))
            await self.suffix.read(found, choose(found, granted))
        return found

    async def _found_once_there_is_more(self, left_s: float) -> Answers:
        known, asked = self._of_suffix.answers, self._of_suffix.asked
        if all(one in known for one in asked):
            await self.suffix.wait({one: known[one] for one in asked}, left_s)
        return await self._found()

    def _answers(self) -> Answers:
        """What is known by now, of every partition by the side that it lies on."""
        answers = dict(self._told)
        for side in (self._of_kafka, self._of_suffix):
            for asked in side.asked:
                answers[asked] = side.answers.get(asked) or self._no_news(asked)
        return answers

    def _no_news(self, asked: PartitionFetch) -> PartitionResult:
        """Its side has not answered in time. Clients pass over offsets of -1; that the log ends
        where they are they must not be told."""
        end = -1
        at = asked.at.log
        if at is not None and asked.at.route(self.tracking).kind is RouteKind.SUFFIX:
            end = self.watermarks.known(at)
        if end <= asked.offset:
            end = -1
        return PartitionResult(high_watermark=end, last_stable_offset=end)

    def _is_enough(self, answers: Answers) -> bool:
        size = sum(answer.size for answer in answers.values())
        return size >= self._min_bytes or any(answer.settled for answer in answers.values())

    async def _respond(self, answers: Answers) -> bytes:
        in_order = {asked: answers[asked] for asked in self.asked}
        chosen = await self._chosen(in_order)
        unread = sum(part.bytes for part in chosen)
        with self.room.answer(unread) as granted:
            if granted < unread:
                chosen = choose(in_order, self._max_bytes, granted)
            if chosen:
                await self.suffix.read(in_order, chosen)
            size = sum(len(a.records or b"") for a in in_order.values() if a.found is not None)
            self.leaders.count("fetched", size, self.zone)
            return await self._response(in_order)

    async def _chosen(self, answers: Answers) -> list[Chosen]:
        """What is to be read; what is here is shortened, beside the event loop if it is long."""
        here = sum(len(answer.records or b"") for answer in answers.values())
        fits = sum(answer.size for answer in answers.values()) <= self._max_bytes
        if fits or here <= WALKED_AT_ONCE_BYTES:
            return choose(answers, self._max_bytes)
        return await self.context.beside_the_loop(choose, answers, self._max_bytes)

    async def _response(self, answers: Answers) -> bytes:
        many = len(self.asked) > AT_ONCE_PARTITIONS
        beside = self.context.beside_the_loop
        rows = await beside(self._rows, answers) if many else self._rows(answers)
        code, session_id, told = self._answered(rows)  # sessions are the event loop's
        size = sum(len(answer.records or b"") for answer in answers.values())
        throttle_s = self._quotas.record(QuotaKind.FETCH, self.context, size)
        self._quotas.throttle(QuotaKind.FETCH, self.context, throttle_s)
        throttle = self.kafka.throttle
        if throttle_s > 0:
            throttle = max(throttle, milliseconds(throttle_s))
        api, endpoints = self.messages, tuple(self.kafka.endpoints.values())
        if (
            not many
            and not endpoints
            and api.version >= PLAIN_SINCE
            and all(isinstance(row, PlainPartition) for _, row in told)
        ):
            return plain_answer(
                self.context.header.correlation_id,
                api.version,
                group_by_topic(told),
                throttle_ms=in_milliseconds(throttle),
                code=code,
                session_id=session_id,
            )

        def message() -> Any:
            return api.response(
                throttle_time=throttle,
                error_code=error(code),
                session_id=session_id,
                responses=tuple(
                    api.response_part(
                        "FetchableTopicResponse",
                        **key_fields(key),
                        partitions=tuple(as_structure(row, api) for row in group),
                    )
                    for key, group in group_by_topic(told)
                ),
                node_endpoints=endpoints,
            )

        return await self.context.respond_of(
            await beside(message) if many else message(), len(told)
        )

    def _rows(self, answers: Answers) -> list[Row]:
        return [(asked.at.key, answers[asked].row(asked)) for asked in self.asked]
