"""A partition gets its row when each of its replicas says that nothing was ever appended to it."""

from __future__ import annotations

import asyncio
from typing import Any
from uuid import UUID

import pytest
from kio.schema.errors import ErrorCode

from tests.support.waiting import eventually, lasts_async, within
from tests.unit.gateway.gateway_under_test import gateway
from tests.unit.gateway.growing_kafka import GrowingKafka
from tests.unit.gateway.test_admin_handlers import (
    TRACKED_ID,
    AdminPlane,
    admin,
    ask,
    grow_to,
    tracked,
)
from tideline.gateway.admin import tellings
from tideline.gateway.admin.tellings import Tellings


class Bench:
    """A gateway over ``kafka`` in which ``tracked`` has two partitions, both with B0."""

    def __init__(self, kafka: GrowingKafka, away: int = 0) -> None:
        """``away``: for so many changes Postgres is."""
        self.kafka, self.view = kafka, tracked(5, 7)
        self.plane, self.tellings = AdminPlane(self.view, away), Tellings()

    async def grow_to(self, count: int) -> Any:
        """The answer about the topic."""
        rules = admin(self.view, self.plane, self.tellings)
        async with gateway(self.kafka.address, rules) as g:
            (result,) = (await ask(g, grow_to(count, "tracked"))).results
            await eventually(
                "what Kafka did to be told, or to wait", lambda: all(self._pending().values())
            )
        return result

    def _pending(self) -> dict[str, str]:
        return self.tellings.pending()

    def rows(self) -> dict[int, int]:
        """B0 by partition."""
        topic = self.plane.topics.live_or_refuse("tracked")
        return {n: row.boundary for n, row in topic.partitions.items()}


@pytest.fixture
async def kafka() -> Any:
    async with GrowingKafka("tracked", TRACKED_ID, 2) as kafka:
        yield kafka


async def test_new_partitions_begin_diskless(kafka: GrowingKafka) -> None:
    bench = Bench(kafka)
    assert (await bench.grow_to(4)).error_code is ErrorCode.none
    assert bench.rows() == {0: 5, 1: 7, 2: 0, 3: 0}
    assert bench.plane.said == [("add_partitions", "tracked", TRACKED_ID, 2, 4)]


async def test_new_partitions_are_told_to_the_control_plane_until_it_hears(
    kafka: GrowingKafka,
) -> None:
    bench = Bench(kafka, away=2)
    rules = admin(bench.view, bench.plane, bench.tellings)
    async with gateway(kafka.address, rules) as g:
        await ask(g, grow_to(4, "tracked"))
        await within("the control plane to hear of it", bench.plane.heard.wait())
    assert bench.rows() == {0: 5, 1: 7, 2: 0, 3: 0}


async def test_two_gateways_take_the_same_partitions_in_at_once(kafka: GrowingKafka) -> None:
    kafka.add(2)
    bench = Bench(kafka)
    rules = [admin(bench.view, bench.plane, Tellings()) for _ in range(2)]
    async with gateway(kafka.address, rules[0]) as one, gateway(kafka.address, rules[1]) as other:
        await asyncio.gather(*(ask(g, grow_to(4, "tracked")) for g in (one, other)))
        await eventually("the rows", lambda: bench.rows() == {0: 5, 1: 7, 2: 0, 3: 0})


async def test_what_was_added_past_the_gateways_and_is_empty_grows_with_the_topic(
    kafka: GrowingKafka,
) -> None:
    kafka.add()
    bench = Bench(kafka)
    assert (await bench.grow_to(4)).error_code is ErrorCode.none
    assert bench.rows() == {0: 5, 1: 7, 2: 0, 3: 0}


async def test_an_earlier_try_that_changed_only_kafka_is_ended(kafka: GrowingKafka) -> None:
    kafka.add(2)
    bench = Bench(kafka)
    assert (await bench.grow_to(4)).error_code is ErrorCode.invalid_partitions
    assert bench.rows() == {0: 5, 1: 7, 2: 0, 3: 0}


@pytest.mark.parametrize("count", [3, 4], ids=["as many", "more"])
@pytest.mark.parametrize("where", [1, 2], ids=["at the leader", "at another replica"])
async def test_a_topic_does_not_grow_over_records_of_a_partition_that_nobody_knows(
    kafka: GrowingKafka, where: int, count: int
) -> None:
    """They were acknowledged at a broker: an empty suffix over them would hide them for ever."""
    kafka.add()
    kafka.ends[2][where] = 7
    bench = Bench(kafka)
    refused = await bench.grow_to(count)
    assert refused.error_code is ErrorCode.invalid_request
    assert f"partition 2 (log ends by replica: 1: {kafka.ends[2][1]}" in refused.error_message
    assert "never held a record begins diskless" in refused.error_message
    assert "`tideline migrate tracked`" in refused.error_message
    assert kafka.created() == 0
    assert bench.rows() == {0: 5, 1: 7}


async def test_a_replica_that_does_not_answer_is_not_empty(kafka: GrowingKafka) -> None:
    kafka.add()
    kafka.away = {2}
    bench = Bench(kafka)
    refused = await bench.grow_to(4)
    assert refused.error_code is ErrorCode.request_timed_out
    assert "not known of replica 2" in refused.error_message
    assert "bring back the replicas" in refused.error_message
    assert kafka.created() == 0
    assert bench.rows() == {0: 5, 1: 7}


async def test_an_answer_of_another_leader_epoch_says_nothing(kafka: GrowingKafka) -> None:
    kafka.add()
    kafka.epoch += 1
    bench = Bench(kafka)
    assert (await bench.grow_to(4)).error_code is ErrorCode.request_timed_out
    assert bench.rows() == {0: 5, 1: 7}


async def test_a_partition_without_a_leader_is_not_known_to_be_empty(kafka: GrowingKafka) -> None:
    kafka.add()
    kafka.leader = -1
    bench = Bench(kafka)
    refused = await bench.grow_to(4)
    assert refused.error_code is ErrorCode.request_timed_out
    assert "it has no leader" in refused.error_message


async def test_records_that_came_while_the_topic_grew_keep_the_row_away(
    kafka: GrowingKafka,
) -> None:
    kafka.appended_when_it_grows = 3
    bench = Bench(kafka)
    assert (await bench.grow_to(3)).error_code is ErrorCode.none
    assert bench.rows() == {0: 5, 1: 7}
    assert bench.tellings.pending() == {}


@pytest.mark.parametrize("answer", [ErrorCode.request_timed_out, ErrorCode.none])
async def test_new_partitions_wait_for_a_replica_that_does_not_answer_yet(
    kafka: GrowingKafka, answer: ErrorCode, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tellings, "ANSWER_WAITS_S", 0.05)
    kafka.grow_as, kafka.away = answer, {2}
    bench = Bench(kafka)
    rules = admin(bench.view, bench.plane, bench.tellings)
    async with gateway(kafka.address, rules) as g:
        await ask(g, grow_to(3, "tracked"))
        await lasts_async("the partition is not known", lambda: bench.rows() == {0: 5, 1: 7}, 0.3)
        kafka.away = set()
        await eventually("the row", lambda: bench.rows() == {0: 5, 1: 7, 2: 0})


async def test_another_topic_of_the_name_gets_no_rows(kafka: GrowingKafka) -> None:
    kafka.add(2)
    kafka.topic_id = UUID(int=77)
    bench = Bench(kafka)
    await bench.grow_to(6)
    assert bench.rows() == {0: 5, 1: 7}
