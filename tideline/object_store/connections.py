"""HTTP/1.1 to one server of S3: connections that are kept, one call and its answer at a time.

Only what S3 needs of the protocol: a body of known length goes out; an answer comes with a length,
in chunks, or until the connection ends. Whatever else comes is an error, and the connection is not
used again. What fails is told by the exceptions of botocore, so that it means what it means when
boto3 has made the call.
"""

from __future__ import annotations

import io
import os
import select
import socket
import ssl
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from botocore.exceptions import (
    ConnectionClosedError,
    ConnectTimeoutError,
    EndpointConnectionError,
    HTTPClientError,
    IncompleteReadError,
    ReadTimeoutError,
    ResponseStreamingError,
    SSLError,
)

from tideline.object_store.signature import Body, Piece, pieces, size

MAX_LINE = 65_536
"""bytes"""
MAX_HEADERS = 100
_READ_AHEAD = 32 * 1024
"""bytes; a batch and the head of its answer come with one read"""
_SENT_TOGETHER = 64 * 1024
"""bytes; a body up to here is copied behind its head, which costs less than another packet"""
SLOWEST = 1024 * 1024
"""bytes of a body that must come within the read timeout"""


@dataclass(frozen=True, slots=True)
class Server:
    """``address`` is how it is written in a URL and in ``Host``."""

    scheme: str
    host: str
    port: int
    address: str

    @property
    def url(self) -> str:
        return f"{self.scheme}://{self.address}"


@dataclass(frozen=True, slots=True)
class Head:
    """Status and headers (names in lower case) of an answer, and how its body ends."""

    status: int
    headers: dict[str, str]
    length: int | None
    """``None``: in chunks, or until the connection ends."""
    chunked: bool
    kept: bool
    """The server keeps the connection."""


def parsed_head(lines: list[bytes]) -> Head:
    """``lines`` from the status line on, without the empty one at the end. Raises ``ValueError``
    for what is not a head of HTTP/1."""
    words = lines[0].split(None, 2)
    if len(words) < 2 or not words[0].startswith(b"HTTP/1.") or not words[1].isdigit():
        raise ValueError(f"the status line {lines[0][:80]!r} is not of HTTP/1")
    status = int(words[1])
    headers: dict[str, str] = {}
    for line in lines[1:]:
        name, colon, value = line.partition(b":")
        if not colon or not name or name[0] in b" \t":
            raise ValueError(f"the header {line[:80]!r} has no name")
        known, text = name.decode("latin-1").lower(), value.strip().decode("latin-1")
        if headers.get(known, text) != text and known in ("content-length", "transfer-encoding"):
            raise ValueError(f"two values of {known}: {headers[known]!r} and {text!r}")
        headers[known] = text
    coding = headers.get("transfer-encoding", "").lower()
    if coding not in ("", "chunked", "identity"):
        raise ValueError(f"the transfer coding {coding!r} is not known")
    told = headers.get("content-length")
    if told is not None and not (told.isascii() and told.isdigit()):
        raise ValueError(f"the content length {told!r} is not a number")
    chunked = coding == "chunked"
    length = None if chunked or told is None else int(told)
    if status < 200 or status in (204, 304):
        length, chunked = 0, False
    kept = words[0] == b"HTTP/1.1" and "close" not in headers.get("connection", "").lower()
    return Head(status, headers, length, chunked, kept and (chunked or length is not None))


def size_of_chunk(line: bytes) -> int:
    """What the line before a chunk says, in bytes. Raises ``ValueError``."""
    digits = line.split(b";", 1)[0].strip()
    if not digits or digits.strip(b"0123456789abcdefABCDEF"):
        raise ValueError(f"the size {digits[:80]!r} of a chunk is not a number")
    return int(digits, 16)


@contextmanager
def connecting(server: Server) -> Iterator[None]:
    """What fails meanwhile is ``EndpointConnectionError``, ``ConnectTimeoutError`` or
    ``SSLError``."""
    try:
        yield
    except TimeoutError as error:
        raise ConnectTimeoutError(endpoint_url=server.url, error=error) from error
    except ssl.SSLError as error:
        raise SSLError(endpoint_url=server.url, error=error) from error
    except OSError as error:
        raise EndpointConnectionError(endpoint_url=server.url, error=error) from error


