"""What the suffix costs a gateway: `python -m benchmarks.suffix_path`.

One gateway process as production runs it, with a Postgres of its own and the embedded stack's S3
server beside it, both on loopback; only the broker is a fake that knows who may do what and nothing
else. CPU time is that of the gateway's process, all its threads, so that what Postgres, the S3
server and the client take does not count. Figures are medians of rounds in which every way has its
turn: this tree, and another one of the same project (``--tree``).
"""

from __future__ import annotations

import argparse
import asyncio
import cProfile
import os
import signal
import socket
import statistics
import struct
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from typing import Any
from uuid import UUID, uuid4

import crc32c
from aiokafka.record.default_records import DefaultRecordBatchBuilder
from kio.schema.errors import ErrorCode

from benchmarks import beside
from benchmarks.beside import (
    HOST,
    START_S,
    cpu_s,
    fetch_request,
    free_port,
    offered,
    produce_request,
    spread,
)
from benchmarks.s3_alone import s3_alone
from benchmarks.throwaway import throwaway
from tideline.control_plane import connect
from tideline.control_plane.migrate import apply
from tideline.control_plane.model import TrackingKind
from tideline.gateway.context import ApiKey
from tideline.gateway.messages import NO_TIME, messages
from tideline.kafka.framing import FrameProtocol
from tideline.kafka.protocol import (
    decode_request,
    decode_response,
    encode_request,
    encode_response,
    parse_header,
)
from tideline.settings import ControlPlaneSettings
from tideline.stack.parts.kafka import new_cluster_id
from tideline.stack.signals import end_as_by_ctrl_c

PARTITIONS = 6
PRODUCE_VERSION, FETCH_VERSION, METADATA_VERSION = 12, 17, 12
MAY_DO_ALL = 0b1111_1111_1000
"""Bits of ``AclOperation``, as Metadata tells a client's rights."""
RECORD_BYTES = 1_000
"""Of a value, in batches that hold several."""
MEBIBYTE = 1024 * 1024
POSTGRES = {"max_connections": "60", "shared_buffers": "64MB"}
CLUSTER_ID = new_cluster_id()


@dataclass(frozen=True, slots=True)
class Case(beside.Case):
    """Its batches are of about so many bytes; the next request names the next partitions. Fetch:
    all that are asked for."""

    requests: int = 300
    behind: bool = False
    """Fetch: not the newest records, but all of the log again."""


CASES = (
    Case("produce 1 record of 100 B, one at a time", ApiKey.PRODUCE, 170),
    Case("produce 1 KB, 32 in flight", ApiKey.PRODUCE, 1_000, window=32, requests=2_560),
    Case("produce 16 KB, one at a time", ApiKey.PRODUCE, 16_384),
    Case(
        "produce 16 KB, 256 in flight on 8 connections",
        ApiKey.PRODUCE, 16_384, connections=8, window=32, requests=2_048,
    ),
    Case(
        "produce 6 × 16 KB, 64 in flight on 8 connections",
        ApiKey.PRODUCE, 16_384, partitions=6, connections=8, window=8, requests=512,
    ),
    Case("fetch 16 KB, just written", ApiKey.FETCH, 16_384),
    Case("fetch 6 × 10 × 16 KB, in the cache", ApiKey.FETCH, 16_384, 6, batches=10, behind=True),
)  # fmt: skip


# -- the broker's process


