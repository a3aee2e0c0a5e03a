"""Gateways that die, sleep and come back around the boundary."""

from __future__ import annotations

import psycopg
from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient
from kio.schema.errors import ErrorCode

from tests.harness import (
    SEEMS_DEAD,
    Breakpoint,
    Case,
    gateways,
    killed,
    leader_of,
    migration_case,
    ports_of,
)
from tests.raw import ask, message
from tests.support.waiting import until
from tideline.demo.topic import trigger_migration
from tideline.domain.migration import Phase
from tideline.stack import Stack
from tideline.stack.ports import is_free


def test_a_gateway_that_slept_through_the_boundary_wakes_harmlessly(stack: Stack) -> None:
    """Schedules 1, 2, 3 and 15: its pending answers, its ceiling and its lease are all stale."""
    with migration_case(stack, name="gateway-slept") as case:
        case.produce()
        case.consume()
        case.until_acknowledged(20)
        leader, _ = leader_of(stack, case.topic, 0)
        stop = Breakpoint(case.superuser_dsn, case.topic_id, Phase.QUIESCE)
        try:
            case.trigger()
            stop.wait_until_hit()
            stack.suspend(f"gateway-{leader}")
            assert case.boundaries() == [-1]
        finally:
            stop.release()
        try:
            case.until_crossed()
            assert gateways(case)[leader].status == "fenced"
        finally:
            stack.resume(f"gateway-{leader}")
        until("the gateway to register anew", lambda: gateways(case)[leader].status == "active")
        case.until_acknowledged(20)
        case.until_ready()
        case.settle()


def test_nobody_gets_an_address_where_a_gateway_would_stand_in_for_another(stack: Stack) -> None:
    """Who listens there while the other one is killed would take this one down with it."""
    held = {name: port for name, port in ports_of(stack).items() if name.startswith("stand-in-")}
    nodes = len(stack.endpoints.gateways)
    assert len(held) == nodes * (nodes - 1)
    assert [name for name, port in held.items() if is_free(port)] == []


def test_a_trigger_is_refused_at_once_while_a_gateway_or_a_replica_is_away(stack: Stack) -> None:
    """The workflow would refuse it, too, and nobody would be told who asked by a config change."""
    with migration_case(stack, name="trigger-away") as case:
        case.produce()
        case.consume()
        case.until_acknowledged(10)
        admin = AdminClient({"bootstrap.servers": stack.endpoints.gateway_bootstrap.split(",")[0]})
        stack.suspend("gateway-3")
        try:
            # What is not seen within the patience of one request is left to the workflow.
            until(
                "its silence to be seen",
                lambda: SEEMS_DEAD in refusal(stack, case.topic, only_ask=True),
            )
            refused = refusal(stack, case.topic)
        finally:
            stack.resume("gateway-3")
        assert f"{SEEMS_DEAD} from 1 gateways" in refused
        assert "bring it back, or retire it" in refused
        with killed(stack, "kafka-3"):
            lacks = "replicas_in_sync: 1 partitions are not fully in sync"
            until(
                "a gateway to be told that it is missing",
                lambda: lacks in refusal(stack, case.topic, only_ask=True),
            )
            assert lacks in refusal(stack, case.topic)
        until("it to catch up", lambda: 3 in in_sync(stack, case.topic))
        assert requests_of(case) == []
        until("a trigger to be taken", lambda: is_taken(admin, case.topic))
        case.until_ready()
        case.settle()


def refusal(stack: Stack, topic: str, *, only_ask: bool = False) -> str:
    """Of a trigger at gateway 1, empty if it is taken: a client library would send it to whoever it
    takes for the controller, which may be the one that is away."""
    config = {"name": "diskless.enable", "config_operation": 0, "value": "true"}
    resource = {"resource_type": 2, "resource_name": topic, "configs": [config]}
    asked = message("IncrementalAlterConfigs", 1, resources=[resource], validate_only=only_ask)
    (told,) = ask(stack.endpoints.gateways[1], asked).responses
    return "" if told.error_code is ErrorCode.none else str(told.error_message)


def is_taken(admin: AdminClient, topic: str) -> bool:
    """A gateway that slept registers anew, and a broker that has just started is not known to all
    at once."""
    try:
        trigger_migration(admin, topic)
    except (KafkaException, TimeoutError):
        return False
    return True


def in_sync(stack: Stack, topic: str) -> set[int]:
    """As gateway 1 says: librdkafka asks any broker, also one that has just died, and waits for it
    to its bound."""
    wanted = [{"topic_id": None, "name": topic}]
    asked = message("Metadata", 12, topics=wanted, allow_auto_topic_creation=False,
                    include_topic_authorized_operations=False)  # fmt: skip
    (told,) = ask(stack.endpoints.gateways[1], asked).topics
    return set(told.partitions[0].isr_nodes)


def requests_of(case: Case) -> list[tuple[object, ...]]:
    with psycopg.connect(case.superuser_dsn) as connection:
        return connection.execute(
            "SELECT topic FROM tideline.migration_requests WHERE topic_id = %s", [case.topic_id]
        ).fetchall()
