"""Clients are led to gateways, never to brokers; what does not change keeps its bytes."""

from __future__ import annotations

import random
from dataclasses import replace
from typing import Any

import pytest
from kio.schema.errors import ErrorCode

from tests.unit.kafka.messages import random_message
from tideline.gateway.context import ApiKey
from tideline.gateway.transport.addresses import NO_NODE, Asker, NodeAddresses, ResponseRewriter
from tideline.gateway.transport.passed_apis import PASSED
from tideline.kafka.errors import MalformedFrame
from tideline.kafka.protocol import (
    decodable_versions,
    decode_response,
    encode_response,
    response_class,
)

PEERS = {1: ("gateway-1", 9191), 2: ("gateway-2", 9192)}
REWRITER = ResponseRewriter(NodeAddresses(PEERS), [ApiKey.CREATE_TOPICS])
NAMING_BROKERS = (
    ApiKey.METADATA,
    ApiKey.DESCRIBE_CLUSTER,
    ApiKey.FIND_COORDINATOR,
    ApiKey.PRODUCE,
    ApiKey.FETCH,
    ApiKey.SHARE_FETCH,
    ApiKey.SHARE_ACKNOWLEDGE,
)


def with_nodes(value: Any, nodes: dict[int, tuple[str, int]], rng: random.Random) -> Any:
    """``value`` with every node that it names made one of ``nodes``."""
    from dataclasses import fields, is_dataclass, replace

    if isinstance(value, tuple):
        return tuple(with_nodes(item, nodes, rng) for item in value)
    if not is_dataclass(value) or isinstance(value, type):
        return value
    changes = {f.name: with_nodes(getattr(value, f.name), nodes, rng) for f in fields(value)}
    for id_field in ("node_id", "broker_id"):
        if {id_field, "host", "port"} <= changes.keys():
            changes[id_field] = rng.choice(list(nodes))
            changes["host"], changes["port"] = nodes[changes[id_field]]
    return replace(value, **changes)


def nodes_in(value: Any) -> set[tuple[int, str, int]]:
    """(id, host, port) of every node that a message names."""
    from dataclasses import fields, is_dataclass

    if isinstance(value, tuple):
        return {node for item in value for node in nodes_in(item)}
    if not is_dataclass(value) or isinstance(value, type):
        return set()
    found = {node for f in fields(value) for node in nodes_in(getattr(value, f.name))}
    node_id = getattr(value, "node_id", getattr(value, "broker_id", None))
    if node_id is not None and hasattr(value, "host") and hasattr(value, "port"):
        found.add((node_id, value.host, value.port))
    return found


def messages(api_key: int, nodes: dict[int, tuple[str, int]]) -> list[tuple[int, Any]]:
    rng = random.Random(api_key)
    return [
        (version, with_nodes(random_message(response_class(api_key, version), rng), nodes, rng))
        for version in decodable_versions(api_key)
        for _ in range(20)
    ]


@pytest.mark.parametrize("api_key", NAMING_BROKERS)
def test_every_broker_becomes_its_gateway(api_key: ApiKey) -> None:
    brokers = {1: ("broker-1", 9092), 2: ("broker-2", 9093)}
    met = 0
    for version, message in messages(api_key, brokers):
        frame = encode_response(message, 7)
        rewritten = decode_response(REWRITER(frame, api_key, version), api_key, version)
        expected = {(node, *PEERS[node]) for node, _, _ in nodes_in(message)}
        assert nodes_in(rewritten) == expected, version
        met += len(expected)
    assert met > 0


@pytest.mark.parametrize("api_key", NAMING_BROKERS)
def test_nothing_but_the_addresses_of_brokers_changes(api_key: ApiKey) -> None:
    """Leaders, replicas and in-sync replicas reach the client as the broker said them."""
    brokers = {1: ("broker-1", 9092), 2: ("broker-2", 9093)}
    pairs = zip(messages(api_key, brokers), messages(api_key, PEERS), strict=True)
    for (version, message), (_, moved) in pairs:
        rewritten = REWRITER(encode_response(message, 7), api_key, version)
        assert rewritten == encode_response(moved, 7), version


