"""A gateway process that cannot begin, or ends badly, leaves nothing that others wait for."""

from __future__ import annotations

import asyncio
import errno
import os
import signal
import socket
import subprocess
import sys
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.ports import free_ports
from tests.support.waiting import HANGS_S, within
from tests.unit.gateway.fakes import GatewayPlane, until
from tests.unit.gateway.gateway_under_test import gateway_settings
from tests.unit.gateway.test_listener import somebody_else
from tests.unit.gateway.test_stand_ins import Kafka
from tideline.gateway import __main__ as program
from tideline.gateway.produce import wal
from tideline.gateway.stand_ins import StandIns
from tideline.gateway.standing import Standing
from tideline.gateway.tracking.state_directory import StateDirectory
from tideline.gateway.transport import server
from tideline.gateway.transport.listener import Listener
from tideline.settings import GatewaySettings


class Process:
    """Gateway 1 as the program runs it, with Postgres in memory."""

    def __init__(self, kafka: Kafka, state: Path) -> None:
        self.plane = GatewayPlane()
        own, self.stand_in = free_ports(2)
        self.own = own
        self.settings: GatewaySettings = gateway_settings(
            "{}:{}".format(*kafka.brokers[1].address),
            state,
            gateway_listen=f"127.0.0.1:{own}",
            gateway_advertised=f"127.0.0.1:{own}",
            gateway_peers=f"1=127.0.0.1:{own},2=127.0.0.1:1",
            gateway_stand_in=f"1=127.0.0.1:1,2=127.0.0.1:{self.stand_in}",
        )
        self.standing = Standing(1)
        self.ends = 0

    async def run(self) -> None:
        def began_to_end() -> None:
            self.ends += 1

        directory = StateDirectory.hold(self.settings.gateway_state_dir, 1)
        await program.serve(self.settings, directory, self.standing, began_to_end)

    @asynccontextmanager
    async def running(self) -> AsyncIterator[asyncio.Task[None]]:
        task = asyncio.create_task(self.run())
        try:
            await until(lambda: self.standing.why_not_ready() == [] or task.done())
            yield task
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)

    def told(self) -> Mapping[str, object]:
        """To an operator."""
        return self.standing._ask_state(None)

    @property
    def registered(self) -> Any:
        return self.plane.gateways.registered[1]


@pytest.fixture
async def process(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Process]:
    kafka = Kafka()
    async with kafka.brokers[1], kafka.brokers[2]:
        made = Process(kafka, tmp_path / "state")

        @asynccontextmanager
        async def connect(*args: object, **kwargs: object) -> AsyncIterator[GatewayPlane]:
            yield made.plane

        async def established(*args: object) -> None:
            return None

        monkeypatch.setattr(program, "connect", connect)
        monkeypatch.setattr(program, "_establish", established)
        yield made
        for number in (signal.SIGTERM, signal.SIGINT):
            asyncio.get_running_loop().remove_signal_handler(number)


async def test_a_stand_in_address_that_is_somebody_elses_takes_no_gateway_down(
    process: Process,
) -> None:
    """It would be started again and again, and its own clients reach nobody."""
    with somebody_else(process.stand_in):
        async with process.running() as task:
            assert not task.done(), task.exception()
            socket.create_connection(("127.0.0.1", process.own), 5).close()
            assert process.registered.stand_ins is None, "clients would be led to a stranger"
            assert process.told()["stands_in"] == ["for node 2: not here, its address is taken"]


async def test_a_stand_in_address_that_is_its_own_is_registered(process: Process) -> None:
    async with process.running():
        assert process.registered.stand_ins == f"2=127.0.0.1:{process.stand_in}"


async def test_a_gateway_whose_own_address_is_taken_keeps_no_lease(process: Process) -> None:
    """Each of its starts would be waited for by barriers, and by the next start."""
    with somebody_else(process.own), pytest.raises(OSError, match="in use"):
        await within("the process to end", process.run(), 30)
    assert process.registered.status == "released"
    assert process.ends == 1


async def fails(*args: object) -> None:
    raise RuntimeError("it cannot be ended")


async def test_the_lease_is_released_though_a_part_cannot_be_ended_that_serves_nobody(
    process: Process, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(StandIns, "close", fails)
    async with process.running() as task:
        assert process.registered.status == "active"
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
    assert process.registered.status == "released"


@pytest.mark.parametrize(
    "what", [f"{server.__name__}.hand_over", f"{wal.__name__}.WalWriter.close"]
)
async def test_the_lease_lapses_by_itself_where_something_may_be_appended_still(
    process: Process, monkeypatch: pytest.MonkeyPatch, what: str
) -> None:
    """Barriers would pass a gateway that may serve clients yet, or has a commit under way."""
    monkeypatch.setattr(what, fails)
    async with process.running() as task:
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
    assert process.registered.status == "active"


async def test_a_registration_whose_answer_nobody_waits_for_is_released(
    process: Process, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is asked to stop while it reads what is tracked."""
    reads = asyncio.Event()

    async def slow() -> None:
        reads.set()
        await asyncio.Event().wait()

    monkeypatch.setattr(process.plane, "tracked_topics", slow)
    task = asyncio.create_task(process.run())
    await reads.wait()
    assert process.registered.status == "active"
    os.kill(os.getpid(), signal.SIGTERM)
    await within("the process to end", task, 30)
    assert process.registered.status == "released"


async def test_a_registration_that_is_under_way_is_released_when_it_is_there(
    process: Process, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Postgres takes its time, and carries out what it was sent though nobody waits for it."""
    asked, answers = asyncio.Event(), asyncio.Event()
    register = process.plane.register_gateway

    async def slow(*args: Any, **kwargs: Any) -> None:
        asked.set()
        await answers.wait()
        await register(*args, **kwargs)

    monkeypatch.setattr(process.plane, "register_gateway", slow)
    task = asyncio.create_task(process.run())
    await asked.wait()
    os.kill(os.getpid(), signal.SIGTERM)
    await until(lambda: process.ends)
    answers.set()
    await within("the process to end", task, 30)
    assert process.registered.status == "released"


async def test_what_may_pass_by_itself_is_its_supervisors_to_try_again(
    process: Process, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A network that is not there yet: it would stand in for nobody for as long as it runs."""

    async def no_network(listener: Listener) -> None:
        raise OSError(errno.EADDRNOTAVAIL, "no such address")

    monkeypatch.setattr(Listener, "bind", no_network)
    with pytest.raises(OSError, match="no such address"):
        await within("the process to end", process.run(), 30)


def test_a_process_that_hangs_at_its_end_ends_all_the_same() -> None:
    """It hangs where asyncio itself waits: in what a thread was asked to do."""
    hangs = """
import asyncio, time
from tideline.gateway import __main__ as program

async def serve(ends):
    asyncio.get_running_loop().run_in_executor(None, time.sleep, 600)
    ends()

asyncio.run(serve(lambda: program.bound_the_end(0.2)))
"""
    ended = subprocess.run(
        [sys.executable, "-c", hangs], capture_output=True, text=True, timeout=HANGS_S, check=False
    )
    assert ended.returncode == 1
    assert "most recent call first" in ended.stderr, "nobody could tell what it waited for"
