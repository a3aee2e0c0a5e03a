"""Kafka's quota of request time (``request_percentage``, KIP-124), for what gateways do themselves.

A broker counts the time that a request has one of its threads, in percent of one thread. A gateway
has one thread for requests, its event loop; what counts here is the CPU that a request's handler
has of it, and of the threads that decode, look into and write what is long. Waiting, for a broker,
Postgres or S3, is free, and what the broker does for the request the broker counts.
"""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable, Generator
from dataclasses import dataclass, fields, replace
from functools import cache, partial
from typing import Any

from tideline.domain.quotas import QuotaKind
from tideline.gateway.context import Handler, RequestContext, Rules
from tideline.gateway.messages import in_milliseconds, milliseconds
from tideline.gateway.quotas import ClientQuotas
from tideline.kafka.protocol import response_class, response_field, splice_int32

PERCENT = 100
FIELD = "throttle_time"


def metered(rules: Rules, quotas: ClientQuotas) -> Rules:
    """``rules`` whose handlers are counted while Kafka has a quota of request time for anybody, and
    whose answers say for how long who exceeds his is not read."""
    return {
        key: replace(rule, handler=Metered(rule.handler, quotas)) for key, rule in rules.items()
    }


@dataclass(frozen=True, slots=True)
class Metered:
    """A handler that is counted."""

    handler: Handler
    quotas: ClientQuotas

    def __call__(self, context: RequestContext) -> Awaitable[bytes | None]:
        if not self.quotas.has(QuotaKind.REQUEST):
            return self.handler(context)
        return _counted(self.handler, self.quotas, context)


async def _counted(handler: Handler, quotas: ClientQuotas, context: RequestContext) -> bytes | None:
    steps = Steps(handler(context))
    throttle_s = 0.0
    try:
        answer = await steps
    finally:  # who has left has used it all the same
        spent = (steps.spent_s + context.spent_elsewhere_s) * PERCENT
        throttle_s = quotas.record(QuotaKind.REQUEST, context, spent)
        quotas.throttle(QuotaKind.REQUEST, context, throttle_s)
    return answer if answer is None or throttle_s <= 0 else _telling(answer, context, throttle_s)


@dataclass(slots=True)
class Steps:
    """Awaits ``work``, and counts the CPU that its steps take of this thread."""

    work: Awaitable[bytes | None]
    clock: Callable[[], float] = time.thread_time
    spent_s: float = 0.0

    def __await__(self) -> Generator[Any, Any, bytes | None]:
        steps: Any = self.work.__await__()
        step = partial(steps.send, None)
        while True:
            began = self.clock()
            try:
                waits_for = step()
            except StopIteration as done:
                answer: bytes | None = done.value
                return answer
            finally:
                self.spent_s += self.clock() - began
            try:
                step = partial(steps.send, (yield waits_for))
            except BaseException as error:  # also GeneratorExit, of one that is given up
                step = partial(steps.throw, error)


def _telling(answer: bytes, context: RequestContext, seconds: float) -> bytes:
    """``answer`` with this throttle time, unless it tells a longer one, or has no place for it."""
    key, version = context.header.api_key, context.header.api_version
    if not _tells(key, version):
        return answer
    start, end = response_field(answer, key, version, FIELD)
    ours = in_milliseconds(milliseconds(seconds))
    if int.from_bytes(answer[start:end], "big", signed=True) >= ours:
        return answer
    return splice_int32(answer, key, version, FIELD, ours)


@cache
def _tells(api_key: int, version: int) -> bool:
    schema = response_class(api_key, version)
    return schema is not None and any(each.name == FIELD for each in fields(schema))
