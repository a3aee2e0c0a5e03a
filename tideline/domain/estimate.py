"""What a migration will take, told before it is started: seconds, write pauses, requests, rows.

Seconds go by what partitions that have crossed in this installation took, where there are enough of
them, else by what docs/performance.md has measured on another machine; each figure says which. One
range goes from the median to the 90th percentile, as if each partition took that. Requests and rows
are those of a migration in which nothing has to be tried again.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum

from tideline.domain.migration import CROSSING_AT_ONCE, Phase
from tideline.domain.options import Durability, MigrationOptions
from tideline.domain.places import share_of

LOOKED_AT = 500
"""Of the partitions that have crossed, the newest: other machines and other load may have been
before them."""
ENOUGH = 10
"""Partitions of which a median says something."""


class Span(StrEnum):
    """What lasts longer than a phase."""

    CROSSING = "crossing"
    """Of a partition: from the drain that led to its B0 until that, waits for its turn among write
    pauses included. Its validation may be that of an earlier migration, which was aborted."""
    WRITE_PAUSE = "write_pause"
    """Of a partition: from the closing of its generation to B0."""
    TIERING = "tiering"
    """Of a topic with a prefix: from the last B0 to the last partition that is ready."""


class Source(StrEnum):
    OBSERVED = "observed"
    """Partitions of this installation, the newest that have crossed."""
    DOCUMENTED = "documented"
    """Measured elsewhere, or what the brokers' own intervals allow."""


@dataclass(frozen=True, slots=True)
class StepDuration:
    """How long partitions of this installation took for a phase or a :class:`Span`, in s."""

    step: str
    samples: int
    """Partitions; of :attr:`Span.TIERING` topics."""
    p50_s: float
    p90_s: float


@dataclass(frozen=True, slots=True)
class Range:
    """What half of the cases stay below, and what nine of ten do."""

    p50: float
    p90: float

    def times(self, factor: float) -> Range:
        return Range(self.p50 * factor, self.p90 * factor)

    def plus(self, other: Range) -> Range:
        return Range(self.p50 + other.p50, self.p90 + other.p90)

    def at_least(self, other: Range) -> Range:
        return Range(max(self.p50, other.p50), max(self.p90, other.p90))

    def rounded(self, digits: int) -> Range:
        return Range(round(self.p50, digits), round(self.p90, digits))


DOCUMENTED: Mapping[str, Range] = {
    Phase.QUIESCE: Range(0.178, 0.352),
    Phase.ROLL_AND_FLUSH: Range(0.041, 0.162),
    Phase.SEED_AND_PERSIST: Range(0.074, 0.322),
    Span.WRITE_PAUSE: Range(0.415, 0.654),
    Span.CROSSING: Range(0.9, 1.7),
}
"""In s. The phases and the pause: docs/performance.md, "The write pause", whose upper figure is the
99th percentile, since no 90th was kept. A crossing: "Topics of many partitions", the time until the
last B0 by four places and by partitions, 30 to 100 of them, on a quiet machine and on a busy one.
What the other phases take is in that."""

FIRST_TRY_S = 0.5
"""That a partition has crossed is told behind the first try at its zombie cleanup, which is cut off
after this; until then it has its place among those that cross."""


SEEN_AFTER_S = Range(1.0, 11.0)
"""That partitions are ready is seen by looks that come up to 10 s apart, and the first ones wait a
second for others (docs/phases.md, "7. readiness")."""


@dataclass(frozen=True, slots=True)
class BrokerIntervals:
    """Of the brokers' own work on tiered logs, in s; Kafka's defaults."""

    retention_check_s: float = 300.0
    """``log.retention.check.interval.ms``"""
    copy_s: float = 30.0
    """``remote.log.manager.task.interval.ms``"""

    def tiering(self) -> Range:
        """From the roll's config to a prefix that lies in remote storage alone. A replica rolls at
        one check, copies, and deletes what it has copied at a later check."""
        checks = Range(self.retention_check_s, 2 * self.retention_check_s)
        return checks.plus(Range(self.copy_s, self.copy_s)).plus(SEEN_AFTER_S)


