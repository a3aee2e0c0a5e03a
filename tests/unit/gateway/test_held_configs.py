"""A change of configs that is under way while a migration takes them over: what Tideline holds by
then stays what Kafka has, and the user's value is not forgotten."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from typing import Any
from uuid import UUID

import pytest
from kio.schema.errors import ErrorCode
from kio.schema.metadata.v12.response import MetadataResponse, MetadataResponseTopic
from kio.schema.types import BrokerId

from tests.unit.gateway.fakes import until
from tests.unit.gateway.gateway_under_test import gateway
from tests.unit.gateway.test_admin_handlers import (
    TRACKED_ID,
    AdminPlane,
    HeardPlane,
    admin,
    altered,
    ask,
    describing,
    replacing,
    setting,
    tracked,
)
from tests.unit.kafka.fake_broker import FakeBroker, api_versions
from tideline.control_plane.model import ConfigOverride, TopicStatus
from tideline.gateway.admin import held_configs, tellings
from tideline.gateway.messages import no_throttle
from tideline.kafka.protocol import RequestHeader, decode_request, encode_request, encode_response

LIMIT = "max.message.bytes"
DELETE = 1


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(held_configs, "LOOK_EVERY_S", 0.01)
    monkeypatch.setattr(tellings, "LONGEST_PAUSE_S", 0.05)


@dataclass
class SlowKafka:
    """One topic's configs. The first change that arrives is carried out only after the topic was
    sealed, and after ``goes_on``."""

    plane: AdminPlane
    own: dict[str, str] = field(default_factory=dict)
    held_up: asyncio.Event = field(default_factory=asyncio.Event)
    goes_on: asyncio.Event = field(default_factory=asyncio.Event)
    carried_out: asyncio.Event = field(default_factory=asyncio.Event)
    topic_id: UUID = TRACKED_ID

    async def __call__(self, header: RequestHeader, frame: bytes) -> bytes | None:
        if header.api_key == 18:
            return api_versions(header)
        request: Any = decode_request(frame, header)
        return encode_response(await self._answer(request), header.correlation_id)

    async def _answer(self, request: Any) -> Any:
        match type(request).__name__:
            case "DescribeConfigsRequest":
                return describing(**self.own)(request)
            case "MetadataRequest":
                return self._metadata(request)
        if not request.validate_only:
            if not self.held_up.is_set():
                self._seal()
                self.held_up.set()
                await self.goes_on.wait()
            self._carry_out(request.resources[0])
        return altered(request)

    def _seal(self) -> None:
        """What the worker does when the last partition has crossed."""
        topic = self.plane.topics.live_or_refuse("tracked")
        topic.overrides[LIMIT] = ConfigOverride(LIMIT, "78", self.own.get(LIMIT))
        self.own[LIMIT] = "78"

    def _carry_out(self, resource: Any) -> None:
        if "AlterConfigsResource" in type(resource).__name__ and not hasattr(
            next(iter(resource.configs), None), "config_operation"
        ):
            self.own.clear()
        for config in resource.configs:
            if getattr(config, "config_operation", 0) == DELETE:
                self.own.pop(config.name, None)
            else:
                self.own[config.name] = config.value
        self.carried_out.set()

    def _metadata(self, request: Any) -> MetadataResponse:
        return MetadataResponse(
            throttle_time=no_throttle(),
            brokers=(),
            cluster_id="c",
            controller_id=BrokerId(1),
            topics=tuple(
                MetadataResponseTopic(
                    error_code=ErrorCode.none,
                    name=topic.name,
                    topic_id=self.topic_id,
                    is_internal=False,
                    partitions=(),
                )
                for topic in request.topics or ()
            ),
        )

    def user_value(self) -> str | None:
        return self.plane.topics.live_or_refuse("tracked").overrides[LIMIT].user_value


@pytest.mark.parametrize(
    ("request_", "user_value"),
    [
        (setting(max_message_bytes="3000"), "3000"),
        (setting(max_message_bytes=None), None),
        (replacing(retention_ms="7"), None),
        (replacing(retention_ms="7", max_message_bytes="3000"), "3000"),
    ],
)
async def test_a_change_that_is_carried_out_after_the_seal_does_not_break_it(
    request_: Any, user_value: str | None
) -> None:
    view = tracked(5)
    kafka = SlowKafka(HeardPlane(view), {LIMIT: "2000"})
    kafka.goes_on.set()
    async with FakeBroker(kafka) as broker, gateway(broker, admin(view, kafka.plane)) as g:
        (result,) = (await ask(g, request_)).responses
    assert result.error_code is ErrorCode.none
    assert kafka.own[LIMIT] == "78"
    assert kafka.user_value() == user_value


async def test_a_change_during_an_abort_is_what_the_abort_gives_back() -> None:
    """It went to Kafka, and the abort laid the value from before the migration over it."""
    view = tracked(-1, a=ConfigOverride(LIMIT, "78", "2000"))
    kafka = SlowKafka(HeardPlane(view), {LIMIT: "78"})
    kafka.goes_on.set()
    kafka.plane.topics.live_or_refuse("tracked").status = TopicStatus.ABORTED
    async with FakeBroker(kafka) as broker, gateway(broker, admin(view, kafka.plane)) as g:
        (result,) = (await ask(g, setting(max_message_bytes="3000"))).responses
    assert result.error_code is ErrorCode.none
    assert (kafka.own[LIMIT], kafka.user_value()) == ("78", "3000")


class ReleasingPlane(HeardPlane):
    """The worker gives the limit back just before the user's new value of it arrives."""

    kafka: SlowKafka

    async def update_user_config(self, topic_id: UUID, key: str, user_value: str | None) -> bool:
        released = self.topics.live_or_refuse("tracked").overrides.pop(key)
        assert released.user_value is not None
        self.kafka.own[key] = released.user_value
        return await super().update_user_config(topic_id, key, user_value)


