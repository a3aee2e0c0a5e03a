"""The native pass path, called by ``ctypes`` (docs/decisions/0034-a-native-pass-path.md).

What is here has no rules: it makes numbers and bytes of Python's those of the library, and back.
"""

from __future__ import annotations

import ctypes
import socket
import ssl
import struct
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, fields
from enum import IntEnum
from functools import cache
from typing import Any, NamedTuple
from uuid import UUID

from tideline import __version__
from tideline.errors import UsageError
from tideline.installation import native_library
from tideline.kafka.named_topics import NamedKey
from tideline.kafka.wire_tls import TlsRules, linked_to_openssl

LIBRARY = native_library()
ABI = 3
"""As in ``wire/src/abi.rs``: who changes the border counts it on in both places."""
REMEDY = "In a source tree `make setup` builds it; a wheel carries it"
APIS, BOUNDS = 128, 2
_HEAD = struct.Struct("=IIQQQQ")
_KEY = struct.Struct("=BH")
_NO_ACKS = -(2**63)
_ROOM = 262_144
_WHY = 512
_BY_MS = 1000
_GONE = -1


class LibraryMissing(UsageError):
    """The native library is not there, or is another one, or there is no OpenSSL for it."""


class Treatment(IntEnum):
    """What becomes of the requests of one API."""

    PYTHON = 0
    PASS = 1
    PASS_BY_TOPICS = 2
    """They pass if all topics that they name are classic, and those of their fetch session."""


class Api(NamedTuple):
    """How requests of one API, and their answers, are treated."""

    treatment: Treatment
    versions: range
    looks: bool
    """Python looks into each answer."""


class Kind(IntEnum):
    """Of messages."""

    FRAME = 1
    """A request that is Python's; its number is that of its slot."""
    ANSWER = 2
    """Of what was forwarded with this number."""
    SLOT_ANSWER = 3
    """Of a request that passed, to be looked into: the client's id as in a request, then the
    answer. ``aux``: API and version."""
    LOST = 4
    """The broker's connection has ended before it answered what was forwarded with this number, and
    the client is owed nothing."""
    ENDED = 5
    """``aux``: :class:`Cause`. Nothing is taken in any more."""
    GONE = 6
    """Both sockets are closed; the connection's number means nothing any more."""
    DIAL = 7
    """The broker's connection is wanted, by this number."""
    DROPPED = 8
    """The broker's connection has ended, and the client keeps its own."""
    HELD = 9
    """In the places of connection and number: bytes of requests, and of answers."""
    LONG_FIRST = 10
    """A stranger begins with a request of so many bytes, of which these are the first."""
    LEFT = 11
    """The client has ended its side. What came before goes on, once it is begun."""
    SHAKEN = 12
    """The client's TLS handshake is done; nothing that it sends is looked at before
    :meth:`Wire.begun`. The payload says version and cipher."""


class Cause(IntEnum):
    """Why a connection ended."""

    CLIENT = 0
    BROKER = 1
    ANSWER = 2
    """The broker sent more than may be taken."""
    BOUND = 3
    PYTHON = 4
    DEFECT = 5


class Encrypted(IntEnum):
    """Which connections."""

    WITH_CLIENTS = 0
    WITH_BROKERS = 1


class Close(IntEnum):
    """How the client's side ends."""

    FLUSH = 0
    CUT_OFF = 1
    HAND_OVER = 2
    """Our side ends; what the client still sends is read until it ends its own."""


