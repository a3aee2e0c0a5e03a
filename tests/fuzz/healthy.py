"""Stock clients beside the hostile ones: what they were told must come back, and how long it took
is reported."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from tideline.demo.ledger import Ledger, quantile
from tideline.demo.workload import GroupConsumer, LibrdkafkaProducer, wait_until_consumed

RATE = 50.0
"""Records in a second, of each topic."""


@dataclass(frozen=True, slots=True)
class Seen:
    """Of one topic."""

    topic: str
    acknowledged: int
    consumed: int
    wrong: tuple[str, ...]
    """What was lost, misplaced, duplicated, failed, or told as an error."""
    before_ms: tuple[float, float]
    """Of a record until it was acknowledged, before the first hostile frame: p50 and p99."""
    during_ms: tuple[float, float, float]
    """Among hostile clients: p50, p99 and longest."""


class Pair:
    """One idempotent producer and one consumer of one topic."""

    def __init__(self, bootstrap: str, topic: str, partitions: Sequence[int]) -> None:
        self._topic = topic
        self._ledger = Ledger()
        self._partitions = list(partitions)
        self._producer = LibrdkafkaProducer(
            f"healthy-{topic}", bootstrap, topic, partitions, self._ledger, records_per_second=RATE
        )
        self._consumer = GroupConsumer(
            f"healthy-{topic}", bootstrap, topic, f"healthy-{topic}", self._ledger
        )
        self._quiet: list[float] = []

    def start(self) -> None:
        self._consumer.start()
        self._producer.start()

    def attacked(self) -> None:
        """From now on there are hostile clients."""
        self._quiet = self._latencies()

    @property
    def acknowledged(self) -> int:
        return self._ledger.counts()[0]

    def end(self) -> Seen:
        """Stop, and compare what was acknowledged with what was consumed."""
        during = self._latencies()[len(self._quiet) :]
        self._producer.stop()
        wrong = list(self._ledger.failures)
        if not wait_until_consumed(self._ledger, 60):
            wrong.append("not everything was consumed within a minute")
        self._consumer.stop()
        wrong += [f"consumer was sent back: {reset}" for reset in self._consumer.resets]
        for partition in self._ledger.partitions:
            verdict = self._ledger.verdict(partition)
            if not verdict.ok:
                wrong.append(str(verdict)[:500])
        acknowledged, consumed = self._ledger.counts()
        return Seen(
            self._topic,
            acknowledged,
            consumed,
            tuple(wrong),
            (quantile(self._quiet, 0.5), quantile(self._quiet, 0.99)),
            (quantile(during, 0.5), quantile(during, 0.99), max(during, default=0.0)),
        )

    def _latencies(self) -> list[float]:
        """In the order of the acknowledgements."""
        every = [a for p in self._partitions for a in self._ledger.acknowledgements(p)]
        return [a.latency_ms for a in sorted(every, key=lambda a: a.at)]
