"""A server that does to each call what a test has written down."""

from __future__ import annotations

import errno
import socket
import ssl
import struct
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from typing import BinaryIO

HANDSHAKE_S = 10.0


@dataclass(frozen=True, slots=True)
class Call:
    """One that came; names of headers in lower case."""

    method: str
    target: str
    headers: dict[str, str]
    body: bytes
    connection: int
    """The how manieth it came over."""


Step = bytes | Callable[["Peer"], None]
"""What is sent, or done to the connection."""


@dataclass(slots=True)
class Peer:
    """The server's end of one connection."""

    socket: socket.socket
    server: ScriptedServer
    open: bool = True

    def end(self) -> None:
        self.open = False


def close(peer: Peer) -> None:
    """The connection ends as it should."""
    peer.end()


def reset(peer: Peer) -> None:
    """The connection ends by a RST."""
    peer.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    peer.end()


def stall(peer: Peer) -> None:
    """Nothing more comes, and nothing ends, until the test does."""
    over = peer.server.over
    peer.server.stalled.set()
    over.wait()
    peer.end()


def trickle(peer: Peer) -> None:
    """A byte now and then, always before the next read times out."""
    over = peer.server.over
    peer.server.stalled.set()
    while not over.wait(0.05):
        try:
            peer.socket.sendall(b"x")
        except OSError:
            break
    peer.end()


def answer(status: int, body: bytes = b"", *headers: str) -> bytes:
    """One of HTTP with a length."""
    lines = [f"HTTP/1.1 {status} X", f"Content-Length: {len(body)}", *headers, "", ""]
    return "\r\n".join(lines).encode() + body


STORED = answer(200, b"", 'ETag: "t"')
"""What S3 answers to a PUT."""


def error(status: int, code: str, message: str = "") -> bytes:
    """One of S3."""
    said = f"<Message>{message}</Message>" if message else ""
    body = f'<?xml version="1.0" encoding="UTF-8"?><Error><Code>{code}</Code>{said}</Error>'
    return answer(status, body.encode(), "Content-Type: application/xml")


@dataclass
class ScriptedServer:
    """Each call is answered by the next of ``scripts``, and by the last one from then on."""

    url: str = ""
    scripts: list[Sequence[Step]] = field(default_factory=list)
    calls: list[Call] = field(default_factory=list)
    over: threading.Event = field(default_factory=threading.Event)
    stalled: threading.Event = field(default_factory=threading.Event)
    connections: int = 0
    _lock: threading.Lock = field(default_factory=threading.Lock)
    _open: set[socket.socket] = field(default_factory=set)

    def end(self) -> None:
        """Every connection, whatever is done to it."""
        self.over.set()
        with self._lock:
            for peer in self._open:
                with suppress(OSError):
                    peer.shutdown(socket.SHUT_RDWR)

    def begin_anew(self) -> None:
        """As if nothing had come before."""
        self.end()
        self.over, self.stalled, self.connections = threading.Event(), threading.Event(), 0

    def plays(self, *scripts: Sequence[Step]) -> None:
        self.scripts, self.calls = list(scripts), []

    def serve(self, peer: Peer, number: int) -> None:
        """All calls of one connection."""
        with self._lock:
            self._open.add(peer.socket)
        try:
            self._serve(peer, number)
        finally:
            with self._lock:
                self._open.discard(peer.socket)

    def _serve(self, peer: Peer, number: int) -> None:
        with peer.socket, peer.socket.makefile("rb") as reader:
            while peer.open:
                call = self._read(reader, peer, number)
                if call is None:
                    return
                with self._lock:
                    script = self.scripts[min(len(self.calls), len(self.scripts) - 1)]
                    self.calls.append(call)
                for step in script:
                    if isinstance(step, bytes):
                        try:
                            peer.socket.sendall(step)
                        except OSError:
                            return
                    else:
                        step(peer)

    @staticmethod
    def _read(reader: BinaryIO, peer: Peer, number: int) -> Call | None:
        first = reader.readline()
        if not first:
            return None
        method, target, _ = first.decode().split(" ", 2)
        headers = {}
        while (line := reader.readline().rstrip(b"\r\n")) != b"":
            name, _, value = line.decode("latin-1").partition(":")
            headers[name.strip().lower()] = value.strip()
        if headers.get("expect") == "100-continue":  # boto3 holds a body back for a second else
            peer.socket.sendall(b"HTTP/1.1 100 Continue\r\n\r\n")
        body = reader.read(int(headers.get("content-length", 0)))
        return Call(method, target, headers, body, number)


@contextmanager
def scripted_server(context: ssl.SSLContext | None = None) -> Iterator[ScriptedServer]:
    """One on loopback; ``context``: under TLS."""
    listener = socket.create_server(("127.0.0.1", 0))
    scheme = "https" if context else "http"
    server = ScriptedServer(f"{scheme}://127.0.0.1:{listener.getsockname()[1]}")
    threads: list[threading.Thread] = []

    def one(accepted: socket.socket, number: int) -> None:
        try:
            if context is not None:
                # A client whose loop the end of the server holds up says nothing more.
                accepted.settimeout(HANDSHAKE_S)
                accepted = context.wrap_socket(accepted, server_side=True)
                accepted.settimeout(None)
            server.serve(Peer(accepted, server), number)
        except OSError:
            accepted.close()

    def accept() -> None:
        while True:
            try:
                accepted, _ = listener.accept()
            except OSError:
                return
            server.connections += 1
            thread = threading.Thread(target=one, args=(accepted, server.connections))
            threads.append(thread)
            thread.start()

    accepting = threading.Thread(target=accept)
    accepting.start()
    try:
        yield server
    finally:
        server.end()
        listener.shutdown(socket.SHUT_RDWR)
        listener.close()
        accepting.join()
        for thread in threads:
            thread.join()


@contextmanager
def accepts_nobody(host: str, port: int) -> Iterator[int]:
    """A listener whose queue is full, so that it answers no handshake; its port."""
    with socket.socket() as full, ExitStack() as waiting:
        full.bind((host, port))
        full.listen(0)
        while True:
            one = waiting.enter_context(socket.socket())
            one.settimeout(0.2)
            if one.connect_ex(full.getsockname()) == errno.EAGAIN:
                break
        yield full.getsockname()[1]
