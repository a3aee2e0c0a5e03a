"""CreateTopics: with ``diskless.enable=true`` a topic is born diskless.

Every gateway tracks the name before the topic exists, so that no record can reach its classic
log; that log is sealed from its first moment (``max.message.bytes``). Kafka is asked first
whether it would create the topic at all, so that a refusal changes nothing. Here it is asked for
and created; the worker begins the birth and ends it (``tideline/worker/reports.py``), because it
asks Kafka whether no record of any topic would be lost by B0 = 0.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field, fields, replace
from datetime import timedelta
from typing import Any, cast
from uuid import UUID

import structlog
from kio.schema.create_topics.v7.request import (
    CreatableReplicaAssignment,
    CreatableTopic,
    CreatableTopicConfig,
    CreateTopicsRequest,
)
from kio.schema.create_topics.v7.response import CreatableTopicResult, CreateTopicsResponse
from kio.schema.errors import ErrorCode
from kio.schema.types import TopicName
from kio.static.primitive import i16, i32Timedelta

from tideline.control_plane import ControlPlane
from tideline.control_plane.errors import ControlPlaneUnavailable
from tideline.control_plane.model import TopicStatus, TrackedTopic, TrackingKind
from tideline.domain.admin_trigger import (
    DISKLESS_ENABLE,
    MARK,
    MIGRATION_STATE,
    OWN_KEYS,
    refusal_at_birth,
    shown_beside,
    state_written_back,
    wants_diskless,
)
from tideline.domain.config_changes import CLEANUP_POLICY, COMPRESSION_TYPE, LIMITS, limits_of
from tideline.domain.preflight import INTERNAL_TOPICS
from tideline.domain.topic_configs import (
    CREATE_TIME,
    DEFAULT_MAX_MESSAGE_BYTES,
    MAX_MESSAGE_BYTES,
    SEAL_BYTES,
    TIMESTAMP_AFTER_MAX_MS,
    TIMESTAMP_BEFORE_MAX_MS,
    TIMESTAMP_TYPE,
)
from tideline.errors import RefusedError, UnreachableError, UsageError
from tideline.gateway.admin.placing import PlacementRefused, ReplicaPlacing
from tideline.gateway.admin.tellings import Tellings
from tideline.gateway.admin.topics import until_buried
from tideline.gateway.context import ApiKey, RequestContext, Rule, Rules, always
from tideline.gateway.messages import NO_CONTROL_PLANE, build, nested, no_throttle
from tideline.gateway.tracking.view import TrackingView
from tideline.kafka.client import KafkaCluster
from tideline.kafka.errors import KafkaError, KafkaUnavailable
from tideline.kafka.protocol import response_class
from tideline.kafka.topic_identity import Presence, TopicIdentity
from tideline.kafka.topic_observer import TopicObserver

NO_RIGHT = frozenset({ErrorCode.topic_authorization_failed, ErrorCode.cluster_authorization_failed})
BARRIER_POLL_S, WORKER_POLL_S = 0.02, 0.05
LOOKS_AT_VIEW = 50
"""How often, so far apart, an answer waits for this gateway's own view: a second."""
LONGEST_CREATION_S = 120.0
"""Whatever timeout the client names: the creation goes on when it leaves. The worker settles one
that no gateway has waited for within ten minutes."""
BURIAL_S = 5.0
"""How long a creation waits until the worker has buried a dead topic of the name."""
AT_BIRTH = (CLEANUP_POLICY, COMPRESSION_TYPE, *LIMITS)
"""Configs whose defaults a birth depends on: refused, or enforced on each batch."""
Birth = tuple[str, int, str, int, int | None, int | None, str | None]
"""What :meth:`tideline.control_plane.ControlPlane.ask_birth` takes."""

log = structlog.get_logger()


