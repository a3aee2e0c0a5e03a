"""What a gateway remembers of transactions: those that it has refused something, and open ones."""

from __future__ import annotations

import asyncio
import time
from types import SimpleNamespace
from typing import Any, cast

import pytest
from kio.schema.errors import ErrorCode

from tideline.gateway import transactions
from tideline.gateway.transactions import OpenTransactions, RefusedTransactions
from tideline.kafka.client import KafkaCluster


def test_a_refusal_is_remembered_however_long_the_transaction_may_live(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """``transaction.max.timeout.ms`` is the cluster's."""
    refused, now = RefusedTransactions(), time.monotonic()
    refused.add(("long", 1, 0))
    monkeypatch.setattr(time, "monotonic", lambda: now + 86_400.0)
    refused.add(("another", 2, 0))
    assert ("long", 1, 0) in refused
    refused.forget(("long", 1, 0))
    assert ("long", 1, 0) not in refused


def test_those_that_were_refused_last_are_remembered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(transactions, "REMEMBERED", 2)
    refused = RefusedTransactions()
    for producer in (1, 2, 1, 3):
        refused.add(("same", producer, 0))
    assert [("same", producer, 0) in refused for producer in (1, 2, 3)] == [True, False, True]


async def test_what_is_open_is_asked_for_anew_after_two_seconds(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    cluster, now = Producers(), 100.0
    monkeypatch.setattr(asyncio.get_running_loop(), "time", lambda: now)
    open_ = OpenTransactions(cast(KafkaCluster, cluster))

    async def is_open() -> bool:
        return await open_.has_open(1, "t", 0, 7, 0)

    assert await is_open()
    cluster.first_offset = -1
    now = 101.9
    assert await is_open()
    now = 102.0
    assert not await is_open()


class Producers:
    """What a broker says of producer 7."""

    first_offset = 40

    async def node(self, node: int) -> Producers:
        return self

    async def send(self, message: object, timeout_ms: int) -> Any:
        producer = SimpleNamespace(
            producer_id=7, producer_epoch=0, current_txn_start_offset=self.first_offset
        )
        partition = SimpleNamespace(error_code=ErrorCode.none, active_producers=(producer,))
        return SimpleNamespace(topics=(SimpleNamespace(partitions=(partition,)),))
