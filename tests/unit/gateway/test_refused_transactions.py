"""What a gateway remembers of transactions that it has refused something."""

from __future__ import annotations

import time

import pytest

from tideline.gateway import transactions
from tideline.gateway.transactions import RefusedTransactions


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