class CreationRefused(Exception):
    """One topic of the request cannot be created; nothing of it was."""

    def __init__(self, code: ErrorCode, message: str) -> None:
        super().__init__(message)
        self.code = code
        self.message = message


@dataclass(frozen=True, slots=True)
class CreateTopicsHandler:
    """Serves CreateTopics."""

    tracking: TrackingView
    control_plane: ControlPlane
    cluster: KafkaCluster
    tellings: Tellings = field(default_factory=Tellings)
    placing: ReplicaPlacing | None = None
    """``None``: Kafka places the replicas, as many as the request says."""

    def rules(self) -> Rules:
        return {ApiKey.CREATE_TOPICS: Rule(self.create_topics, always)}

    async def create_topics(self, ctx: RequestContext) -> bytes | None:
        """Classic topics are forwarded as they are; diskless ones one by one."""
        unfinished = {t.name for t in self.tracking.topics() if t.topic_id is None}
        if MARK not in ctx.frame and self.tracking.is_empty:
            return await ctx.forward()
        request: Any = ctx.request()
        known = [t for asked in request.topics if (t := self.tracking.topic_by_name(asked.name))]
        if MARK not in ctx.frame and not known:
            return await ctx.forward()
        born: dict[str, Any] = {}
        results = await self._denied(ctx, request, {topic.name for topic in known})
        classic = []
        for topic in request.topics:
            if topic.name in results:
                continue
            try:
                diskless, stripped = _split(topic)
                await self._make_way(topic.name)
                if diskless:
                    born[topic.name] = stripped
                elif topic.name in unfinished:
                    raise CreationRefused(ErrorCode.invalid_request, _unfinished(topic.name))
                else:
                    classic.append(stripped)
            except CreationRefused as refusal:
                results[topic.name] = await self._refused(ctx, request, topic.name, refusal)
        timeout_s = min(request.timeout.total_seconds(), LONGEST_CREATION_S)
        validate_only = bool(getattr(request, "validate_only", False))
        throttle = no_throttle()
        if classic:
            answer: Any = await ctx.forward_message(replace(request, topics=tuple(classic)))
            throttle = answer.throttle_time
            results |= {found.name: found for found in answer.topics}
        for name, topic in born.items():
            creation = _Creation(ctx, self, name, _as_v7(topic), timeout_s)
            try:
                results[name] = await self.tellings.whatever_the_client_does(
                    creation.run(validate_only)
                )
            except CreationRefused as refusal:
                results[name] = await self._refused(ctx, request, name, refusal)
        schema: Any = response_class(ctx.header.api_key, ctx.header.api_version)
        in_order = tuple(_in_version(schema, results[topic.name]) for topic in request.topics)
        message = build(schema, throttle_time=throttle, topics=in_order)
        return await ctx.respond_of(message, len(in_order))

    async def _denied(
        self, ctx: RequestContext, request: Any, names: Collection[str]
    ) -> dict[str, Any]:
        """Kafka's answers about names of which we would say something ourselves, to a client that
        may not create them: it hears neither that they are tracked nor a rule of ours."""
        doubtful = [topic for topic in request.topics if topic.name in names]
        if not doubtful:
            return {}
        plain = tuple(replace(topic, configs=()) for topic in doubtful)
        answer: Any = await ctx.forward_message(replace(request, topics=plain, validate_only=True))
        return {found.name: found for found in answer.topics if found.error_code in NO_RIGHT}

    async def _refused(
        self, ctx: RequestContext, request: Any, name: str, refusal: CreationRefused
    ) -> Any:
        """Kafka's refusal of a client that may not create the topic, before a rule of ours. What
        was not decided in time is no rule, and Kafka may be what did not answer."""
        if refusal.code is not ErrorCode.request_timed_out:
            denied = await self._denied(ctx, request, {name})
            if name in denied:
                return denied[name]
        return _refusal(name, refusal)

    async def _make_way(self, name: str) -> None:
        """A topic that Kafka has deleted is deleted in the control plane *before* another can be
        created under its name: from then on nothing is acknowledged for the dead one."""
        topic = self.tracking.topic_by_name(name)
        if topic is None or topic.topic_id is None:
            return
        found = await TopicIdentity(self.cluster).find(topic.topic_id)
        try:
            if found.presence is Presence.GONE:
                await asyncio.wait_for(until_buried(self.control_plane, topic.topic_id), BURIAL_S)
            elif found.presence is Presence.UNKNOWN:
                raise KafkaUnavailable(found.why)
        except (UnreachableError, TimeoutError) as error:
            why = str(error) or "the worker does not say"
            log.warning("creation.not_decided", topic=name, why=why)
            raise CreationRefused(
                ErrorCode.request_timed_out,
                f"a topic {name} with id {topic.topic_id} is tracked, and whether it is gone "
                f"cannot be established now: try again, or see `tideline topic check {name}`",
            ) from None