@pytest.mark.parametrize(
    "request_",
    [
        setting(max_message_bytes="3000"),
        replacing(retention_ms="7", max_message_bytes="3000"),
    ],
)
async def test_a_change_of_what_is_given_back_meanwhile_reaches_kafka(request_: Any) -> None:
    """It was answered with success and forgotten; a whole set brought the seal back for ever."""
    view = tracked(5, a=ConfigOverride(LIMIT, "78", "2000"))
    plane = ReleasingPlane(view)
    plane.kafka = kafka = SlowKafka(plane, {LIMIT: "78"})
    kafka.held_up.set()
    kafka.goes_on.set()
    async with FakeBroker(kafka) as broker, gateway(broker, admin(view, plane)) as g:
        (result,) = (await ask(g, request_)).responses
    assert result.error_code is ErrorCode.none
    assert kafka.own[LIMIT] == "3000"


async def test_a_change_whose_client_has_left_does_not_break_the_seal() -> None:
    view = tracked(5)
    kafka = SlowKafka(HeardPlane(view), {LIMIT: "2000"})
    async with FakeBroker(kafka) as broker, gateway(broker, admin(view, kafka.plane)) as g:
        client = await g.connect()
        await client.send(encode_request(setting(max_message_bytes="3000"), 5, "someone"))
        await kafka.held_up.wait()
        client.close()
        kafka.goes_on.set()
        await kafka.carried_out.wait()
        await until(lambda: kafka.own[LIMIT] == "78")


async def test_what_is_held_is_put_back_also_when_postgres_was_away() -> None:
    view = tracked(5)
    kafka = SlowKafka(HeardPlane(view), {LIMIT: "2000"})
    async with FakeBroker(kafka) as broker, gateway(broker, admin(view, kafka.plane)) as g:
        asked = asyncio.ensure_future(ask(g, setting(max_message_bytes="3000")))
        await kafka.held_up.wait()
        kafka.plane.away = 2
        kafka.goes_on.set()
        (result,) = (await asked).responses
        await until(lambda: kafka.own[LIMIT] == "78")
    assert result.error_code is ErrorCode.request_timed_out


async def test_another_topic_of_the_name_is_not_sealed() -> None:
    view = tracked(5)
    kafka = SlowKafka(HeardPlane(view), {LIMIT: "2000"}, topic_id=UUID(int=77))
    kafka.goes_on.set()
    async with FakeBroker(kafka) as broker, gateway(broker, admin(view, kafka.plane)) as g:
        await ask(g, setting(max_message_bytes="3000"))
    assert kafka.own[LIMIT] == "3000"
