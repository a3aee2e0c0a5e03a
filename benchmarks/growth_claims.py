"""Claims of split as drivers make them: one after the other, kept, and several drivers at once."""

from __future__ import annotations

import time
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from threading import Barrier
from uuid import UUID, uuid4

from benchmarks.growth_rows import PER_FILE
from tideline.control_plane.jobs import JobsControlPlane
from tideline.settings import JobsSettings

DRIVERS = (1, 2, 4)
CLAIMS = 20
"""Of one driver in its round: it goes on where the one before ended."""
CLAIMED = 1_000
"""Batches of one claim of split, in as few files as hold them: the default at most."""
CLAIM_MS = 600_000
"""Longer than any of this takes."""


def claimed_per_second(
    settings: JobsSettings, cutoffs: Mapping[UUID, int], rounds: int
) -> tuple[tuple[float, ...], ...]:
    """For each of :data:`DRIVERS`: batches a second that so many claim together, of each round.
    What a round has claimed is given back after it."""
    found: list[list[float]] = [[] for _ in DRIVERS]
    for _ in range(rounds):
        for place, drivers in enumerate(DRIVERS):
            found[place].append(_at_once(settings, cutoffs, drivers))
    return tuple(map(tuple, found))


def _at_once(settings: JobsSettings, cutoffs: Mapping[UUID, int], drivers: int) -> float:
    ready = Barrier(drivers)
    workers = [uuid4() for _ in range(drivers)]

    def drive(worker: UUID) -> tuple[float, float, int]:
        with closing(JobsControlPlane(settings, "growth-driver")) as jobs:
            jobs.release_claims(worker)  # connects
            ready.wait()
            started = time.perf_counter()
            batches = _round(jobs, worker, cutoffs)
            return started, time.perf_counter(), batches

    with ThreadPoolExecutor(drivers) as pool:
        done = list(pool.map(drive, workers))
    with closing(JobsControlPlane(settings, "growth-driver")) as jobs:
        for worker in workers:
            jobs.release_claims(worker)
    taken = max(end for _, end, _ in done) - min(start for start, _, _ in done)
    return sum(batches for _, _, batches in done) / taken


def _round(jobs: JobsControlPlane, worker: UUID, cutoffs: Mapping[UUID, int]) -> int:
    batches, from_ms = 0, None
    for _ in range(CLAIMS):
        files = jobs.claim_wal_files(
            worker,
            max_files=CLAIMED // PER_FILE,
            max_batches=CLAIMED,
            claim_ms=CLAIM_MS,
            cutoffs=cutoffs,
            from_ms=from_ms,
        )
        batches += sum(len(file.batches) for file in files)
        from_ms = files[-1].oldest_ms
    return batches
