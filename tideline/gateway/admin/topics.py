"""CreatePartitions and DeleteTopics of tracked topics.

Kafka decides; what it did is then reported to the control plane until it is known there: a deleted
topic's id must never be served again (schedule 19), and a new partition without a row is served by
nobody (schedule 22). It gets its row when each of its replicas says that nothing was ever appended.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Iterable
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any
from uuid import UUID

import structlog
from kio.schema.errors import ErrorCode
from kio.schema.types import TopicName

from tideline.control_plane import ControlPlane
from tideline.control_plane.model import TrackedTopic
from tideline.domain.migration import UNDEFINED_OFFSET
from tideline.domain.request_handling import KafkaErrorCode
from tideline.errors import TidelineError, UnreachableError
from tideline.gateway.admin.placing import PlacementRefused, ReplicaPlacing
from tideline.gateway.admin.tellings import LONGEST_PAUSE_S, Tellings
from tideline.gateway.context import ApiKey, RequestContext, Rule, Rules
from tideline.gateway.messages import NO_CONTROL_PLANE, build, nested, no_throttle
from tideline.gateway.rights import Judged, TopicRights
from tideline.gateway.tracking.view import TrackingView
from tideline.kafka.client import KafkaCluster
from tideline.kafka.decoding import decoded_response
from tideline.kafka.errors import KafkaUnavailable
from tideline.kafka.new_logs import NotEmpty, assert_always_empty
from tideline.kafka.observer import KafkaObserver
from tideline.kafka.protocol import response_class
from tideline.kafka.topic_identity import Presence, TopicIdentity

SETTLED_S = 15.0
"""How long after a lost answer Kafka may still do what it was asked; from then on the worker's
reconciler looks."""
LOOK_EVERY_S = 1.0
BURIED_POLL_S = 0.05
TIMEOUT_MS = 5_000
GONE = frozenset({ErrorCode.unknown_topic_or_partition, ErrorCode.unknown_topic_id})
UNCLEAR = GONE | {ErrorCode.request_timed_out, ErrorCode.not_controller}
"""Answers of DeleteTopics after which the topic may be gone, or may go."""

log = structlog.get_logger()


async def until_buried(plane: ControlPlane, topic_id: UUID) -> None:
    """Report that Kafka has deleted the topic, until the worker has seen so itself and has buried
    it: a gateway's word alone buries nothing."""
    pause = BURIED_POLL_S
    while not await plane.report_deletion(topic_id):
        await asyncio.sleep(pause)
        pause = min(2 * pause, LONGEST_PAUSE_S)