@dataclass(frozen=True, slots=True)
class Limits:
    """Bounds of one engine, in the order of ``Limits`` in ``wire/src/engine.rs``. What they mean is
    said in :mod:`tideline.gateway.transport.server` and the settings."""

    max_frame_bytes: int
    max_answer_bytes: int
    in_flight: int
    first_frame_bytes: int
    stranger_frame_bytes: int
    sweep_s: float
    stall_s: float
    grace_s: float
    half_frame_s: float
    muted_s: float
    idle_s: float

    def numbers(self) -> list[int]:
        values = (getattr(self, each.name) for each in fields(self))
        return [int(v * _BY_MS) if isinstance(v, float) else v for v in values]


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
    """Raises :class:`LibraryMissing` if it is not there, or of another version."""
    try:
        found = ctypes.CDLL(str(LIBRARY))
    except OSError as error:
        raise LibraryMissing(
            f"gateways need the native library, which cannot be loaded: {error}. {REMEDY}"
        ) from error
    told = _version_of(found)
    wanted = f"version {__version__} with border {ABI}"
    if told != wanted:
        raise LibraryMissing(
            f"the native library {LIBRARY} is {told}: {wanted} is needed, of the same version as "
            f"the Python beside it. {REMEDY}"
        )
    handle, number, size = ctypes.c_void_p, ctypes.c_uint64, ctypes.c_size_t
    integer, data = ctypes.c_int, ctypes.c_char_p
    calls: dict[str, tuple[object, list[object]]] = {
        "wire_new": (handle, [handle]),
        "wire_start": (integer, [handle]),
        "wire_free": (None, [handle]),
        "wire_wake_fd": (integer, [handle]),
        "wire_adopt": (number, [handle, integer, number]),
        "wire_openssl": (integer, [data, number, data, size]),
        "wire_encrypt": (integer, [handle, integer, ctypes.POINTER(TlsRules), data, size]),
        "wire_table": (None, [handle, handle, *[data, size] * 4]),
        "wire_take": (size, [handle, ctypes.POINTER(ctypes.c_void_p)]),
        "wire_read": (None, [handle]),
        "wire_room": (None, [handle, integer, number]),
        "wire_begun": (integer, [handle, number]),
        "wire_shown": (integer, [handle, number]),
        "wire_bind": (integer, [handle, number]),
        "wire_hide": (integer, [handle, number]),
        "wire_joined": (integer, [handle, number, number, integer, data, number]),
        "wire_not_joined": (integer, [handle, number, number, data, size]),
        "wire_forward": (integer, [handle, number, number, ctypes.c_uint32, data, size]),
        "wire_fill": (integer, [handle, number, number, data, size]),
        "wire_session": (integer, [handle, number, ctypes.c_int32, integer, *[data, size] * 2]),
        "wire_mute": (integer, [handle, number, integer]),
        "wire_drain": (integer, [handle, number]),
        "wire_idle": (integer, [handle, number]),
        "wire_is_joined": (integer, [handle, number]),
        "wire_close": (integer, [handle, number, integer]),
        "wire_counters": (None, [handle, handle]),
        "wire_way": (integer, [handle, number, data, size]),
        "wire_walk": (integer, [data, size, handle, size, handle]),
        "wire_answer": (integer, [data, size, ctypes.c_int16, ctypes.c_int16]),
        "wire_records": (integer, [handle, size, handle, handle]),
    }
    for name, (result, arguments) in calls.items():
        call = getattr(found, name)
        call.restype, call.argtypes = result, arguments
    return found


@cache
def library_with_the_lock() -> ctypes.PyDLL:
    """The calls that keep the interpreter's lock: to get it back from a thread that computes takes
    up to ``sys.getswitchinterval()``, 5 ms. Raises as :func:`library` does."""
    # The one that was looked at, whatever lies in its place by now.
    found = ctypes.PyDLL(str(LIBRARY), handle=library()._handle)
    size, data, rows = ctypes.c_size_t, ctypes.c_char_p, ctypes.c_void_p
    long, short = ctypes.c_int64, ctypes.c_int16
    found.wire_look.restype = long
    found.wire_look.argtypes = [data, size, long, short, long, rows, size]
    found.wire_records.restype = library().wire_records.restype
    found.wire_records.argtypes = library().wire_records.argtypes
    return found


def _version_of(found: ctypes.CDLL) -> str:
    try:
        abi, version = found.wire_abi, found.wire_version
    except AttributeError:
        return "one without a version"
    abi.restype, version.restype = ctypes.c_uint32, ctypes.c_char_p
    return f"version {version().decode()} with border {abi()}"


def find_openssl() -> None:
    """Let the library have the OpenSSL of :mod:`ssl`. Raises :class:`LibraryMissing`."""
    why = ctypes.create_string_buffer(_WHY)
    path, version = linked_to_openssl(), ssl.OPENSSL_VERSION_NUMBER
    if path is None:
        raise _without_openssl("Python's module ssl is built into Python")
    if library().wire_openssl(path, version, why, _WHY) < 0:
        raise _without_openssl(_text(why))


# -- the walks


class MalformedHeader(Exception):
    """The native walk does not take the header."""


def walked_request(frame: bytes) -> WalkedRequest | None:
    """The native :func:`tideline.kafka.named_topics.named_topics`. Raises
    :class:`MalformedHeader`."""
    result, keys, told = _walked(frame)
    if result == -1:
        return None
    assert result == 0, "more keys than may be walked"
    return WalkedRequest(list(_keys(keys[: told[0]])), told[1], told[2])


def _keys(raw: bytes) -> Iterator[NamedKey]:
    at = 0
    while at < len(raw):
        kind, size = _KEY.unpack_from(raw, at)
        at += _KEY.size
        value, at = raw[at : at + size], at + size
        yield None if kind == 2 else UUID(bytes=value) if kind == 1 else value.decode()


def walked_acks(frame: bytes) -> int | None:
    """The native :func:`tideline.kafka.protocol.produce_acks`; ``None``: Python has to look."""
    acks = _walked(frame)[2][3]
    return None if acks == _NO_ACKS else acks


