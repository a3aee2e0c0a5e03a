"""What benchmarks of one gateway share: cases, ports, CPU time, a broker's versions, and tables."""

from __future__ import annotations

import os
import socket
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

from kio.schema.errors import ErrorCode

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
