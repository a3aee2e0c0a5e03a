"""Which requests are looked into. Everything else passes as it came.

A rule is asked for every request of its API, before anything is decoded; while no topic is
tracked most of them say no, so that classic traffic costs a look into a table (I1).
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from enum import IntEnum
from typing import TYPE_CHECKING

from tideline.kafka.protocol import RequestHeader

if TYPE_CHECKING:
    from tideline.gateway.context import GatewayServices, RequestContext
    from tideline.gateway.tracking.view import Tracking

Handler = Callable[["RequestContext", "GatewayServices"], Awaitable[bytes | None]]
"""Returns the response frame, or ``None`` where the request has no response (Produce, acks=0).
An exception closes the client's connection: a bug must not become a wrong answer."""
Needs = Callable[[RequestHeader, "Tracking"], bool]


class ApiKey(IntEnum):
    """The APIs that the gateway knows by name (``org.apache.kafka…protocol.ApiKeys``)."""

    PRODUCE = 0
    FETCH = 1
    LIST_OFFSETS = 2
    METADATA = 3
    FIND_COORDINATOR = 10
    API_VERSIONS = 18
    CREATE_TOPICS = 19
    DELETE_TOPICS = 20
    DELETE_RECORDS = 21
    OFFSET_FOR_LEADER_EPOCH = 23
    ADD_PARTITIONS_TO_TXN = 24
    END_TXN = 26
    DESCRIBE_CONFIGS = 32
    ALTER_CONFIGS = 33
    CREATE_PARTITIONS = 37
    INCREMENTAL_ALTER_CONFIGS = 44
    DESCRIBE_CLUSTER = 60
    SHARE_FETCH = 78
    SHARE_ACKNOWLEDGE = 79


def always(header: RequestHeader, tracking: Tracking) -> bool:
    """The request is looked into even while no topic is tracked."""
    return True


def when_tracking(header: RequestHeader, tracking: Tracking) -> bool:
    """The request is looked into as soon as any topic is tracked."""
    return not tracking.is_empty


@dataclass(frozen=True, slots=True)
class Rule:
    """How one API is handled."""

    handler: Handler
    needs: Needs = when_tracking


Rules = Mapping[int, Rule]
"""By API key; an API without a rule passes."""


def decoded_apis(rules: Rules) -> frozenset[int]:
    """The APIs whose versions must be ones that can be decoded here."""
    return frozenset(rules)
