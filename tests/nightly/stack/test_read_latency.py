"""How long a Fetch takes in each tier of a hybrid topic, beside the same Fetch at a broker: by the
benchmark whose figures are in docs/performance.md (seed 002, 8.3)."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from statistics import median

import pytest
from confluent_kafka.admin import AdminClient

from benchmarks.read_latency import WAYS, measure, to_markdown
from tests.harness import delete_topics
from tests.support.waiting import HANGS_S
from tests.tiering_now import tier
from tideline.stack import Stack

MOST = 60.0
"""Times the direct Fetch of the same turn. Six on a machine that does nothing else; the hundredfold
would be a wait for something, and not work."""


@pytest.fixture
def leaving_nothing(stack: Stack) -> Iterator[None]:
    admin = AdminClient({"bootstrap.servers": stack.endpoints.gateway_bootstrap})
    before = set(admin.list_topics(timeout=HANGS_S).topics)
    yield
    delete_topics(admin, *(set(admin.list_topics(timeout=HANGS_S).topics) - before))


@pytest.mark.usefixtures("leaving_nothing")
def test_no_tier_is_read_many_times_slower_than_a_broker_is(stack: Stack) -> None:
    result = measure(stack, 1, print, partial(tier, segment_bytes=1 << 22))
    print(to_markdown(result, "the machine of the test"))
    assert {way: len(result.took[way]) for way in WAYS} == dict.fromkeys(WAYS, 20)
    slower = {way: ratio for way in WAYS if (ratio := median(result.ratios(way))) > MOST}
    assert not slower, slower
