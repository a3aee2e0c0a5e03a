"""What the doctor makes of what it sees."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from types import SimpleNamespace
from typing import Any

import pytest
from temporalio.api.taskqueue.v1 import PollerInfo
from temporalio.api.workflowservice.v1 import DescribeTaskQueueResponse

from tideline.domain.broker_offers import AIVENS, PLUGIN, BrokerConfigs
from tideline.migration.doctor import Verdict, beside, elsewhere, late_puts, offers, release
from tideline.object_store.late_put import LatePut
from tideline.temporal import workers_polling


def test_a_broker_that_is_away_is_named_beside_a_gateway_that_renews_its_lease() -> None:
    (found,) = beside({1, 3}, {1: 1, 2: 2, 3: 3})
    assert (found.check, found.verdict) == ("brokers", Verdict.FAILED)
    assert "broker 2, beside gateway 2" in found.found


def test_a_broker_without_a_gateway_is_named() -> None:
    (found,) = beside({1, 2}, {1: 1})
    assert (found.check, found.verdict) == ("gateways", Verdict.FAILED)
    assert "[2]" in found.found


def test_brokers_and_gateways_in_pairs_are_not_worth_a_word() -> None:
    assert beside({1, 2}, {7: 1, 8: 2}) == []


def test_a_gateway_whose_zone_is_no_rack_of_a_broker_is_a_warning() -> None:
    (found,) = elsewhere({"a", "b"}, {1: "a", 2: None, 3: "B"})
    assert (found.check, found.verdict) == ("gateway 3", Verdict.WARNING)
    assert "TIDELINE_GATEWAY_RACK B" in found.found
    assert "['a', 'b']" in found.found


def test_where_brokers_have_no_racks_the_settings_say_what_a_zone_is() -> None:
    assert elsewhere(set(), {1: "a", 2: "b"}) == []


def test_a_store_that_lets_a_late_upload_win_is_a_warning_that_says_what_was_left() -> None:
    (lost,) = late_puts(LatePut(300_000, 0, True, "doctor/1"))
    assert (lost.check, lost.verdict) == ("late uploads", Verdict.WARNING)
    assert "whole one of 300000 bytes, and 0 bytes were left" in lost.found
    (fine,) = late_puts(LatePut(300_000, 300_000, True, "doctor/1"))
    assert fine.verdict is Verdict.OK
    _, left = late_puts(LatePut(300_000, 300_000, False, "doctor/1"))
    assert left.verdict is Verdict.WARNING
    assert "doctor/1 could not be deleted" in left.found


@pytest.mark.parametrize(
    ("level", "verdict", "said"),
    [
        (21, Verdict.FAILED, "Kafka before 4.0"),
        (22, Verdict.OK, "Kafka 4.0"),
        (25, Verdict.OK, "Kafka 4.0"),
        (27, Verdict.OK, "Kafka 4.1"),
        (29, Verdict.OK, "Kafka 4.2"),
        (30, Verdict.OK, "Kafka 4.3"),
        (33, Verdict.OK, "Kafka 4.4"),
        (34, Verdict.WARNING, "Kafka after 4.4"),
        (None, Verdict.WARNING, "no broker says"),
    ],
)
def test_the_release_of_the_brokers_is_told_and_one_that_is_too_old_fails(
    level: int | None, verdict: Verdict, said: str
) -> None:
    found = release(level)
    assert found.verdict is verdict
    assert said in found.found


def test_what_brokers_offer_alike_is_told_once_and_what_is_not_supported_is_a_warning() -> None:
    plain = {PLUGIN: AIVENS, "listeners": "PLAINTEXT://:1"}
    other = {**plain, "rsm.config.encryption.enabled": None}
    brokers = [BrokerConfigs(one) for one in (plain, plain, other)]
    told = [(one.check, one.verdict) for one in offers(brokers)]
    assert told == [
        ("tiered storage plugin", Verdict.OK),
        ("tiered storage plugin", Verdict.WARNING),
        ("logins", Verdict.OK),
    ]


async def test_a_worker_that_has_ended_is_not_counted_for_as_long_as_temporal_remembers_it() -> (
    None
):
    now = datetime.now(UTC)
    told = DescribeTaskQueueResponse()
    for age in (timedelta(seconds=40), timedelta(minutes=4)):
        poller = PollerInfo()
        poller.last_access_time.FromDatetime(now - age)
        told.pollers.append(poller)

    async def describe(request: object, **_: object) -> DescribeTaskQueueResponse:
        return told

    service = SimpleNamespace(describe_task_queue=describe)
    client: Any = SimpleNamespace(namespace="default", workflow_service=service)
    assert await workers_polling(client, "tideline") == 1
