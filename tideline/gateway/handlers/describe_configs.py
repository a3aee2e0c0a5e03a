"""DescribeConfigs of topics: Tideline's own configs added, held ones shown as the user's."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, cast

from kio.schema.describe_configs.v4.request import (
    DescribeConfigsRequest,
    DescribeConfigsResource,
)
from kio.schema.describe_configs.v4.response import DescribeConfigsResponse
from kio.schema.errors import ErrorCode
from kio.static.primitive import i8

from tideline.control_plane.model import ConfigOverride, TrackedTopic
from tideline.domain.admin_trigger import DISKLESS_ENABLE, MIGRATION_STATE, topic_state
from tideline.gateway.context import GatewayServices, RequestContext
from tideline.gateway.handlers.versioned import build, nested
from tideline.gateway.interception import ApiKey, Rule, Rules, always
from tideline.kafka.protocol import decode_response, response_class

TOPIC = 2
TOPIC_CONFIG, DEFAULT_CONFIG = 1, 5
"""``DescribeConfigsResponse.ConfigSource``."""
BOOLEAN, STRING = 1, 2
"""``DescribeConfigsResponse.ConfigType``."""
_DOCUMENTATION = {
    DISKLESS_ENABLE: "Whether the topic's new records go to diskless storage. Setting it to true "
    "migrates a tiered topic in place; it cannot be set back.",
    MIGRATION_STATE: "Where the topic's records are: TIERED_ONLY, MIGRATING, HYBRID or "
    "DISKLESS_ONLY. Read-only.",
}


async def describe_configs(ctx: RequestContext, services: GatewayServices) -> bytes | None:
    """Forwarded; Kafka ignores names that it does not know, so the request needs no change."""
    request: Any = ctx.request()
    asked = {
        resource.resource_name: resource.configuration_keys
        for resource in request.resources
        if resource.resource_type == TOPIC
    }
    response = await ctx.forward()
    if not asked:
        return response
    answer: Any = decode_response(response, ctx.header.api_key, ctx.header.api_version)
    results = []
    for result in answer.results:
        if result.resource_type == TOPIC and result.error_code is ErrorCode.none:
            keys = asked.get(result.resource_name)
            tracked = services.tracking.topic_by_name(result.resource_name)
            result = await _complete(ctx, request, result, tracked, keys)
        results.append(result)
    return ctx.respond(replace(answer, results=tuple(results)))


async def _complete(
    ctx: RequestContext,
    request: Any,
    result: Any,
    tracked: TrackedTopic | None,
    keys: tuple[str, ...] | None,
) -> Any:
    shown = list(result.configs)
    if tracked is not None:
        held = [c.name for c in shown if c.name in tracked.overrides]
        defaults = await _defaults(ctx, tracked, held)
        shown = [
            _as_the_user_set_it(config, tracked.overrides[config.name], defaults)
            if config.name in tracked.overrides
            else config
            for config in shown
        ]
    schema: Any = response_class(ctx.header.api_key, ctx.header.api_version)
    entry = nested(nested(schema, "results"), "configs")
    documented = bool(getattr(request, "include_documentation", False))
    state = topic_state(row.state for row in tracked.partitions.values()) if tracked else None
    own = (
        (DISKLESS_ENABLE, "true" if tracked else "false", tracked is not None, BOOLEAN),
        (MIGRATION_STATE, str(state or topic_state(())), tracked is not None, STRING),
    )
    for name, value, is_set, kind in own:
        # An empty list of names means all, as null does (Kafka: ConfigHelper).
        if keys and name not in keys:
            continue
        shown.append(
            build(
                entry,
                name=name,
                value=value,
                read_only=name == MIGRATION_STATE,
                config_source=i8(TOPIC_CONFIG if is_set else DEFAULT_CONFIG),
                is_default=not is_set,
                is_sensitive=False,
                synonyms=(),
                config_type=i8(kind),
                documentation=_DOCUMENTATION[name] if documented else None,
            )
        )
    return replace(result, configs=tuple(shown))


def _as_the_user_set_it(
    config: Any, held: ConfigOverride, defaults: dict[str, tuple[str | None, int]]
) -> Any:
    value, source = (
        defaults.get(held.key, (None, DEFAULT_CONFIG))
        if held.user_value is None
        else (held.user_value, TOPIC_CONFIG)
    )
    inherited = tuple(s for s in config.synonyms if s.source != TOPIC_CONFIG)
    if held.user_value is not None and config.synonyms:
        schema: Any = type(config)
        own = nested(schema, "synonyms")(name=held.key, value=value, source=i8(TOPIC_CONFIG))
        inherited = (own, *inherited)
    return replace(config, value=value, config_source=i8(source), synonyms=inherited)


async def _defaults(
    ctx: RequestContext, tracked: TrackedTopic, held: list[str]
) -> dict[str, tuple[str | None, int]]:
    """Value and source that held configs would have, had nobody set them on the topic."""
    unset = tuple(key for key in held if tracked.overrides[key].user_value is None)
    if not unset:
        return {}
    request = DescribeConfigsRequest(
        resources=(
            DescribeConfigsResource(
                resource_type=i8(TOPIC), resource_name=tracked.name, configuration_keys=unset
            ),
        ),
        include_synonyms=True,
    )
    answer = cast(DescribeConfigsResponse, await ctx.forward_message(request))
    found: dict[str, tuple[str | None, int]] = {}
    for result in answer.results:
        for config in result.configs:
            inherited = [s for s in config.synonyms if s.source != TOPIC_CONFIG]
            if inherited:
                found[config.name] = (inherited[0].value, int(inherited[0].source))
    return found


RULES: Rules = {ApiKey.DESCRIBE_CONFIGS: Rule(describe_configs, always)}
