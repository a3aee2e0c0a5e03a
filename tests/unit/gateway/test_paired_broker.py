"""Whether who answers at ``TIDELINE_GATEWAY_BROKER`` has the id that the gateway was given."""

from __future__ import annotations

from contextlib import AbstractAsyncContextManager
from datetime import timedelta
from functools import partial
from typing import Any

import pytest
from kio.schema.errors import ErrorCode
from structlog.testing import capture_logs

from tests.unit.gateway.gateway_under_test import Gateway, gateway
from tests.unit.kafka.fake_broker import FakeBroker, api_versions
from tideline.gateway.context import ApiKey
from tideline.gateway.messages import messages
from tideline.gateway.paired_broker import why_unfit
from tideline.kafka.protocol import RequestHeader, decode_request, encode_response

OURS = 1


class Kafka:
    """A broker that describes its own configs, and those of no other (``ConfigHelper``)."""

    def __init__(self, node: int) -> None:
        self.node = node
        self.may_describe = True
        self.level: int | None = None
        self.highest: dict[int, int] = {}

    async def __call__(self, header: RequestHeader, frame: bytes) -> bytes:
        if header.api_key != ApiKey.DESCRIBE_CONFIGS:
            return api_versions(header, self.level, highest=self.highest)
        return described(header, frame, self.node, may=self.may_describe)


def described(header: RequestHeader, frame: bytes, node: int, *, may: bool = True) -> bytes:
    """What broker ``node`` says of the configs of a broker."""
    request: Any = decode_request(frame)
    (asked,) = request.resources
    code, why = ErrorCode.none, None
    if not may:
        code, why = ErrorCode.cluster_authorization_failed, "Cluster authorization failed."
    elif asked.resource_name != str(node):
        code = ErrorCode.invalid_request
        why = (
            f"Unexpected broker id, expected {node} or empty string, but received "
            f"{asked.resource_name}"
        )
    api = messages(ApiKey.DESCRIBE_CONFIGS, header.api_version)
    result = api.response_part(
        "DescribeConfigsResult",
        error_code=code,
        error_message=why,
        resource_type=asked.resource_type,
        resource_name=asked.resource_name,
        configs=(),
    )
    answer = api.response(throttle_time=timedelta(0), results=(result,))
    return encode_response(answer, header.correlation_id)


def beside(broker: FakeBroker) -> AbstractAsyncContextManager[Gateway]:
    return gateway(broker, why_unfit=partial(why_unfit, broker_id=OURS))


async def is_let_in(made: Gateway) -> bool:
    await made.server._look_at_broker()
    try:
        (await made.connect()).close()
    except ConnectionRefusedError:
        return False
    return True


async def test_a_gateway_beside_another_broker_accepts_nobody_and_says_so() -> None:
    kafka = Kafka(2)
    async with FakeBroker(kafka) as broker:
        with capture_logs() as logged:
            async with beside(broker) as made:
                assert not await is_let_in(made)
                kafka.node = OURS
                assert await is_let_in(made)
                kafka.node = 3
                assert not await is_let_in(made)
    told = [one for one in logged if one["log_level"] == "error"]
    assert len(told) == 2, "once each time"
    assert "TIDELINE_GATEWAY_BROKER_ID" in told[0]["event"]
    assert "expected 2 or empty string, but received 1" in told[0]["reason"]


async def test_a_broker_that_is_away_and_comes_back_as_another_is_told_anew() -> None:
    kafka = Kafka(OURS)
    async with FakeBroker(kafka) as broker, beside(broker) as made:
        await broker.stop()
        with capture_logs() as logged:
            assert not await is_let_in(made)
            kafka.node = 2
            await broker.start_again()
            assert not await is_let_in(made)
    told = [one["event"] for one in logged if one["log_level"] == "error"]
    assert ["does not answer" in one for one in told] == [True, False]


@pytest.mark.parametrize("node", [OURS, 2])
async def test_where_it_may_not_ask_the_settings_are_taken_for_right(node: int) -> None:
    kafka = Kafka(node)
    kafka.may_describe = False
    async with FakeBroker(kafka) as broker, beside(broker) as made:
        assert await is_let_in(made)


async def test_a_gateway_beside_a_broker_that_is_too_old_accepts_nobody_until_it_is_upgraded() -> (
    None
):
    kafka = Kafka(OURS)
    kafka.level = 21
    async with FakeBroker(kafka) as broker:
        with capture_logs() as logged:
            async with beside(broker) as made:
                assert not await is_let_in(made)
                kafka.level = 22
                assert await is_let_in(made)
    (told,) = [one for one in logged if one["log_level"] == "error"]
    assert "not supported" in told["event"]
    assert "metadata.version 21" in told["reason"]
    assert "upgrade the brokers to 4.0" in told["reason"]


async def test_a_broker_that_says_no_release_is_taken_unless_it_lacks_what_each_since_4_0_has() -> (
    None
):
    """As one of ZooKeeper mode, which has no metadata.version."""
    kafka = Kafka(OURS)
    async with FakeBroker(kafka) as broker, beside(broker) as made:
        assert await is_let_in(made)
        kafka.highest[ApiKey.DESCRIBE_CLUSTER] = 1
        with capture_logs() as logged:
            assert not await is_let_in(made)
    assert "before 4.0" in logged[0]["reason"]


async def test_a_broker_that_knows_no_features_is_asked_for_no_more() -> None:
    kafka = Kafka(OURS)
    kafka.highest = {ApiKey.API_VERSIONS: 2, ApiKey.DESCRIBE_CONFIGS: 3}
    async with FakeBroker(kafka) as broker, beside(broker) as made:
        assert not await is_let_in(made), "it cannot be asked who it is either"