@dataclass(slots=True)
class _Creation:
    """The creation of one topic that is diskless from the start."""

    ctx: RequestContext
    handler: CreateTopicsHandler
    name: str
    topic: CreatableTopic
    timeout_s: float
    waits_for: str = "the control plane"

    async def run(self, validate_only: bool) -> CreatableTopicResult:
        configs = {config.name: config.value for config in self.topic.configs}
        self._judge(configs, {})
        try:
            async with asyncio.timeout(max(self.timeout_s, 0.1)):
                if self.handler.placing is not None:
                    self.topic = await self._placed(self.handler.placing)
                would = await self._ask_kafka(self.topic, validate_only=True)
                if would.error_code is ErrorCode.topic_already_exists:
                    await self._finish_earlier()
                if would.error_code is not ErrorCode.none:
                    return would
                defaults = await self._defaults(would)
                self._judge(configs, defaults)
                if validate_only:
                    return would
                return await self._create(configs, defaults, would)
        except TimeoutError:
            raise CreationRefused(
                ErrorCode.request_timed_out,
                f"topic {self.name} was not created within {self.timeout_s:.0f} s: "
                f"{self.waits_for} did not answer. See `tideline gateway list`, then try again",
            ) from None
        except ControlPlaneUnavailable as error:
            log.warning("creation.not_decided", topic=self.name, why=str(error))
            raise CreationRefused(ErrorCode.request_timed_out, NO_CONTROL_PLANE) from None
        except (RefusedError, UsageError) as error:
            raise CreationRefused(ErrorCode.invalid_request, str(error)) from None

    def _judge(self, given: Mapping[str, str | None], defaults: Mapping[str, str | None]) -> None:
        reason = refusal_at_birth(self.name, given, defaults, self.name in INTERNAL_TOPICS)
        if reason is not None:
            raise CreationRefused(ErrorCode.invalid_config, reason)

    async def _defaults(self, would: CreatableTopicResult) -> Mapping[str, str | None]:
        """What the topic will have that the request does not set. Kafka tells it to who may
        describe the topic's configs; of the others the gateway asks for itself."""
        if would.topic_config_error_code == ErrorCode.none.value:
            return {config.name: config.value for config in would.configs or ()}
        self.waits_for = "Kafka"
        try:
            defaults = await TopicObserver(self.handler.cluster).topic_defaults(AT_BIRTH)
        except (KafkaUnavailable, KafkaError) as error:
            log.warning("creation.not_decided", topic=self.name, why=str(error))
            raise CreationRefused(
                ErrorCode.request_timed_out,
                f"which configs topic {self.name} would take from the brokers is not known now: "
                "try again",
            ) from None
        for key in AT_BIRTH:
            if why := defaults.difference(key):
                log.warning("creation.defaults_differ", topic=self.name, why=why)
        return defaults.of_first

    async def _placed(self, placing: ReplicaPlacing) -> CreatableTopic:
        try:
            return await placing.birth(
                self.topic, lambda topic: self._ask_kafka(topic, validate_only=True)
            )
        except PlacementRefused as refusal:
            raise CreationRefused(refusal.code, refusal.message) from None

    async def _create(
        self,
        configs: dict[str, str | None],
        defaults: Mapping[str, str | None],
        would: CreatableTopicResult,
    ) -> CreatableTopicResult:
        """``would``: what Kafka would make of the request, with the user's configs."""
        partitions = int(would.num_partitions)
        birth = _birth(self.name, partitions, configs, {**defaults, **configs})
        try:
            await self._asked(birth, lambda topic: topic.status is TopicStatus.TRACKING)
            await self._barrier(birth)
            self.waits_for = "Kafka"
            sealed = tuple(c for c in self.topic.configs if c.name != MAX_MESSAGE_BYTES)
            seal = CreatableTopicConfig(name=MAX_MESSAGE_BYTES, value=SEAL_BYTES)
            created = await self._ask_kafka(replace(self.topic, configs=(*sealed, seal)))
            if created.error_code is ErrorCode.topic_already_exists:
                await self._finish_earlier()
            if created.error_code is not ErrorCode.none:
                return created
            await self._asked(birth, lambda topic: _is_made(topic, created.topic_id))
        finally:
            # Whether Kafka has created it, where that is unknown, the worker finds out: it finishes
            # the birth or lets go of the name.
            self.handler.tellings.tell(
                f"nobody waits for {self.name}",
                lambda: self.handler.control_plane.withdraw_birth(self.name),
            )
        await self._until_seen()
        return replace(created, configs=would.configs)  # and not with the seal

    async def _asked(self, birth: Birth, is_reached: Callable[[TrackedTopic], bool]) -> None:
        """Ask the worker for the birth until it is so far. Raises :class:`CreationRefused`."""
        plane = self.handler.control_plane
        self.waits_for = "the worker"
        while True:
            await self._ask(birth)
            tracked = await plane.tracked_topic(self.name)
            born = tracked is not None and tracked.kind is TrackingKind.BORN_DISKLESS
            if tracked is not None and born and is_reached(tracked):
                return
            await asyncio.sleep(WORKER_POLL_S)

    async def _ask(self, birth: Birth) -> None:
        """Again, where another creation of the name at this gateway has withdrawn it."""
        if (why := await self.handler.control_plane.ask_birth(*birth)) is not None:
            raise CreationRefused(ErrorCode.invalid_request, why)

    async def _until_seen(self) -> None:
        """What the client does next at this gateway finds the topic as it was made."""
        for _ in range(LOOKS_AT_VIEW):
            if self._is_active():
                return
            await asyncio.sleep(BARRIER_POLL_S)

    def _is_active(self) -> bool:
        seen = self.handler.tracking.topic_by_name(self.name)
        return seen is not None and seen.status is TopicStatus.ACTIVE

    async def _barrier(self, birth: Birth) -> None:
        """Every registered gateway tracks the name."""
        while True:
            await self._ask(birth)
            entries = await self.handler.control_plane.tracking_barrier(self.name)
            missing = [e.gateway for e in entries if not e.acknowledged]
            self.waits_for = ", ".join(f"gateway {g.gateway_id}" for g in missing)
            if not missing:
                return
            await asyncio.sleep(BARRIER_POLL_S)

    async def _finish_earlier(self) -> None:
        """A creation that did not hear Kafka's answer, or one at another gateway meanwhile, left
        the name tracked without an id, or not active yet: the worker completes it."""
        plane = self.handler.control_plane
        self.waits_for = "the worker"
        while True:
            tracked = await plane.tracked_topic(self.name)
            born = tracked is not None and tracked.kind is TrackingKind.BORN_DISKLESS
            if tracked is None or not born or tracked.status is not TopicStatus.TRACKING:
                return
            await asyncio.sleep(WORKER_POLL_S)

    async def _ask_kafka(
        self, topic: CreatableTopic, *, validate_only: bool = False
    ) -> CreatableTopicResult:
        request = CreateTopicsRequest(
            topics=(topic,), timeout=_milliseconds(self.timeout_s), validate_only=validate_only
        )
        answer = cast(CreateTopicsResponse, await self.ctx.forward_message(request))
        (result,) = answer.topics
        return result


