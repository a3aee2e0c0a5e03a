"""EndTxn: the abort of a transaction to which nothing could be added.

librdkafka sends it after a refused AddPartitionsToTxn, and Kafka, which never saw that transaction
begin, answers INVALID_TXN_STATE, which is fatal to the producer. There is nothing to abort, so
the abort has succeeded.
"""

from __future__ import annotations

import time
from collections import OrderedDict
from dataclasses import replace
from typing import Any

from kio.schema.errors import ErrorCode

from tideline.gateway.context import GatewayServices, RequestContext
from tideline.gateway.interception import ApiKey, Rule, Rules
from tideline.kafka.protocol import decode_response

REMEMBERED = 10_000
REMEMBERED_S = 1_800.0
"""Longer than ``transaction.max.timeout.ms`` lets a transaction live (15 min by default)."""

Producer = tuple[str, int, int]
"""Transactional id, producer id and epoch."""


class RefusedTransactions:
    """Transactions that this gateway refused something, until they end. Kept by the gateway of
    their coordinator; a coordinator that moves in between costs the producer its session."""

    def __init__(self) -> None:
        self._since: OrderedDict[Producer, float] = OrderedDict()

    def add(self, producer: Producer) -> None:
        """Something of the producer's present transaction was refused."""
        now = time.monotonic()
        self._since[producer] = now
        self._since.move_to_end(producer)
        while self._since and (
            len(self._since) > REMEMBERED or now - next(iter(self._since.values())) > REMEMBERED_S
        ):
            self._since.popitem(last=False)

    def take(self, producer: Producer) -> bool:
        """Whether that is so; forgets it."""
        return self._since.pop(producer, None) is not None


async def end_txn(ctx: RequestContext, services: GatewayServices) -> bytes | None:
    """Forwarded; only an abort that found no transaction is answered anew."""
    request: Any = ctx.request()
    refused = services.transactions.refused.take(
        (request.transactional_id, request.producer_id, request.producer_epoch)
    )
    response = await ctx.forward()
    if not refused or request.committed:
        return response
    answer: Any = decode_response(response, ctx.header.api_key, ctx.header.api_version)
    if answer.error_code is not ErrorCode.invalid_txn_state:
        return response
    return ctx.respond(replace(answer, error_code=ErrorCode.none))


RULES: Rules = {ApiKey.END_TXN: Rule(end_txn)}
