"""Whoever is refused at its start serves nothing by what it knew before; an outage is bridged."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest
from kio.schema.errors import ErrorCode

from tests.support.waiting import lasts_async, within
from tests.unit.gateway.fakes import GatewayPlane, tracked_row, tracked_topic, until
from tests.unit.gateway.test_tracking_sync import Bench
from tideline.background import BackgroundTaskEnded, watching
from tideline.control_plane.errors import (
    ControlPlaneFailure,
    ControlPlaneUnavailable,
    GatewayIdHeld,
    GatewayRetired,
    LoginRefused,
    OtherSchema,
    TimelineUnsettled,
    UnfitSession,
    UnknownGateway,
)
from tideline.domain.history import WrongHistory
from tideline.domain.request_handling import RouteKind
from tideline.errors import ExitCode, TidelineError
from tideline.gateway.tracking import sync as tracking_sync
from tideline.kafka.errors import KafkaError, KafkaUnavailable
from tideline.object_store.client import ObjectStoreRefused, ObjectStoreUnavailable

REFUSALS = [
    GatewayRetired("gateway 1 was retired (cut off, attested by ada)"),
    GatewayIdHeld("gateway id 1 is held by another"),
    UnknownGateway("gateway 1 was never registered"),
    WrongHistory("it holds installation 7"),
    ControlPlaneFailure("permission denied for function register_gateway"),
    OtherSchema("function tideline.register_gateway does not exist"),
    LoginRefused("password authentication failed"),
    ObjectStoreRefused("refused with AccessDenied"),
    KafkaError(ErrorCode.sasl_authentication_failed, "login"),
]
OUTAGES = [
    ControlPlaneUnavailable("away"),
    UnfitSession("a pooler in transaction mode is in between"),
    TimelineUnsettled("timeline 2 was promoted"),
    ObjectStoreUnavailable("503"),
    KafkaUnavailable("no broker answers"),
]


def named(error: TidelineError) -> str:
    return type(error).__name__


@pytest.fixture
def plane() -> GatewayPlane:
    return GatewayPlane()


@pytest.fixture(autouse=True)
def impatience(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tracking_sync, "START_PATIENCE_S", 0.05)
    monkeypatch.setattr(tracking_sync, "RETRY_S", 0.01)


async def with_an_old_snapshot(plane: GatewayPlane, directory: Path) -> Bench:
    """A gateway that starts again; since its snapshot a topic has crossed B0."""
    before = Bench(plane, directory)
    await before.sync.start()
    await before.sync._write_if_changed()
    await before.sync.close()
    plane.fence(before.lease.incarnation)
    plane.put(tracked_topic(tracked_row(boundary=40, boundary_epoch=3)))
    return Bench(plane, directory)


def answered_with(error: TidelineError) -> Callable[..., Any]:
    async def answer(*_: object, **__: object) -> None:
        raise error

    return answer


@pytest.mark.parametrize("error", REFUSALS, ids=named)
async def test_who_is_refused_waits_whatever_comes_after_it(
    plane: GatewayPlane, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: TidelineError
) -> None:
    bench = await with_an_old_snapshot(plane, tmp_path)
    with monkeypatch.context() as refusing:
        refusing.setattr(plane, "register_gateway", answered_with(error))
        starting = asyncio.create_task(bench.sync.start())
        await lasts_async("who is refused waits", lambda: not starting.done(), 0.15)
        plane.down = True
        await lasts_async("also when it is cut off then", lambda: not starting.done(), 0.15)
    plane.down = False
    await within("the start", starting)
    assert bench.kind() is RouteKind.SUFFIX
    await bench.sync.close()


@pytest.mark.parametrize("error", OUTAGES, ids=named)
async def test_an_outage_is_bridged_by_the_snapshot(
    plane: GatewayPlane, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: TidelineError
) -> None:
    bench = await with_an_old_snapshot(plane, tmp_path)
    with monkeypatch.context() as away:
        away.setattr(plane, "register_gateway", answered_with(error))
        await within("the start", bench.sync.start())
        assert not bench.lease.valid()
    await until(bench.lease.valid)
    assert bench.kind() is RouteKind.SUFFIX
    await bench.sync.close()


@pytest.mark.parametrize("error", REFUSALS, ids=named)
async def test_who_serves_from_its_snapshot_ends_when_it_is_refused(
    plane: GatewayPlane, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: TidelineError
) -> None:
    bench = await with_an_old_snapshot(plane, tmp_path)
    plane.down = True
    with watching() as watch:
        await bench.sync.start()
        plane.down = False
        monkeypatch.setattr(plane, "register_gateway", answered_with(error))
        with pytest.raises(BackgroundTaskEnded, match="lease ended"):
            await within("the process to end", watch.until(asyncio.Event()))
    await bench.sync.close()


class DeadBefore:
    """A state directory whose last process is proven to be dead."""

    def __init__(self, *dead: UUID) -> None:
        self.dead = dead

    def note(self, incarnations: Sequence[UUID]) -> None:
        pass

    def settled(self) -> None:
        self.dead = ()


async def test_who_serves_from_its_snapshot_is_stood_for_by_what_was_here_until_it_registers(
    plane: GatewayPlane, tmp_path: Path
) -> None:
    """To account for the dead one would let a topic migrate that nobody here has heard of."""
    before = Bench(plane, tmp_path)
    await before.sync.start()
    await before.sync._write_if_changed()
    await before.sync.close()
    dead = before.lease.incarnation
    plane.fence(dead)
    bench = Bench(plane, tmp_path)
    directory: Any = DeadBefore(dead)
    bench.lease._directory = directory
    plane.down = True
    with watching() as watch:
        await bench.sync.start()
        plane.activate(holder := UUID(int=0xD1E))
        directory.dead = (dead, holder)
        plane.down = False
        await until(lambda: bench.lease.waits_for_its_dead)
        await lasts_async("nobody is accounted", lambda: not plane.gateways.accounted, 0.1)
        plane.fence(holder)
        await until(bench.lease.valid)
        assert dead in plane.gateways.accounted
        stop = asyncio.Event()
        stop.set()
        await watch.until(stop)
    await bench.sync.close()


async def test_a_gateway_that_is_retired_while_it_serves_ends(
    plane: GatewayPlane, tmp_path: Path
) -> None:
    """No barrier waits for it any more, and it would pass through what migrates from now on."""
    bench = Bench(plane, tmp_path)
    with watching() as watch:
        await bench.sync.start()
        await plane.retire_gateway(1, "ada")
        bench.lease._duration_ms = 30
        with pytest.raises(BackgroundTaskEnded, match="retired") as ended:
            await within("the process to end", watch.until(asyncio.Event()))
    assert ended.value.exit_code == ExitCode.REFUSED
    await bench.sync.close()