class _FakeBroker(FrameProtocol):
    """Names itself, the topic and everybody's rights."""

    def __init__(self, topic: str, topic_id: UUID, port: Callable[[], int]) -> None:
        super().__init__(200_000_000)
        self._topic, self._topic_id, self._port = topic, topic_id, port

    def frame_received(self, frame: bytes) -> None:
        header = parse_header(frame)
        version = header.api_version
        if header.api_key == ApiKey.API_VERSIONS:
            self.send_frame(
                encode_response(
                    offered(version, PRODUCE_VERSION, FETCH_VERSION, METADATA_VERSION),
                    header.correlation_id,
                )
            )
        elif header.api_key == ApiKey.METADATA:
            asked: Any = decode_request(frame, header)
            named = asked.topics is None or any(
                topic.name == self._topic or topic.topic_id == self._topic_id
                for topic in asked.topics
            )
            self.send_frame(encode_response(self._metadata(version, named), header.correlation_id))
        elif self.transport is not None:
            self.transport.abort()

    def _metadata(self, version: int, named: bool) -> Any:
        kind = messages(ApiKey.METADATA, version)
        rows = tuple(
            kind.response_part(
                "MetadataResponsePartition",
                error_code=ErrorCode.none,
                partition_index=n,
                leader_id=1,
                leader_epoch=0,
                replica_nodes=(1,),
                isr_nodes=(1,),
                offline_replicas=(),
            )
            for n in range(PARTITIONS)
        )
        topic = kind.response_part(
            "MetadataResponseTopic",
            error_code=ErrorCode.none,
            name=self._topic,
            topic_id=self._topic_id,
            is_internal=False,
            partitions=rows,
            topic_authorized_operations=MAY_DO_ALL,
        )
        broker = kind.response_part(
            "MetadataResponseBroker", node_id=1, host=HOST, port=self._port(), rack=None
        )
        return kind.response(
            throttle_time=NO_TIME,
            brokers=(broker,),
            cluster_id=CLUSTER_ID,
            controller_id=1,
            topics=(topic,) if named else (),
            cluster_authorized_operations=0,
            error_code=ErrorCode.none,
        )


@contextmanager
def _broker(topic: str, topic_id: UUID) -> Iterator[int]:
    """The port of a broker in another process."""
    process = subprocess.Popen(
        [sys.executable, "-m", "benchmarks.suffix_path", "--role", "broker",
         "--topic", topic, "--topic-id", str(topic_id)],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
    )  # fmt: skip
    assert process.stdout is not None
    try:
        yield int(process.stdout.readline())
    finally:
        process.terminate()
        process.wait()


def serve_broker(topic: str, topic_id: UUID) -> None:
    """Say the port, then serve until the end of stdin."""

    async def run() -> None:
        port = 0
        loop = asyncio.get_running_loop()
        server = await loop.create_server(
            lambda: _FakeBroker(topic, topic_id, lambda: port), HOST, 0
        )
        port = int(server.sockets[0].getsockname()[1])
        print(port, flush=True)
        await loop.run_in_executor(None, sys.stdin.read)

    asyncio.run(run())


# -- what runs beside the gateway


async def _make_topic(dsn: str, topic: str, topic_id: UUID) -> None:
    """Born diskless, so that all of it is suffix."""
    settings = ControlPlaneSettings.model_validate({"postgres_dsn": dsn})
    async with connect(settings, application_name="suffix-path") as plane:
        await plane.begin_tracking(
            topic, topic_id, TrackingKind.BORN_DISKLESS, PARTITIONS, "CreateTime", 1_048_588
        )
        await plane.activate_topic(topic)


@contextmanager
def _gateway(
    environment: dict[str, str], tree: Path | None, profile: Path | None
) -> Iterator[tuple[int, int]]:
    """(process id, port) of a gateway, of another tree if one is given."""
    port = free_port()
    own = {
        "TIDELINE_GATEWAY_ID": "1",
        "TIDELINE_GATEWAY_BROKER_ID": "1",
        "TIDELINE_GATEWAY_LISTEN": f"{HOST}:{port}",
        "TIDELINE_GATEWAY_ADVERTISED": f"{HOST}:{port}",
        "TIDELINE_GATEWAY_PEERS": f"1={HOST}:{port}",
        "TIDELINE_METRICS_ADDRESS": f"{HOST}:{free_port()}",
    }
    program = ["-m", "tideline.gateway"]
    if profile is not None:
        program = ["-m", "benchmarks.suffix_path", "--role", "gateway", "--profile", str(profile)]
    paths = {"PYTHONPATH": str(tree)} if tree else {}
    with Path(environment["TIDELINE_HOME"], f"gateway-{port}.log").open("wb") as log:
        process = subprocess.Popen(
            [sys.executable, *program],
            env=os.environ | paths | environment | own, cwd=tree, stdout=log, stderr=log,
        )  # fmt: skip
    try:
        deadline = time.monotonic() + START_S
        while True:
            with suppress(ConnectionRefusedError):
                socket.create_connection((HOST, port)).close()
                break
            if process.poll() is not None or time.monotonic() > deadline:
                raise RuntimeError(Path(log.name).read_text())
            time.sleep(0.1)
        yield process.pid, port
    finally:
        process.send_signal(signal.SIGTERM)
        process.wait(timeout=60)


