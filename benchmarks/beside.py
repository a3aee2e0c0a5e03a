"""What benchmarks of one gateway share: cases, ports, CPU time, a broker's versions, and tables."""

from __future__ import annotations

import os
import select
import socket
import ssl
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from typing import Any

from kio.schema.errors import ErrorCode

from tideline.demo.ledger import quantile
from tideline.gateway.context import ApiKey
from tideline.gateway.messages import NO_TIME, messages

HOST = "127.0.0.1"
START_S = 60.0


@dataclass(frozen=True, slots=True)
class Case:
    """One kind of traffic: ``window`` requests under way on each of ``connections``."""

    name: str
    api: ApiKey
    record_bytes: int
    """Of one batch of a partition, in the request (Produce) or the answer (Fetch)."""
    partitions: int = 1
    connections: int = 1
    window: int = 1
    requests: int = 2_000
    """Of one round."""
    batches: int = 1
    """Of a partition."""

    @property
    def at_once(self) -> int:
        return self.connections * self.window

    @property
    def bytes_each(self) -> int:
        return self.record_bytes * self.partitions * self.batches


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind((HOST, 0))
        return int(probe.getsockname()[1])


def cpu_s(pid: int) -> float:
    """CPU time of a process, in seconds: what the scheduler has counted for its threads."""
    return sum(
        int(Path(f"/proc/{pid}/task/{task}/schedstat").read_text().split()[0])
        for task in os.listdir(f"/proc/{pid}/task")
    ) / 1e9  # fmt: skip


def offered(version: int, produce: int, fetch: int, metadata: int) -> Any:
    """An ApiVersions answer of a broker that knows these APIs, up to these versions."""
    kind = messages(ApiKey.API_VERSIONS, version)
    ranges: Mapping[ApiKey, tuple[int, int]] = {
        ApiKey.PRODUCE: (3, produce),
        ApiKey.FETCH: (4, fetch),
        ApiKey.METADATA: (0, metadata),
        ApiKey.API_VERSIONS: (0, 4),
    }
    keys = tuple(
        kind.response_part("ApiVersion", api_key=int(key), min_version=low, max_version=high)
        for key, (low, high) in ranges.items()
    )
    return kind.response(error_code=ErrorCode.none, api_keys=keys, throttle_time=NO_TIME)


def spread(values: Sequence[float], form: str) -> str:
    """Median (lowest to highest)."""
    low, middle, high = min(values), statistics.median(values), max(values)
    return f"{middle:{form}} ({low:{form}} to {high:{form}})"


def fetch_request(kind: Any, topic_id: object, rows: Sequence[Any]) -> Any:
    """A Fetch without a session, of one topic's ``rows``."""
    topic = kind.request_part("FetchTopic", topic_id=topic_id, partitions=tuple(rows))
    return kind.request(
        max_wait=timedelta(milliseconds=500),
        min_bytes=1,
        max_bytes=55 * 1024 * 1024,
        isolation_level=0,
        session_id=0,
        session_epoch=-1,
        topics=(topic,),
        forgotten_topics_data=(),
        rack_id="",
    )


def produce_request(kind: Any, topic: Any) -> Any:
    """A Produce of all that one topic's part has, acks=all."""
    return kind.request(
        transactional_id=None, acks=-1, timeout=timedelta(seconds=30), topic_data=(topic,)
    )


def connected(port: int) -> socket.socket:
    """A connection that sends what it is given at once."""
    made = socket.create_connection((HOST, port))
    made.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return made


class _Client:
    """One connection that sends frames by the window and takes as many answers."""

    def __init__(
        self, port: int, frame: bytes, window: int, context: ssl.SSLContext | None
    ) -> None:
        self.socket = connected(port)
        if context is not None:
            self.socket = context.wrap_socket(self.socket, server_hostname=HOST)
        self._frame = len(frame).to_bytes(4, "big") + frame
        self._burst = self._frame * window
        self._buffer = bytearray(1 << 20)

    def begin(self, answer: int) -> None:
        """One request: a proxy has connected to its broker then."""
        self.socket.sendall(self._frame)
        self.take(answer)

    def send(self) -> None:
        self.socket.sendall(self._burst)

    def take(self, expected: int) -> None:
        left, view = expected, memoryview(self._buffer)
        while left:
            got = self.socket.recv_into(view[: min(left, len(view))])
            if not got:
                raise ConnectionError("the connection was closed")
            left -= got


