"""How fast garbage collection looks through a bucket and empties it, beside S3 alone.

The named alternative is a plain loop of ListObjectsV2 and DeleteObjects over the same objects in
the same run: what S3 gives to one client that asks nobody whether an object may go.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from uuid import uuid4

from benchmarks.beside import spread
from benchmarks.page import Figure
from spark.common.entry import Job, Launch
from spark.common.rows import chunks
from spark.gc.deletion import Graces, delete_all_due, measured
from spark.gc.reports import Report
from spark.gc.tasks import Sweep, sweep_diskless
from tideline.control_plane.cataloged_jobs import connect_jobs
from tideline.control_plane.jobs import JobsControlPlane
from tideline.object_store.client import DELETE_AT_ONCE, ObjectStoreClient
from tideline.settings import JobsSettings
from tideline.stack import Stack

PREFIX = "wal/"
PLAIN = "gc-benchmark/"
"""What is deleted without asking must not lie where live objects do."""
WRITERS = 16


@dataclass(frozen=True, slots=True)
class GcResult:
    """Seconds for ``objects`` objects, by round; ``found`` and ``deleted`` must be all of them."""

    objects: int
    plain_listing: tuple[float, ...]
    listing: tuple[float, ...]
    plain_deletion: float
    deletion: float
    found: int
    deleted: int

    @property
    def wrong(self) -> bool:
        """Whether an orphan was missed."""
        return not self.found == self.deleted == self.objects


def measure(stack: Stack, objects: int, rounds: int, step: Callable[[str], None]) -> GcResult:
    """List ``objects`` orphans ``rounds`` times both ways, then delete them both ways."""
    settings = JobsSettings.of(stack.environment("jobs")).model_copy(update={"gc_grace_ms": 0})
    store = ObjectStoreClient(settings)
    job = Job("gc-benchmark", settings, Launch("local[*]"))
    try:
        step(f"gc: writing {objects} objects")
        write(store, settings.s3_bucket, PREFIX, objects)
        sweep_diskless(job, None)
        plain, ours, swept = [], [], Sweep()
        for number in range(rounds):
            step(f"gc: listing, round {number + 1} of {rounds}")
            plain.append(timed(lambda: list_all(store, settings.s3_bucket))[0])
            taken, swept = timed(lambda: sweep_diskless(job, None))
            ours.append(taken)
        step("gc: deleting")
        with connect_jobs(settings, application_name="gc-benchmark") as plane:
            sweep_diskless(job, plane.begin_gc_run(job.run_id).run_number)
            deletion, gone = timed(lambda: collect(job, plane, store))
        write(store, settings.s3_bucket, PLAIN, objects)
        plain_deletion, _ = timed(lambda: delete_all(store, settings.s3_bucket))
    finally:
        job.close()
    return GcResult(
        objects, tuple(plain), tuple(ours), plain_deletion, deletion, swept.unknown, gone.listed
    )


def collect(job: Job, plane: JobsControlPlane, store: ObjectStoreClient) -> Sweep:
    """A run that lists again what the one before it has reported, and deletes it."""
    begun = plane.begin_gc_run(uuid4())
    sweep_diskless(job, begun.run_number)
    graces = Graces(0, 0, begun)
    bucket = job.settings.s3_bucket
    report = Report(store, bucket, begun.run_number, job.run_id, job.started_at)
    gone = delete_all_due(job, plane, report, measured(plane, graces), graces, lambda: None)
    return Sweep(listed=gone.get("orphan", 0))


def timed(work: Callable[[], Sweep]) -> tuple[float, Sweep]:
    """Seconds that ``work`` took, and what it answered."""
    started = time.perf_counter()
    answer = work()
    return time.perf_counter() - started, answer


def write(store: ObjectStoreClient, bucket: str, prefix: str, count: int) -> None:
    """Objects that nobody knows, with names like those of WAL objects."""
    with ThreadPoolExecutor(WRITERS) as pool:
        list(pool.map(lambda _: store.put(bucket, f"{prefix}{uuid4().hex}", b"x"), range(count)))


def list_all(store: ObjectStoreClient, bucket: str) -> Sweep:
    """A plain loop over pages."""
    return Sweep(listed=sum(1 for _ in store.list_objects(bucket, PREFIX)))


def delete_all(store: ObjectStoreClient, bucket: str) -> Sweep:
    """A plain loop over pages, each deleted at once."""
    gone = 0
    for some in chunks((e.key for e in store.list_objects(bucket, PLAIN)), DELETE_AT_ONCE):
        store.delete(bucket, some)
        gone += len(some)
    return Sweep(listed=gone)


def figure(result: GcResult) -> Figure:
    ours = [result.objects / seconds for seconds in result.listing]
    plain = [result.objects / seconds for seconds in result.plain_listing]
    ratio = statistics.median(ours) / statistics.median(plain)
    return Figure(spread(ours, ",.0f"), f"S3 alone: {spread(plain, ',.0f')}", ratio)


def to_markdown(result: GcResult, machine: str) -> str:
    """The report."""
    rate = result.objects / statistics.median(result.listing)
    plain = result.objects / statistics.median(result.plain_listing)
    deletes, plain_deletes = (
        result.objects / result.deletion,
        result.objects / result.plain_deletion,
    )
    lines = [
        f"{result.objects} orphans in `{PREFIX}`; medians of {len(result.listing)} rounds of "
        f"listing, one of deletion. {machine}",
        "",
        "| | gc | S3 alone, one client | ratio |",
        "| --- | ---: | ---: | ---: |",
        f"| listed and judged, objects/s | {rate:,.0f} ({_spread(result.listing, result.objects)}) "
        f"| {plain:,.0f} ({_spread(result.plain_listing, result.objects)}) | {rate / plain:.2f} |",
        f"| listed, judged, reported and deleted, objects/s | {deletes:,.0f} "
        f"| {plain_deletes:,.0f} | {deletes / plain_deletes:.2f} |",
        "",
        "gc asks Postgres about every object and lists it in a report before it goes; S3 alone "
        "does neither.",
    ]
    if result.wrong:
        lines += ["", f"WRONG: {result.found} found, {result.deleted} deleted."]
    return "\n".join(lines)


def _spread(seconds: Sequence[float], objects: int) -> str:
    return f"{objects / max(seconds):,.0f} to {objects / min(seconds):,.0f}"
