"""Streams and messages between processes, with delay, and with links that can be cut either way.

A stream keeps its order, as TCP does, and different streams do not keep that of each other. What is
sent into a cut link is delivered when the link is whole again, as retransmissions are; streams that
wait longer than :data:`GIVE_UP_S` end. A killed process's streams end at once.
"""

from __future__ import annotations

import asyncio
import random
import socket
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from tests.simulation.loop import Process, VirtualLoop, current

GIVE_UP_S = 12.0
FIN, RESET = object(), object()


@dataclass
class Link:
    """From one host to another."""

    cut: bool = False
    slow: float = 1.0
    waiting: list[tuple[float, Callable[[], None]]] = field(default_factory=list)


class Network:
    def __init__(self, loop: VirtualLoop, seed: int | str) -> None:
        self.loop, self.seed = loop, seed
        self._links: dict[tuple[str, str], Link] = {}
        self._servers: dict[tuple[str, int], tuple[Process, Callable[[Stream], None]]] = {}
        self.pace = 1.0
        self._streams = 0
        self._messages: dict[tuple[str, str], random.Random] = {}
        self._open: dict[frozenset[str], list[Stream]] = {}

    def link(self, source: str, target: str) -> Link:
        pair = (source, target)
        found = self._links.get(pair)
        if found is None:
            found = self._links[pair] = Link()
        return found

    def cut(self, source: str, target: str) -> None:
        """Nothing gets from ``source`` to ``target``."""
        self.link(source, target).cut = True

    def heal(self, source: str, target: str) -> None:
        link = self.link(source, target)
        if link.cut:
            link.cut = False
            waiting, link.waiting = link.waiting, []
            for _, send in waiting:
                send()

    def reset(self, one: str, other: str) -> None:
        """End the streams between two hosts, both ways, whatever is on its way in them."""
        for stream in self._open.pop(frozenset((one, other)), []):
            stream.reset()

    def delay(self, chance: random.Random, link: Link) -> float:
        """One way, in seconds: a machine room with a long tail."""
        usual = 0.0002 + chance.expovariate(1 / 0.0006)
        if chance.random() < 0.01:
            usual += chance.uniform(0.005, 0.2)
        return usual * self.pace * link.slow

    # -- messages without a stream between them: calls to Postgres and to the object store

    def send(self, source: Process, target: Process, deliver: Callable[[], None]) -> None:
        """``deliver`` runs as ``target``; messages overtake each other."""
        pair = (source.name, target.name)
        chance = self._messages.get(pair)
        if chance is None:  # seeding one takes longer than a message does
            chance = self._messages[pair] = random.Random(f"{self.seed} {pair}")
        self._go(self.link(*pair), chance, deliver, target)

    def _go(
        self, link: Link, chance: random.Random, deliver: Callable[[], None], target: Process
    ) -> None:
        if link.cut:
            again = partial(self._go, link, chance, deliver, target)
            link.waiting.append((self.loop.time(), again))
        else:
            self.loop.call_later(self.delay(chance, link), deliver, context=target.context)

    # -- streams

    def listen(self, accept: Callable[[Stream], None], host: str, port: int) -> Server:
        """``accept`` is given the near end of each stream, which it has to begin."""
        process = current()
        self._servers[host, port] = (process, accept)
        server = Server(self, (host, port))
        process.on_kill.append(server.close)
        return server

    async def connect(self, factory: Callable[[], Any], host: str, port: int) -> Any:
        source = current()
        self._streams += 1
        number = self._streams
        chance = random.Random(f"{self.seed} stream {number}")
        there, back = self.link(source.name, host), self.link(host, source.name)
        while there.cut or back.cut:  # noqa: ASYNC110
            await asyncio.sleep(0.25)
        await asyncio.sleep(self.delay(chance, there) + self.delay(chance, back))
        found = self._servers.get((host, port))
        if found is None or not found[0].alive:
            raise ConnectionRefusedError(f"{host}:{port} refuses")
        target, accept = found
        protocol = factory()
        near = Stream(self, source, host, chance, protocol, (host, port))
        far = Stream(self, target, source.name, chance, None, (source.name, 40_000 + number))
        near.peer, far.peer = far, near
        self._open.setdefault(frozenset((source.name, host)), []).extend((near, far))

        target.call(accept, far)
        near.begin(protocol)
        return near, protocol


class Server:
    def __init__(self, network: Network, address: tuple[str, int]) -> None:
        self._network, self.address = network, address
        self.sockets = [BoundSocket(socket.AF_INET, address)]

    def close(self) -> None:
        self._network._servers.pop(self.address, None)

    async def wait_closed(self) -> None:
        """Nothing is left to wait for."""