class _Bytes(io.RawIOBase):
    """What comes over a socket until a deadline."""

    def __init__(self, connection: socket.socket, timeout_s: float) -> None:
        self._socket, self._timeout_s = connection, timeout_s
        self._began = self._deadline = 0.0
        self.silent = False
        """Nothing more is read: what is buffered is all that there is."""

    def expect(self, size: int) -> None:
        """So many bytes will be read from now on."""
        self._began = time.monotonic()
        self.expect_in_all(size)

    def expect_in_all(self, size: int) -> None:
        """So many bytes since what was expected last, with those that have been read."""
        self._deadline = self._began + self._timeout_s * (1 + size // SLOWEST)

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: memoryview) -> int | None:  # type: ignore[override]
        if self.silent:
            return None
        left = self._deadline - time.monotonic()
        if left <= 0:
            raise TimeoutError("timed out")
        self._socket.settimeout(min(left, self._timeout_s))
        return self._socket.recv_into(buffer)


class Connection:
    """One connection. After an error it must be closed. Not for several threads at once."""

    def __init__(self, server: Server, opened: socket.socket, read_timeout_s: float) -> None:
        self.server = server
        self._url, self._socket, self._read_timeout_s = server.url, opened, read_timeout_s
        self._raw = _Bytes(opened, read_timeout_s)
        self._reader = io.BufferedReader(self._raw, _READ_AHEAD)
        self._ready = select.poll()
        self._ready.register(opened, select.POLLIN)
        self._sent_whole = True

    def close(self) -> None:
        self._socket.close()

    @property
    def dropped(self) -> bool:
        """The server has ended it, or says what nobody has asked for."""
        return bool(self._ready.poll(0))

    def ask(self, head: bytes, body: Body) -> Head:
        """Send a call, and read the head of its answer. Raises ``ReadTimeoutError``,
        ``ConnectionClosedError`` or ``HTTPClientError``: the outcome is unknown."""
        try:
            self._send(head, body)
            answer = self._head()
            if answer.status < 300 and not self._sent_whole:
                raise ConnectionResetError("it was answered before all of it was sent")
            return answer
        except TimeoutError as error:
            raise ReadTimeoutError(endpoint_url=self._url, error=error) from error
        except OSError as error:
            raise ConnectionClosedError(endpoint_url=self._url, error=error) from error
        except ValueError as error:
            raise HTTPClientError(error=error) from error

    def _send(self, head: bytes, body: Body) -> None:
        left = size(body)
        deadline = time.monotonic() + self._read_timeout_s * (1 + left // SLOWEST)
        self._sent_whole = False
        try:
            if left <= _SENT_TOGETHER:
                self._send_all(b"".join((head, *pieces(body))), deadline)
            else:
                for piece in (head, *pieces(body)):
                    self._send_all(piece, deadline)
        except (BrokenPipeError, ConnectionResetError):
            return  # the server may have said why before it ended the connection
        self._sent_whole = True

    def _send_all(self, data: Piece, deadline: float) -> None:
        # The timeout of sendall() is for all of it whatever its size, and under TLS for 16 KiB.
        left = memoryview(data)
        while left:
            left_s = deadline - time.monotonic()
            if left_s <= 0:
                raise TimeoutError("timed out")
            self._socket.settimeout(min(left_s, self._read_timeout_s))
            left = left[self._socket.send(left) :]

    def _head(self) -> Head:
        self._raw.expect(0)
        while True:
            lines = self._lines()
            head = parsed_head(lines)
            if head.status >= 200:
                return head

    def _lines(self) -> list[bytes]:
        lines: list[bytes] = []
        while True:
            line = self._line()
            if line in (b"\r\n", b"\n"):
                if lines:
                    return lines
                raise ValueError("the answer begins with an empty line")
            if len(lines) > MAX_HEADERS:
                raise ValueError(f"the answer has more than {MAX_HEADERS} headers")
            lines.append(line)

    def _line(self) -> bytes:
        line = self._reader.readline(MAX_LINE)
        if line.endswith(b"\n"):
            return line
        if len(line) >= MAX_LINE:
            raise ValueError(f"a line of the answer is longer than {MAX_LINE} bytes")
        raise ConnectionResetError("the connection was closed without an answer")

    def body(self, head: Head, most: int | None = None) -> bytes:
        """All of the body, or its first ``most`` bytes and one more. Raises
        ``IncompleteReadError``, ``ReadTimeoutError`` or ``ResponseStreamingError``."""
        try:
            if head.chunked:
                return self._chunks(most)
            if head.length is None:
                return self._rest(most)
            wanted = head.length if most is None else min(head.length, most + 1)
            self._raw.expect(wanted)
            body = self._reader.read(wanted)
            if len(body) < wanted:
                raise IncompleteReadError(actual_bytes=len(body), expected_bytes=head.length)
            return body
        except TimeoutError as error:
            raise ReadTimeoutError(endpoint_url=self._url, error=error) from error
        except (OSError, ValueError) as error:
            raise ResponseStreamingError(error=error) from error

    def _chunks(self, most: int | None) -> bytes:
        parts: list[bytes] = []
        got = 0
        self._raw.expect(0 if most is None else most)
        while True:
            size = size_of_chunk(self._line())
            if size == 0:
                while self._line() not in (b"\r\n", b"\n"):
                    pass
                return b"".join(parts)
            wanted = size if most is None else min(size, most + 1 - got)
            if most is None:
                self._raw.expect_in_all(got + wanted)
            part = self._reader.read(wanted)
            parts.append(part)
            got += len(part)
            if len(part) < wanted:
                raise ConnectionResetError("the connection was closed within a chunk")
            if wanted < size or (most is not None and got > most):
                return b"".join(parts)
            if self._line() not in (b"\r\n", b"\n"):
                raise ValueError("a chunk is longer than its size")

    def _rest(self, most: int | None) -> bytes:
        self._raw.expect(0 if most is None else most)
        if most is not None:
            return self._reader.read(most + 1)
        parts = []
        while part := self._reader.read(SLOWEST):
            parts.append(part)
            self._raw.expect(0)
        return b"".join(parts)

    def usable_after(self, head: Head, body: bytes) -> bool:
        """All of the call and all of its answer have passed, and the server keeps it."""
        if not head.kept or not self._sent_whole:
            return False
        if not head.chunked and len(body) != head.length:
            return False
        # What came behind the answer would be taken for that of the next call.
        self._raw.silent = True
        behind = self._reader.peek(1)
        self._raw.silent = False
        return not behind


class Connections:
    """Of one server, kept between calls. Safe to share between threads; not between processes, of
    which each opens its own."""

    def __init__(
        self,
        server: Server,
        *,
        connect_timeout_s: float,
        read_timeout_s: float,
        kept: int,
        authorities: Callable[[], str],
    ) -> None:
        """``kept``: idle ones, at most. ``authorities``: the PEM file or directory of whoever may
        have signed the certificate of an https server; it is read anew when it has changed."""
        self._server = server
        self._connect_timeout_s, self._read_timeout_s = connect_timeout_s, read_timeout_s
        self._kept, self._authorities = kept, authorities
        self._idle: deque[Connection] = deque()
        self._process = os.getpid()
        self._closed = False
        self._made: tuple[object, ssl.SSLContext] | None = None

    def take(self) -> Connection:
        """One that is idle, or a new one. Raises ``EndpointConnectionError``,
        ``ConnectTimeoutError`` or ``SSLError``."""
        if self._process != os.getpid():
            # Forked: the parent talks over these.
            self._idle, self._process = deque(), os.getpid()
        while self._idle:
            try:
                connection = self._idle.pop()
            except IndexError:
                break  # another thread took the last one
            if not connection.dropped:
                return connection
            connection.close()
        return self._open()

    def give(self, connection: Connection) -> None:
        """It may be used again."""
        if self._closed or len(self._idle) >= self._kept:
            connection.close()
        else:
            self._idle.append(connection)

    def close(self) -> None:
        """End those that are idle now, and the others when they are given back."""
        self._closed = True
        while self._idle:
            self._idle.pop().close()

    def _open(self) -> Connection:
        server = self._server
        with connecting(server):
            opened = socket.create_connection((server.host, server.port), self._connect_timeout_s)
            try:
                opened.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                if server.scheme == "https":
                    opened = self.context().wrap_socket(opened, server_hostname=server.host)
            except OSError:
                opened.close()
                raise
        return Connection(server, opened, self._read_timeout_s)

    def context(self) -> ssl.SSLContext:
        """By the authorities as they are now."""
        path = self._authorities()
        found = os.stat(path)
        version = (path, found.st_mtime_ns, found.st_size, found.st_ino)
        if self._made is None or self._made[0] != version:
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)  # verifies the chain and the name
            context.minimum_version = ssl.TLSVersion.TLSv1_2
            context.hostname_checks_common_name = False
            context.set_alpn_protocols(["http/1.1"])
            directory = os.path.isdir(path)
            context.load_verify_locations(
                cafile=None if directory else path, capath=path if directory else None
            )
            self._made = version, context
        return self._made[1]