def serve_profiled(profile: Path) -> int:
    """The gateway's program, with what its event loop's thread takes CPU time for written down."""
    from tideline.gateway import __main__ as program

    profiler = cProfile.Profile(time.thread_time)
    serve = program.serve

    async def served(
        settings: Any, directory: Any, standing: Any, ends: Any = lambda: None
    ) -> None:
        profiler.enable()
        await serve(settings, directory, standing, ends)

    program.serve = served
    try:
        return program.main()
    finally:
        profiler.dump_stats(profile)


# -- the client


_SEQUENCE_AT, _CRC_AT, _ATTRIBUTES_AT, _PRODUCER_AT = 53, 17, 21, 43


class _Batches:
    """Batches of an idempotent producer of its own."""

    _ids = count(int(time.time()) * 1_000)

    def __init__(self, size: int) -> None:
        now = int(time.time() * 1000)
        value = os.urandom(min(max(size - 75, 1), RECORD_BYTES))
        self.records = max(1, size // (RECORD_BYTES + 10))
        builder = DefaultRecordBatchBuilder(
            magic=2, compression_type=0, is_transactional=False, producer_id=next(self._ids),
            producer_epoch=0, base_sequence=0, batch_size=1 << 30,
        )  # fmt: skip
        for n in range(self.records):
            builder.append(n, now, None, value, [])
        self._batch = bytearray(builder.build())
        self._next = [0] * PARTITIONS

    def take(self, partition: int) -> bytes:
        """The next one of its partition."""
        batch = self._batch
        struct.pack_into(">i", batch, _SEQUENCE_AT, self._next[partition])
        self._next[partition] += self.records
        struct.pack_into(">I", batch, _CRC_AT, crc32c.crc32c(memoryview(batch)[_ATTRIBUTES_AT:]))
        return bytes(batch)


class _Client:
    """One connection that sends a window of requests and takes as many answers."""

    def __init__(self, port: int, case: Case, topic: str, topic_id: UUID, number: int) -> None:
        self.socket = socket.create_connection((HOST, port))
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._case, self._topic, self._topic_id = case, topic, topic_id
        self._file = self.socket.makefile("rb")
        self._correlation = count()
        self._batches = _Batches(case.record_bytes)
        self._turn = number

    def _produce(self) -> bytes:
        kind = messages(ApiKey.PRODUCE, PRODUCE_VERSION)
        rows = []
        for _ in range(self._case.partitions):
            partition = self._turn % PARTITIONS
            self._turn += 1
            rows.append(
                kind.request_part(
                    "PartitionProduceData", index=partition, records=self._batches.take(partition)
                )
            )
        topic = kind.request_part("TopicProduceData", name=self._topic, partition_data=tuple(rows))
        return encode_request(produce_request(kind, topic), next(self._correlation), "suffix-path")

    def _fetch(self, offsets: dict[int, int]) -> bytes:
        kind = messages(ApiKey.FETCH, FETCH_VERSION)
        rows = tuple(
            kind.request_part(
                "FetchPartition",
                partition=partition,
                current_leader_epoch=-1,
                fetch_offset=offset,
                last_fetched_epoch=-1,
                log_start_offset=-1,
                # Whole batches only: what exceeds it by a byte is left out.
                partition_max_bytes=int(self._case.record_bytes * (self._case.batches + 0.5)),
                replica_directory_id=None,
            )
            for partition, offset in offsets.items()
        )
        return encode_request(
            fetch_request(kind, self._topic_id, rows), next(self._correlation), "suffix-path"
        )

    def send_produces(self) -> None:
        frames = [self._produce() for _ in range(self._case.window)]
        self.socket.sendall(b"".join(len(f).to_bytes(4, "big") + f for f in frames))

    def take_produces(self) -> list[Any]:
        """Every partition's answer; raises when one is an error."""
        rows = []
        for _ in range(self._case.window):
            answer: Any = decode_response(self._take(), ApiKey.PRODUCE, PRODUCE_VERSION)
            rows += [row for topic in answer.responses for row in topic.partition_responses]
        for row in rows:
            if row.error_code is not ErrorCode.none:
                raise RuntimeError(f"a produce was answered {row.error_code.name}")
        return rows

    def fetch(self, offsets: dict[int, int]) -> int:
        """Bytes of records that came."""
        frame = self._fetch(offsets)
        self.socket.sendall(len(frame).to_bytes(4, "big") + frame)
        answer: Any = decode_response(self._take(), ApiKey.FETCH, FETCH_VERSION)
        rows = [row for topic in answer.responses for row in topic.partitions]
        for row in rows:
            if row.error_code is not ErrorCode.none:
                raise RuntimeError(f"a fetch was answered {row.error_code.name}")
        return sum(len(row.records or b"") for row in rows)

    def _take(self) -> bytes:
        size = self._file.read(4)
        frame = self._file.read(int.from_bytes(size, "big"))
        if len(size) < 4 or len(frame) < int.from_bytes(size, "big"):
            raise ConnectionError("the connection was closed")
        return frame


@dataclass(slots=True)
class Way:
    """One gateway, and what was measured of it."""

    name: str
    port: int
    pid: int
    topic: str
    topic_id: UUID
    cpu_us: dict[str, list[float]] = field(default_factory=dict)
    """By case: µs a request, of each round."""
    mb_per_s: dict[str, list[float]] = field(default_factory=dict)
    """By case: MB of records in a second of the process's CPU."""
    p50_ms: dict[str, list[float]] = field(default_factory=dict)
    """By case: of one window, until its last answer."""

    def client(self, case: Case, number: int = 0) -> _Client:
        return _Client(self.port, case, self.topic, self.topic_id, number)

    def round(self, case: Case, share: float = 1.0) -> None:
        """Measure one round of ``case``."""
        requests = max(case.at_once, int(case.requests * share))
        run = self._produces if case.api is ApiKey.PRODUCE else self._fetches
        used_s, size, latencies = run(case, requests)
        asked = len(latencies) * case.at_once
        self.cpu_us.setdefault(case.name, []).append(used_s / asked * 1e6)
        self.mb_per_s.setdefault(case.name, []).append(size / used_s / 1e6)
        self.p50_ms.setdefault(case.name, []).append(statistics.median(latencies) * 1e3)

    def _produces(self, case: Case, requests: int) -> tuple[float, int, list[float]]:
        clients = [self.client(case, n) for n in range(case.connections)]
        latencies = []
        before = cpu_s(self.pid)
        for _ in range(requests // case.at_once):
            began = time.perf_counter()
            for client in clients:
                client.send_produces()
            for client in clients:
                client.take_produces()
            latencies.append(time.perf_counter() - began)
        used_s = cpu_s(self.pid) - before
        for client in clients:
            client.socket.close()
        return used_s, len(latencies) * case.at_once * case.bytes_each, latencies

    def _fetches(self, case: Case, requests: int) -> tuple[float, int, list[float]]:
        """What is fetched is written just before, which does not count."""
        writer, reader = self.client(case), self.client(case)
        used_s, size, latencies = 0.0, 0, []
        written: dict[int, int] = {}
        for n in range(requests):
            if n == 0 or not case.behind:
                written = self._write(writer, case)
            before, began = cpu_s(self.pid), time.perf_counter()
            came = reader.fetch(written)
            latencies.append(time.perf_counter() - began)
            used_s += cpu_s(self.pid) - before
            if came < 0.9 * case.bytes_each:
                raise RuntimeError(f"{came} bytes came, not {case.bytes_each}")
            size += came
        for client in (writer, reader):
            client.socket.close()
        return used_s, size, latencies

    @staticmethod
    def _write(writer: _Client, case: Case) -> dict[int, int]:
        """The offset of the first batch in each partition."""
        first: dict[int, int] = {}
        for _ in range(case.batches):
            writer.send_produces()
            for row in writer.take_produces():
                first.setdefault(int(row.index), int(row.base_offset))
        return first


def to_markdown(ways: Sequence[Way], cases: Sequence[Case]) -> str:
    """The report."""

    lines = []
    for title, figures, form in (
        ("CPU of the process, µs a request", "cpu_us", ",.0f"),
        ("MB a second of CPU", "mb_per_s", ",.1f"),
        ("p50 of a window, ms", "p50_ms", ".1f"),
    ):
        lines += [
            "| " + " | ".join([title, *(way.name for way in ways)]) + " |",
            "| --- |" + " ---: |" * len(ways),
        ]
        for case in cases:
            cells = [spread(getattr(way, figures)[case.name], form) for way in ways]
            lines.append("| " + " | ".join([case.name, *cells]) + " |")
        lines.append("")
    return "\n".join(lines)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--role", choices=["broker", "gateway"], help=argparse.SUPPRESS)
    parser.add_argument("--topic", help=argparse.SUPPRESS)
    parser.add_argument("--topic-id", help=argparse.SUPPRESS)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--case", action="append", help="a part of a case's name; default: all")
    parser.add_argument("--share", type=float, default=1.0, help="of each case's requests")
    parser.add_argument("--tree", type=Path, help="another checkout, as a way of its own")
    parser.add_argument("--profile", type=Path, help="where cProfile of the loop's thread goes")
    arguments = parser.parse_args()
    if arguments.role == "broker":
        serve_broker(arguments.topic, UUID(arguments.topic_id))
        return 0
    if arguments.role == "gateway":
        return serve_profiled(arguments.profile)
    end_as_by_ctrl_c()
    cases = [
        c for c in CASES if not arguments.case or any(part in c.name for part in arguments.case)
    ]
    with ExitStack() as parts:
        home = Path(parts.enter_context(tempfile.TemporaryDirectory(prefix="suffix-path-")))
        ways = []
        for name, tree in {"this tree": None, "other tree": arguments.tree}.items():
            if name == "other tree" and tree is None:
                continue
            ways.append(_start(parts, home / name.replace(" ", "-"), name, tree, arguments.profile))
        for case in cases:
            for number in range(arguments.rounds + 1):
                print(f"{case.name}: round {number} of {arguments.rounds}", file=sys.stderr)
                for way in ways:
                    way.round(case, arguments.share)
        for way in ways:
            for figures in (way.cpu_us, way.mb_per_s, way.p50_ms):
                for values in figures.values():
                    del values[0]  # it warmed up
        print(to_markdown(ways, cases))
        print(f"load average {os.getloadavg()[0]:.1f}")
    return 0


def _start(parts: ExitStack, home: Path, name: str, tree: Path | None, profile: Path | None) -> Way:
    """A gateway and all that it needs, for itself alone."""
    home.mkdir()
    topic, topic_id = "suffix", uuid4()
    server = parts.enter_context(throwaway(POSTGRES))
    server.start()
    schema = None if tree is None else tree / "infra" / "postgres"
    apply(server.dsn, schema)
    asyncio.run(_make_topic(server.dsn, topic, topic_id))
    environment = parts.enter_context(s3_alone(home, CLUSTER_ID)) | {
        "TIDELINE_HOME": str(home),
        "TIDELINE_POSTGRES_DSN": server.dsn,
        "TIDELINE_GATEWAY_BROKER": f"{HOST}:{parts.enter_context(_broker(topic, topic_id))}",
        "TIDELINE_GATEWAY_STATE_DIR": str(home / "state"),
    }
    pid, port = parts.enter_context(_gateway(environment, tree, profile))
    return Way(name, port, pid, topic, topic_id)


if __name__ == "__main__":
    sys.exit(main())
