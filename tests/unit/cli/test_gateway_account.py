"""An operator's word that replaced processes are gone."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import uuid4

import pytest
from prometheus_client import CollectorRegistry
from typer.testing import CliRunner

from tests.placed_plane import PlacedPlane
from tideline import control_plane
from tideline.cli import gateway
from tideline.cli.app import app
from tideline.control_plane.model import UNACCOUNTED, GatewayRegistration
from tideline.worker.gateway_metrics import GatewayGauges

NOON = datetime(2026, 3, 1, 12, tzinfo=UTC)


def ended(number: int, at: datetime) -> GatewayRegistration:
    return GatewayRegistration(
        number, number, uuid4(), UNACCOUNTED, 0, 3_000, "127.0.0.1:9", "0.1.0", at
    )


class Plane(PlacedPlane):
    """Three processes that were replaced: two of gateway 1, one of gateway 2."""

    def __init__(self) -> None:
        super().__init__(lambda: 1_000)
        self.old = ended(1, NOON - timedelta(days=9))
        self.new = ended(1, NOON + timedelta(days=1))
        self.other = ended(2, NOON - timedelta(days=9))
        self.attested: Any = []

    async def unaccounted_incarnations(self) -> list[GatewayRegistration]:
        return [self.old, self.new, self.other]

    async def attest_incarnations_gone(
        self, gateway_id: int, incarnations: Any, attested_by: str
    ) -> None:
        self.attested.append((gateway_id, list(incarnations), attested_by))


@pytest.fixture
def plane(monkeypatch: pytest.MonkeyPatch) -> Plane:
    made = Plane()

    @asynccontextmanager
    async def changing_plane() -> AsyncIterator[tuple[Plane, None]]:
        yield made, None

    @asynccontextmanager
    async def connect(settings: Any, **named: Any) -> AsyncIterator[Plane]:
        yield made

    monkeypatch.setattr(gateway, "changing_plane", changing_plane)
    monkeypatch.setattr(control_plane, "connect", connect)
    monkeypatch.setattr(gateway, "load", lambda kind: None)
    return made


def account(*arguments: str) -> str:
    named = ["gateway", "account", "1", *arguments, "--gone", "--attested-by", "ada"]
    result = CliRunner().invoke(app, named)
    assert result.exit_code == 0, result.output
    return result.output


def test_named_incarnations_are_accounted_for_and_no_other(plane: Plane) -> None:
    said = account(str(plane.new.incarnation))
    assert plane.attested == [(1, [plane.new.incarnation], "ada")]
    assert str(plane.new.incarnation) in said


def test_the_list_names_the_command_for_each(plane: Plane) -> None:
    result = CliRunner().invoke(app, ["gateway", "list"])
    text = " ".join(result.output.split())
    for row in (plane.old, plane.new, plane.other):
        assert f"tideline gateway account {row.gateway_id} {row.incarnation} --gone" in text


def test_the_worker_counts_them_and_says_each_once() -> None:
    plane, registry = Plane(), CollectorRegistry()
    gauges = GatewayGauges(registry)

    def counted(number: int) -> float | None:
        name = "inkless_gateway_unaccounted_incarnations"
        return registry.get_sample_value(name, {"gateway": str(number)})

    rows = [plane.old, plane.new, plane.other]
    assert [gauges.update(rows), gauges.update(rows)] == [rows, []]
    assert (counted(1), counted(2)) == (2, 1)
    gauges.update([])
    assert counted(1) is None
