"""Claimed WAL files are split: their runs are recorded, where they lie.

A run is a contiguous range of offsets of one partition in one WAL object. Nothing is read or copied
of it: merge reads it where it is, and the WAL object stays until its last batch is merged. Progress
is durable claim by claim: one transaction records the runs and marks their batches.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import groupby
from uuid import UUID

from spark.common.retry import retry
from spark.tiering.outcomes import Ended, SplitOutcome
from spark.tiering.services import Services
from tideline.control_plane.errors import TieringMismatch
from tideline.control_plane.tiering_model import (
    ClaimedBatch,
    ClaimedFile,
    FinishedSplit,
    SplitRun,
    TieringScope,
)
from tideline.domain.tiering import contiguous_runs
from tideline.errors import TidelineError


@dataclass(frozen=True, slots=True)
class SplitOrder:
    """What a task of split is to claim, again and again, until nothing is eligible."""

    worker: UUID
    max_files: int
    """Of one claim."""
    max_batches: int
    claim_ms: int
    cutoffs: Mapping[UUID, int]
    """Topic id → ms, as ``claim_wal_files`` takes them."""


class Splitter:
    """Claims and splits. Each claim goes on where the one before it ended; another round from the
    oldest batch on finds what has become eligible, or free, behind it."""

    def __init__(self, services: Services, order: SplitOrder) -> None:
        self._services, self._order = services, order
        self._from_ms: int | None = None

    def once(self) -> list[SplitOutcome]:
        """One claim; empty when nothing is left, from the oldest batch on.

        Raises :class:`~tideline.errors.UnreachableError`; what was split until then is.
        """
        started = time.monotonic()
        files = retry(self._claim)
        if not files and self._from_ms is not None:
            self._from_ms = None
            files = retry(self._claim)
        if not files:
            return []
        self._from_ms = files[-1].oldest_ms
        return list(split(self._services, self._order.worker, files, started))

    def rest(self) -> Iterator[SplitOutcome]:
        """Until nothing is left."""
        while some := self.once():
            yield from some

    def _claim(self) -> list[ClaimedFile]:
        order = self._order
        return self._services.plane.claim_wal_files(
            order.worker,
            max_files=order.max_files,
            max_batches=order.max_batches,
            claim_ms=order.claim_ms,
            cutoffs=order.cutoffs,
            from_ms=self._from_ms,
        )


def split(
    services: Services, worker: UUID, files: Sequence[ClaimedFile], started: float
) -> Iterator[SplitOutcome]:
    """Split files that ``worker`` has claimed, all in one transaction; one by one where a run of
    one does not fit what is committed, which is counted against that file alone. ``started``: when
    the claim was asked for, by the monotonic clock."""
    try:
        done = {found.file_id: found for found in _finish(services, worker, files)}
    except TieringMismatch as error:
        if len(files) == 1:
            yield _failed(services, worker, files[0], error)
            return
        for file in files:
            yield from split(services, worker, [file], started)
        return
    except TidelineError:
        # Another attempt need not wait for the claims to expire; if Postgres is away, it does.
        with suppress(TidelineError):
            for file in files:
                services.plane.release_claim(worker, file.file_id, file.token)
        raise
    elapsed_ms = round((time.monotonic() - started) * 1000)
    for file in files:
        found = done.get(file.file_id, FinishedSplit(file.file_id, 0, 0, 0))
        yield SplitOutcome(
            file.file_id,
            file.object_key,
            Ended.DONE if file.file_id in done else Ended.STALE,
            runs=found.runs,
            batches=found.batches,
            bytes=found.bytes,
            elapsed_ms=elapsed_ms,
        )


def _finish(services: Services, worker: UUID, files: Sequence[ClaimedFile]) -> list[FinishedSplit]:
    recorded = [run for file in files for run in runs(file)]
    return retry(lambda: services.plane.finish_split(worker, files, recorded))


def runs(file: ClaimedFile) -> Iterator[SplitRun]:
    """The claimed batches of a file as contiguous runs of offsets, each of one partition."""
    ordered = sorted(file.batches, key=lambda b: (b.log_id, b.base_offset))
    for log_id, of_log in groupby(ordered, key=lambda b: b.log_id):
        for run in contiguous_runs(of_log):
            yield _recorded(file.file_id, log_id, run)


def _recorded(file_id: int, log_id: int, run: Sequence[ClaimedBatch]) -> SplitRun:
    return SplitRun(
        file_id=file_id,
        log_id=log_id,
        base_offset=run[0].base_offset,
        last_offset=run[-1].last_offset,
        byte_size=sum(batch.byte_size for batch in run),
        batch_count=len(run),
        max_timestamp=max(batch.max_timestamp for batch in run),
    )


def _failed(
    services: Services, worker: UUID, file: ClaimedFile, error: TidelineError
) -> SplitOutcome:
    """Count the failure before the claim is given back, so that nobody takes the file in between
    as if nothing had happened."""
    services.count_failure(TieringScope.SPLIT, file.file_id, str(error))
    retry(lambda: services.plane.release_claim(worker, file.file_id, file.token))
    return SplitOutcome(file.file_id, file.object_key, Ended.FAILED, error=str(error))
