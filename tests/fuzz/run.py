"""A gateway of an embedded stack among hostile clients, and stock ones beside them."""

from __future__ import annotations

import asyncio
import contextlib
import json
import socket
import statistics
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any
from uuid import UUID

from confluent_kafka import TopicCollection
from confluent_kafka.admin import AdminClient, NewTopic

from tests.fuzz.driver import Hostile
from tests.fuzz.frames import Names, framed, numbered
from tests.fuzz.healthy import Pair, Seen
from tests.fuzz.shrink import one_of, shrunk
from tests.fuzz.watch import BASE_BYTES, Log, Watched
from tests.support.waiting import HANGS_S, Wait, until
from tideline.demo.ledger import quantile
from tideline.stack import Stack

MEMORY = 268_435_456
"""The smallest bound that a gateway takes: it has to bite."""
SETTINGS = {"TIDELINE_GATEWAY_MEMORY_MAX_BYTES": str(MEMORY)}
PARTS = ("postgres", "s3", "temporal", "kafka", "gateway", "worker")
"""The worker lets topics be born diskless."""
SAID_WITHIN_S = 0.25
"""By a gateway, of a frame that it does not survive."""
BEFORE_RECORDS = 300
"""Acknowledged in each topic before the first hostile frame."""


@dataclass
class Result:
    seed: int
    seconds: float
    frames: int
    looked_at: int
    connections: dict[str, int]
    unconnected: int
    last_connection: int
    requests: dict[str, float]
    bounds: dict[str, float]
    rss_mib: tuple[float, float, float]
    """At the start, the highest, and the bound."""
    held_mib: float
    lateness_ms: tuple[float, float, float]
    """Of the event loop: median, p99, longest."""
    kept_waiting_s: float
    """By the machine, not by the gateway itself."""
    without_lease: int
    """Looks (two a second) that found no valid lease."""
    healthy: list[Seen]
    found: list[str]
    suspects: dict[str, list[str]] = field(default_factory=dict)
    """By client's address, the frames of the connections that the gateway's log names, in hex."""

    def save(self, path: Path) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(asdict(self), indent=1))

    def text(self) -> str:
        rows = [
            f"seed {self.seed}: {self.frames:,} frames in {self.seconds:.0f} s, of which "
            f"{self.looked_at:,} different ones were answered or ended their connection",
            "connections: "
            + ", ".join(f"{k} {v:,}" for k, v in self.connections.items())
            + f"; {self.unconnected} were refused",
            f"requests begun: {sum(self.requests.values()):,.0f}",
            "bounds reached: " + ", ".join(f"{k} {v:,.0f}" for k, v in self.bounds.items()),
            "memory: {:.0f} MiB at first, {:.0f} at most, bound {:.0f}".format(*self.rss_mib)
            + f"; held for others {self.held_mib:.0f} at most",
            "event loop late: p50 {:.1f} ms, p99 {:.0f} ms, longest {:.0f} ms".format(
                *self.lateness_ms
            )
            + f"; the machine kept it waiting for {self.kept_waiting_s:.0f} s in all; "
            f"{self.without_lease} looks without a valid lease",
        ]
        rows += [
            f"{s.topic}: {s.acknowledged:,} acknowledged, {s.consumed:,} consumed; acknowledged "
            "within p50 {:.0f} ms, p99 {:.0f} ms before, ".format(*s.before_ms)
            + "p50 {:.0f}, p99 {:.0f}, longest {:.0f} ms among hostile clients".format(*s.during_ms)
            for s in self.healthy
        ]
        return "\n".join([*rows, *(f"FOUND {what}" for what in self.found)])


def narrowed(stack: Stack, suspects: dict[str, list[str]]) -> list[str]:
    """Of each connection that the log named, the smallest single frame, in hex, that shows a
    traceback again; for tests/fuzz/found.py."""
    host, _, port = stack.endpoints.gateways[1].rpartition(":")
    log = Log(stack.log_path("gateway-1"))

    def shows(frame: bytes) -> bool:
        log.found()
        with socket.create_connection((host, int(port)), timeout=2) as connection:
            connection.sendall(framed(numbered(frame, 0)))
            with contextlib.suppress(OSError):
                connection.recv(1)
        wait = Wait("a line of the log", SAID_WITHIN_S)  # written behind the connection's end
        while not (said := any(found.clients for found in log.found())) and not wait.over:
            wait.pause()
        return said

    frames = (one_of([bytes.fromhex(f) for f in each], shows) for each in suspects.values())
    return [shrunk(frame, shows).hex() for frame in frames if frame is not None]