@pytest.mark.parametrize("api_key", NAMING_BROKERS)
def test_an_answer_that_names_gateways_already_keeps_its_bytes(api_key: ApiKey) -> None:
    for version, message in messages(api_key, PEERS):
        frame = encode_response(message, 7)
        assert REWRITER(frame, api_key, version) is frame


@pytest.mark.parametrize("api_key", NAMING_BROKERS)
def test_a_broker_without_a_gateway_is_left_out(api_key: ApiKey) -> None:
    for version, message in messages(api_key, {9: ("broker-9", 9099)}):
        frame = encode_response(message, 7)
        rewritten = decode_response(REWRITER(frame, api_key, version), api_key, version)
        assert not [node for node in nodes_in(rewritten) if node[1] == "broker-9"]


def test_a_coordinator_without_a_gateway_is_not_available() -> None:
    for version, message in messages(ApiKey.FIND_COORDINATOR, {9: ("broker-9", 9099)}):
        frame = encode_response(message, 7)
        found: Any = decode_response(
            REWRITER(frame, ApiKey.FIND_COORDINATOR, version), ApiKey.FIND_COORDINATOR, version
        )
        for coordinator in (found,) if version < 4 else found.coordinators:
            assert coordinator.error_code is ErrorCode.coordinator_not_available
            assert coordinator.node_id == -1


def test_an_answer_of_no_concern_passes() -> None:
    assert REWRITER(b"whatever", 12, 4) == b"whatever"


APPLICATIONS_OWN = {"client_host", "user_endpoint", "partitions_by_user_endpoint"}
"""Where a member of a group is, and where it says that it answers queries."""
NO_ADDRESS = {
    (29, "host"): "where an access rule lets clients come from",
    (31, "host"): "the same",
    (55, "listeners"): "controllers, which serve no clients",
    (88, "endpoint_information_epoch"): "a number",
}


def address_fields(schema: type) -> set[str]:
    """Fields of a message that may say where somebody listens, by their names."""
    from dataclasses import fields

    from kio.serial._introspect import EntityField, EntityTupleField, classify_field

    found = set()
    for field in fields(schema):
        if field.name in APPLICATIONS_OWN:
            continue
        if any(word in field.name for word in ("host", "port", "listener", "endpoint", "address")):
            found.add(field.name)
            continue
        kind = classify_field(field)
        if isinstance(kind, (EntityField, EntityTupleField)):
            found |= address_fields(kind.type_)
    return found


@pytest.mark.parametrize("api_key", PASSED)
def test_no_answer_that_passes_says_where_a_broker_listens(api_key: int) -> None:
    named = set()
    for version in range(PASSED[api_key] + 1):
        schema = response_class(api_key, version)
        assert schema is not None or version < decodable_versions(api_key).start
        named |= address_fields(schema) if schema is not None else set()
    assert named == {name for key, name in NO_ADDRESS if key == api_key}


def test_what_is_looked_into_is_not_named_as_passing() -> None:
    assert not PASSED.keys() & set(map(int, ApiKey))


def test_what_nobody_has_read_is_not_offered() -> None:
    """An API that is not known, and a newer version of one that passes."""
    assert REWRITER.offers(12, 4)
    assert not REWRITER.offers(12, 5)
    assert not REWRITER.offers(12, -1)
    assert not REWRITER.offers(93, 0)


