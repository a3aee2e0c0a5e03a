"""What the native library has for Python, as long as Python does not take it."""

from __future__ import annotations

import select
import socket
import threading
from collections import Counter

from tests.support.waiting import SOON_S, joined, until, until_still
from tideline.kafka.wire import Api, Kind, Limits, Message, Treatment, Wire

LOOKED_INTO = 10
ANSWER_BYTES = 1_048_576
UNTAKEN_BYTES = 4 * ANSWER_BYTES
"""``UNTAKEN`` of ``wire/src/engine.rs``."""
LIMITS = Limits(
    max_frame_bytes=2 * ANSWER_BYTES,
    max_answer_bytes=2 * ANSWER_BYTES,
    in_flight=64,
    first_frame_bytes=ANSWER_BYTES,
    stranger_frame_bytes=ANSWER_BYTES,
    sweep_s=1.0,
    stall_s=30.0,
    grace_s=10.0,
    half_frame_s=30.0,
    muted_s=60.0,
    idle_s=600.0,
)


def request(correlation: int) -> bytes:
    frame = LOOKED_INTO.to_bytes(2, "big") + bytes(2) + correlation.to_bytes(4, "big") + b"\0\1c"
    return len(frame).to_bytes(4, "big") + frame


def answer(correlation: int) -> bytes:
    frame = correlation.to_bytes(4, "big") + bytes(ANSWER_BYTES - 4)
    return len(frame).to_bytes(4, "big") + frame


def taken(wire: Wire) -> list[Message]:
    poll = select.poll()
    poll.register(wire.wake_fd, select.POLLIN)
    until("a message of the library", lambda: poll.poll(100), SOON_S)
    return wire.take()


def test_of_answers_that_python_looks_into_no_more_are_read_than_it_takes() -> None:
    """They count with nobody until it has them: a loop that is busy for a second, and whose clients
    all ask for Metadata, would have the answers of all of them in memory."""
    connections, each = 8, 4
    wire = Wire(LIMITS)
    wire.table({LOOKED_INTO: Api(Treatment.PASS, range(1), looks=True)}, ((), ()), ((), ()))
    wire.start()
    kept: list[socket.socket] = []
    sent: Counter[int] = Counter()
    sending: list[threading.Thread] = []

    def pair() -> tuple[socket.socket, socket.socket]:
        ours, theirs = socket.socketpair()
        kept.append(ours)
        theirs.setblocking(False)
        return ours, theirs

    def answers(broker: socket.socket, number: int) -> None:
        for correlation in range(each):
            left = memoryview(answer(correlation))
            while left:
                size = broker.send(left)
                sent[number] += size
                left = left[size:]

    try:
        for _ in range(connections):
            client, theirs = pair()
            number = wire.adopt(theirs)
            wire.shown(number)
            client.sendall(b"".join(map(request, range(each))))
            dial = next(m for m in taken(wire) if m.kind == Kind.DIAL)
            broker, theirs = pair()
            assert wire.joined(number, dial.number, theirs)
            sending.append(threading.Thread(target=answers, args=(broker, number), daemon=True))
        for thread in sending:
            thread.start()
        most = found = 0
        while found < connections * each:
            until_still("what is sent", sent.total, 0.05)
            sizes = [len(m.payload) for m in taken(wire) if m.kind == Kind.SLOT_ANSWER]
            most, found = max(most, sum(sizes)), found + len(sizes)
    finally:
        wire.free()
        for each_one in kept:
            each_one.close()
        for thread in sending:
            joined(thread)
    assert most <= UNTAKEN_BYTES + 2 * ANSWER_BYTES