def windows(
    port: int,
    frames: Sequence[bytes],
    answer: int,
    case: Case,
    context: ssl.SSLContext | None = None,
) -> list[float]:
    """One round of ``case`` on a connection for each of ``frames``, whose answers are of ``answer``
    bytes with their length; the latency of each window, in seconds. Connections are there before:
    Kafka keeps 50 that it has not accepted yet, and one beyond comes a second later."""
    clients = [_Client(port, frame, case.window, context) for frame in frames]
    taken: list[float] = []
    try:
        for client in clients:
            client.begin(answer)
        for _ in range(case.requests // case.at_once):
            began = time.perf_counter()
            for client in clients:
                client.send()
            waiting = {client.socket: client for client in clients}
            while waiting:
                for ready in select.select(list(waiting), [], [])[0]:
                    waiting.pop(ready).take(answer * case.window)
            taken.append(time.perf_counter() - began)
    finally:
        for client in clients:
            client.socket.close()
    return taken


@dataclass(slots=True)
class Way:
    name: str
    port: int
    pid: int | None
    """``None``: the broker itself, whose CPU time is not looked at."""
    compiles: bool = False
    """Whether it is slow at first."""
    cpu_us: dict[str, list[float]] = field(default_factory=dict)
    """By case: µs a request, of each round."""
    p50_ms: dict[str, list[float]] = field(default_factory=dict)
    p99_ms: dict[str, list[float]] = field(default_factory=dict)
    rate: dict[str, list[float]] = field(default_factory=dict)
    """Requests a second."""


def measure(
    ways: Sequence[Way],
    cases: Sequence[Case],
    rounds: int,
    drive: Callable[[Way, Case], list[float]],
    step: Callable[[str], None],
) -> None:
    """Each way in turn; the first round of each case warms up and does not count. ``drive``: one
    round, see :func:`windows`."""
    for case in cases:
        for number in range(rounds + 1):
            step(f"{case.name}: round {number} of {rounds}")
            for way in ways:
                before = cpu_s(way.pid) if way.pid else 0.0
                latencies = drive(way, case)
                if number == 0:
                    continue
                asked = len(latencies) * case.at_once
                used = (cpu_s(way.pid) if way.pid else 0.0) - before
                way.cpu_us.setdefault(case.name, []).append(used / asked * 1e6)
                way.p50_ms.setdefault(case.name, []).append(statistics.median(latencies) * 1e3)
                way.p99_ms.setdefault(case.name, []).append(quantile(latencies, 0.99) * 1e3)
                way.rate.setdefault(case.name, []).append(asked / sum(latencies))


def to_markdown(ways: Sequence[Way], cases: Sequence[Case]) -> str:
    """The report."""

    proxies = [way for way in ways if way.pid]
    head = (
        "| " + " | ".join(["CPU of the process, µs a request", *(w.name for w in proxies)]) + " |"
    )
    lines = [head, "| --- |" + " ---: |" * len(proxies)]
    for case in cases:
        cells = [spread(way.cpu_us[case.name], ".0f") for way in proxies]
        lines.append("| " + " | ".join([case.name, *cells]) + " |")
    lines += ["", "| MB a second of CPU |" + "".join(f" {w.name} |" for w in proxies)]
    lines.append("| --- |" + " ---: |" * len(proxies))
    for case in cases:
        if case.bytes_each >= 16_384:
            cells = [
                f"{case.bytes_each / statistics.median(way.cpu_us[case.name]):,.0f}"
                for way in proxies
            ]
            lines.append("| " + " | ".join([case.name, *cells]) + " |")
    for title, values in (("p50", [w.p50_ms for w in ways]), ("p99", [w.p99_ms for w in ways])):
        lines += ["", f"| {title} of a window, ms |" + "".join(f" {w.name} |" for w in ways)]
        lines.append("| --- |" + " ---: |" * len(ways))
        for case in cases:
            cells = [spread(found[case.name], ".2f") for found in values]
            lines.append("| " + " | ".join([case.name, *cells]) + " |")
    direct = next(way for way in ways if way.pid is None)
    lines += ["", "| throughput, share of direct |" + "".join(f" {w.name} |" for w in proxies)]
    lines.append("| --- |" + " ---: |" * len(proxies))
    for case in cases:
        cells = [
            spread([a / b for a, b in zip(w.rate[case.name], direct.rate[case.name], strict=True)],
                   ".2f")
            for w in proxies
        ]  # fmt: skip
        lines.append("| " + " | ".join([case.name, *cells]) + " |")
    return "\n".join(lines)