class Stream(asyncio.Transport):
    """One end of a stream. Everything that a protocol hears runs as its process."""

    def __init__(
        self,
        network: Network,
        owner: Process,
        other: str,
        chance: random.Random,
        protocol: Any,
        peer_name: tuple[str, int],
    ) -> None:
        super().__init__({"peername": peer_name})
        self._network, self._owner = network, owner
        self._link = network.link(owner.name, other)
        self._chance, self._protocol = chance, protocol
        self._closing = self._over = self._begun = self._paused = False
        self._last = 0.0
        self._arrived: list[Any] = []
        self._waiting: list[Any] = []
        self._since: float | None = None
        self.peer: Stream | None = None
        owner.on_kill.append(self._killed)

    def begin(self, protocol: Any) -> None:
        self._protocol, self._begun = protocol, True
        protocol.connection_made(self)
        self._take()

    # -- sending

    def write(self, data: Any) -> None:
        if not self._closing:
            self._post(bytes(data))

    def writelines(self, list_of_data: Any) -> None:
        self.write(b"".join(list_of_data))

    def _post(self, what: Any) -> None:
        link = self._link
        if link.cut or self._waiting:
            if not self._waiting:
                link.waiting.append((self._network.loop.time(), self._flush))
                self._network.loop.call_later(
                    GIVE_UP_S, self._given_up, context=self._owner.context
                )
                self._since = self._network.loop.time()
            self._waiting.append(what)
            return
        self._fly(what)

    def _flush(self) -> None:
        waiting, self._waiting = self._waiting, []
        self._since = None
        for what in waiting:
            self._fly(what)

    def can_write_eof(self) -> bool:
        return False

    def _given_up(self) -> None:
        now = self._network.loop.time()
        if self._since is not None and now - self._since >= GIVE_UP_S - 0.001:
            self._end(ConnectionResetError("no acknowledgement from the peer"))

    def _fly(self, what: Any) -> None:
        loop, peer = self._network.loop, self.peer
        assert peer is not None
        delay = self._network.delay(self._chance, self._link)
        self._last = max(self._last + 1e-7, loop.time() + delay)
        loop.call_at(self._last, peer._arrive, what, context=peer._owner.context)

    # -- receiving

    def _arrive(self, what: Any) -> None:
        self._arrived.append(what)
        self._take()

    def _take(self) -> None:
        while self._begun and self._arrived and not self._paused and not self._over:
            what = self._arrived.pop(0)
            if what is FIN:
                self._end(None)
            elif what is RESET:
                self._end(ConnectionResetError("the peer reset the connection"))
            else:
                self._deliver(what)

    def _deliver(self, data: bytes) -> None:
        while data and not self._over:
            buffer = self._protocol.get_buffer(len(data))
            count = min(len(buffer), len(data))
            buffer[:count] = data[:count]
            data = data[count:]
            self._protocol.buffer_updated(count)

    def pause_reading(self) -> None:
        self._paused = True

    def resume_reading(self) -> None:
        if self._paused:
            self._paused = False
            self._network.loop.call_soon(self._take, context=self._owner.context)

    def is_reading(self) -> bool:
        return not self._paused

    # -- ends

    def is_closing(self) -> bool:
        return self._closing

    def close(self) -> None:
        if not self._closing:
            self._closing = True
            self._post(FIN)
            self._owner.call(self._end, None)

    def abort(self) -> None:
        if not self._over:
            self._closing = True
            self._waiting.clear()
            self._post(RESET)
            self._owner.call(self._end, None)

    def reset(self) -> None:
        """Somebody between the two ends it: both are told, and nothing more arrives."""
        if not self._over:
            self._waiting.clear()
            self._arrived.clear()
            self._owner.call(self._end, ConnectionResetError("reset on the way"))

    def _end(self, error: Exception | None) -> None:
        self._closing = True
        if not self._over:
            self._over = True
            if self._begun:
                self._protocol.connection_lost(error)

    def _killed(self) -> None:
        if not self._over:
            self._over = self._closing = True
            self._post(RESET)

    def get_write_buffer_size(self) -> int:
        return 0

    def set_write_buffer_limits(self, high: Any = None, low: Any = None) -> None:
        """Writes never wait here."""

    def get_protocol(self) -> Any:
        return self._protocol


class NetworkedLoop(VirtualLoop):
    """The loop that production code is given: its sockets are the network's."""

    def __init__(self, seed: int | str) -> None:
        super().__init__()
        self.network = Network(self, seed)

    async def create_connection(  # type: ignore[override]
        self, protocol_factory: Any, host: Any = None, port: Any = None, **_: Any
    ) -> Any:
        return await self.network.connect(protocol_factory, host, port)

    async def create_server(  # type: ignore[override]
        self, protocol_factory: Any, host: Any = None, port: Any = None, sock: Any = None, **_: Any
    ) -> Any:
        if sock is not None:
            host, port = sock.getsockname()
        return self.network.listen(lambda stream: stream.begin(protocol_factory()), host, port)

    async def connect_accepted_socket(  # type: ignore[override]
        self, protocol_factory: Any, sock: Any, **_: Any
    ) -> Any:
        protocol = protocol_factory()
        sock.begin(protocol)
        return sock, protocol

    async def getaddrinfo(  # type: ignore[override]
        self, host: Any, port: Any, **_: Any
    ) -> list[Any]:
        return [(socket.AF_INET, socket.SOCK_STREAM, 0, "", (host, port))]


class NetworkAcceptor:
    """In the place of :class:`tideline.gateway.transport.acceptor.Acceptor`."""

    def __init__(self, listening: BoundSocket, _: int, begin: Callable[..., None]) -> None:
        loop = asyncio.get_running_loop()
        assert isinstance(loop, NetworkedLoop)
        self.sockets: tuple[BoundSocket, ...] = (listening,)
        self._server = loop.network.listen(
            lambda stream: begin(stream, stream.get_extra_info("peername")),
            *listening.getsockname(),
        )

    def close(self) -> None:
        self._server.close()
        self.sockets = ()


class BoundSocket:
    """An address that is held, and that a :class:`NetworkAcceptor` listens at."""

    def __init__(self, family: int, address: tuple[str, int]) -> None:
        self.family, self._address = family, address

    def getsockname(self) -> tuple[str, int]:
        return self._address

    def setsockopt(self, *option: int) -> None:
        """Nobody else wants the address."""

    def close(self) -> None:
        """As that."""
