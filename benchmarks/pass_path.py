"""What a request that passes costs the gateway: `python -m benchmarks.pass_path`.

No stack: one gateway process over real sockets between a client and a broker that answers from
canned bytes, so that the CPU time of the gateway's process is that of the pass path alone. Figures
are medians of rounds in which every way has its turn: a gateway that tracks nothing, one that
tracks topics that no request names, a second tree of the same project (``--tree``), a warm
Kroxylicious (``--kroxylicious``, a directory with its jars) and the broker itself.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import socket
import ssl
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any
from uuid import UUID

from kio.schema.errors import ErrorCode

from benchmarks.beside import (
    HOST,
    START_S,
    Case,
    Way,
    fetch_request,
    free_port,
    measure,
    offered,
    produce_request,
    to_markdown,
    windows,
)
from benchmarks.tracking import tracked
from tideline.gateway.context import ApiKey
from tideline.gateway.messages import NO_TIME, Messages, messages
from tideline.kafka.framing import FrameProtocol
from tideline.kafka.protocol import encode_request, encode_response, parse_header
from tideline.settings import EventLoop
from tideline.stack.certificates import Authority

CLASSIC, CLASSIC_ID = "classic-topic", UUID(int=2**100)
PRODUCE_VERSION, FETCH_VERSION = 12, 17
TRACKED_PARTITIONS = 10_000
WARM_ROUNDS = 15
"""Of each case, until a JVM's code is compiled."""
BROKER, GATEWAY = "broker", "gateway"
"""Whom the certificates of a run with TLS are for."""


CASES = (
    Case("produce 1 KB, one at a time", ApiKey.PRODUCE, 1_000),
    Case("produce 1 KB, 32 in flight", ApiKey.PRODUCE, 1_000, window=32, requests=6_400),
    Case("produce 1 KB, 50 connections", ApiKey.PRODUCE, 1_000, connections=50, requests=4_000),
    Case("produce 16 KB, 4 in flight", ApiKey.PRODUCE, 16_384, window=4),
    Case("produce 100 KB, 4 in flight", ApiKey.PRODUCE, 102_400, window=4, requests=800),
    Case("fetch 1 KB, one at a time", ApiKey.FETCH, 1_000),
    Case("fetch 16 KB, one at a time", ApiKey.FETCH, 16_384),
    Case("fetch 100 KB, one at a time", ApiKey.FETCH, 102_400, requests=800),
    Case("fetch 1 MB of 10 partitions", ApiKey.FETCH, 104_858, partitions=10, requests=150),
    Case("fetch 100 partitions, no records", ApiKey.FETCH, 0, partitions=100, requests=400),
)


def request_frame(case: Case) -> bytes:
    """The request of a case, with the correlation id 0; its client id is the case's number."""
    if case.api is ApiKey.PRODUCE:
        kind = messages(ApiKey.PRODUCE, PRODUCE_VERSION)
        rows = tuple(
            kind.request_part("PartitionProduceData", index=n, records=bytes(case.record_bytes))
            for n in range(case.partitions)
        )
        topic = kind.request_part(
            "TopicProduceData", name=CLASSIC, topic_id=CLASSIC_ID, partition_data=rows
        )
        message = produce_request(kind, topic)
    else:
        kind = messages(ApiKey.FETCH, FETCH_VERSION)
        message = _fetch(kind, case)
    return encode_request(message, 0, str([c.name for c in CASES].index(case.name)))


def _fetch(kind: Messages, case: Case) -> Any:
    rows = tuple(
        kind.request_part(
            "FetchPartition",
            partition=n,
            current_leader_epoch=3,
            fetch_offset=1_000_000 + n,
            last_fetched_epoch=-1,
            log_start_offset=-1,
            partition_max_bytes=1_048_576,
            replica_directory_id=None,
        )
        for n in range(case.partitions)
    )
    return fetch_request(kind, CLASSIC_ID, rows)


