"""AlterConfigs, IncrementalAlterConfigs and DescribeConfigs: the Admin trigger, and configs that
Tideline overrides, which are described as the user set them.

A topic that names ``diskless.enable``, or a config that Tideline holds, is answered on its own;
every other resource of the request goes to Kafka as it came. Kafka is asked first to validate
what is its own, which also decides whether the client may alter the topic at all.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any
from uuid import UUID

import structlog
from kio.schema.errors import ErrorCode
from kio.static.primitive import i8

from tideline.control_plane import ControlPlane
from tideline.control_plane.errors import ControlPlaneUnavailable
from tideline.control_plane.model import ConfigOverride, TrackedTopic
from tideline.domain.admin_trigger import (
    CONTROLS_IN_CLIENT_ID,
    DISKLESS_ENABLE,
    FORWARD_ONLY,
    MARK,
    MIGRATION_STATE,
    OWN_KEYS,
    SWITCHED_OFF,
    problem_with_override,
    state_written_back,
    topic_state,
    wants_diskless,
)
from tideline.domain.config_changes import (
    CLEANUP_POLICY,
    JUDGED,
    LIMITS,
    REMOTE_STORAGE,
    shown_limits,
)
from tideline.domain.foreign_text import has_controls
from tideline.domain.migration import MigrationState
from tideline.domain.topic_configs import MANAGED_KEYS
from tideline.errors import RefusedError, TidelineError
from tideline.gateway.admin.broker_configs import BROKER, without_addresses
from tideline.gateway.admin.config_judgement import (
    DELETE,
    SET,
    TOPIC,
    TOPIC_CONFIG,
    Refused,
    TopicChange,
    described,
    describing,
    invalid,
    judged,
)
from tideline.gateway.admin.eligibility import PATIENCE_S, Eligibility
from tideline.gateway.admin.held_configs import HOLDING, LIVE, HeldConfigs
from tideline.gateway.context import ApiKey, RequestContext, Rule, Rules, always
from tideline.gateway.messages import NO_CONTROL_PLANE, build, nested, no_throttle
from tideline.gateway.tracking.view import TrackingView
from tideline.kafka.decoding import AT_ONCE_PARTITIONS, decoded_response
from tideline.kafka.protocol import response_class

DEFAULT_CONFIG = 5
"""``DescribeConfigsResponse.ConfigSource``: nobody has set it."""
BOOLEAN, STRING = 1, 2
"""``DescribeConfigsResponse.ConfigType``."""
_DOCUMENTATION = {
    DISKLESS_ENABLE: "Whether the topic's new records go to diskless storage. Setting it to true "
    "migrates a tiered topic in place; it cannot be set back.",
    MIGRATION_STATE: "Where the topic's records are: TIERED_ONLY, MIGRATING, HYBRID or "
    "DISKLESS_ONLY. Read-only.",
}
ENFORCED_WITHIN_S = 5.0
"""How long an answer waits until this gateway enforces new limits. The notification that it waits
for goes to all gateways at once; one that loses it learns by its next poll."""
LOOK_AGAIN_S = 0.01

log = structlog.get_logger()


@dataclass(frozen=True, slots=True)
class ConfigsHandler:
    """Serves AlterConfigs, IncrementalAlterConfigs and DescribeConfigs."""

    tracking: TrackingView
    control_plane: ControlPlane
    held: HeldConfigs
    eligibility: Eligibility
    trigger: bool = True
    """Whether clients may ask for migrations here."""

    def rules(self) -> Rules:
        return {
            ApiKey.ALTER_CONFIGS: Rule(self.alter_configs, always),
            ApiKey.INCREMENTAL_ALTER_CONFIGS: Rule(self.alter_configs, always),
            ApiKey.DESCRIBE_CONFIGS: Rule(self.describe_configs, always),
        }

    async def alter_configs(self, ctx: RequestContext) -> bytes | None:
        """Both APIs; ``AlterConfigs`` replaces all configs of a resource, the other one some."""
        if MARK not in ctx.frame and self.tracking.is_empty:
            return await ctx.forward()
        request: Any = ctx.request()
        schema: Any = response_class(ctx.header.api_key, ctx.header.api_version)
        incremental = ctx.header.api_key == ApiKey.INCREMENTAL_ALTER_CONFIGS
        ours: list[tuple[Any, TrackedTopic | None]] = []
        others = []
        for resource in request.resources:
            tracked = (
                self.tracking.topic_by_name(resource.resource_name)
                if resource.resource_type == TOPIC
                else None
            )
            if resource.resource_type == TOPIC and _concerns_us(resource, tracked, incremental):
                ours.append((resource, tracked))
            else:
                others.append(resource)
        if not ours:
            return await ctx.forward()
        results: dict[tuple[int, str], Any] = {}
        throttle = no_throttle()
        if others:
            answer: Any = await ctx.forward_message(replace(request, resources=tuple(others)))
            throttle = answer.throttle_time
            results |= {(r.resource_type, r.resource_name): r for r in answer.responses}
        ends = asyncio.get_running_loop().time() + PATIENCE_S
        for resource, tracked in ours:
            code, message = ErrorCode.none, None
            try:
                tracked, change = await self._understood(ctx, request, resource, tracked)
                await self._carry_out(ctx, request, change, tracked, ends)
            except Refused as refusal:
                code, message = refusal.code, refusal.message
            results[resource.resource_type, resource.resource_name] = nested(schema, "responses")(
                error_code=code,
                error_message=message,
                resource_type=resource.resource_type,
                resource_name=resource.resource_name,
            )
        in_order = dict.fromkeys((r.resource_type, r.resource_name) for r in request.resources)
        return await ctx.respond_of(
            schema(throttle_time=throttle, responses=tuple(results[key] for key in in_order)),
            len(in_order),
        )

    async def _understood(
        self, ctx: RequestContext, request: Any, resource: Any, tracked: TrackedTopic | None
    ) -> tuple[TrackedTopic | None, TopicChange]:
        """What Postgres knows of the topic, and what the resource comes down to. Raises
        :class:`Refused`, by Kafka's word first: who may not alter the topic must not hear from us
        that it is tracked."""
        incremental = ctx.header.api_key == ApiKey.INCREMENTAL_ALTER_CONFIGS
        try:
            tracked = await self._as_postgres_says(tracked)
            return tracked, _sorted(resource, tracked, incremental)
        except Refused:
            nothing = TopicChange(resource.resource_name, replace(resource, configs=()))
            await _in_kafka(ctx, request, nothing, validate_only=True)
            raise

    async def _as_postgres_says(self, tracked: TrackedTopic | None) -> TrackedTopic | None:
        if tracked is None:
            return None
        try:
            found = await self.control_plane.tracked_topic(tracked.name)
        except ControlPlaneUnavailable as error:
            raise _no_control_plane(tracked.name, error) from None
        return found if found is not None and found.status in HOLDING else None

    async def _carry_out(
        self,
        ctx: RequestContext,
        request: Any,
        change: TopicChange,
        tracked: TrackedTopic | None,
        ends: float,
    ) -> None:
        """Check everything, a trigger's prerequisites until ``ends``, then change. Raises
        :class:`Refused`."""
        await _in_kafka(ctx, request, change, validate_only=True)
        topic_id = tracked.topic_id if tracked else None
        live = _live(tracked)
        if change.trigger and live is None:
            self._may_be_asked_for(ctx)
        try:
            limits = {} if live is None else await judged(ctx, change, live)
            if change.trigger and live is None:
                topic_id = await self.eligibility.topic_id(change.name, change.changes, ends)
            if request.validate_only:
                return
            if change.for_kafka.configs or ctx.header.api_key == ApiKey.ALTER_CONFIGS:
                await self._set_in_kafka(ctx, request, change, tracked, topic_id)
            if topic_id is None:
                return
            released = {
                key: value
                for key, value in change.overridden.items()
                if not await self.control_plane.update_user_config(topic_id, key, value)
            }
            if released:
                await self.held.given_back(change.name, topic_id, released)
            if limits:
                await self.control_plane.update_topic_limits(topic_id, **limits)
                await self._enforced(change.name, limits)
            if change.trigger and live is None:
                by = ctx.asked_by()
                await self.control_plane.request_migration(
                    change.name, topic_id, requested_by=by, options={}
                )
                log.info("migration.requested", topic=change.name, by=by)
        except ControlPlaneUnavailable as error:
            raise _no_control_plane(change.name, error) from None
        except RefusedError as error:
            raise invalid(str(error)) from None
        except TidelineError as error:
            log.warning("config_change.not_decided", topic=change.name, why=str(error))
            raise Refused(
                ErrorCode.request_timed_out,
                f"topic {change.name} cannot be examined now: try again; the gateway's log and "
                f"`tideline preflight {change.name}` say what does not answer",
            ) from None

    def _may_be_asked_for(self, ctx: RequestContext) -> None:
        """A migration, by this client, whom Kafka lets change the topic's configs. Raises
        :class:`Refused`."""
        if not self.trigger:
            raise Refused(ErrorCode.policy_violation, SWITCHED_OFF)
        if has_controls(ctx.header.client_id or ""):
            raise Refused(ErrorCode.invalid_request, CONTROLS_IN_CLIENT_ID)

    async def _set_in_kafka(
        self,
        ctx: RequestContext,
        request: Any,
        change: TopicChange,
        tracked: TrackedTopic | None,
        topic_id: UUID | None,
    ) -> None:
        """Raises :class:`Refused`, and :class:`TidelineError` as ``HeldConfigs`` does."""
        sent = {config.name for config in change.for_kafka.configs}
        held = tracked.overrides if tracked else {}
        incremental = ctx.header.api_key == ApiKey.INCREMENTAL_ALTER_CONFIGS
        exposed = {
            key: change.changes.get(key)
            for key in MANAGED_KEYS
            if key not in held and (key in sent or not incremental)
        }
        setting = _in_kafka(ctx, request, change, validate_only=False)
        if topic_id is None or not exposed:
            await setting
        else:
            await self.held.carried_out(change.name, topic_id, exposed, setting)

    async def _enforced(self, name: str, limits: dict[str, Any]) -> None:
        """Return when this gateway holds new batches to ``limits``. Raises :class:`Refused`."""
        ends = asyncio.get_running_loop().time() + ENFORCED_WITHIN_S
        while (topic := self.tracking.topic_by_name(name)) is not None:
            if all(getattr(topic.limits, key) == value for key, value in limits.items()):
                return
            if asyncio.get_running_loop().time() > ends:
                raise Refused(
                    ErrorCode.request_timed_out,
                    f"{name}: {', '.join(limits)} is set, but this gateway has not heard of it "
                    f"within {ENFORCED_WITHIN_S:g} s and enforces what was set before: try again",
                )
            await asyncio.sleep(LOOK_AGAIN_S)

    async def describe_configs(self, ctx: RequestContext) -> bytes | None:
        """Forwarded; Kafka ignores names that it does not know, so the request needs no change.
        Of brokers, addresses are withheld."""
        request: Any = ctx.request()
        asked = {
            resource.resource_name: resource.configuration_keys
            for resource in request.resources
            if resource.resource_type == TOPIC
        }
        response = await ctx.forward()
        if not asked and not any(r.resource_type == BROKER for r in request.resources):
            return response
        answer: Any = await decoded_response(
            ctx.connection, response, ctx.header.api_key, ctx.header.api_version
        )
        requested = await self._requested(request, asked)
        tiered = await self._tiered(ctx, answer, asked)
        results, looked = [], 0
        for result in answer.results:
            looked += len(result.configs)
            if looked > AT_ONCE_PARTITIONS:
                looked = 0
                await asyncio.sleep(0)  # others have their turn: it may be of a whole cluster
            if result.resource_type == TOPIC and result.error_code is ErrorCode.none:
                keys = asked.get(result.resource_name)
                tracked = self.tracking.topic_by_name(result.resource_name)
                said = requested.get(result.resource_name, "")
                state = _state(tracked, result.resource_name in tiered)
                result = await _complete(ctx, request, result, tracked, keys, said, state)
            elif result.resource_type == BROKER:
                result = without_addresses(result)
            results.append(result)
        entries = sum(len(result.configs) for result in results)
        return await ctx.respond_of(replace(answer, results=tuple(results)), entries)

    async def _tiered(
        self, ctx: RequestContext, answer: Any, asked: Mapping[str, tuple[str, ...] | None]
    ) -> set[str]:
        """Topics with tiered storage, of those that are not tracked. Of some the client wants to
        know the state and not that: Kafka is asked."""
        found = [
            result
            for result in answer.results
            if result.resource_type == TOPIC
            and result.error_code is ErrorCode.none
            and self.tracking.topic_by_name(result.resource_name) is None
        ]
        unsaid = tuple(
            result.resource_name
            for result in found
            if (keys := asked.get(result.resource_name))
            and MIGRATION_STATE in keys
            and REMOTE_STORAGE not in keys
        )
        if unsaid:
            more: Any = await ctx.forward_message(describing(unsaid, (REMOTE_STORAGE,)))
            found += more.results
        return {
            result.resource_name
            for result in found
            for config in result.configs
            if config.name == REMOTE_STORAGE and config.value == "true"
        }

    async def _requested(
        self, request: Any, asked: Mapping[str, tuple[str, ...] | None]
    ) -> dict[str, str]:
        """By topic, what became of its request to migrate. One question for all of them, and only
        to a client that wants the documentation of ``diskless.enable``; of classic topics only if
        it names that key, since who describes them waits for no Postgres (seed 000, I1)."""
        names = [
            name
            for name, keys in asked.items()
            if (DISKLESS_ENABLE in keys if keys else self.tracking.topic_by_name(name))
        ]
        if not names or not getattr(request, "include_documentation", False):
            return {}
        try:
            found = await self.control_plane.list_requests(names[0] if len(names) == 1 else None)
        except ControlPlaneUnavailable:
            return dict.fromkeys(names, "unknown, the control plane does not answer")
        return {one.topic: one.told() for one in found}


def _no_control_plane(topic: str, error: ControlPlaneUnavailable) -> Refused:
    log.warning("config_change.not_decided", topic=topic, why=str(error))
    return Refused(ErrorCode.request_timed_out, NO_CONTROL_PLANE)


def _concerns_us(resource: Any, tracked: TrackedTopic | None, incremental: bool) -> bool:
    """Whether it names what is, or may be, Tideline's: this gateway's view of what is overridden
    may be a moment old, and a seal must not be broken for that."""
    if tracked is not None and not incremental:
        return True
    keys = {*OWN_KEYS, *((*MANAGED_KEYS, *JUDGED) if tracked else ())}
    return any(config.name in keys for config in resource.configs)


def _sorted(resource: Any, tracked: TrackedTopic | None, incremental: bool) -> TopicChange:
    """Sort the configs of one topic. Raises :class:`Refused`."""
    change = TopicChange(resource.resource_name, resource)
    overrides = tracked.overrides if tracked else {}
    for_kafka = []
    named: set[str] = set()
    for config in resource.configs:
        operation = config.config_operation if incremental else SET
        if config.name in named:
            raise Refused(
                ErrorCode.invalid_request, f"config {config.name} is named more than once"
            )
        named.add(config.name)
        if operation != DELETE and config.value is None:
            raise Refused(
                ErrorCode.invalid_request,
                f"config {config.name} has no value: give one, or delete it by "
                "IncrementalAlterConfigs",
            )
        if config.name == MIGRATION_STATE:
            _change_no_state(operation, config.value, _live(tracked))
        elif config.name == DISKLESS_ENABLE:
            change.trigger = _is_trigger(operation, config.value, _live(tracked))
        elif config.name in overrides:
            change.overridden[config.name] = _user_value(operation, config)
        else:
            for_kafka.append(config)
            if operation in (SET, DELETE):
                change.changes[config.name] = None if operation == DELETE else config.value
            elif config.name == CLEANUP_POLICY:
                change.policies = operation, config.value or ""
    if not incremental:
        # All that is not named is reset: what Tideline holds stays in Kafka as it is, and the
        # user's own value of it is forgotten.
        for_kafka += _override_entries(resource, overrides)
        change.overridden |= {key: None for key in overrides if key not in named}
        if tracked is not None:
            change.changes |= {
                key: None for key in JUDGED if key not in named and key not in overrides
            }
    change.for_kafka = replace(resource, configs=tuple(for_kafka))
    return change


def _live(tracked: TrackedTopic | None) -> TrackedTopic | None:
    """``None`` also for one that was aborted, and holds configs until they are given back."""
    return tracked if tracked is not None and tracked.status in LIVE else None


def _is_trigger(operation: int, value: str | None, tracked: TrackedTopic | None) -> bool:
    if operation not in (SET, DELETE):
        raise invalid(f"{DISKLESS_ENABLE} is no list: set it, nothing can be appended to it")
    try:
        wanted = operation == SET and wants_diskless(value)
    except ValueError as error:
        raise invalid(str(error)) from None
    if not wanted and tracked is not None:
        raise invalid(FORWARD_ONLY)
    return wanted


def _change_no_state(operation: int, value: str | None, tracked: TrackedTopic | None) -> None:
    """Deleted, or written as it is shown. Raises :class:`Refused` otherwise."""
    if operation == DELETE:
        return
    if operation != SET:
        raise invalid(f"{MIGRATION_STATE} is no list: nothing can be appended to it")
    try:
        state_written_back(value, {_state_of(tracked)})
    except ValueError as error:
        raise invalid(str(error)) from None


def _user_value(operation: int, config: Any) -> str | None:
    if operation == DELETE:
        return None
    if operation != SET:
        raise invalid(f"{config.name} is no list: nothing can be appended to it")
    problem = problem_with_override(config.name, config.value)
    if problem is not None:
        raise invalid(problem)
    return str(config.value)


def _override_entries(resource: Any, overrides: dict[str, ConfigOverride]) -> list[Any]:
    schema: Any = type(resource)
    entry = nested(schema, "configs")
    return [
        entry(name=override.key, value=override.override_value)
        for override in overrides.values()
        if override.override_value is not None
    ]


async def _in_kafka(
    ctx: RequestContext, request: Any, change: TopicChange, *, validate_only: bool
) -> None:
    message = replace(request, resources=(change.for_kafka,), validate_only=validate_only)
    answer: Any = await ctx.forward_message(message)
    (result,) = answer.responses
    if result.error_code is not ErrorCode.none:
        raise Refused(result.error_code, result.error_message)


def _state(tracked: TrackedTopic | None, tiered: bool) -> MigrationState | None:
    """``None``: the topic has none, since no migration concerns it."""
    return _state_of(tracked) if tracked is not None or tiered else None


def _state_of(tracked: TrackedTopic | None) -> MigrationState:
    """``TIERED_ONLY`` where it is not tracked."""
    rows = tracked.partitions.values() if tracked else ()
    return topic_state(row.state for row in rows)


async def _complete(
    ctx: RequestContext,
    request: Any,
    result: Any,
    tracked: TrackedTopic | None,
    keys: tuple[str, ...] | None,
    requested: str,
    state: MigrationState | None,
) -> Any:
    entries = list(result.configs)
    if tracked is not None:
        overridden = [c.name for c in entries if c.name in tracked.overrides]
        defaults = await _defaults(ctx, tracked, overridden)
        entries = [
            _as_the_user_set_it(config, tracked.overrides[config.name], defaults)
            if config.name in tracked.overrides
            else config
            for config in entries
        ]
        if all(row.state is not MigrationState.MIGRATING for row in tracked.partitions.values()):
            in_force = shown_limits(tracked.limits)
            entries = [
                replace(config, value=in_force[config.name]) if config.name in LIMITS else config
                for config in entries
            ]
    schema: Any = response_class(ctx.header.api_key, ctx.header.api_version)
    entry = nested(nested(schema, "results"), "configs")
    documented = bool(getattr(request, "include_documentation", False))
    own = (
        (DISKLESS_ENABLE, "true" if tracked else "false", tracked is not None, BOOLEAN),
        # Nobody can set it, so it is no config that was set on the topic (Kafka: ConfigHelper).
        (MIGRATION_STATE, state, False, STRING),
    )
    for name, value, is_set, kind in own:
        if value is None:
            continue
        # An empty list of names means all, as null does (Kafka: ConfigHelper).
        if keys and name not in keys:
            continue
        entries.append(
            build(
                entry,
                name=name,
                value=str(value),
                read_only=name == MIGRATION_STATE,
                config_source=i8(TOPIC_CONFIG if is_set else DEFAULT_CONFIG),
                is_default=not is_set,
                is_sensitive=False,
                synonyms=(),
                config_type=i8(kind),
                documentation=_documentation(name, requested) if documented else None,
            )
        )
    return replace(result, configs=tuple(entries))


def _documentation(name: str, requested: str) -> str:
    shown = name == DISKLESS_ENABLE and requested
    return f"{_DOCUMENTATION[name]} Last request: {requested}" if shown else _DOCUMENTATION[name]


def _as_the_user_set_it(
    config: Any, override: ConfigOverride, defaults: dict[str, tuple[str | None, int]]
) -> Any:
    value, source = (
        defaults.get(override.key, (None, DEFAULT_CONFIG))
        if override.user_value is None
        else (override.user_value, TOPIC_CONFIG)
    )
    inherited = tuple(s for s in config.synonyms if s.source != TOPIC_CONFIG)
    if override.user_value is not None and config.synonyms:
        schema: Any = type(config)
        own = nested(schema, "synonyms")(name=override.key, value=value, source=i8(TOPIC_CONFIG))
        inherited = (own, *inherited)
    return replace(config, value=value, config_source=i8(source), synonyms=inherited)


async def _defaults(
    ctx: RequestContext, tracked: TrackedTopic, overridden: list[str]
) -> dict[str, tuple[str | None, int]]:
    """Value and source that overridden configs would have, had nobody set them on the topic."""
    unset = tuple(key for key in overridden if tracked.overrides[key].user_value is None)
    return (await described(ctx, tracked.name, unset))[1] if unset else {}
