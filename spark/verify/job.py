"""Verification: what object storage holds of hybrid topics is what gateways serve.

``python -m spark.verify [--topic …] [--sample …]``. Every range that is looked at is read twice, as
the table reads it and by a stock consumer: count, continuity, CRC, order, timestamps, and every
byte of keys, values and headers. docs/table.md.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated

import typer

from spark.common.entry import Job, Outcome, TopicsOption
from spark.common.owned import must_own
from spark.common.rows import chunks, from_frame, map_rows, to_frame
from spark.table.pieces import Piece
from spark.table.plan import Plan
from spark.verify.compare import Difference, RangeVerdict, WatchedScanner, compare
from spark.verify.planning import planned
from spark.verify.served import Gateways
from spark.verify.verdict import Ranges, TopicVerdict, sampled
from tideline.control_plane.cataloged_jobs import connect_jobs
from tideline.control_plane.jobs import JobsControlPlane
from tideline.domain.table import TableRefused
from tideline.errors import UsageError
from tideline.settings import JobsSettings

if TYPE_CHECKING:
    from collections.abc import Mapping

APPLICATION = "tideline-verify"
TOPICS_AT_ONCE = 200
"""Planned together: brokers' metadata is read once for them."""
ROUNDS = 10
"""In which the ranges are looked at, each with a line of progress."""

SampleOption = Annotated[
    float, typer.Option("--sample", help="Share of the ranges, more than 0, at most 1.")
]


def verify(job: Job, topic: TopicsOption = None, sample: SampleOption = 1.0) -> Outcome:
    """Compare what object storage holds of hybrid topics with what gateways serve."""
    if not 0 < sample <= 1:
        raise UsageError(f"--sample is {sample}: more than 0 and at most 1 (all ranges)")
    must_own(job)
    done: list[TopicVerdict] = []
    left_alone: dict[str, str] = {}
    with connect_jobs(job.settings, application_name=APPLICATION) as plane:
        bootstrap = _bootstrap(job.settings, plane)
        for names in chunks(topic or _crossed(plane), TOPICS_AT_ONCE):
            with planned(job.settings, plane, names) as (found, refused):
                if topic and refused:
                    raise next(iter(refused.values()))
                alone = {name: str(error) for name, error in refused.items()} | _partly(found)
                for name, why in alone.items():
                    job.progress(f"{name} is left alone: {why}")
                left_alone |= alone
                done += _verified(job, plane, found, bootstrap, sample)
    return _outcome(sample, done, left_alone)


def _outcome(sample: float, done: Sequence[TopicVerdict], left_alone: Mapping[str, str]) -> Outcome:
    details = {
        "sample": sample,
        "topics": [one.details() for one in done],
        "left_alone": dict(left_alone),
    }
    wrong = [one for one in done if one.differences]
    if left_alone and not done:
        name, why = next(iter(left_alone.items()))
        return Outcome(
            details,
            f"none of {len(left_alone)} topics could be looked at, the first is {name}: {why}",
        )
    if not wrong:
        return Outcome(details)
    first = wrong[0].first[0]
    return Outcome(
        details,
        f"{sum(one.differences for one in wrong)} differences in {len(wrong)} of {len(done)} "
        f"topics between object storage and gateways, the first in {wrong[0].of.plan.topic}-"
        f"{first.partition} at offset {first.offset}: {first.what}",
        final=True,
    )


def _partly(found: Sequence[Ranges]) -> dict[str, str]:
    """Topics of which something is missing, and partitions cannot be read besides."""
    return {one.plan.topic: next(iter(one.left_alone.values())) for one in found if one.left_alone}


def _verified(
    job: Job,
    plane: JobsControlPlane,
    found: Sequence[Ranges],
    bootstrap: Sequence[str],
    sample: float,
) -> list[TopicVerdict]:
    topics = {one.plan.topic: TopicVerdict(one, _before(plane, one.plan)) for one in found}
    chosen = [
        piece
        for name, one in topics.items()
        for piece in sampled(
            one.of.pieces,
            one.of.plan.rows,
            sample,
            random.Random(f"{job.run_id}{name}"),
            one.before,
        )
    ]
    if chosen:
        _look_at(job, chosen, bootstrap, topics)
    for one in topics.values():
        one.settle()
        _record(job, plane, one, sample)
    return list(topics.values())


def _before(plane: JobsControlPlane, plan: Plan) -> list[Difference]:
    """What the last verdict on the topic names."""
    return [
        Difference(one["partition"], one["offset"], one["what"])
        for verdict in plane.verify_verdicts(plan.topic)
        if verdict.topic_id == plan.topic_id
        for one in verdict.detail
    ]


def _crossed(plane: JobsControlPlane) -> list[str]:
    """Topics of which every partition has its B0."""
    crossed: dict[str, bool] = {}
    for row in plane.partitions(*plane.log_id_range()):
        if not row.deleted:
            crossed[row.topic] = crossed.get(row.topic, True) and row.boundary >= 0
    return sorted(name for name, all_have in crossed.items() if all_have)


def _bootstrap(settings: JobsSettings, plane: JobsControlPlane) -> list[str]:
    if settings.verify_bootstrap:
        return [f"{host}:{port}" for host, port in settings.verify_bootstrap]
    if found := plane.gateway_addresses():
        return found
    raise TableRefused(
        "no gateway has registered: nobody serves what could be compared; start one, or set "
        "TIDELINE_VERIFY_BOOTSTRAP"
    )


def _look_at(
    job: Job, pieces: Sequence[Piece], bootstrap: Sequence[str], topics: Mapping[str, TopicVerdict]
) -> None:
    settings, tasks = job.settings, job.parallelism

    def work(ranges: Iterator[Piece]) -> Iterator[RangeVerdict]:
        with WatchedScanner(settings) as scanner, closing(Gateways(settings, bootstrap)) as served:
            for piece in ranges:
                if piece.pin is not None:
                    scanner.hold(piece.pin, settings.table_pin_ms)
                yield compare(scanner, served, piece)

    job.progress(f"{len(pieces)} ranges of {len(topics)} topics")
    done = 0
    for some in chunks(pieces, max(tasks, -(-len(pieces) // ROUNDS))):
        frame = to_frame(job.spark, Piece, some, tasks)
        for found in from_frame(RangeVerdict, map_rows(frame, Piece, RangeVerdict, work, 1)):
            topics[found.topic].add(found)
        done += len(some)
        records = sum(one.records for one in topics.values())
        differences = sum(one.differences for one in topics.values())
        job.progress(
            f"{done} of {len(pieces)} ranges, {records} records, {differences} differences"
        )


def _record(job: Job, plane: JobsControlPlane, one: TopicVerdict, sample: float) -> None:
    plane.record_verify_verdict(
        one.of.plan.topic_id,
        job.run_id,
        sample=sample,
        ranges=one.ranges,
        records=one.records,
        byte_count=one.byte_count,
        differences=one.differences,
        detail=[asdict(difference) for difference in one.first],
    )
