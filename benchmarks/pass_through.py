"""Classic produce through a gateway beside the same produce to the brokers directly.

Kafka's own ``ProducerPerformance`` (Java) writes to one classic topic, alternately by both ways.
"""

from __future__ import annotations

import re
import statistics
import subprocess
from collections.abc import Callable
from dataclasses import dataclass, field

from confluent_kafka.admin import AdminClient, NewTopic

from tideline.stack import Stack
from tideline.stack.kafka_jars import tool_command

RECORDS, RECORD_BYTES = 60_000, 1000
_FOUND = re.compile(r"\(([\d.]+) MB/sec\), ([\d.]+) ms avg latency")


@dataclass(slots=True)
class PassThroughResult:
    """MB/s and average latency (ms) by way."""

    direct: list[tuple[float, float]] = field(default_factory=list)
    gateway: list[tuple[float, float]] = field(default_factory=list)


def produce(bootstrap: str, topic: str) -> tuple[float, float]:
    """One run of the tool: (MB/s, average latency in ms)."""
    run = subprocess.run(
        tool_command(
            "org.apache.kafka.tools.ProducerPerformance",
            "--topic", topic, "--num-records", str(RECORDS), "--record-size", str(RECORD_BYTES),
            "--throughput", "-1",
            "--producer-props", f"bootstrap.servers={bootstrap}", "acks=all", "linger.ms=5",
        ),
        capture_output=True, text=True, check=True, timeout=300,
    )  # fmt: skip
    found = _FOUND.findall(run.stdout)[-1]
    return float(found[0]), float(found[1])


def measure(stack: Stack, rounds: int, step: Callable[[str], None]) -> PassThroughResult:
    """Alternate both ways ``rounds`` times after one run of each that does not count."""
    admin = AdminClient({"bootstrap.servers": stack.endpoints.kafka_bootstrap})
    topic = "pass-through"
    admin.create_topics([NewTopic(topic, 6, 3)])[topic].result(60)
    result = PassThroughResult()
    for number in range(rounds + 1):
        step(f"pass-through: round {number} of {rounds}")
        direct = produce(stack.endpoints.kafka_bootstrap, topic)
        through = produce(stack.endpoints.gateway_bootstrap, topic)
        if number:
            result.direct.append(direct)
            result.gateway.append(through)
    return result


def to_markdown(result: PassThroughResult, machine: str) -> str:
    """The table that docs/performance.md shows."""

    def cell(values: list[tuple[float, float]], column: int) -> str:
        chosen = [value[column] for value in values]
        return f"{statistics.median(chosen):.1f} ({min(chosen):.1f} to {max(chosen):.1f})"

    ratios = [g[0] / d[0] for g, d in zip(result.gateway, result.direct, strict=True)]
    return "\n".join(
        [
            f"{len(ratios)} rounds of {RECORDS} records of {RECORD_BYTES} bytes, acks=all, 3 "
            f"brokers. Machine: {machine}. Median (lowest to highest).",
            "",
            "| way | MB/s | average latency, ms |",
            "| --- | --- | --- |",
            f"| to the brokers | {cell(result.direct, 0)} | {cell(result.direct, 1)} |",
            f"| through gateways | {cell(result.gateway, 0)} | {cell(result.gateway, 1)} |",
            "",
            f"Throughput through gateways / direct: {statistics.median(ratios):.2f} "
            f"({min(ratios):.2f} to {max(ratios):.2f}).",
        ]
    )