@dataclass(frozen=True, slots=True)
class TopicScale:
    """What the preflight has seen of a topic, as far as effort goes by it."""

    partitions: int
    replicas: int
    """Of the partition that has most."""
    brokers: int
    gateways: int
    """That are not retired: each acknowledges each quiesce."""
    segments: int = 0
    """Finished remote segments of the whole topic."""
    tiered: bool = True
    """False: nothing of it is in remote storage, and nothing needs to get there."""


@dataclass(frozen=True, slots=True)
class InForce:
    """What bounds how much is done at once."""

    partitions: int | None = None
    """Between validation and B0, of all topics together; ``None``: no limit."""
    topics: int = 1
    """That migrate at once at most."""
    others: int = 0
    """Topics with partitions that have no B0 yet, this one left out: they share ``partitions``."""
    holding: int = 0
    """Topics that have a place, this one left out: those, and those that wait for tiering."""
    write_pauses: int = 1
    """At once: one in each worker process, two of a topic at most."""

    def at_once(self, options: MigrationOptions, partitions: int) -> int:
        """Partitions of a topic between validation and B0 at once; 0: none may begin."""
        if self.partitions == 0 or not self.topics:
            return 0
        # One more at last when another topic has crossed: shares are looked at again and again.
        return min(options.parallel_partitions, partitions, max(1, self.share(partitions)))

    def share(self, partitions: int) -> int:
        """Of a topic that comes behind the others; all of its ``partitions`` without a limit."""
        if self.partitions is None:
            return partitions
        others = min(self.others, self.topics - 1)
        return share_of(self.partitions, others, others + 1)


@dataclass(frozen=True, slots=True)
class Requests:
    """So many, and so many more for each broker, replica and gateway."""

    fixed: int
    brokers: int = 0
    replicas: int = 0
    gateways: int = 0

    def of(self, scale: TopicScale) -> int:
        more = self.brokers * scale.brokers + self.replicas * scale.replicas
        return self.fixed + more + self.gateways * scale.gateways


KAFKA_OF_PARTITION: Mapping[str, Requests] = {
    "preflight": Requests(1),
    Phase.VALIDATE: Requests(2),
    Phase.DRAIN_TRANSACTIONS: Requests(10, brokers=2, replicas=1),
    Phase.ROLL_AND_FLUSH: Requests(4, replicas=1),
    Phase.SEED_AND_PERSIST: Requests(5, brokers=1),
    Phase.ZOMBIE_CLEANUP: Requests(2, replicas=2),
}
"""With no producer in the tail: each adds a fetch or some. The quiesce asks no broker."""
KAFKA_OF_TIERED_PARTITION: Mapping[str, Requests] = {
    "preflight": Requests(3, replicas=2),
    "proof of coverage": Requests(3, replicas=2),
    Phase.READINESS: Requests(2),
}
"""And beside those, of a log with one leader epoch, a part of which is local and remote."""
KAFKA_OF_PREFLIGHT = Requests(7, brokers=6)
"""Of a topic, its name's id included."""
KAFKA_OF_TOPIC = Requests(22, brokers=17)
"""Tracking, five stages of configs and one look at readiness, which asks each broker for many
partitions at once."""
READINGS_A_PARTITION = 1.0
"""Of all partitions of ``__remote_log_metadata``: four for each eight partitions that are looked at
side by side, in the preflight and once more before the roll."""

LISTINGS_OF_PARTITION = 4
"""Of its segments in remote storage: two in the preflight, one before the roll, one when it is
ready."""
OBJECTS_OF_SEGMENT = 6
LISTED_AT_ONCE = 1_000
CATALOG_OF_PARTITION, CATALOG_OF_TOPIC = 2, 12
"""Records of the catalog that are put: announced and counted (docs/catalog.md)."""

