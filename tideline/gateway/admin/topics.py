"""CreatePartitions and DeleteTopics of tracked topics.

Kafka decides; what it did is then reported to the control plane until it is known there: a deleted
topic's id must never be served again (schedule 19), and a new partition without a row is served by
nobody (schedule 22).
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, replace
from typing import Any, cast
from uuid import UUID

import structlog
from kio.schema.errors import ErrorCode
from kio.schema.metadata.v12.request import MetadataRequest, MetadataRequestTopic
from kio.schema.metadata.v12.response import MetadataResponse
from kio.schema.types import TopicName
from tenacity import AsyncRetrying, retry_if_exception_type, wait_random_exponential

from tideline.background import spawn
from tideline.control_plane import ControlPlane
from tideline.control_plane.model import TrackedTopic
from tideline.domain.migration import UNDEFINED_OFFSET
from tideline.errors import TidelineError, UnreachableError
from tideline.gateway.context import ApiKey, RequestContext, Rule, Rules
from tideline.gateway.messages import build, nested, no_throttle
from tideline.gateway.tracking.view import TrackingView
from tideline.kafka.client import KafkaCluster
from tideline.kafka.errors import KafkaUnavailable
from tideline.kafka.protocol import decode_response, response_class

REPORT_S = 2.0
"""How long an answer waits until the control plane knows; then it leaves, and reporting goes on."""
METADATA_TIMEOUT_MS = 5_000
GONE = frozenset({ErrorCode.unknown_topic_or_partition, ErrorCode.unknown_topic_id})

log = structlog.get_logger()


async def report_until_known(what: str, call: Callable[[], Awaitable[None]]) -> None:
    """Repeat ``call`` while Postgres is away: for :data:`REPORT_S` here, then in the background
    for as long as the process lives. A refusal is logged and ends it."""

    async def until_known() -> None:
        try:
            async for attempt in AsyncRetrying(
                retry=retry_if_exception_type(UnreachableError),
                wait=wait_random_exponential(0.1, max=5.0),
            ):
                with attempt:
                    await call()
        except TidelineError as error:
            log.error("the control plane refused what Kafka did", what=what, error=str(error))

    task = spawn(until_known(), "report-to-control-plane")
    await asyncio.wait({task}, timeout=REPORT_S)


async def kafka_topic(cluster: KafkaCluster, name: str) -> tuple[UUID, int] | None:
    """Id and partition count of a topic as Kafka has it now; ``None``: there is no such topic.

    Raises :class:`KafkaUnavailable` if that cannot be learned.
    """
    request = MetadataRequest(
        topics=(MetadataRequestTopic(topic_id=None, name=TopicName(name)),),
        allow_auto_topic_creation=False,
        include_topic_authorized_operations=False,
    )
    connection = await cluster.any()
    answer = cast(MetadataResponse, await connection.send(request, timeout_ms=METADATA_TIMEOUT_MS))
    (found,) = answer.topics
    if found.error_code in GONE:
        return None
    if found.error_code is not ErrorCode.none or found.topic_id is None:
        raise KafkaUnavailable(f"metadata of topic {name!r}: {found.error_code.name.upper()}")
    return found.topic_id, len(found.partitions)


@dataclass(frozen=True, slots=True)
class TopicsHandler:
    """Serves DeleteTopics and CreatePartitions."""

    tracking: TrackingView
    control_plane: ControlPlane
    cluster: KafkaCluster

    def rules(self) -> Rules:
        return {
            ApiKey.DELETE_TOPICS: Rule(self.delete_topics, self.tracking.has_topics),
            ApiKey.CREATE_PARTITIONS: Rule(self.create_partitions, self.tracking.has_topics),
        }

    async def delete_topics(self, ctx: RequestContext) -> bytes | None:
        """Forwarded; what was deleted is deleted in the control plane too."""
        request: Any = ctx.request()
        concerned = self._named(request, ctx.header.api_version)
        response = await ctx.forward()
        if not concerned:
            return response
        answer: Any = decode_response(response, ctx.header.api_key, ctx.header.api_version)
        for result in answer.responses:
            topic = concerned.get(result.name) or concerned.get(getattr(result, "topic_id", None))
            if topic is None:
                continue
            if result.error_code is ErrorCode.none or (
                result.error_code in GONE and await self._is_gone(topic)
            ):
                await self._forget(topic)
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

    async def _is_gone(self, topic: TrackedTopic) -> bool:
        """Kafka says "unknown" to those who may not see a topic, too: ask for ourselves."""
        try:
            found = await kafka_topic(self.cluster, topic.name)
        except TidelineError:
            return False
        return found is None or found[0] != topic.topic_id

    async def _forget(self, topic: TrackedTopic) -> None:
        topic_id = topic.topic_id
        log.info("tracked topic deleted", topic=topic.name, topic_id=str(topic_id))
        if topic_id is None:
            await report_until_known(
                f"{topic.name} was not created",
                lambda: self.control_plane.stop_tracking(topic.name),
            )
        else:
            deleted = topic_id
            await report_until_known(
                f"{topic.name} was deleted", lambda: self.control_plane.delete_topic(deleted)
            )

    async def create_partitions(self, ctx: RequestContext) -> bytes | None:
        """Refused while a topic migrates; afterwards new partitions are diskless from offset 0."""
        request: Any = ctx.request()
        tracked = {
            topic.name: known
            for topic in request.topics
            if (known := self.tracking.topic_by_name(topic.name)) is not None
        }
        if not tracked:
            return await ctx.forward()
        schema: Any = response_class(ctx.header.api_key, ctx.header.api_version)
        result = nested(schema, "results")
        refused = {
            name: result(name=TopicName(name), error_code=code, error_message=message)
            for name in tracked
            for code, message in await self._no_growth(name)
        }
        rest = tuple(topic for topic in request.topics if topic.name not in refused)
        answers: dict[str, Any] = dict(refused)
        throttle = no_throttle()
        if rest:
            answer: Any = await ctx.forward_message(replace(request, topics=rest))
            throttle = answer.throttle_time
            answers |= {found.name: found for found in answer.results}
            for asked in rest:
                if asked.name in tracked and not request.validate_only:
                    await self._grown(tracked[asked.name], asked.count, answers[asked.name])
        return ctx.respond(
            build(
                schema,
                throttle_time=throttle,
                results=tuple(answers[topic.name] for topic in request.topics),
            )
        )

    async def _no_growth(self, name: str) -> list[tuple[ErrorCode, str]]:
        """Why the topic may not get partitions now, by what Postgres says; nothing if it may."""
        try:
            topic = await self.control_plane.tracked_topic(name)
        except UnreachableError as error:
            message = f"the control plane does not answer: {error}; try again"
            return [(ErrorCode.request_timed_out, message)]
        if topic is None or not is_migrating(topic):
            return []
        message = (
            f"topic {name} migrates to diskless storage: its partitions cannot be changed until "
            f"every one has crossed (see `tideline status {name}`), or abort it"
        )
        return [(ErrorCode.invalid_request, message)]

    async def _grown(self, topic: TrackedTopic, count: int, result: Any) -> None:
        """Report what the topic has now, also when an earlier try changed only Kafka."""
        if result.error_code is ErrorCode.invalid_partitions:
            try:
                found = await kafka_topic(self.cluster, topic.name)
            except TidelineError:
                return
            if found is None or found[0] != topic.topic_id or found[1] <= len(topic.partitions):
                return
            count = found[1]
        elif result.error_code is not ErrorCode.none:
            return
        total = count
        await report_until_known(
            f"{topic.name} has {total} partitions",
            lambda: self.control_plane.add_partitions(topic.name, total),
        )


def is_migrating(topic: TrackedTopic) -> bool:
    return topic.topic_id is None or any(
        row.boundary == UNDEFINED_OFFSET for row in topic.partitions.values()
    )
