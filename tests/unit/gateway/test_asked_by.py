"""Who asked for a migration over the wire is whom Kafka has authenticated, and what is told of the
cluster to who asked is what they may know."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from kio.schema.errors import ErrorCode

from tests.unit.gateway.gateway_under_test import gateway, gateway_settings
from tests.unit.gateway.test_admin_handlers import (
    AdminPlane,
    Attested,
    admin,
    altered,
    ask,
    changes_in,
    may_migrate,
    patient,  # noqa: F401
    setting,
    trigger_of_classic,
    triggered,
)
from tests.unit.gateway.test_admin_rights import denying
from tests.unit.gateway.test_sasl_relay import SETTINGS, handshake, token
from tests.unit.kafka.fake_broker import FakeBroker
from tests.unit.kafka.sasl_broker import SaslBroker
from tideline.control_plane.errors import ControlPlaneUnavailable
from tideline.domain.foreign_text import MOST_OF_A_NAME
from tideline.domain.sasl import ANONYMOUS, Identity, Mechanism
from tideline.gateway.context import RequestContext
from tideline.kafka.protocol import decode_response, encode_request, parse_header

FORGED = "cli: root"


async def attested() -> AdminPlane:
    plane = Attested()
    await plane.attest_cluster("c", "ann", "listeners are firewalled")
    return plane


def with_retention(request: Any) -> Any:
    """The trigger, beside another config of the same topic."""
    (topic,) = request.resources
    (other,) = setting(retention_ms="1").resources
    return replace(request, resources=(replace(topic, configs=(*other.configs, *topic.configs)),))


@pytest.mark.usefixtures("patient")
async def test_two_logins_with_one_client_id_are_told_apart() -> None:
    plane, asked_by = await attested(), []
    for user in ("alice", "bob"):
        broker = SaslBroker(may_migrate(), users={user: "secret", "gateway": "own"})
        rules = admin(plane=plane)
        async with FakeBroker(broker) as at, gateway(at, rules, **SETTINGS) as under_test:
            client = await under_test.connect()
            await client.send(handshake(1))
            await client.receive()
            await client.send(token(2, user))
            await client.receive()
            port = client.writer.get_extra_info("sockname")[1]
            await client.send(encode_request(trigger_of_classic(), 5, FORGED))
            answer: Any = decode_response(await client.receive(), 44, 1)
            assert [r.error_code for r in answer.responses] == [ErrorCode.none]
            client.close()
        (known,) = await plane.list_requests("classic")
        asked_by.append(known.requested_by)
        assert known.requested_by == f'"User:{user}" from 127.0.0.1:{port}, client id "cli: root"'
    assert len(set(asked_by)) == 2
    assert not any(one.startswith("cli: ") for one in asked_by)


@pytest.mark.parametrize(
    ("identity", "named"),
    [
        (ANONYMOUS, '"User:ANONYMOUS"'),
        (Identity(Mechanism.PLAIN, 'na"me, by'), '"User:na\\"me, by"'),
        (Identity(Mechanism.OAUTHBEARER), "a principal that only Kafka knows, by OAUTHBEARER"),
        (
            Identity(Mechanism.SCRAM_SHA_256, by_delegation_token=True),
            "a principal that only Kafka knows, by a delegation token",
        ),
    ],
)
async def test_where_only_kafka_knows_the_name_the_record_says_so(
    identity: Identity, named: str
) -> None:
    frame = encode_request(trigger_of_classic(), 5, "c\x1b[2J" + "x" * 1_000)

    class Connected:
        peer = "10.1.2.3:4567"

    connection: Any = Connected()
    connection.identity = identity
    said = RequestContext(parse_header(frame), frame, connection).asked_by()
    assert said.startswith(f'{named} from 10.1.2.3:4567, client id "c\\x1b[2J')
    assert said.isprintable()
    assert len(said) <= len(named) + MOST_OF_A_NAME + 50


@pytest.mark.usefixtures("patient")
@pytest.mark.parametrize("client_id", ["a\0b", "a\x1b[31m", "a\nb", "a\x9bb"])
async def test_a_client_id_with_control_characters_asks_for_nothing(client_id: str) -> None:
    """Nothing is changed by half: neither in Kafka, whose configs of the request come first."""
    plane, kafka = await attested(), may_migrate()
    async with FakeBroker(kafka) as broker, gateway(broker, admin(plane=plane)) as g:
        client = await g.connect()
        await client.send(encode_request(with_retention(trigger_of_classic()), 5, client_id))
        answer: Any = decode_response(await client.receive(), 44, 1)
        client.close()
    (row,) = answer.responses
    assert row.error_code is ErrorCode.invalid_request
    assert "client.id" in row.error_message
    assert changes_in(kafka) == []
    assert [call[0] for call in plane.said] == []


@pytest.mark.usefixtures("patient")
async def test_where_the_trigger_is_off_a_config_change_asks_for_nothing() -> None:
    plane, kafka = await attested(), may_migrate()
    async with FakeBroker(kafka) as broker, gateway(broker, admin(plane=plane, trigger=False)) as g:
        answer = await ask(g, with_retention(trigger_of_classic()))
    (row,) = answer.responses
    assert row.error_code is ErrorCode.policy_violation
    assert "TIDELINE_GATEWAY_TRIGGER=off" in row.error_message
    assert "tideline migrate" in row.error_message
    assert changes_in(kafka) == []
    assert [call[0] for call in plane.said] == []


def test_the_trigger_is_on_unless_it_is_switched_off() -> None:
    assert gateway_settings("127.0.0.1:1").gateway_trigger
    assert not gateway_settings("127.0.0.1:1", gateway_trigger="off").gateway_trigger
    assert gateway_settings("127.0.0.1:1", gateway_trigger="on").gateway_trigger


@pytest.mark.parametrize("client_id", ["app", "a\0b"])
@pytest.mark.parametrize("trigger", [True, False])
async def test_who_may_not_alter_configs_does_not_hear_of_the_trigger(
    trigger: bool, client_id: str
) -> None:
    kafka = may_migrate(IncrementalAlterConfigsRequest=denying)
    rules = admin(plane=await attested(), trigger=trigger)
    async with FakeBroker(kafka) as broker, gateway(broker, rules) as g:
        client = await g.connect()
        await client.send(encode_request(trigger_of_classic(), 5, client_id))
        answer: Any = decode_response(await client.receive(), 44, 1)
        client.close()
    (row,) = answer.responses
    assert (row.error_code, row.error_message) == (ErrorCode.topic_authorization_failed, None)


class Elsewhere(Attested):
    """Postgres is away, and its error says where it would be."""

    async def request_migration(self, *given: Any, **named: Any) -> None:
        raise ControlPlaneUnavailable('connection to server at "10.9.8.7", port 5432 failed')


@pytest.mark.usefixtures("patient")
async def test_a_control_plane_that_is_away_is_not_told_where_it_is() -> None:
    plane = Elsewhere()
    await plane.attest_cluster("c", "ann", "listeners are firewalled")
    row = await triggered(plane, IncrementalAlterConfigsRequest=altered)
    assert row.error_code is ErrorCode.request_timed_out
    assert row.error_message == "the control plane does not answer: try again"