ROWS_ADDED_OF_PARTITION = Requests(27, gateways=2)
"""The log, its seven phases, the producers' snapshot, eighteen changes that are noted (six of what
is tracked, twelve of phases); for each gateway the witness and its acknowledgement. And one for
each idempotent producer."""
ROWS_CHANGED_OF_PARTITION = 13
"""New versions of the log's row (6) and of its phases (7, the last after a wait for tiering)."""
ROWS_ADDED_OF_TOPIC = Requests(21, gateways=1)
ROWS_CHANGED_OF_TOPIC = 5

EVENTS_OF_PARTITION, TOPIC_EVENTS_A_PARTITION = 14, 10
"""docs/performance.md, "Topics of many partitions"."""


@dataclass(frozen=True, slots=True)
class Basis:
    """What a figure goes by, in s."""

    step: str
    source: Source
    samples: int
    """0 where it is documented."""
    p50_s: float
    p90_s: float

    @property
    def range(self) -> Range:
        return Range(self.p50_s, self.p90_s)


@dataclass(frozen=True, slots=True)
class MigrationEstimate:
    """Counts are those of the whole topic."""

    partitions: int
    at_once: int
    """Partitions between validation and B0, by options and limits."""
    to_boundaries_s: Range | None
    """From the first validation to the last B0; ``None``: never, under a limit of 0."""
    to_ready_s: Range | None
    """From the first validation to a topic that is hybrid."""
    write_pause_ms: Range
    """Of each partition's producers, between the closing of its generation and B0."""
    kafka_requests: int
    object_store_requests: int
    rows_added: int
    rows_changed: int
    workflows: int
    history_events: int
    based_on: tuple[Basis, ...]
    left_out: tuple[str, ...]
    """What may take longer and is not counted."""


def estimate(
    scale: TopicScale,
    options: MigrationOptions,
    limits: InForce,
    observed: Iterable[StepDuration] = (),
    intervals: BrokerIntervals | None = None,
    metadata_partitions: int = 0,
) -> MigrationEstimate:
    """``metadata_partitions``: of ``__remote_log_metadata``."""
    basis = based_on(observed, intervals or BrokerIntervals())
    at_once = limits.at_once(options, scale.partitions)
    pause = _write_pause(basis[Span.WRITE_PAUSE], options)
    crossing = None
    if at_once or not scale.partitions:
        through = min(at_once, CROSSING_AT_ONCE) if options.durability.lets_through else at_once
        crossing = _to_boundaries(scale.partitions, through, limits.write_pauses, basis, pause)
    ready = crossing
    if crossing is not None and scale.tiered:
        ready = crossing.plus(basis[Span.TIERING].range)
    return MigrationEstimate(
        partitions=scale.partitions,
        at_once=at_once,
        to_boundaries_s=crossing and crossing.rounded(1),
        to_ready_s=ready and ready.rounded(1),
        write_pause_ms=pause.times(1_000).rounded(0),
        kafka_requests=kafka_requests(scale, metadata_partitions),
        object_store_requests=object_store_requests(scale),
        rows_added=ROWS_ADDED_OF_TOPIC.of(scale)
        + scale.partitions * ROWS_ADDED_OF_PARTITION.of(scale),
        rows_changed=ROWS_CHANGED_OF_TOPIC + scale.partitions * ROWS_CHANGED_OF_PARTITION,
        workflows=1 + scale.partitions,
        history_events=scale.partitions * (EVENTS_OF_PARTITION + TOPIC_EVENTS_A_PARTITION),
        based_on=tuple(basis.values()),
        left_out=_left_out(scale, options, limits, at_once),
    )


def based_on(observed: Iterable[StepDuration], intervals: BrokerIntervals) -> dict[str, Basis]:
    """By step: what was observed often enough, else what is documented."""
    found = {
        seen.step: Basis(seen.step, Source.OBSERVED, seen.samples, seen.p50_s, seen.p90_s)
        for seen in observed
        if seen.samples >= (1 if seen.step == Span.TIERING else ENOUGH)
    }
    documented = {**DOCUMENTED, Span.TIERING: intervals.tiering()}
    steps = [*(step for step in Phase if step in {**documented, **found}), *Span]
    return {
        str(step): found.get(step)
        or Basis(step, Source.DOCUMENTED, 0, documented[step].p50, documented[step].p90)
        for step in steps
    }