def _is_made(topic: TrackedTopic, topic_id: UUID | None) -> bool:
    """The topic that Kafka has made, if it said which; every gateway knows it."""
    return topic.status is TopicStatus.ACTIVE and topic_id in (None, topic.topic_id)


def _birth(
    name: str,
    partitions: int,
    given: Mapping[str, str | None],
    effective: Mapping[str, str | None],
) -> Birth:
    """As ``ask_birth`` takes it."""
    bounds = limits_of(effective, (TIMESTAMP_BEFORE_MAX_MS, TIMESTAMP_AFTER_MAX_MS))
    return (
        name,
        max(partitions, 1),
        effective.get(TIMESTAMP_TYPE) or CREATE_TIME,
        int(effective.get(MAX_MESSAGE_BYTES) or DEFAULT_MAX_MESSAGE_BYTES),
        cast(int | None, bounds.get("timestamp_before_max_ms")),
        cast(int | None, bounds.get("timestamp_after_max_ms")),
        given.get(MAX_MESSAGE_BYTES),
    )


def _split(topic: Any) -> tuple[bool, Any]:
    """Whether the topic is to be diskless, and the topic as Kafka may see it."""
    own = {config.name: config.value for config in topic.configs if config.name in OWN_KEYS}
    try:
        diskless = DISKLESS_ENABLE in own and wants_diskless(own[DISKLESS_ENABLE])
        if MIGRATION_STATE in own:  # as another topic's was read
            state_written_back(own[MIGRATION_STATE], shown_beside(diskless))
    except ValueError as error:
        raise CreationRefused(ErrorCode.invalid_config, str(error)) from None
    kept = tuple(config for config in topic.configs if config.name not in OWN_KEYS)
    return diskless, topic if len(kept) == len(topic.configs) else replace(topic, configs=kept)


