"""Random batches for a few logs: idempotent ones and others, retries, gaps in sequences."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import replace
from random import Random

from tests.contract.scenes import batch
from tideline.control_plane.model import BatchToCommit
from tideline.domain.ids import TopicIdPartition


class Traffic:
    """What producers send, in objects of up to four batches."""

    def __init__(
        self, random: Random, *, again: float, plain: float, disorder: float = 0.1
    ) -> None:
        """``again``, ``plain``, ``disorder``: the shares of what is sent once more, without
        sequences, and before a batch that is out of order."""
        self._random, self._again, self._plain = random, again, plain
        self._disorder = disorder
        self.next_sequence: dict[tuple[TopicIdPartition, int], int] = defaultdict(int)
        self._sent: list[BatchToCommit] = []

    def batches(self, logs: Sequence[TopicIdPartition]) -> list[BatchToCommit]:
        """One behind the other, as in an object."""
        made: list[BatchToCommit] = []
        position = 0
        for _ in range(self._random.randint(1, 4)):
            one = replace(self._batch(logs), byte_offset=position)
            position += one.byte_size
            made.append(one)
            self._sent.append(one)
        return made

    def _batch(self, logs: Sequence[TopicIdPartition]) -> BatchToCommit:
        if self._sent and self._random.random() < self._again:
            return self._random.choice(self._sent)  # a retry, or the like of it
        log = self._random.choice(logs)
        kind = self._random.choice(("CreateTime", "LogAppendTime"))
        records, time = self._random.randint(1, 3), self._random.randint(0, 10**13)
        if self._random.random() < self._plain:
            return batch(log, records=records, timestamp=time, timestamp_type=kind)
        producer = self._random.randint(1, 3)
        base = self.next_sequence[log, producer]
        if self._random.random() >= self._disorder:  # else its next batch is out of order
            self.next_sequence[log, producer] += records
        identity = (producer, 0, base)
        return batch(log, records=records, timestamp=time, timestamp_type=kind, producer=identity)
