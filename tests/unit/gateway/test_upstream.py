"""A client's connection to the broker, of the Python transport."""

from __future__ import annotations

import asyncio
import socket
import ssl
from collections.abc import Callable

from tests.unit.gateway.fakes import until
from tests.unit.gateway.test_transport import echo, frame
from tests.unit.kafka.fake_broker import FakeBroker
from tideline.gateway.room import Room
from tideline.gateway.transport.upstream import Expected, Upstream
from tideline.kafka.framing import FrameProtocol
from tideline.kafka.protocol import RequestHeader


def upstream_to(
    address: tuple[str, int],
    *,
    on_lost: Callable[[str, bool], None] = lambda reason, owes: None,
    on_pressure: Callable[[bool], None] = lambda full: None,
    tls: ssl.SSLContext | None = None,
) -> Upstream:
    return Upstream(
        address,
        1_048_576,
        Room(),
        FrameProtocol(1_048_576),
        tls=tls,
        on_lost=on_lost,
        on_pressure=on_pressure,
    )


async def test_requests_without_an_answer_are_not_gathered_without_bound_while_nobody_answers() -> (
    None
):
    """They count as served when they are sent: only the broker's connection holds them back."""
    pressure: list[bool] = []
    loop = asyncio.get_running_loop()
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        listening.listen(8)
        listening.setblocking(False)
        silent = ssl.create_default_context()  # waits for a handshake, as for a broker far away
        silent.check_hostname, silent.verify_mode = False, ssl.CERT_NONE
        address = listening.getsockname()
        upstream = upstream_to(address, tls=silent, on_pressure=pressure.append)
        accepted, _ = await loop.sock_accept(listening)
        for _ in range(3):
            upstream.send(bytes(1_000), None)
        assert not pressure
        for _ in range(100):
            upstream.send(bytes(1_000), None)
        assert pressure == [True]
        upstream.close()
        accepted.close()


async def test_what_waited_for_the_broker_holds_nobody_back_once_it_answers() -> None:
    served: list[int] = []

    async def takes(header: RequestHeader, request: bytes) -> bytes | None:
        served.append(header.correlation_id)
        return None

    pressure: list[bool] = []
    async with FakeBroker(takes) as broker:
        upstream = upstream_to(broker.address, on_pressure=pressure.append)
        for n in range(100):
            upstream.send(frame(n, body=bytes(1_000)), None)
        assert pressure == [True]
        await until(lambda: len(served) == 100)
        await until(lambda: pressure[-1] is False)
        assert served == list(range(100))
        upstream.close()


async def test_an_answer_that_cannot_be_dealt_with_ends_its_client_whatever_went_wrong() -> None:
    """Nobody else would tell the client, which waits for this very answer."""
    lost: list[bool] = []

    def fails(answer: bytes) -> None:
        raise RuntimeError("a defect")

    async with FakeBroker(echo) as broker:
        upstream = upstream_to(broker.address, on_lost=lambda reason, owes: lost.append(owes))
        upstream.send(frame(1), Expected(1, fails))
        await until(lambda: lost)
        assert lost == [True]