@dataclass(frozen=True, slots=True)
class TopicsHandler:
    """Serves DeleteTopics and CreatePartitions."""

    tracking: TrackingView
    control_plane: ControlPlane
    cluster: KafkaCluster
    tellings: Tellings = field(default_factory=Tellings)
    placing: ReplicaPlacing | None = None
    """``None``: Kafka places the replicas of new partitions."""
    rights: TopicRights = field(default_factory=TopicRights)

    @property
    def _observer(self) -> KafkaObserver:
        return KafkaObserver(self.cluster, TIMEOUT_MS)

    def rules(self) -> Rules:
        return {
            ApiKey.DELETE_TOPICS: Rule(self.delete_topics, self.tracking.has_topics),
            ApiKey.CREATE_PARTITIONS: Rule(self.create_partitions, self.tracking.has_topics),
        }

    async def delete_topics(self, ctx: RequestContext) -> bytes | None:
        """Forwarded; what was deleted is deleted in the control plane too, whether or not the
        client waits for it."""
        request: Any = ctx.request()
        concerned = self._named(request, ctx.header.api_version)
        answer = ctx.forward()
        if not concerned:
            return await answer
        return await self.tellings.whatever_the_client_does(self._deleted(ctx, answer, concerned))

    async def _deleted(
        self,
        ctx: RequestContext,
        answer: Awaitable[bytes],
        concerned: dict[str | UUID | None, TrackedTopic],
    ) -> bytes:
        try:
            response = await answer
        except KafkaUnavailable:
            self._find_out(concerned.values())
            raise
        decoded: Any = await decoded_response(
            ctx.connection, response, ctx.header.api_key, ctx.header.api_version
        )
        unclear = []
        for result in decoded.responses:
            topic = concerned.get(result.name) or concerned.get(getattr(result, "topic_id", None))
            if topic is None:
                continue
            if result.error_code is ErrorCode.none:
                await self._forget(topic)
            elif result.error_code in UNCLEAR:
                unclear.append(topic)
        self._find_out(unclear)
        return response

    def _named(self, request: Any, version: int) -> dict[str | UUID | None, TrackedTopic]:
        """The tracked topics of the request, by name and by id, as they are when it arrives."""
        found: dict[str | UUID | None, TrackedTopic] = {}
        if version < 6:
            topics = [self.tracking.topic_by_name(name) for name in request.topic_names]
        else:
            topics = [
                self.tracking.topic_by_name(asked.name)
                if asked.name is not None
                else self.tracking.topic_by_id(asked.topic_id)
                for asked in request.topics
            ]
        for topic in filter(None, topics):
            found[topic.name] = topic
            if topic.topic_id is not None:
                found[topic.topic_id] = topic
        return found

    def _find_out(self, topics: Iterable[TrackedTopic]) -> None:
        """Whether Kafka has deleted them is not known: look, and tell it if so. Of a birth there
        is no id to look for; what became of it the next creation or the reconciler finds."""
        for topic in topics:
            if topic.topic_id is not None:
                self.tellings.tell(
                    f"whether {topic.name} ({topic.topic_id}) was deleted",
                    partial(self._tell_if_gone, topic.topic_id),
                )

    async def _tell_if_gone(self, topic_id: UUID) -> None:
        """Kafka says "unknown" to those who may not see a topic, too, and a request whose answer
        was lost may be done later: ask for ourselves, by id, of every broker."""
        identity, loop = TopicIdentity(self.cluster), asyncio.get_running_loop()
        deadline = loop.time() + SETTLED_S
        while True:
            found = await identity.find(topic_id)
            if found.presence is Presence.UNKNOWN:
                raise KafkaUnavailable(found.why)
            if found.presence is Presence.GONE:
                await until_buried(self.control_plane, topic_id)
                return
            if loop.time() > deadline:
                return
            await asyncio.sleep(LOOK_EVERY_S)

    def _find_out_growth(self, topic: TrackedTopic) -> None:
        """A new partition without a row is served by nobody."""
        self.tellings.tell(f"whether {topic.name} has grown", partial(self._tell_if_grown, topic))

    async def _tell_if_grown(self, topic: TrackedTopic) -> None:
        loop = asyncio.get_running_loop()
        deadline = loop.time() + SETTLED_S
        while True:
            if await self._take_in(topic) or loop.time() > deadline:
                return
            await asyncio.sleep(LOOK_EVERY_S)

    async def _take_in(self, topic: TrackedTopic, total: int = 0) -> bool:
        """Add the rows of the partitions that Kafka has, ``total`` at least, and Postgres has not;
        whether there were any. Raises what :func:`assert_always_empty` raises."""
        known = await self.control_plane.tracked_topic(topic.name)
        if known is None or topic.topic_id is None or known.topic_id != topic.topic_id:
            return False
        rows = known.partitions
        found = await assert_always_empty(self._observer, topic.name, topic.topic_id, rows, total)
        if found > len(rows):
            await self.control_plane.add_partitions(topic.name, topic.topic_id, len(rows), found)
        return found > len(rows)

    async def _forget(self, topic: TrackedTopic) -> None:
        topic_id = topic.topic_id
        log.info("tracked topic deleted", topic=topic.name, topic_id=str(topic_id))
        if topic_id is None:
            # Not repeated: by name it could withdraw a creation that begins meanwhile.
            try:
                await self.control_plane.withdraw_birth(topic.name)
            except TidelineError as error:
                log.warning("birth.not_released", topic=topic.name, why=str(error))
        else:
            await self.tellings.tell_and_wait(
                f"{topic.name} ({topic_id}) was deleted",
                lambda: until_buried(self.control_plane, topic_id),
            )

    async def create_partitions(self, ctx: RequestContext) -> bytes | None:
        """Refused while a topic migrates; afterwards new partitions are diskless from offset 0."""
        request: Any = ctx.request()
        tracked = self._tracked(request)
        if not tracked:
            return await ctx.forward()
        schema: Any = response_class(ctx.header.api_key, ctx.header.api_version)
        result = nested(schema, "results")
        judged = await self.rights.judge(ctx, tracked)
        refused = {
            name: result(name=TopicName(name), error_code=code, error_message=message)
            for name in tracked
            for code, message in _not_allowed(judged, name) or await self._no_growth(name)
        }
        rest = []
        for asked in (t for t in request.topics if t.name not in refused):
            try:
                rest.append(await self._placed(asked) if asked.name in tracked else asked)
            except PlacementRefused as refusal:
                refused[asked.name] = result(
                    name=asked.name, error_code=refusal.code, error_message=refusal.message
                )
        for name in self._tracked(request).keys() - tracked.keys():
            message = f"topic {name} was just tracked: try again"
            refused[name] = result(
                name=TopicName(name), error_code=ErrorCode.request_timed_out, error_message=message
            )
        rest = [asked for asked in rest if asked.name not in refused]
        answers: dict[str, Any] = dict(refused)
        throttle = no_throttle()
        if rest:
            answer: Any = await self.tellings.whatever_the_client_does(
                self._grow(ctx, replace(request, topics=tuple(rest)), tracked)
            )
            throttle = answer.throttle_time
            answers |= {found.name: found for found in answer.results}
        return await ctx.respond_of(
            build(
                schema,
                throttle_time=throttle,
                results=tuple(answers[topic.name] for topic in request.topics),
            ),
            len(request.topics),
        )

    def _tracked(self, request: Any) -> dict[str, TrackedTopic]:
        """The tracked topics of the request, by name, as they are now."""
        return {
            topic.name: known
            for topic in request.topics
            if (known := self.tracking.topic_by_name(topic.name)) is not None
        }

    async def _placed(self, asked: Any) -> Any:
        return asked if self.placing is None else await self.placing.growth(asked)

    async def _grow(
        self, ctx: RequestContext, request: Any, tracked: dict[str, TrackedTopic]
    ) -> Any:
        concerned = {} if request.validate_only else tracked
        try:
            answer: Any = await ctx.forward_message(request)
        except KafkaUnavailable:
            for asked in request.topics:
                if asked.name in concerned:
                    self._find_out_growth(concerned[asked.name])
            raise
        results = {found.name: found for found in answer.results}
        for asked in request.topics:
            if asked.name in concerned:
                await self._grown(tracked[asked.name], asked.count, results[asked.name])
        return answer

    async def _no_growth(self, name: str) -> list[tuple[ErrorCode, str | None]]:
        """Why the topic may not get partitions now, by what Postgres says, and Kafka of partitions
        that Postgres does not know; nothing if it may."""
        try:
            topic = await self.control_plane.tracked_topic(name)
        except UnreachableError as error:
            log.warning("growth.not_decided", topic=name, why=str(error))
            return [(ErrorCode.request_timed_out, NO_CONTROL_PLANE)]
        if topic is None:
            return []
        if topic.topic_id is None or is_migrating(topic):
            message = (
                f"topic {name} migrates to diskless storage: its partitions cannot be changed "
                f"until every one has crossed (see `tideline status {name}`), or abort it"
            )
            return [(ErrorCode.invalid_request, message)]
        try:
            await assert_always_empty(self._observer, name, topic.topic_id, topic.partitions, 0)
        except UnreachableError as error:
            return [(ErrorCode.request_timed_out, str(error))]
        except NotEmpty as refusal:
            return [(ErrorCode.invalid_request, str(refusal))]
        return []

    async def _grown(self, topic: TrackedTopic, count: int, result: Any) -> None:
        """Report what the topic has now, also when an earlier try changed only Kafka."""
        if result.error_code in UNCLEAR:
            self._find_out_growth(topic)
        elif result.error_code in (ErrorCode.none, ErrorCode.invalid_partitions):
            total = count if result.error_code is ErrorCode.none else 0
            await self.tellings.tell_and_wait(
                f"{topic.name} has {count} partitions", partial(self._told, topic, total)
            )

    async def _told(self, topic: TrackedTopic, total: int) -> None:
        await self._take_in(topic, total)


def _not_allowed(judged: Judged, name: str) -> list[tuple[ErrorCode, str | None]]:
    """As Kafka says it, of a topic whose client may not alter it; nothing if it may."""
    match judged.refusal_of(name):
        case None:
            return []
        case KafkaErrorCode.TOPIC_AUTHORIZATION_FAILED:
            return [(ErrorCode.topic_authorization_failed, None)]
        case _:
            message = "the broker does not say whether the topic may be altered: try again"
            return [(ErrorCode.request_timed_out, message)]


def is_migrating(topic: TrackedTopic) -> bool:
    return topic.topic_id is None or any(
        row.boundary == UNDEFINED_OFFSET for row in topic.partitions.values()
    )
