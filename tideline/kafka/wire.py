"""The native pass path, called by ``ctypes`` (docs/decisions/0034-a-native-pass-path.md).

What is here has no rules: it makes numbers and bytes of Python's those of the library, and back.
"""

from __future__ import annotations

import ctypes
import socket
import struct
from collections.abc import Iterable, Iterator, Mapping
from enum import IntEnum
from functools import cache
from pathlib import Path
from typing import NamedTuple
from uuid import UUID

from tideline.kafka.named_topics import NamedKey

LIBRARY = Path(__file__).parents[2] / "wire/target/release/libtideline_wire.so"
APIS = 128
_HEAD = struct.Struct("=IIQQQ")
_KEY = struct.Struct("=BH")
_NO_ACKS = -(2**63)
_ROOM = 262_144


class Treatment(IntEnum):
    """What becomes of the requests of one API."""

    PYTHON = 0
    PASS = 1
    PASS_BY_TOPICS = 2
    """They pass if all topics that they name are classic."""


class Kind(IntEnum):
    FRAME = 1
    """A request that is Python's; its number is that of its slot."""
    ANSWER = 2
    """Of what was forwarded with this number."""
    SLOT_ANSWER = 3
    """Of a request that passed, to be looked into; ``aux``: API and version."""
    REACHED = 4
    ENDED = 5


class Message(NamedTuple):
    kind: int
    aux: int
    connection: int
    number: int
    payload: bytes


class WalkedRequest(NamedTuple):
    """What the native walks say of a request."""

    keys: list[NamedKey]
    session_id: int
    session_epoch: int


@cache
def library() -> ctypes.CDLL:
    """Raises ``OSError`` if it is not built."""
    found = ctypes.CDLL(str(LIBRARY))
    handle, number, size = ctypes.c_void_p, ctypes.c_uint64, ctypes.c_size_t
    integer, data = ctypes.c_int, ctypes.c_char_p
    calls: dict[str, tuple[object, list[object]]] = {
        "wire_new": (handle, [number, number, number]),
        "wire_start": (None, [handle]),
        "wire_free": (None, [handle]),
        "wire_wake_fd": (integer, [handle]),
        "wire_poll_fd": (integer, [handle]),
        "wire_turn": (None, [handle]),
        "wire_adopt": (number, [handle, integer, data, size]),
        "wire_table": (None, [handle, handle, data, size, data, size]),
        "wire_take": (size, [handle, ctypes.POINTER(ctypes.c_void_p)]),
        "wire_begun": (integer, [handle, number]),
        "wire_forward": (integer, [handle, number, number, data, size]),
        "wire_fill": (integer, [handle, number, number, data, size]),
        "wire_barrier": (integer, [handle, number, number]),
        "wire_mute": (integer, [handle, number, integer]),
        "wire_close": (integer, [handle, number, integer]),
        "wire_counters": (None, [handle, handle]),
        "wire_walk": (integer, [data, size, handle, size, handle]),
        "wire_answer": (integer, [data, size, ctypes.c_int16, ctypes.c_int16]),
    }
    for name, (result, arguments) in calls.items():
        call = getattr(found, name)
        call.restype, call.argtypes = result, arguments
    return found


# -- the walks


class MalformedHeader(Exception):
    """The native walk does not take the header."""


def walked_request(frame: bytes) -> WalkedRequest | None:
    """The native :func:`tideline.kafka.named_topics.named_topics`. Raises
    :class:`MalformedHeader`."""
    keys, told = (ctypes.c_char * _ROOM)(), (ctypes.c_int64 * 5)()
    result = library().wire_walk(frame, len(frame), keys, _ROOM, told)
    if result == -2:
        raise MalformedHeader
    if result == -1:
        return None
    assert result == 0, "more keys than may be walked"
    return WalkedRequest(list(_keys(keys.raw[: told[0]])), told[1], told[2])


def _keys(raw: bytes) -> Iterator[NamedKey]:
    at = 0
    while at < len(raw):
        kind, size = _KEY.unpack_from(raw, at)
        at += _KEY.size
        value, at = raw[at : at + size], at + size
        yield None if kind == 2 else UUID(bytes=value) if kind == 1 else value.decode()


def walked_acks(frame: bytes) -> int | None:
    """The native :func:`tideline.kafka.protocol.produce_acks`; ``None``: Python has to look."""
    acks = _told(frame)[3]
    return None if acks == _NO_ACKS else acks


def fetch_most_at(frame: bytes) -> int | None:
    """Where a Fetch says how many bytes it wants; ``None``: the frame does not say."""
    at = _told(frame)[4]
    return None if at < 0 else at


