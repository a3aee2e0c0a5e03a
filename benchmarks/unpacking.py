"""What one batch may cost a gateway, and a page of metrics: `python -m benchmarks.unpacking`.

Each batch is validated in a thread, beside one that wakes every millisecond, as the event loop
does: how late that one comes is what everybody else pays.
"""

from __future__ import annotations

import argparse
import gzip
import os
import statistics
import struct
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from typing import Any
from unittest.mock import patch

import cramjam
import crc32c
from prometheus_client import REGISTRY, generate_latest

from tideline.demo.run import machine
from tideline.domain.api_answers import API_RULES
from tideline.domain.topic_configs import TopicLimits
from tideline.gateway import metrics
from tideline.kafka import records
from tideline.kafka.produced import MAX_RECORDS, MAX_UNPACKED_BYTES, RefusedBatch, validated
from tideline.pages import rendered

BEAT_S = 0.001
NOW_MS = 1_700_000_000_000
LIMITS = TopicLimits("CreateTime", 1 << 23)
NO_KEY_NOR_VALUE = b"\1\1"


def varint(value: int) -> bytes:
    packed, found = value << 1, bytearray()
    while packed > 0x7F:
        found.append(packed & 0x7F | 0x80)
        packed >>= 7
    return bytes((*found, packed))


def record(number: int, rest: bytes) -> bytes:
    whole = b"\0\0" + varint(number) + rest
    return varint(len(whole)) + whole


def batch(body: bytes, count: int, codec: str) -> bytes:
    """With a right header and CRC."""
    packs: dict[str, Callable[[bytes], Any]] = {
        "gzip": gzip.compress,
        "snappy": cramjam.snappy.compress_raw,
        "zstd": cramjam.zstd.compress,
    }
    attributes = {"gzip": 1, "snappy": 2, "zstd": 4}[codec]
    numbers = (attributes, count - 1, NOW_MS, NOW_MS, -1, -1, -1, count)
    inside = struct.pack(">hiqqqhii", *numbers) + bytes(packs[codec](body))
    return struct.pack(">qiibI", 0, 9 + len(inside), -1, 2, crc32c.crc32c(inside)) + inside


def batches() -> Iterator[tuple[str, bytes]]:
    ordinary = b"".join(
        record(n, b"\1" + varint(100) + os.urandom(50) * 2 + b"\0") for n in range(1000)
    )
    yield "1,000 records of 100 bytes, zstd", batch(ordinary, 1000, "zstd")
    many = b"".join(record(n, NO_KEY_NOR_VALUE + b"\0") for n in range(MAX_RECORDS))
    yield "1,000,000 records, zstd", batch(many, MAX_RECORDS, "zstd")
    size = MAX_UNPACKED_BYTES - 100
    value = record(0, b"\1" + varint(size) + bytes(size) + b"\0")
    for codec in ("zstd", "snappy", "gzip"):
        yield f"one value of 64 MiB, {codec}", batch(value, 1, codec)
    headers = NO_KEY_NOR_VALUE + varint(size // 2) + bytes(size // 2 * 2)
    yield "33,000,000 headers, zstd", batch(record(0, headers), 1, "zstd")
    yield "the same, the last one wrong", batch(record(0, headers[:-1] + b"\3"), 1, "zstd")


@contextmanager
def woken() -> Iterator[list[float]]:
    """How late (s) a thread comes that wakes every :data:`BEAT_S` meanwhile."""
    late: list[float] = []
    over = threading.Event()

    def beat() -> None:
        while not over.is_set():
            due = time.perf_counter() + BEAT_S
            time.sleep(BEAT_S)
            late.append(time.perf_counter() - due)

    thread = threading.Thread(target=beat)
    thread.start()
    try:
        yield late
    finally:
        over.set()
        thread.join()


def measured(work: Callable[[], object], rounds: int) -> str:
    """CPU of ``work``, the median lateness of a round and the worst, each as a column."""
    cpu, usual, worst = [], [], []
    for _ in range(rounds):
        with woken() as late:
            began = time.thread_time()
            work()
            cpu.append(time.thread_time() - began)
        usual.append(statistics.median(late or [0.0]))
        worst.append(max(late or [0.0]))
    return " | ".join(_spread(values) for values in (cpu, usual, worst))


def _spread(seconds: Sequence[float]) -> str:
    median, *ends = (1000 * one for one in (statistics.median(seconds), min(seconds), max(seconds)))
    return f"{median:.1f} ({ends[0]:.1f} to {ends[1]:.1f})"


def judge(made: bytes) -> None:
    with suppress(RefusedBatch):
        validated(made, LIMITS, produce_version=9, now_ms=NOW_MS)


def fill_registry() -> None:
    """As a gateway's is after some days: every API in every way."""
    for api in API_RULES:
        metrics.requests_passed(api).inc()
        metrics.requests_handled(api).inc()
        for outcome in ("answered", "broker_away", "refused", "failed", "given_up"):
            metrics.handling_seconds(api, outcome).observe(0.01)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=9)
    rounds = parser.parse_args().rounds
    print(f"Machine: {machine()}, load average {os.getloadavg()[0]:.1f}.\n")
    print("| batch | bytes | read by | CPU, ms | late, median | late, at most |")
    print("| --- | ---: | --- | ---: | ---: | ---: |")
    for name, made in batches():
        print(f"| {name} | {len(made):,} | library | {measured(partial(judge, made), rounds)} |")
        with patch.object(records, "_native", lambda: None):
            few = 1 if "00,000" in name or "same" in name else rounds
            print(f"| {name} | {len(made):,} | Python | {measured(partial(judge, made), few)} |")
    fill_registry()
    size = len(rendered(REGISTRY))
    print("\n| page of metrics | bytes | CPU, ms | late, median | late, at most |")
    print("| --- | ---: | ---: | ---: | ---: |")
    print(f"| at one go | {size:,} | {measured(lambda: generate_latest(REGISTRY), rounds)} |")
    print(f"| in pieces | {size:,} | {measured(lambda: rendered(REGISTRY), rounds)} |")


if __name__ == "__main__":
    main()