def answer_frame(case: Case) -> bytes:
    """What the broker answers to it, with the correlation id 0."""
    kind = messages(case.api, PRODUCE_VERSION if case.api is ApiKey.PRODUCE else FETCH_VERSION)
    if case.api is ApiKey.PRODUCE:
        rows = tuple(
            kind.response_part(
                "PartitionProduceResponse",
                index=n,
                error_code=ErrorCode.none,
                base_offset=17,
                log_append_time=None,
                log_start_offset=0,
                record_errors=(),
                error_message=None,
            )
            for n in range(case.partitions)
        )
        topic = kind.response_part(
            "TopicProduceResponse", name=CLASSIC, topic_id=CLASSIC_ID, partition_responses=rows
        )
    else:
        rows = tuple(
            kind.response_part(
                "PartitionData",
                partition_index=n,
                error_code=ErrorCode.none,
                high_watermark=2_000_000,
                last_stable_offset=2_000_000,
                log_start_offset=0,
                aborted_transactions=None,
                preferred_read_replica=-1,
                records=bytes(case.record_bytes),
            )
            for n in range(case.partitions)
        )
        topic = kind.response_part("FetchableTopicResponse", topic_id=CLASSIC_ID, partitions=rows)
    message = kind.response(
        responses=(topic,), throttle_time=NO_TIME, error_code=ErrorCode.none, session_id=0
    )
    return encode_response(message, 0)


# -- the broker's process


class _CannedConnection(FrameProtocol):
    """Answers each request as soon as it is whole; its client id says of which case it is."""

    def __init__(self, answers: list[bytes]) -> None:
        super().__init__(200_000_000)
        self._answers = answers

    def frame_received(self, frame: bytes) -> None:
        key = int.from_bytes(frame[:2], "big")
        if key == ApiKey.API_VERSIONS:
            self.send_frame(frame[4:8] + _offered(int.from_bytes(frame[2:4], "big")))
        else:
            self.send_frame(frame[4:8] + self._answers[int(parse_header(frame).client_id or 0)])


def _offered(version: int) -> bytes:
    """The body of an ApiVersions answer: the APIs of this benchmark."""
    return encode_response(offered(version, PRODUCE_VERSION, FETCH_VERSION, 12), 0)[4:]


def serve_broker(tls: Path | None) -> None:
    """Say the port, then serve until the end of stdin."""
    context = None
    if tls is not None:
        pair = Authority.load_or_create(tls).issue(BROKER)
        context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        context.load_cert_chain(pair.certificate, pair.key)

    async def run() -> None:
        answers = [answer_frame(case)[4:] for case in CASES]
        loop = asyncio.get_running_loop()
        server = await loop.create_server(lambda: _CannedConnection(answers), HOST, 0, ssl=context)
        _say(server.sockets[0].getsockname()[1])
        await loop.run_in_executor(None, sys.stdin.read)

    asyncio.run(run())


# -- the gateway's process


def _encrypted(tls: Path) -> dict[str, str]:
    """Settings of a gateway with TLS towards its clients and its broker."""
    authority = Authority.load_or_create(tls)
    pair = authority.issue(GATEWAY)
    return {
        "TIDELINE_GATEWAY_SECURITY_PROTOCOL": "SSL",
        "TIDELINE_GATEWAY_SSL_CERTIFICATE_FILE": str(pair.certificate),
        "TIDELINE_GATEWAY_SSL_KEY_FILE": str(pair.key),
        "TIDELINE_KAFKA_SECURITY_PROTOCOL": "SSL",
        "TIDELINE_KAFKA_SSL_CA_FILE": str(authority.certificate),
    }


def serve_gateway(broker_port: int, partitions: int, loop: EventLoop, tls: Path | None) -> None:
    """The same with a gateway; ``partitions`` are tracked, of topics that nobody names."""
    from tideline.control_plane.memory import MemoryControlPlane
    from tideline.gateway.allocator import keep_freed_memory
    from tideline.gateway.assembly import build_parts, build_rules
    from tideline.gateway.context import ConnectionRegistry
    from tideline.gateway.event_loop import run as run_on
    from tideline.gateway.messages import preload
    from tideline.gateway.passing import WhatPasses
    from tideline.gateway.transactions import OpenTransactions
    from tideline.gateway.transport.server import GatewayServer
    from tideline.kafka.client import KafkaCluster
    from tideline.kafka.security import KafkaSecurity
    from tideline.settings import GatewaySettings

    async def run() -> None:
        with tempfile.TemporaryDirectory() as state:
            port = free_port()
            settings = GatewaySettings.of(
                {
                    "TIDELINE_GATEWAY_ID": "1",
                    "TIDELINE_GATEWAY_BROKER_ID": "1",
                    "TIDELINE_GATEWAY_LISTEN": f"{HOST}:{port}",
                    "TIDELINE_GATEWAY_ADVERTISED": f"{HOST}:{port}",
                    "TIDELINE_GATEWAY_BROKER": f"{HOST}:{broker_port}",
                    "TIDELINE_GATEWAY_PEERS": f"1={HOST}:{port}",
                    "TIDELINE_GATEWAY_STATE_DIR": state,
                    "TIDELINE_POSTGRES_DSN": f"host={HOST} port=1",
                    "TIDELINE_S3_ENDPOINT": f"http://{HOST}:1",
                    **(_encrypted(tls) if tls else {}),
                }
            )
            plane: Any = MemoryControlPlane(lambda: int(time.time() * 1000))
            store: Any = None
            cluster = KafkaCluster([settings.gateway_broker], security=KafkaSecurity.of(settings))
            connections = ConnectionRegistry()
            parts = build_parts(settings, plane, store, cluster, connections)
            parts.tracking.replace_all(tracked(partitions))
            open_transactions = OpenTransactions(cluster)
            rules = build_rules(parts, plane, cluster, open_transactions, patience_s=25.0)
            passing = WhatPasses(parts.tracking, parts.quotas)
            server = GatewayServer(settings, rules, connections, parts.room, passing=passing)
            await server.start()
            _say(port)
            await asyncio.get_running_loop().run_in_executor(None, sys.stdin.read)
            await server.stop(0.1)

    keep_freed_memory()
    preload()
    run_on(run(), loop)