def test_versions_that_cannot_be_decoded_are_not_offered() -> None:
    from kio.schema.api_versions.v3.response import ApiVersion, ApiVersionsResponse
    from kio.static.primitive import i16

    from tideline.gateway.messages import no_throttle

    def api(key: int, low: int, high: int) -> ApiVersion:
        return ApiVersion(api_key=i16(key), min_version=i16(low), max_version=i16(high))

    message = ApiVersionsResponse(
        error_code=ErrorCode.none,
        api_keys=(
            api(0, 0, 99),
            api(3, 0, 99),
            api(12, 0, 99),
            api(93, 0, 0),
            api(ApiKey.CREATE_TOPICS, 50, 60),
        ),
        throttle_time=no_throttle(),
    )
    frame = REWRITER(encode_response(message, 7), ApiKey.API_VERSIONS, 3)
    offered: Any = decode_response(frame, ApiKey.API_VERSIONS, 3)
    assert {(a.api_key, a.min_version, a.max_version) for a in offered.api_keys} == {
        (0, 0, decodable_versions(0)[-1]),
        (3, 0, decodable_versions(3)[-1]),
        (12, 0, 4),
    }
    assert not REWRITER.offers(3, 99)
    assert not REWRITER.offers(0, 2), "shown for librdkafka's sake"


def test_a_coordinator_whose_address_changed_is_forgotten_by_each_client_before_it_is_told_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """librdkafka keeps the old address while the node is the same: it has to lose it first."""
    clock = [100.0]
    monkeypatch.setattr("tideline.gateway.transport.addresses.time.monotonic", lambda: clock[0])
    nodes = NodeAddresses(PEERS)
    rewriter = ResponseRewriter(nodes, [])
    (found, *_) = (m for v, m in messages(ApiKey.FIND_COORDINATOR, {2: ("broker-2", 1)}) if v == 3)
    frame = encode_response(found, 7)

    def told(asker: Asker) -> tuple[str, int, str]:
        answer: Any = decode_response(
            rewriter(frame, ApiKey.FIND_COORDINATOR, 3, asker), ApiKey.FIND_COORDINATOR, 3
        )
        return answer.host, int(answer.port), answer.error_code.name

    client, another = Asker("c"), Asker("d")
    usual, nobody = told(client), ("", -1, ErrorCode.coordinator_not_available.name)
    assert usual[:2] == PEERS[2]
    nodes.stand_in(lambda zone: {2: ("gateway-1", 9502)})
    assert told(client) == nobody
    clock[0] += 0.9
    assert told(client) == nobody
    clock[0] += 0.2
    assert told(client)[:2] == ("gateway-1", 9502)
    assert told(another) == nobody, "each connection has to"
    of_transactions = Asker("t", of_transactions=True)
    answer: Any = decode_response(
        rewriter(frame, ApiKey.FIND_COORDINATOR, 3, of_transactions), ApiKey.FIND_COORDINATOR, 3
    )
    assert (answer.node_id, answer.host) == (NO_NODE + 2, "gateway-1"), "it asks for Metadata"
    (several, *_) = (
        m for v, m in messages(ApiKey.FIND_COORDINATOR, {2: ("broker-2", 1)}) if v == 4
    )
    java = Asker("j", of_transactions=True)
    rewritten = rewriter(encode_response(several, 7), ApiKey.FIND_COORDINATOR, 4, java)
    answer = decode_response(rewritten, ApiKey.FIND_COORDINATOR, 4)
    told_java = {(c.node_id, c.host) for c in answer.coordinators if c.node_id == 2}
    assert told_java == {(2, "gateway-1")}, "its admin client waits for that node"
    nodes.stand_in(None)
    assert told(client) == nobody, "and again when it is back"
    clock[0] += 1.1
    assert told(client) == usual
    clock[0] += 60
    assert told(Asker("e")) == usual, "who comes long after has no old address"


