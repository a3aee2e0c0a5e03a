"""Constants and settings that a seed turns to what is tiny or huge (FoundationDB's "buggify").

What is rare with the values that are shipped, a refill, a bound that is reached, a second step,
happens in a run with these. No promise depends on any of them.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any
from unittest.mock import patch

from tests.simulation.promotion import GONE_AFTER_S
from tideline.gateway.fetch import tracked_fetch
from tideline.gateway.produce import object_keys, teller
from tideline.gateway.tracking import confirm, quiesce, sync
from tideline.kafka import log_reader
from tideline.worker import promotion

TURNED = 0.15
"""How often each is turned."""
CONSTANTS: tuple[tuple[Any, str, float, float], ...] = (
    (confirm, "WINDOW_S", 0.0, 0.1),
    (quiesce, "ASK_AGAIN_S", 0.01, 1.0),
    (quiesce, "CEILING_PATIENCE_S", 0.001, 1.0),
    (quiesce, "VOID_CHECK_S", 0.05, 3.0),
    (object_keys, "KEY_POOL_SIZE", 2, 64),
    (teller, "TELL_AFTER_S", 0.02, 5.0),
    (tracked_fetch, "KAFKA_ROUND_S", 0.005, 0.4),
)
"""A module, its constant, and what is tiny and huge of it."""
SHORT_SCAN = {"MAX_BACK_BYTES": 300, "RETRIED_WITHIN_MS": 0}
SCANS: tuple[dict[str, int], ...] = (
    {"FETCH_BYTES": 1_000, "STEP_BYTES": 300, "LEAST_FETCH_BYTES": 200},
    SHORT_SCAN,
)
"""Of the scan for producers, turned together: a log of a run is longer than a step; the scan stops
before it has seen every producer, and the broker's word on the others has to do."""
START_PATIENCE_S = 2.0
"""How long a start waits for Postgres as a rule, shorter as runs are."""
SETTINGS: tuple[tuple[str, int, int], ...] = (
    ("gateway_park_max_ms", 300, 60_000),
    ("wal_max_delay_ms", 1, 1_000),
    ("wal_parallel_uploads", 1, 16),
    ("produce_timeout_ms", 3_000, 9_000),
    ("suffix_poll_ms", 5, 500),
    ("suffix_quiet_poll_ms", 5, 30_000),
)
"""Of the gateways."""
PRODUCE_TIMEOUT_MS = "4300"
"""An upload is given up after 0.7 of it, about 3 s; as it is shipped no object ever fails."""
SUFFIX_POLL_MS = "100"
"""Twice of what is shipped: a fiftieth of a run went into it."""
TIGHT: tuple[tuple[str, int], ...] = (
    ("gateway_park_max_bytes", 250),
    ("wal_max_bytes", 300),
    ("wal_buffer_max_bytes", 500),
)
"""In bytes, of a batch or three: less than an operator may set."""


def settings_of(seed: int) -> dict[str, str]:
    """What the gateways of a run are set to."""
    chance = random.Random(f"settings {seed}")
    found = {"produce_timeout_ms": PRODUCE_TIMEOUT_MS, "suffix_poll_ms": SUFFIX_POLL_MS}
    for name, *values in SETTINGS:
        if chance.random() < TURNED:
            found[name] = str(chance.choice(values))
    return found


def tight(seed: int) -> dict[str, int]:
    """Settings of the gateways that are lower than an operator may set them."""
    chance = random.Random(f"tight {seed}")
    return {name: value for name, value in TIGHT if chance.random() < TURNED}


@contextmanager
def turned(seed: int, patient: bool, short_scan: bool = False) -> Iterator[None]:
    """The constants of a run. ``patient``: a start waits for Postgres for as long as it
    does where nothing is turned. ``short_scan``: the scan for producers stops early, whatever the
    seed says."""
    chance = random.Random(f"constants {seed}")
    with ExitStack() as stack:
        stack.enter_context(patch.object(promotion, "GONE_AFTER_S", GONE_AFTER_S))
        if not patient:
            stack.enter_context(patch.object(sync, "START_PATIENCE_S", START_PATIENCE_S))
        for owner, name, *values in CONSTANTS:
            value = chance.choice(values)
            if chance.random() < TURNED:
                stack.enter_context(patch.object(owner, name, value))
        for scan in SCANS:
            if chance.random() < TURNED or (short_scan and scan is SHORT_SCAN):
                stack.enter_context(patch.multiple(log_reader, **scan))
        yield