def _say(port: int) -> None:
    print(f"port {port}", flush=True)


# -- Kroxylicious

PROXIED = 3
"""Nodes that it may have before it; each has a port behind the first one's."""
_KROXYLICIOUS = """
import io.kroxylicious.proxy.KafkaProxy;
import io.kroxylicious.proxy.config.ConfigParser;
import io.kroxylicious.proxy.internal.config.Features;
import java.nio.file.*;
public class Main {
  public static void main(String[] arguments) throws Exception {
    var parser = new ConfigParser();
    var text = Files.readString(Path.of(arguments[0]));
    var configuration = parser.parseConfiguration(text);
    new KafkaProxy(parser, configuration, Features.defaultFeatures()).startup().block();
  }
}
"""


def _proxy_yaml(broker_port: int, port: int, tls: Path | None) -> str:
    upstream = downstream = ""
    if tls is not None:
        authority = Authority.load_or_create(tls)
        pair = authority.issue(GATEWAY)
        upstream = (
            f"    tls:\n      trust: {{storeFile: {authority.certificate}, storeType: PEM}}\n"
        )
        downstream = (
            "    tls:\n"
            "      key:\n"
            f"        privateKeyFile: {pair.key}\n"
            f"        certificateFile: {pair.certificate}\n"
        )
    return (
        "virtualClusters:\n"
        "- name: bench\n"
        "  targetCluster:\n"
        f"    bootstrapServers: {HOST}:{broker_port}\n"
        f"{upstream}"
        "  gateways:\n"
        "  - name: default\n"
        f"{downstream}"
        "    portIdentifiesNode:\n"
        f"      bootstrapAddress: {HOST}:{port}\n"
        f"      advertisedBrokerAddressPattern: {HOST}\n"
        "      nodeIdRanges:\n"
        f"      - {{name: brokers, start: 1, end: {PROXIED}}}\n"
    )


@contextmanager
def kroxylicious(jars: Path, broker_port: int, tls: Path | None) -> Iterator[tuple[int, int]]:
    """(process id, port) of a Kroxylicious in front of the broker."""
    with tempfile.TemporaryDirectory() as home:
        port = _free_ports(1 + PROXIED)
        (Path(home) / "Main.java").write_text(_KROXYLICIOUS)
        (Path(home) / "proxy.yaml").write_text(_proxy_yaml(broker_port, port, tls))
        process = subprocess.Popen(
            ["java", "-Xmx512m", "-cp", f"{jars}/*", str(Path(home) / "Main.java"),
             str(Path(home) / "proxy.yaml")],
            stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
        )  # fmt: skip
        try:
            _until_listening(port, process)
            yield process.pid, port
        finally:
            process.terminate()
            process.wait()


def _free_ports(count: int) -> int:
    """The first of so many in a row."""
    while True:
        first = free_port()
        with ExitStack() as taken:
            try:
                for port in range(first, first + count):
                    taken.enter_context(socket.create_server((HOST, port)))
            except (OSError, OverflowError):
                continue
            return first


def _until_listening(port: int, process: subprocess.Popen[bytes]) -> None:
    deadline = time.monotonic() + START_S
    while True:
        if process.poll() is not None:
            raise RuntimeError(f"Kroxylicious ended with {process.returncode}")
        try:
            socket.create_connection((HOST, port)).close()
            return
        except ConnectionRefusedError:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.1)


