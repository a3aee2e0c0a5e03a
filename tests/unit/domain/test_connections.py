"""Whether Postgres has a connection for everybody."""

from __future__ import annotations

import pytest

from tideline.domain.connections import ConnectionRoom, Wants, refusal, shortages

GATEWAY = Wants("gateway", 6, 14, shares_role=False)
TWO_WORKERS = Wants("worker", 2, 13, count=2)


def room(given: int = 1_000, role_limit: int = -1) -> ConnectionRoom:
    return ConnectionRoom(given + 3, 3, "tideline_gateway_1", role_limit)


@pytest.mark.parametrize("role_limit", [-1, 6, 14])
def test_a_process_with_room_for_the_least_that_it_needs_runs(role_limit: int) -> None:
    assert refusal(room(6, role_limit), GATEWAY) is None


def test_a_role_that_may_have_too_few_connections_is_refused_by_name_with_a_remedy() -> None:
    why = refusal(room(role_limit=5), GATEWAY)
    assert why is not None
    assert why.startswith("role tideline_gateway_1 may have 5 connections, a gateway needs 6 to 14")
    assert "ALTER ROLE tideline_gateway_1 CONNECTION LIMIT 14" in why


def test_a_server_without_room_is_refused_by_its_setting() -> None:
    why = refusal(room(5), GATEWAY)
    assert why is not None
    assert "max_connections 8, 3 of them reserved" in why


def test_the_sum_of_all_is_compared_with_what_the_server_gives() -> None:
    gateways = Wants("gateway", 6, 14, count=3)
    assert shortages(room(68), gateways, [TWO_WORKERS]) == []
    (short,) = shortages(room(67), gateways, [TWO_WORKERS])
    assert "3 gateways x 14 + 2 workers x 13 are up to 68 connections, Postgres gives 67" in short
    assert "max_connections to 71" in short


def test_the_sum_of_a_role_is_compared_with_its_limit() -> None:
    tasks = Wants("task", 1, 1, count=42)
    assert shortages(room(role_limit=42), tasks, []) == []
    (short,) = shortages(room(role_limit=41), tasks, [])
    assert "ALTER ROLE tideline_gateway_1 CONNECTION LIMIT 42" in short


def test_a_gateway_has_a_role_of_its_own() -> None:
    gateways = Wants("gateway", 6, 14, count=3, shares_role=False)
    assert shortages(room(role_limit=14), gateways, []) == []
    (short,) = shortages(room(role_limit=13), gateways, [])
    assert "1 gateway x 14 are up to 14: ALTER ROLE tideline_gateway_1 CONNECTION LIMIT 14" in short
