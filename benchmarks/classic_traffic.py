"""`python -m benchmarks.classic_traffic`: classic topics through a gateway and directly.

A real broker and its gateway on an embedded stack of one broker, with a diskless topic, so that
every request has to be classified; raw clients write to and read from a classic topic, by each way
in turn, and through a warm Kroxylicious before the same broker (``--kroxylicious``, a directory
with its jars). Clients, broker and proxies share the machine's cores, so a proxy's CPU is
throughput lost.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any
from uuid import UUID

from aiokafka.record.default_records import DefaultRecordBatchBuilder
from confluent_kafka.admin import AdminClient, NewTopic
from kio.schema.errors import ErrorCode
from tenacity import retry, retry_if_exception_type, stop_after_delay, wait_fixed

from benchmarks import beside
from benchmarks.beside import Case, Way, fetch_request, measure, produce_request, to_markdown
from benchmarks.own_stack import own_stack
from benchmarks.pass_path import FETCH_VERSION, PRODUCE_VERSION, WARM_ROUNDS, kroxylicious
from tideline.demo.run import machine
from tideline.demo.topic import topic_id
from tideline.gateway.context import ApiKey
from tideline.gateway.messages import messages
from tideline.kafka.protocol import decode_response, encode_request
from tideline.stack import Stack

WRITTEN, READ, TRACKED = "classic-written", "classic-read", "classic-traffic-tracked"
"""What is read is a topic of its own: retention removes what is written in minutes."""
PARTITIONS = 12
SIZES = {"1 KB": 1_000, "16 KB": 16_384, "100 KB": 102_400}
CONNECTIONS = (1, 100)
REQUESTS = {"1 KB": 4_000, "16 KB": 2_000, "100 KB": 800}
CASES = tuple(
    Case(f"{api.name.lower()} {size}, {n} connection{'s' * (n > 1)}", api, SIZES[size],
         connections=n, window=4 if n == 1 else 1, requests=REQUESTS[size])
    for api in (ApiKey.PRODUCE, ApiKey.FETCH) for size in SIZES for n in CONNECTIONS
)  # fmt: skip
"""One connection has four requests under way, a hundred have one each."""


@dataclass(frozen=True, slots=True)
class Topics:
    written: UUID
    read: UUID
    at: dict[int, int]
    """By bytes of a batch: the offset of the one of its size in each partition that is read."""

    def frame(self, case: Case, partition: int) -> bytes:
        """The request of ``case`` to one partition: always the same batch, or the same offset."""
        if case.api is ApiKey.PRODUCE:
            return write(WRITTEN, self.written, partition, case.record_bytes)
        kind = messages(ApiKey.FETCH, FETCH_VERSION)
        row = kind.request_part(
            "FetchPartition",
            partition=partition,
            current_leader_epoch=-1,
            fetch_offset=self.at[case.record_bytes],
            last_fetched_epoch=-1,
            log_start_offset=-1,
            partition_max_bytes=case.record_bytes,
            replica_directory_id=None,
        )
        return encode_request(fetch_request(kind, self.read, [row]), 0, "classic-traffic")


def write(name: str, topic_id: UUID, partition: int, size: int) -> bytes:
    """A Produce of one batch of about ``size`` bytes."""
    kind = messages(ApiKey.PRODUCE, PRODUCE_VERSION)
    row = kind.request_part("PartitionProduceData", index=partition, records=batch(size))
    part = kind.request_part(
        "TopicProduceData", name=name, topic_id=topic_id, partition_data=(row,)
    )
    return encode_request(produce_request(kind, part), 0, "classic-traffic")


def batch(size: int) -> bytes:
    """One of about ``size`` bytes, of one record."""
    builder = DefaultRecordBatchBuilder(
        magic=2, compression_type=0, is_transactional=False, producer_id=-1, producer_epoch=-1,
        base_sequence=-1, batch_size=1 << 30,
    )  # fmt: skip
    builder.append(0, int(time.time() * 1000), None, os.urandom(size - 80), [])
    return bytes(builder.build())


class NotLedYet(Exception):
    """The topic is so new that its broker has not heard of it."""


@retry(retry=retry_if_exception_type(NotLedYet), wait=wait_fixed(0.2), stop=stop_after_delay(60.0))
def answered(port: int, case: Case, frame: bytes) -> bytes:
    """The answer to one request. Raises where it is an error, or has no records."""
    with beside.connected(port) as connection:
        connection.sendall(len(frame).to_bytes(4, "big") + frame)
        file = connection.makefile("rb")
        answer = file.read(int.from_bytes(file.read(4), "big"))
    version = PRODUCE_VERSION if case.api is ApiKey.PRODUCE else FETCH_VERSION
    decoded: Any = decode_response(answer, case.api, version)
    for topic in decoded.responses:
        for row in getattr(topic, "partition_responses", None) or topic.partitions:
            if row.error_code is ErrorCode.not_leader_or_follower:
                raise NotLedYet
            if row.error_code is not ErrorCode.none:
                raise RuntimeError(f"{case.name} was answered {row.error_code.name}")
            if case.api is ApiKey.FETCH and len(row.records or b"") < case.record_bytes // 2:
                raise RuntimeError(f"{case.name}: {len(row.records or b'')} bytes came")
    return answer


def made(stack: Stack) -> Topics:
    """The topics; each partition of the one that is read has a batch of each size."""
    admin = AdminClient({"bootstrap.servers": stack.endpoints.gateway_bootstrap})
    wanted = [
        NewTopic(WRITTEN, PARTITIONS, 1, config={"retention.bytes": "104857600"}),
        NewTopic(READ, PARTITIONS, 1),
        NewTopic(TRACKED, 1, 1, config={"diskless.enable": "true"}),
    ]
    for one in admin.create_topics(wanted).values():
        one.result(60)
    read = topic_id(admin, READ)
    broker = int(stack.endpoints.brokers[1].rpartition(":")[2])
    for size in SIZES.values():
        case = Case("filling", ApiKey.PRODUCE, size)
        for partition in range(PARTITIONS):
            answered(broker, case, write(READ, read, partition, size))
    at = {size: offset for offset, size in enumerate(SIZES.values())}
    return Topics(topic_id(admin, WRITTEN), read, at)


def driver(topics: Topics) -> Callable[[Way, Case], list[float]]:
    """One round by a way; see :func:`benchmarks.beside.windows`."""

    def drive(way: Way, case: Case) -> list[float]:
        frames = [topics.frame(case, n % PARTITIONS) for n in range(case.connections)]
        answer = 4 + len(answered(way.port, case, frames[0]))
        return beside.windows(way.port, frames, answer, case)

    return drive


def run(
    stack: Stack, rounds: int, cases: Sequence[Case], jars: Path | None, step: Callable[[str], None]
) -> str:
    """The tables."""
    topics = made(stack)
    broker = int(stack.endpoints.brokers[1].rpartition(":")[2])
    gateway = int(stack.endpoints.gateway_bootstrap.rpartition(":")[2])
    drive = driver(topics)
    with ExitStack() as exits:
        ways = [Way("gateway", gateway, stack.pid("gateway-1"))]
        if jars is not None:
            pid, port = exits.enter_context(kroxylicious(jars, broker, None))
            ways.append(Way("Kroxylicious, warm", port, pid, compiles=True))
        ways.append(Way("direct", broker, None))
        for case in list(cases) * WARM_ROUNDS:  # of the broker, too
            step(f"{case.name}: warming up")
            for way in ways:
                drive(way, case)
        measure(ways, cases, rounds, drive, step)
    return to_markdown(ways, cases)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--case", action="append", help="a part of a case's name; default: all")
    parser.add_argument("--share", type=float, default=1.0, help="of each case's requests")
    parser.add_argument("--kroxylicious", type=Path, help="a directory with its jars")
    parser.add_argument("--reports", type=Path, default=Path("reports"))
    arguments = parser.parse_args()
    cases = [
        replace(case, requests=max(int(case.requests * arguments.share), case.at_once))
        for case in CASES
        if not arguments.case or any(part in case.name for part in arguments.case)
    ]

    def step(text: str) -> None:
        print(text, file=sys.stderr, flush=True)

    with own_stack(step, brokers=1) as stack:
        tables = run(stack, arguments.rounds, cases, arguments.kroxylicious, step)
    where = f"{machine()}, load average {os.getloadavg()[0]:.1f}"
    text = f"{tables}\n\n{where}\n"
    arguments.reports.mkdir(parents=True, exist_ok=True)
    (arguments.reports / "classic-traffic.md").write_text(text)
    print(text)
    return 0


if __name__ == "__main__":
    sys.exit(main())
