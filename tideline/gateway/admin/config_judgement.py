"""What a topic resource of AlterConfigs comes down to, judged by the rules of the suffix.

Kafka is asked what holds at present, because a change names a few keys and the rules are about what
would hold together.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any, cast

from kio.schema.describe_configs.v4.request import (
    DescribeConfigsRequest,
    DescribeConfigsResource,
)
from kio.schema.describe_configs.v4.response import DescribeConfigsResponse
from kio.schema.errors import ErrorCode
from kio.static.primitive import i8

from tideline.control_plane.model import TrackedTopic
from tideline.domain.config_changes import (
    CLEANUP_POLICY,
    JUDGED,
    items,
    limits_of,
    problem_with_change,
    situation_of,
)
from tideline.gateway.context import RequestContext

TOPIC = 2
"""``ConfigResource.Type.TOPIC``."""
TOPIC_CONFIG = 1
"""``DescribeConfigsResponse.ConfigSource``: set on the topic itself."""
SET, DELETE, APPEND, SUBTRACT = 0, 1, 2, 3
"""``AlterConfigOp.OpType``; the last two are for lists."""


class Refused(Exception):
    """Nothing of the resource was changed."""

    def __init__(self, code: ErrorCode, message: str) -> None:
        super().__init__(message)
        self.code = code
        self.message = message


def invalid(message: str) -> Refused:
    return Refused(ErrorCode.invalid_config, message)


@dataclass(slots=True)
class TopicChange:
    """What one topic resource of a request comes down to."""

    name: str
    for_kafka: Any
    """The resource without what is Tideline's."""
    trigger: bool = False
    overridden: dict[str, str | None] = field(default_factory=dict)
    """The user's values of configs that Tideline overrides."""
    changes: dict[str, str | None] = field(default_factory=dict)
    """What is set or removed in Kafka; the topic is judged as if it held."""
    policies: tuple[int, str] | None = None
    """What is appended to or subtracted from the list ``cleanup.policy``, with the operation."""


async def judged(ctx: RequestContext, change: TopicChange, tracked: TrackedTopic) -> dict[str, Any]:
    """The limits that the change puts in force. Raises :class:`Refused` for what the suffix
    cannot honour."""
    wanted = change.changes | change.overridden
    named = {key for key in wanted if key in JUDGED}
    if change.policies is not None:
        named.add(CLEANUP_POLICY)
    if not named:
        return {}
    values, defaults = await described(ctx, tracked.name, JUDGED)
    unset = {key: value for key, (value, _) in defaults.items()}
    users = {
        key: unset.get(key) if override.user_value is None else override.user_value
        for key, override in tracked.overrides.items()
    }
    before = values | {key: value for key, value in users.items() if key in JUDGED}
    after = before | {
        key: unset.get(key) if wanted[key] is None else wanted[key]
        for key in named
        if key in wanted
    }
    if change.policies is not None:
        after[CLEANUP_POLICY] = _altered_list(before.get(CLEANUP_POLICY), *change.policies)
    situation = situation_of(tracked.partitions.values(), before)
    if (problem := problem_with_change(after, situation, named)) is not None:
        raise invalid(f"topic {tracked.name} is tracked by Tideline; {problem}")
    try:
        return limits_of(after, named)
    except ValueError as error:
        raise invalid(f"topic {tracked.name}: {error}") from None


def _altered_list(value: str | None, operation: int, entries: str) -> str:
    known = items(value)
    if operation == SUBTRACT:
        return ",".join(entry for entry in known if entry not in items(entries))
    return ",".join(dict.fromkeys((*known, *items(entries))))


def describing(topics: Iterable[str], keys: tuple[str, ...]) -> DescribeConfigsRequest:
    """The question for ``keys`` of these topics, with where each value comes from."""
    return DescribeConfigsRequest(
        resources=tuple(
            DescribeConfigsResource(
                resource_type=i8(TOPIC), resource_name=topic, configuration_keys=keys
            )
            for topic in topics
        ),
        include_synonyms=True,
    )


async def described(
    ctx: RequestContext, topic: str, keys: tuple[str, ...]
) -> tuple[dict[str, str | None], dict[str, tuple[str | None, int]]]:
    """What Kafka has at present, and value and source without what is set on the topic."""
    request = describing((topic,), keys)
    answer = cast(DescribeConfigsResponse, await ctx.forward_message(request))
    values: dict[str, str | None] = {}
    defaults: dict[str, tuple[str | None, int]] = {}
    for result in answer.results:
        for config in result.configs:
            values[config.name] = config.value
            inherited = [s for s in config.synonyms if s.source != TOPIC_CONFIG]
            if inherited:
                defaults[config.name] = (inherited[0].value, int(inherited[0].source))
    return values, defaults
