"""Quotas of who produces to and fetches from tracked topics: those that Kafka has configured.

The broker throttles what reaches it. What does not, the suffix, would escape; so the bytes of both
are counted here, per user and client id, and so is the time of the gateway's own
(:mod:`tideline.gateway.request_time`). Who exceeds its quota is told so and not read until it is
within it again, as by a broker (KIP-219).
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import structlog
from kio.schema.describe_client_quotas.v1.request import DescribeClientQuotasRequest
from kio.schema.describe_configs.v4.request import DescribeConfigsRequest, DescribeConfigsResource
from kio.schema.errors import ErrorCode
from kio.static.primitive import i8

from tideline.background import cancel_and_wait, keep
from tideline.domain.quotas import (
    ANONYMOUS,
    Default,
    Limit,
    Name,
    QuotaEntity,
    QuotaKind,
    QuotaWindow,
    Usage,
    limit_of,
)
from tideline.errors import TidelineError
from tideline.gateway.context import RequestContext
from tideline.gateway.listeners import Listeners
from tideline.gateway.metrics import THROTTLED
from tideline.kafka.client import KafkaCluster
from tideline.kafka.errors import KafkaError

LOOK_EVERY_S = 10.0
TIMEOUT_MS = 5_000
USAGES_REMEMBERED = 10_000
"""Of those who share a quota each; more: who has used none for longest begins anew."""
BROKER_RESOURCE = 4
WINDOW_CONFIGS = ("quota.window.num", "quota.window.size.seconds")
Quotas = Mapping[QuotaKind, Mapping[QuotaEntity, float]]
log = structlog.get_logger()


@dataclass(slots=True)
class ClientQuotas:
    """Follows Kafka's quotas, and counts."""

    cluster: KafkaCluster
    node: int
    """Of the paired broker."""
    quotas: Quotas = field(default_factory=dict)
    window: QuotaWindow = field(default_factory=QuotaWindow)
    changed: Listeners[[]] = field(default_factory=Listeners)
    """Called when Kafka has other quotas than before."""
    _used: OrderedDict[tuple[QuotaKind, tuple[str, str]], Usage] = field(
        default_factory=OrderedDict
    )
    _following: asyncio.Task[None] | None = None
    _unheard: bool = False

    def start(self) -> None:
        """Begin to follow them."""
        self._following = keep(self._follow(), "client-quotas")

    async def close(self) -> None:
        if self._following is not None:
            await cancel_and_wait(self._following)

    async def _follow(self) -> None:
        while True:
            await self.look()
            await asyncio.sleep(LOOK_EVERY_S)

    async def look(self) -> None:
        """Read them now. While Kafka does not tell, what it told last holds."""
        try:
            connection = await self.cluster.node(self.node)
            told: Any = await connection.send(
                DescribeClientQuotasRequest(components=(), strict=False), timeout_ms=TIMEOUT_MS
            )
            if told.error_code is not ErrorCode.none:
                raise KafkaError(told.error_code, "client quotas")
            found = quotas_of(told.entries or ())
            if any(found.values()):
                self._measure_by(_window(await connection.send(_ask_window(self.node))))
        except TidelineError as error:
            if not self._unheard:
                log.warning(
                    "quotas.not_read: what was read last holds. The gateway's principal needs "
                    "DESCRIBE_CONFIGS on the cluster",
                    why=str(error),
                )
            self._unheard = True
            return
        self._unheard = False
        if found != self.quotas:
            self.quotas = found
            self.changed()

    def _measure_by(self, window: QuotaWindow) -> None:
        if window != self.window:
            self.window = window
            self._used.clear()

    def has(self, kind: QuotaKind) -> bool:
        """Whether Kafka has any quota of the kind, so that what is used has to be counted."""
        return bool(self.quotas.get(kind))

    def most(self, kind: QuotaKind, context: RequestContext) -> float:
        """Bytes that one answer may have without being throttled for its size alone."""
        limit = self._limit(kind, context)
        return float("inf") if limit is None else limit.bound * self.window.most_s

    def record(self, kind: QuotaKind, context: RequestContext, used: float) -> float:
        """``used`` more, in the quota's unit times seconds (bytes, or percent of seconds), by the
        client of this request. Returns for how long, in s, it has to be throttled; who is within
        its quota, or has none, not at all."""
        limit = self._limit(kind, context)
        if limit is None:
            return 0.0
        now = asyncio.get_running_loop().time()
        usage = self._usage(kind, limit)
        usage.record(used, now)
        return min(usage.throttle_s(limit.bound, now), self.window.longest_throttle_s(kind))

    def throttle(self, kind: QuotaKind, context: RequestContext, seconds: float) -> None:
        """Do not read the client for so long."""
        if seconds > 0:
            THROTTLED.labels(kind.value).inc()
            context.connection.mute(seconds)

    def _limit(self, kind: QuotaKind, context: RequestContext) -> Limit | None:
        quotas = self.quotas.get(kind)
        if not quotas:
            return None
        identity = context.connection.identity
        user = ANONYMOUS if identity.mechanism is None else identity.user
        return limit_of(quotas, user, context.header.client_id or "")

    def _usage(self, kind: QuotaKind, limit: Limit) -> Usage:
        key = kind, limit.shared
        usage = self._used.setdefault(key, Usage(self.window))
        self._used.move_to_end(key)
        while len(self._used) > USAGES_REMEMBERED:
            self._used.popitem(last=False)
        return usage


def quotas_of(entries: Any) -> Quotas:
    """By kind and entity, from an answer's entries. Of addresses (``ip``) the broker takes care."""
    found: dict[QuotaKind, dict[QuotaEntity, float]] = {kind: {} for kind in QuotaKind}
    for entry in entries:
        names: dict[str, Name] = {
            part.entity_type: Default.NAME if part.entity_name is None else part.entity_name
            for part in entry.entity
        }
        if not names.keys() <= {"user", "client-id"}:
            continue
        entity = QuotaEntity(names.get("user"), names.get("client-id"))
        for value in entry.values:
            if value.key in set(QuotaKind):
                found[QuotaKind(value.key)][entity] = float(value.value)
    return found


def _ask_window(node: int) -> DescribeConfigsRequest:
    return DescribeConfigsRequest(
        resources=(
            DescribeConfigsResource(
                resource_type=i8(BROKER_RESOURCE),
                resource_name=str(node),
                configuration_keys=WINDOW_CONFIGS,
            ),
        ),
        include_synonyms=False,
        include_documentation=False,
    )


def _window(answer: Any) -> QuotaWindow:
    (result,) = answer.results
    if result.error_code is not ErrorCode.none:
        raise KafkaError(result.error_code, "the broker's quota window")
    values = {config.name: config.value for config in result.configs}
    number, size = (values[name] for name in WINDOW_CONFIGS)
    return QuotaWindow(int(number), float(size))
