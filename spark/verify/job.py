"""Verification: what object storage holds of hybrid topics is what gateways serve.

``python -m spark.verify [--topic …] [--sample …]``. Every range that is looked at is read twice, as
the table reads it and by a stock consumer: count, continuity, CRC, order, timestamps, and every
byte of keys, values and headers. docs/table.md.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import asdict, dataclass, field, replace
from typing import TYPE_CHECKING, Annotated, Any

import typer

from spark.common.entry import Job, Outcome, TopicsOption
from spark.common.owned import must_own
from spark.common.rows import chunks, from_frame, map_rows, to_frame
from spark.table.pieces import Piece, Place
from spark.table.plan import Plan, look, together
from spark.verify.compare import Difference, RangeVerdict, WatchedScanner, compare
from spark.verify.served import Gateways
from tideline.control_plane.cataloged_jobs import connect_jobs
from tideline.control_plane.jobs import JobsControlPlane
from tideline.domain.table import Bounds, Isolation, TableRefused
from tideline.errors import UsageError
from tideline.settings import JobsSettings

if TYPE_CHECKING:
    from collections.abc import Mapping

APPLICATION = "tideline-verify"
NAMED = 100
"""Differences of a topic that are kept; the others are counted."""
EDGE_OFFSETS = 1_000
"""On either side of B0, looked at in every partition whatever the sample."""
TOPICS_AT_ONCE = 200
"""Planned together: brokers' metadata is read once for them."""
ROUNDS = 10
"""In which the ranges are looked at, each with a line of progress."""

SampleOption = Annotated[
    float, typer.Option("--sample", help="Share of the ranges, more than 0, at most 1.")
]


@dataclass
class _Topic:
    """What was found so far."""

    plan: Plan
    ranges: int = 0
    batches: int = 0
    records: int = 0
    byte_count: int = 0
    gone: int = 0
    differences: int = 0
    first: list[Difference] = field(default_factory=list)

    def add(self, found: RangeVerdict) -> None:
        self.ranges += 1
        self.batches += found.batches
        self.records += found.records
        self.byte_count += found.byte_count
        self.gone += found.gone
        self.differences += found.differences
        self.first += found.first[: NAMED - len(self.first)]

    def details(self) -> dict[str, Any]:
        return {
            "topic": self.plan.topic,
            "partitions": len(self.plan.rows),
            "ranges": self.ranges,
            "batches": self.batches,
            "records": self.records,
            "bytes": self.byte_count,
            "gone": self.gone,
            "differences": self.differences,
            "first_differences": [asdict(one) for one in self.first],
        }


def verify(job: Job, topic: TopicsOption = None, sample: SampleOption = 1.0) -> Outcome:
    """Compare what object storage holds of hybrid topics with what gateways serve."""
    if not 0 < sample <= 1:
        raise UsageError(f"--sample is {sample}: more than 0 and at most 1 (all ranges)")
    must_own(job)
    done: list[_Topic] = []
    left_alone: dict[str, str] = {}
    with connect_jobs(job.settings, application_name=APPLICATION) as plane:
        bootstrap = _bootstrap(job.settings, plane)
        for names in chunks(topic or _crossed(plane), TOPICS_AT_ONCE):
            with _plans(job, plane, names, None if topic else left_alone) as plans:
                done += _verified(job, plane, plans, bootstrap, sample)
    details = {
        "sample": sample,
        "topics": [one.details() for one in done],
        "left_alone": left_alone,
    }
    wrong = [one for one in done if one.differences]
    if not wrong:
        return Outcome(details)
    first = wrong[0].first[0]
    return Outcome(
        details,
        f"{sum(one.differences for one in wrong)} differences in {len(wrong)} of {len(done)} "
        f"topics between object storage and gateways, the first in {wrong[0].plan.topic}-"
        f"{first.partition} at offset {first.offset}: {first.what}",
    )


@contextmanager
def _plans(
    job: Job, plane: JobsControlPlane, names: Sequence[str], left_alone: dict[str, str] | None
) -> Iterator[list[Plan]]:
    """Topics at this moment, pinned for as long as they are looked at. ``left_alone``: where a
    topic is noted that is none any more; ``None``: then nothing is done."""
    plans: list[Plan] = []
    try:
        for name in names:
            try:
                plans.append(look(job.settings, name))
            except TableRefused as error:
                if left_alone is None:
                    raise
                left_alone[name] = str(error)
        if plans:
            together(plans)
        yield plans
    finally:
        for plan in plans:
            if plan.pin is not None:
                plane.unpin_reads(plan.pin)


def _verified(
    job: Job,
    plane: JobsControlPlane,
    plans: Sequence[Plan],
    bootstrap: Sequence[str],
    sample: float,
) -> list[_Topic]:
    topics = {plan.topic: _Topic(plan) for plan in plans}
    chosen = [
        piece
        for plan in plans
        for piece in sampled(plan, sample, random.Random(f"{job.run_id}{plan.topic}"))
    ]
    _look_at(job, chosen, bootstrap, topics)
    for one in topics.values():
        _record(job, plane, one, sample)
    return list(topics.values())


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


def sampled(plan: Plan, sample: float, dice: random.Random) -> list[Piece]:
    """The ranges that are looked at: so many of all, one at least, and those next to each B0."""
    pieces = plan.pieces(plan.whole, Bounds(), Isolation.READ_COMMITTED, split=False)
    if sample >= 1 or not pieces:
        return pieces
    chosen = set(dice.sample(range(len(pieces)), max(1, round(sample * len(pieces)))))
    edges = (_edge(piece, plan) for piece in pieces)
    looked_at = (
        piece if number in chosen else edge
        for number, (piece, edge) in enumerate(zip(pieces, edges, strict=True))
    )
    return [piece for piece in looked_at if piece is not None]


def _edge(piece: Piece, plan: Plan) -> Piece | None:
    """The part of a piece that is next to B0."""
    row = plan.rows[piece.partition]
    if piece.place is Place.PREFIX and piece.end == row.prefix_end:
        return replace(piece, start=max(piece.start, piece.end - EDGE_OFFSETS))
    if piece.start == row.boundary:
        return replace(piece, end=min(piece.end, piece.start + EDGE_OFFSETS))
    return None


def _look_at(
    job: Job, pieces: Sequence[Piece], bootstrap: Sequence[str], topics: Mapping[str, _Topic]
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


def _record(job: Job, plane: JobsControlPlane, one: _Topic, sample: float) -> None:
    plane.record_verify_verdict(
        next(iter(one.plan.rows.values())).topic_id,
        job.run_id,
        sample=sample,
        ranges=one.ranges,
        records=one.records,
        byte_count=one.byte_count,
        differences=one.differences,
        detail=[asdict(difference) for difference in one.first],
    )