def _as_v7(topic: Any) -> CreatableTopic:
    return CreatableTopic(
        name=topic.name,
        num_partitions=topic.num_partitions,
        replication_factor=topic.replication_factor,
        assignments=tuple(
            CreatableReplicaAssignment(partition_index=a.partition_index, broker_ids=a.broker_ids)
            for a in topic.assignments
        ),
        configs=tuple(CreatableTopicConfig(name=c.name, value=c.value) for c in topic.configs),
    )


def _refusal(name: str, refusal: CreationRefused) -> CreatableTopicResult:
    return CreatableTopicResult(
        name=TopicName(name),
        topic_id=None,
        error_code=refusal.code,
        error_message=refusal.message,
        topic_config_error_code=i16(0),
        configs=None,
    )


def _in_version(schema: Any, result: Any) -> Any:
    """A result of version 7 as the client's version has it."""
    kind = nested(schema, "topics")
    if isinstance(result, kind):
        return result
    values = {field.name: getattr(result, field.name) for field in fields(result)}
    if "configs" in {field.name for field in fields(kind)} and values.get("configs"):
        entry = nested(kind, "configs")
        values["configs"] = tuple(
            build(entry, **{f.name: getattr(c, f.name) for f in fields(c)})
            for c in values["configs"]
        )
    return build(kind, **values)


def _unfinished(name: str) -> str:
    return (
        f"topic {name} was to be created diskless and that did not end: create it with "
        f"{DISKLESS_ENABLE}=true again, or delete it first"
    )


def _milliseconds(seconds: float) -> i32Timedelta:
    return i32Timedelta.parse(timedelta(milliseconds=int(seconds * 1000)))