# -- the client


def drive(port: int, case: Case, context: ssl.SSLContext | None = None) -> list[float]:
    """One round; the latency of each window, in seconds."""
    frame, answer = request_frame(case), 4 + len(answer_frame(case))
    return windows(port, [frame] * case.connections, answer, case, context)


@contextmanager
def _child(*arguments: str, tree: Path | None = None) -> Iterator[tuple[int, int]]:
    """(process id, port) of this module in another process."""
    environment = {**os.environ, "PYTHONPATH": str(tree)} if tree else dict(os.environ)
    process = subprocess.Popen(
        [sys.executable, "-m", "benchmarks.pass_path", *arguments],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
        text=True, cwd=tree, env=environment,
    )  # fmt: skip
    assert process.stdout is not None
    try:
        for line in process.stdout:
            if line.startswith("port "):
                yield process.pid, int(line.split()[1])
                return
        raise RuntimeError(f"{arguments} ended before it served")
    finally:
        process.terminate()
        process.wait()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--role", choices=["broker", "gateway"], help=argparse.SUPPRESS)
    parser.add_argument("--broker-port", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--partitions", type=int, default=0, help=argparse.SUPPRESS)
    parser.add_argument("--loop", choices=["asyncio", "uvloop"], help=argparse.SUPPRESS)
    parser.add_argument("--certificates", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--tls", action="store_true", help="on both sides of each proxy")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--case", action="append", help="a part of a case's name; default: all")
    parser.add_argument("--tree", type=Path, help="another checkout, as a way of its own")
    parser.add_argument("--asyncio", action="store_true", help="a gateway on this event loop, too")
    parser.add_argument("--kroxylicious", type=Path, help="a directory with its jars")
    parser.add_argument("--share", type=float, default=1.0, help="of each case's requests")
    parser.add_argument("--quick", action="store_true", help="no gateway without tracked topics")
    arguments = parser.parse_args()
    if arguments.role == "broker":
        serve_broker(arguments.certificates)
        return 0
    if arguments.role == "gateway":
        serve_gateway(
            arguments.broker_port, arguments.partitions, arguments.loop, arguments.certificates
        )
        return 0
    cases = [
        c for c in CASES if not arguments.case or any(part in c.name for part in arguments.case)
    ]
    cases = [
        replace(case, requests=max(int(case.requests * arguments.share), case.at_once))
        for case in cases
    ]
    with ExitStack() as children:
        tls: Path | None = None
        encrypted: tuple[str, ...] = ()
        context: ssl.SSLContext | None = None
        if arguments.tls:
            tls = Path(children.enter_context(tempfile.TemporaryDirectory()))
            authority = Authority.load_or_create(tls)
            for whom in (BROKER, GATEWAY):
                authority.issue(whom)
            encrypted = ("--certificates", str(tls))
            context = ssl.create_default_context(cafile=str(authority.certificate))
        _, broker = children.enter_context(_child("--role", "broker", *encrypted))

        def add(
            name: str,
            partitions: int,
            tree: Path | None = None,
            loop: EventLoop = "uvloop",
        ) -> Way:
            pid, port = children.enter_context(
                _child(
                    "--role", "gateway", "--broker-port", str(broker), "--loop", loop,
                    "--partitions", str(partitions), *encrypted, tree=tree,
                )
            )  # fmt: skip
            return Way(name, port, pid)

        ways = [] if arguments.quick else [add("nothing tracked", 0)]
        ways.append(add("topics tracked", TRACKED_PARTITIONS))
        if arguments.asyncio:
            ways.append(add("topics tracked, asyncio", TRACKED_PARTITIONS, loop="asyncio"))
        if arguments.tree:
            if not arguments.quick:
                ways.append(add("other tree", 0, arguments.tree))
            ways.append(add("other tree, topics tracked", TRACKED_PARTITIONS, arguments.tree))
        if arguments.kroxylicious:
            pid, port = children.enter_context(kroxylicious(arguments.kroxylicious, broker, tls))
            ways.append(Way("Kroxylicious, warm", port, pid, compiles=True))
        ways.append(Way("direct", broker, None))
        for way in ways:
            for case in cases * WARM_ROUNDS if way.compiles else ():
                drive(way.port, case, context)
        measure(
            ways, cases, arguments.rounds, lambda way, case: drive(way.port, case, context),
            lambda text: print(text, file=sys.stderr),
        )  # fmt: skip
    print(to_markdown(ways, cases))
    print(f"\nload average {os.getloadavg()[0]:.1f}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