def created(stack: Stack, *names: str) -> dict[str, UUID]:
    """Topics of two partitions by name; ``…-diskless`` are born so. Their ids."""
    admin = AdminClient({"bootstrap.servers": stack.endpoints.gateway_bootstrap})
    there = admin.list_topics(timeout=HANGS_S).topics
    wanted = [
        NewTopic(
            name, 2, 1, config={"diskless.enable": "true"} if name.endswith("diskless") else {}
        )
        for name in names
        if name not in there
    ]
    for made in (admin.create_topics(wanted) if wanted else {}).values():
        made.result(HANGS_S)

    def ids() -> dict[str, UUID] | None:
        found = admin.describe_topics(TopicCollection(list(names)))
        try:
            return {name: _uuid(future.result(HANGS_S).topic_id) for name, future in found.items()}
        except Exception:
            return None

    return until("the topics to be told", ids)


def _uuid(told: Any) -> UUID:
    most, least = told.get_most_significant_bits(), told.get_least_significant_bits()
    return UUID(int=((most & (2**64 - 1)) << 64) | (least & (2**64 - 1)))


def run(
    stack: Stack,
    seed: int,
    *,
    frames: int,
    seconds: float,
    at_once: int = 32,
    first: int = 0,
    progress: Callable[[str], None] = print,
) -> Result:
    """Raises nothing for what it finds: see :attr:`Result.found`."""
    healthy = ("healthy-classic", "healthy-diskless")
    ids = created(stack, "fuzz-classic", "fuzz-diskless", *healthy)
    names = Names(topic_ids=(ids["fuzz-classic"], ids["fuzz-diskless"]))
    pairs = [Pair(stack.endpoints.gateway_bootstrap, name, (0, 1)) for name in healthy]
    for pair in pairs:
        pair.start()
    until("the stock clients to be at work", lambda: all(
        pair.acknowledged >= BEFORE_RECORDS for pair in pairs
    ))  # fmt: skip
    pid = stack.pid("gateway-1")
    watched = Watched(
        pid,
        stack.pid("kafka-1"),
        stack.endpoints.metrics["gateway-1"],
        stack.log_path("gateway-1"),
        0,
    )
    watched.bound_bytes = watched.first_rss + MEMORY + BASE_BYTES
    host, _, port = stack.endpoints.gateways[1].rpartition(":")
    hostile = Hostile(
        (host, int(port)),
        seed,
        names,
        frames=frames,
        seconds=seconds,
        at_once=at_once,
        first=first,
        progress=progress,
    )
    watched.start()
    for pair in pairs:
        pair.attacked()
    began = time.monotonic()
    try:
        asyncio.run(hostile.run())
    finally:
        took = time.monotonic() - began
        seen = [pair.end() for pair in pairs]
        watched.stop()
    found = [f.what for f in watched.found]
    if stack.pid("gateway-1") != pid:
        found.append("the gateway is another process")
    found += [f"{s.topic}: {wrong}" for s in seen for wrong in s.wrong]
    suspects = {
        client: [frame.hex() for frame in hostile.recent[client]]
        for f in watched.found
        for client in f.clients
        if client in hostile.recent
    }
    late = [1000 * s for s in watched.lateness_s]
    return Result(
        seed,
        took,
        hostile.sent,
        hostile.looked_at,
        dict(hostile.by_kind),
        hostile.unconnected,
        first + sum(hostile.by_kind.values()),
        watched.counted("inkless_gateway_requests_total"),
        watched.counted("inkless_gateway_bound_reached_total"),
        (watched.first_rss / 2**20, watched.highest_rss / 2**20, watched.bound_bytes / 2**20),
        watched.highest_held / 2**20,
        (statistics.median(late or [0]), quantile(late, 0.99), max(late, default=0.0)),
        watched.kept_waiting_s,
        watched.without_lease,
        seen,
        found,
        suspects,
    )