def _told(frame: bytes) -> list[int]:
    keys, told = (ctypes.c_char * _ROOM)(), (ctypes.c_int64 * 5)()
    if library().wire_walk(frame, len(frame), keys, _ROOM, told) == -2:
        raise MalformedHeader
    return list(told)


def answer_passes(frame: bytes, api_key: int, version: int) -> bool:
    """Whether an answer goes to its client as it came, by the native walk."""
    return bool(library().wire_answer(frame, len(frame), api_key, version))


# -- connections


class Wire:
    """One engine. Its calls may be made by one thread."""

    def __init__(self, max_frame_bytes: int, max_answer_bytes: int, in_flight: int) -> None:
        """Raises ``OSError`` if the library is not built, or there are no descriptors."""
        self._lib = library()
        handle = self._lib.wire_new(max_frame_bytes, max_answer_bytes, in_flight)
        if not handle:
            raise OSError("the native transport has no descriptors: raise the limit on open files")
        self._handle: int = handle
        self._found = ctypes.c_void_p()
        self.wake_fd: int = self._lib.wire_wake_fd(handle)
        self.poll_fd: int = self._lib.wire_poll_fd(handle)

    def start(self) -> None:
        """Begin its thread; without it :meth:`turn` is called whenever ``poll_fd`` is readable."""
        self._lib.wire_start(self._handle)

    def turn(self) -> None:
        self._lib.wire_turn(self._handle)

    def free(self) -> None:
        """End it, and everything it has."""
        self._lib.wire_free(self._handle)

    def adopt(self, client: socket.socket, broker: bytes) -> int:
        """Take the socket over. ``broker``: see :func:`socket_address`."""
        number: int = self._lib.wire_adopt(self._handle, client.detach(), broker, len(broker))
        return number

    def table(
        self,
        treatments: Mapping[int, Treatment],
        offered: Mapping[int, range],
        names: Iterable[str],
        ids: Iterable[UUID],
    ) -> None:
        """From now on requests are told apart by these; see :class:`Treatment`. An API that is not
        there, or a version that is not offered, is Python's."""
        rules = (ctypes.c_int16 * (3 * APIS))()
        for key, treatment in treatments.items():
            versions = offered.get(key, range(0))
            rules[3 * key : 3 * key + 3] = [treatment, versions.start, versions.stop - 1]
        raw = [name.encode() for name in names]
        named = b"".join(len(name).to_bytes(2, "little") + name for name in raw)
        identities = b"".join(each.bytes for each in ids)
        self._lib.wire_table(self._handle, rules, named, len(named), identities, len(identities))

    def take(self) -> list[Message]:
        """What has happened for Python since the last call."""
        size = self._lib.wire_take(self._handle, self._found)
        if not size:
            return []
        raw = ctypes.string_at(self._found.value or 0, size)
        found, at = [], 0
        while at < size:
            kind, aux, connection, number, length = _HEAD.unpack_from(raw, at)
            at += _HEAD.size
            found.append(Message(kind, aux, connection, number, raw[at : at + length]))
            at += length
        return found

    def begun(self, connection: int) -> None:
        self._lib.wire_begun(self._handle, connection)

    def forward(self, connection: int, token: int, frame: bytes) -> bool:
        """``token`` 0: the broker does not answer it. False: the connection is gone."""
        gone: int = self._lib.wire_forward(self._handle, connection, token, frame, len(frame))
        return gone == 0

    def fill(self, connection: int, slot: int, answer: bytes | None) -> None:
        self._lib.wire_fill(self._handle, connection, slot, answer, len(answer or b""))

    def barrier(self, connection: int, token: int) -> bool:
        """False: the connection is gone."""
        gone: int = self._lib.wire_barrier(self._handle, connection, token)
        return gone == 0

    def mute(self, connection: int, muted: bool) -> None:
        self._lib.wire_mute(self._handle, connection, int(muted))

    def close(self, connection: int, *, cut_off: bool = False) -> None:
        self._lib.wire_close(self._handle, connection, int(cut_off))

    def passed(self) -> dict[int, int]:
        """Requests that have passed, by API."""
        counts = (ctypes.c_uint64 * APIS)()
        self._lib.wire_counters(self._handle, counts)
        return {key: count for key, count in enumerate(counts) if count}


def socket_address(host: str, port: int) -> bytes:
    """The ``sockaddr`` of an address. Raises ``OSError`` if the host is not known."""
    family, _, _, _, found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
    head = struct.pack("=H", family) + port.to_bytes(2, "big")
    packed = socket.inet_pton(family, str(found[0]).partition("%")[0])
    if family == socket.AF_INET6:
        scope = int(found[3]) if len(found) > 3 else 0
        return head + bytes(4) + packed + struct.pack("=I", scope)
    return head + packed + bytes(8)