def fetch_most_at(frame: bytes) -> int | None:
    """Where a Fetch says how many bytes it wants; ``None``: the frame does not say."""
    at = _walked(frame)[2][4]
    return None if at < 0 else at


def _walked(frame: bytes) -> tuple[int, bytes, list[int]]:
    """What ``wire_walk`` says, with room for keys, and the numbers that it tells."""
    keys, told = (ctypes.c_char * _ROOM)(), (ctypes.c_int64 * 5)()
    result = library().wire_walk(frame, len(frame), keys, _ROOM, told)
    if result == -2:
        raise MalformedHeader
    return result, keys.raw, list(told)


def answer_passes(frame: bytes, api_key: int, version: int) -> bool:
    """Whether an answer goes to its client as it came, by the native walk."""
    return bool(library().wire_answer(frame, len(frame), api_key, version))


# -- connections


class _Freed:
    """In the place of the library once there is no engine any more."""

    def __getattr__(self, name: str) -> Callable[..., int]:
        return lambda *_: _GONE


class Wire:
    """One engine and its connections. Every call is a step; none waits for a socket."""

    def __init__(self, limits: Limits) -> None:
        """Raises :class:`LibraryMissing`, and ``OSError`` if the process has no descriptors."""
        self._lib: Any = library()
        numbers = limits.numbers()
        self._handle = self._lib.wire_new((ctypes.c_uint64 * len(numbers))(*numbers))
        if not self._handle:
            raise OSError("no descriptor is left for the native transport: raise the limit")
        self._found = ctypes.c_void_p()
        self.wake_fd: int = self._lib.wire_wake_fd(self._handle)
        """Readable when there is something to :meth:`take`."""

    def start(self) -> None:
        """Begin the thread that runs it. Raises ``OSError`` if there can be none."""
        if self._lib.wire_start(self._handle):
            raise OSError("no thread for the native transport can be started: raise the limit")

    def free(self) -> None:
        """End everything, at once. Calls that come later find no connection."""
        library, self._lib = self._lib, _Freed()
        library.wire_free(self._handle)

    def adopt(self, client: socket.socket, handshake_s: float = 0.0) -> int:
        """The number of its connection; the socket is the library's from now on. ``handshake_s``:
        within how long the client has to have shaken hands; 0: it is plain. 0: a defect, or no
        memory for what encrypts it."""
        within = int(handshake_s * _BY_MS)
        number: int = self._lib.wire_adopt(self._handle, client.detach(), within)
        return number

    def encrypt(self, which: Encrypted, rules: TlsRules) -> None:
        """Connections from now on are encrypted so. Raises ``OSError``, in OpenSSL's words, and
        then it stays as it was; and :class:`LibraryMissing` if there is no OpenSSL for it."""
        find_openssl()
        why = ctypes.create_string_buffer(_WHY)
        if self._lib.wire_encrypt(self._handle, which, ctypes.byref(rules), why, _WHY) < 0:
            raise OSError(_text(why))

    def table(
        self,
        apis: Mapping[int, Api],
        joined: tuple[Iterable[str], Iterable[UUID]],
        left: tuple[Iterable[str], Iterable[UUID]],
    ) -> None:
        """From now on requests are treated so, and these topics count as tracked, and these not
        any more. APIs that are not named are Python's."""
        rules = (ctypes.c_int16 * (4 * APIS))()
        for key, api in apis.items():
            if 0 <= key < APIS:
                bounds = api.versions.start, api.versions.stop - 1
                rules[4 * key : 4 * key + 4] = [api.treatment, *bounds, int(api.looks)]
        more, less = _topics(*joined), _topics(*left)
        self._lib.wire_table(self._handle, rules, *more, *less)

    def take(self) -> list[Message]:
        """What has happened for Python since the last call."""
        size = self._lib.wire_take(self._handle, self._found)
        if size <= 0:
            return []
        raw = ctypes.string_at(self._found.value or 0, size)
        found, at, large = [], 0, False
        while at < size:
            kind, aux, connection, number, length, place = _HEAD.unpack_from(raw, at)
            at += _HEAD.size
            if place:
                payload, large = ctypes.string_at(place, length), True
            else:
                payload, at = raw[at : at + length], at + length
            found.append(Message(kind, aux, connection, number, payload))
        if large:
            self._lib.wire_read(self._handle)
        return found

    def room(self, full: bool, allowance: int) -> None:
        """Python has room for ``allowance`` bytes that the library holds before it asks; ``full``:
        clients are not read until further notice."""
        self._lib.wire_room(self._handle, int(full), allowance)

    def begun(self, connection: int) -> None:
        """What came behind a frame that Python was given may begin."""
        self._lib.wire_begun(self._handle, connection)

    def shown(self, connection: int) -> None:
        """It is a client: what it sends may pass."""
        self._lib.wire_shown(self._handle, connection)

    def hide(self, connection: int) -> None:
        """What it sends is Python's until it is :meth:`shown` again."""
        self._lib.wire_hide(self._handle, connection)

    def bind(self, connection: int) -> None:
        """Its client ends with its connection to the broker."""
        self._lib.wire_bind(self._handle, connection)

    def joined(
        self,
        connection: int,
        number: int,
        broker: socket.socket,
        name: str | None = None,
        handshake_s: float = 0.0,
    ) -> bool:
        """The connection that was wanted by :attr:`Kind.DIAL`; False: not any more, and it is
        closed. ``name``: what the broker's certificate has to be for, within ``handshake_s``;
        ``None``: it is plain. Raises ``UnicodeError`` if a name cannot be one."""
        told = None if name is None else name.encode("idna")
        within = int(handshake_s * _BY_MS)
        made: int = self._lib.wire_joined(
            self._handle, connection, number, broker.detach(), told, within
        )
        return made == 0

    def not_joined(self, connection: int, number: int, reason: str) -> None:
        """There is none."""
        raw = reason.encode("utf-8", "replace")
        self._lib.wire_not_joined(self._handle, connection, number, raw, len(raw))

    def forward(
        self,
        connection: int,
        token: int,
        frame: bytes,
        *,
        own: bool = False,
        if_joined: bool = False,
    ) -> bool:
        """Whether it was sent. ``token`` 0: the broker does not answer it. ``own``: no client waits
        for the answer. ``if_joined``: only if there is a connection to the broker."""
        how = int(own) | int(if_joined) << 1
        told: int = self._lib.wire_forward(self._handle, connection, token, how, frame, len(frame))
        return told == 0

    def fill(self, connection: int, slot: int, answer: bytes | None) -> None:
        self._lib.wire_fill(self._handle, connection, slot, answer, len(answer or b""))

    def session(self, connection: int, session: int, topics: Iterable[NamedKey] | None) -> None:
        """A fetch session of Kafka's has these topics, or is not known any more."""
        keys = [] if topics is None else list(topics)
        raw = _topics(
            [key for key in keys if isinstance(key, str)],
            [key for key in keys if isinstance(key, UUID)],
        )
        self._lib.wire_session(self._handle, connection, session, int(topics is not None), *raw)

    def mute(self, connection: int, muted: bool) -> None:
        self._lib.wire_mute(self._handle, connection, int(muted))

    def drain(self, connection: int) -> None:
        """Read no more of its client; what has arrived goes on."""
        self._lib.wire_drain(self._handle, connection)

    def is_idle(self, connection: int) -> bool:
        """Whether nothing is owed to its client, also because it is gone."""
        told: int = self._lib.wire_idle(self._handle, connection)
        return told <= 0

    def is_joined(self, connection: int) -> bool:
        """Whether it has a connection to the broker, or one is being opened. Also if that cannot be
        said: who asks waits then for its end, which is told next, and takes nothing for served."""
        told: int = self._lib.wire_is_joined(self._handle, connection)
        return told <= 0

    def close(self, connection: int, how: Close = Close.FLUSH) -> None:
        self._lib.wire_close(self._handle, connection, int(how))

    def counters(self) -> tuple[list[int], list[int]]:
        """By API: requests that have passed; and how often a client was not read for its requests
        in flight, and for the answers that it did not take."""
        counts = (ctypes.c_uint64 * (APIS + BOUNDS))()
        self._lib.wire_counters(self._handle, counts)
        return counts[:APIS], counts[APIS:]

    def passes(self, connection: int, frame: bytes) -> bool:
        """Whether a request of the connection would pass now."""
        told: int = self._lib.wire_way(self._handle, connection, frame, len(frame))
        return told > 0


def _without_openssl(reason: str) -> LibraryMissing:
    return LibraryMissing(
        "TLS of a gateway needs the OpenSSL that Python's module ssl has loaded: "
        f"{reason}, {sys.executable} with {ssl.OPENSSL_VERSION}. Use a Python that is linked to "
        "OpenSSL's shared library, as those of Linux distributions are"
    )


def _text(why: ctypes.Array[ctypes.c_char]) -> str:
    return why.value.decode("utf-8", "replace")


def _topics(names: Iterable[str], ids: Iterable[UUID]) -> tuple[bytes, int, bytes, int]:
    raw = (name.encode() for name in names)
    named = b"".join(len(name).to_bytes(2, sys.byteorder) + name for name in raw)
    identities = b"".join(each.bytes for each in ids)
    return named, len(named), identities, len(identities)
