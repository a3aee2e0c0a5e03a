"""Idempotent producer state: what is kept per producer, and how a batch is judged.

Kafka's ``ProducerAppendInfo`` and ``ProducerStateEntry``: the last five batches per producer.
"""

from __future__ import annotations

from dataclasses import dataclass

BATCHES_KEPT = 5
"""``ProducerStateEntry.NUM_BATCHES_TO_RETAIN``."""


@dataclass(frozen=True, slots=True)
class ProducerSeed:
    """One batch of one producer, below B0, in offset order (oldest first)."""

    producer_id: int
    producer_epoch: int
    base_sequence: int
    last_sequence: int
    base_offset: int
    last_offset: int
    timestamp: int
    """ms, the batch's max timestamp."""