def kafka_requests(scale: TopicScale, metadata_partitions: int) -> int:
    """That the worker sends, the migration's own preflight included."""
    of_partition = sum(some.of(scale) for some in KAFKA_OF_PARTITION.values())
    readings = 0
    if scale.tiered:
        of_partition += sum(some.of(scale) for some in KAFKA_OF_TIERED_PARTITION.values())
        readings = round(READINGS_A_PARTITION * scale.partitions) * (1 + metadata_partitions)
    of_topic = KAFKA_OF_PREFLIGHT.of(scale) + KAFKA_OF_TOPIC.of(scale)
    return of_topic + scale.partitions * of_partition + readings


def object_store_requests(scale: TopicScale) -> int:
    """Of the worker: listings, and records of the catalog. What gateways put of the suffix and what
    brokers copy goes by what producers write."""
    listings = 0
    if scale.tiered and scale.partitions:
        objects = OBJECTS_OF_SEGMENT * _up(scale.segments, scale.partitions)
        pages = max(1, _up(objects, LISTED_AT_ONCE))
        listings = LISTINGS_OF_PARTITION * pages * scale.partitions
    return listings + CATALOG_OF_TOPIC + CATALOG_OF_PARTITION * scale.partitions


def _up(count: int, size: int) -> int:
    return -(-count // size)


def _to_boundaries(
    partitions: int, at_once: int, pauses: int, basis: Mapping[str, Basis], pause: Range
) -> Range:
    """As many rounds as the limit asks for; and never less than the pauses take, in turn."""
    crossing = basis[Span.CROSSING]
    of_one = crossing.range
    if crossing.source is Source.OBSERVED:
        # What stands before and behind it, and is in the documented one.
        if (validation := basis.get(Phase.VALIDATE)) is not None:
            of_one = of_one.plus(Range(validation.p50_s, validation.p50_s))
        if (cleanup := basis.get(Phase.ZOMBIE_CLEANUP)) is not None:
            first_try = Range(min(cleanup.p50_s, FIRST_TRY_S), min(cleanup.p90_s, FIRST_TRY_S))
            of_one = of_one.plus(first_try)
    rounds = _up(partitions, at_once) if partitions else 0
    in_turn = _up(partitions, max(1, min(pauses, at_once)))
    return of_one.times(rounds).at_least(pause.times(in_turn))


def _write_pause(basis: Basis, options: MigrationOptions) -> Range:
    """Producers are let go when the hold ends, so that no pause lasts longer. With durability
    ``tiered`` the prefix is waited for within it: others' pauses tell nothing of that."""
    hold = options.quiesce_hold_ms / 1_000
    upper = hold if options.durability is Durability.TIERED else basis.p90_s
    return Range(min(basis.p50_s, hold), min(upper, hold))


def _left_out(
    scale: TopicScale, options: MigrationOptions, limits: InForce, at_once: int
) -> tuple[str, ...]:
    left_out = ["open transactions, replicas that are not in sync, retries"]
    if not at_once and scale.partitions:
        left_out.append("no partition may begin: a limit is 0 (`tideline limits`)")
    if at_once and not limits.share(scale.partitions):
        left_out.append(
            f"the wait for a share of {limits.partitions} partitions: "
            f"{limits.others} topics cross now"
        )
    if limits.holding >= limits.topics > 0:
        left_out.append(
            f"the wait for one of {limits.topics} places: {limits.holding} topics migrate now"
        )
    if 0 < options.first_partitions < scale.partitions:
        left_out.append(
            f"the pause after {options.first_partitions} partitions, until somebody resumes"
        )
    return tuple(left_out)
