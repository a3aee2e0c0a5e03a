"""Split aged WAL files into one file per partition: ``python -m spark.split``, or spark-submit.

The driver claims files and gives them to the executors, round by round, until nothing is eligible.
Any number of drivers may run at once.
"""

from __future__ import annotations

import time
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from uuid import UUID, uuid4

import typer

from spark.common.entry import (
    ConfOption,
    DryRunOption,
    Job,
    MasterOption,
    Outcome,
    ResultOption,
    TopicsOption,
    launch,
    run_job,
)
from spark.tiering import split_frames as logic
from spark.tiering.services import FromSettings
from spark.tiering.split_file import Ended, SplitOutcome
from spark.tiering.totals import Totals
from tideline.control_plane.jobs import JobsControlPlane, connect_jobs
from tideline.control_plane.tiering_model import ClaimedFile
from tideline.errors import TidelineError
from tideline.kafka.topic_policies import TieringPolicies, read_tiering_policies, suffix_topics

APPLICATION = "tideline-split"
ROUND_BYTES_PER_TASK = 64 * 1024 * 1024
CLAIMS_PER_TASK = 32
"""A round is closed by bytes, so that no claim waits long for its turn, and by claims, so that
small files do not cost one Spark job each."""
TASKS_PER_CORE = 4
"""Files differ in size: more tasks than cores let the cores end at the same time."""
MOST_FAILURES_TOLD = 20


@dataclass
class SplitSummary:
    """What a run of split did. Sizes in bytes."""

    rounds: int = 0
    files: int = 0
    batches: int = 0
    split_files: int = 0
    bytes_read: int = 0
    bytes_written: int = 0
    stale: int = 0
    """Files that another worker took over."""
    failed: int = 0
    failures: list[dict[str, object]] = field(default_factory=list)
    elapsed_ms: int = 0

    def add(self, outcome: SplitOutcome) -> None:
        """Count one file."""
        self.batches += outcome.batches
        self.split_files += outcome.split_files
        self.bytes_read += outcome.bytes_read
        self.bytes_written += outcome.bytes_written
        if outcome.ended == Ended.DONE:
            self.files += 1
        elif outcome.ended == Ended.STALE:
            self.stale += 1
        else:
            self.failed += 1
            if len(self.failures) < MOST_FAILURES_TOLD:
                self.failures.append({"object_key": outcome.object_key, "error": outcome.error})

    @property
    def complaint(self) -> str | None:
        """Why the run is not good, in one line."""
        if not self.failed:
            return None
        return (
            f"{self.failed} WAL files could not be split, the first: {self.failures[0]['error']}. "
            "They are tried again later; `tideline tiering status` shows what is parked"
        )


def split_all(job: Job, plane: JobsControlPlane, rules: TieringPolicies) -> SplitSummary:
    """Claim and split until nothing is eligible. What was done stays done when it raises."""
    worker, summary, started = uuid4(), SplitSummary(), time.monotonic()
    cutoffs = rules.cutoffs(round(time.time() * 1000))
    services = FromSettings(job.settings, APPLICATION)
    while claimed := _claim_round(job, plane, worker, cutoffs):
        summary.rounds += 1
        size = sum(batch.byte_size for file in claimed for batch in file.batches)
        job.progress(f"round {summary.rounds}: {len(claimed)} WAL files, {size} bytes")
        frame = logic.claimed_frame(job.spark, claimed, job.parallelism * TASKS_PER_CORE)
        totals = Totals()
        try:
            for outcome in logic.outcomes(logic.split(frame, worker, services)):
                summary.add(outcome)
                totals.add_split(outcome)
        except BaseException:
            _give_back(plane, worker, claimed)
            raise
        totals.tell(plane)
    summary.elapsed_ms = round((time.monotonic() - started) * 1000)
    return summary


def _claim_round(
    job: Job, plane: JobsControlPlane, worker: UUID, cutoffs: dict[UUID, int]
) -> list[ClaimedFile]:
    """Files for every core. The first claim does not start Spark: often there is nothing to do."""
    settings, size, claims = job.settings, 0, 0
    claimed: dict[int, ClaimedFile] = {}
    while files := plane.claim_wal_files(
        worker,
        max_files=settings.tiering_splitter_max_files_per_run,
        max_batches=settings.tiering_max_batches_per_run,
        claim_ms=settings.tiering_splitter_claim_duration_ms,
        cutoffs=cutoffs,
    ):
        # One that has expired while Spark was starting comes again, under a newer token.
        claimed |= {file.file_id: file for file in files}
        claims += 1
        size += sum(batch.byte_size for file in files for batch in file.batches)
        cores = job.parallelism
        if size >= cores * ROUND_BYTES_PER_TASK or claims >= cores * CLAIMS_PER_TASK:
            break
    return list(claimed.values())


def _give_back(plane: JobsControlPlane, worker: UUID, claimed: list[ClaimedFile]) -> None:
    """What is done already is not ours any more: releasing it changes nothing."""
    with suppress(TidelineError):
        for file in claimed:
            plane.release_claim(worker, file.file_id, file.token)


def work(job: Job, topics: tuple[str, ...] = (), *, dry_run: bool = False) -> Outcome:
    """The whole job."""
    with connect_jobs(job.settings, application_name=APPLICATION) as plane:
        rules = read_tiering_policies(job.settings, suffix_topics(plane, topics))
        job.progress(f"{len(rules.configs)} topics")
        if dry_run:
            return Outcome({"eligible": eligible(plane, rules), "left_alone": rules.left_alone})
        summary = split_all(job, plane, rules)
    return Outcome({"split": asdict(summary), "left_alone": rules.left_alone}, summary.complaint)


def eligible(plane: JobsControlPlane, rules: TieringPolicies) -> list[dict[str, object]]:
    """Partitions with something to split now."""
    return [
        {"topic": row.topic, "partition": row.partition, "bytes": row.eligible_bytes}
        for row in plane.tiering_status(cutoffs=rules.cutoffs(round(time.time() * 1000)))
        if row.eligible_bytes and row.topic_id in rules.configs
    ]


def split(
    topic: TopicsOption = None,
    dry_run: DryRunOption = False,
    master: MasterOption = None,
    conf: ConfOption = None,
    result: ResultOption = None,
) -> None:
    """Split WAL files whose batches are older than local.retention.ms, or whose topic was
    triggered, into one file per partition."""
    code = run_job(
        "split",
        lambda job: work(job, tuple(topic or ()), dry_run=dry_run),
        launch(master, conf, result),
    )
    raise typer.Exit(code)