def test_a_gateway_that_has_just_begun_makes_clients_forget_what_they_were_told_while_it_was_away(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It has not seen who stood in for whom. A consumer kept the address of the stand-in of its
    coordinator's gateway for ever, since that one, back again, was the first that it asked."""
    clock = [100.0]
    monkeypatch.setattr("tideline.gateway.transport.addresses.time.monotonic", lambda: clock[0])
    rewriter = ResponseRewriter(NodeAddresses(PEERS, own=2, stood_in_for=True), [])
    (found, *_) = (m for v, m in messages(ApiKey.FIND_COORDINATOR, {2: ("broker-2", 1)}) if v == 3)
    frame, asker = encode_response(found, 7), Asker("c")

    def told() -> Any:
        return decode_response(
            rewriter(frame, ApiKey.FIND_COORDINATOR, 3, asker), ApiKey.FIND_COORDINATOR, 3
        )

    clock[0] += 20
    assert told().error_code is ErrorCode.coordinator_not_available
    clock[0] += 1.1
    assert (told().host, told().port) == PEERS[2]
    clock[0], asker = 161.0, Asker("d")
    assert (told().host, told().port) == PEERS[2]


def test_a_stand_in_that_changes_for_a_zone_alone_counts_as_moved() -> None:
    nodes = NodeAddresses(PEERS)
    near = {None: 1, "a": 1}
    nodes.stand_in(lambda zone: {2: ("gateway", near[zone])})
    first = dict(nodes.told(Asker()).moved)
    nodes.zone_of = lambda client_id: client_id
    near["a"] = 2
    nodes.stand_in(lambda zone: {2: ("gateway", near[zone])})
    assert nodes.told(Asker()).moved[2] > first[2]
    assert nodes.told(Asker("a")).addresses[2] == ("gateway", 2)
    assert nodes.told(Asker()).addresses[2] == ("gateway", 1)


@pytest.mark.parametrize("api_key", [ApiKey.METADATA, ApiKey.DESCRIBE_CLUSTER])
def test_the_gateway_that_is_asked_names_its_own_broker_as_the_controller(api_key: ApiKey) -> None:
    """librdkafka waits for the controller that it was told, and gives up; this one it can reach."""
    nodes = NodeAddresses(PEERS, own=2)
    rewriter = ResponseRewriter(nodes, [])

    def told(brokers: dict[int, tuple[str, int]]) -> set[int]:
        found = set()
        for version, message in messages(api_key, brokers):
            if nodes_in(message) and hasattr(message, "controller_id"):
                listed = {node for node, *_ in nodes_in(message)}
                answer: Any = decode_response(
                    rewriter(encode_response(message, 7), api_key, version), api_key, version
                )
                if listed == brokers.keys():
                    found.add(int(answer.controller_id))
                usual: Any = decode_response(
                    REWRITER(encode_response(message, 7), api_key, version), api_key, version
                )
                answer = replace(answer, controller_id=usual.controller_id, brokers=usual.brokers)
                assert answer == usual, "nothing else changes"
        return found

    both = {1: ("broker-1", 9092), 2: ("broker-2", 9093)}
    assert told(both) == {2}
    assert told({1: both[1]}) == {1}, "Kafka does not name its broker"
    nodes.stand_in(lambda zone: {2: ("gateway-1", 9502)})
    assert told(both) == {1}
    nodes.stand_in(None)
    nodes.accepts = lambda: False
    assert told(both) == {1}, "it is about to leave"


def metadata(brokers: bytes) -> bytes:
    """A Metadata answer of version 9 with these bytes for its brokers."""
    return (
        b"\0\0\0\x07" + b"\0" + bytes(4) + brokers + b"\0" + bytes(4) + b"\x01" + bytes(4) + b"\0"
    )


def test_what_a_newer_broker_says_of_itself_beside_is_left_out() -> None:
    """An unknown tagged field is to be skipped (KIP-482)."""
    broker = (1).to_bytes(4, "big") + b"\x02a" + (9092).to_bytes(4, "big") + b"\0"
    odd = b"\x02" + broker + b"\x01\x63\x02ok"
    answer: Any = decode_response(REWRITER(metadata(odd), ApiKey.METADATA, 9), ApiKey.METADATA, 9)
    assert [(b.node_id, b.host) for b in answer.brokers] == [(1, "gateway-1")]


def test_brokers_that_cannot_be_understood_are_no_answer() -> None:
    null_host = b"\x02" + (1).to_bytes(4, "big") + b"\x00" + (9092).to_bytes(4, "big") + b"\0\0"
    with pytest.raises(MalformedFrame):
        REWRITER(metadata(null_host), ApiKey.METADATA, 9)
