"""A whole bucket, beside a Postgres where one is given: what each log would be after a rebuild."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from uuid import UUID

from tideline.domain.catalog import (
    Boundary,
    CatalogError,
    Entry,
    MergedSegment,
    Record,
    decode,
    log_of,
)
from tideline.domain.catalog_fold import Catalog, LogFacts, fold
from tideline.domain.ids import TopicIdPartition
from tideline.domain.log_batch import LogBatch
from tideline.domain.producer_state import (
    NOBODY_KNOWS,
    KnownProducers,
    StoredProducerState,
    entries_from_seeds,
)
from tideline.domain.rebuild import Rebuilt, RebuiltLog, rebuild, with_fillings
from tideline.domain.rebuild_ground import Ground, ground_of
from tideline.domain.rebuild_plan import KnownLog, LogPlan, Verdict, plan_log
from tideline.domain.wal_filling import FillingObject
from tideline.domain.wal_placing import Hole
from tideline.domain.wal_streams import Streams, ToldObject, UnreadableObject
from tideline.domain.wal_tail import OpenObject
from tideline.rebuild.postgres import RebuildPostgres
from tideline.rebuild.reader import BucketReader
from tideline.rebuild.segments import SegmentReader

NOTHING_TOLD = RebuiltLog((), {}, -1, ())


@dataclass(frozen=True, slots=True)
class Choices:
    """What whoever runs it says."""

    current: UUID | None = None
    """The history that counts; of the catalog only this one's records do."""
    topics: frozenset[str] = frozenset()
    """Names or ids; empty: all."""
    give_up_open: bool = False
    """What has no told outcome was told to nobody: its offsets are given again."""
    fill_holes: bool = False
    """What lay in the holes is lost for good, or was told to nobody: readers pass over them."""


@dataclass(slots=True)
class Survey:
    """What was found. ``plans`` and ``grounds`` are of the logs that were asked for."""

    rebuilt: Rebuilt
    catalog: Catalog
    choices: Choices
    plans: dict[TopicIdPartition, LogPlan] = field(default_factory=dict)
    grounds: dict[TopicIdPartition, Ground] = field(default_factory=dict)
    records: tuple[Record, ...] = ()
    """What has counted in the history of which the catalog is."""
    unreadable: list[UnreadableObject] = field(default_factory=list)
    """WAL objects and records of the catalog, without those that Postgres knows."""
    compared: bool = False
    """With a Postgres."""
    history: UUID | None = None
    """The one that counts, as far as anybody knows it."""
    filled: dict[TopicIdPartition, tuple[Hole, ...]] = field(default_factory=dict)
    """What was given up since it was read."""
    lost: set[TopicIdPartition] = field(default_factory=set)
    """Logs of which something was given up that may have been acknowledged."""

    def topic_of(self, log: TopicIdPartition) -> str:
        """The name, or the id where nobody knows a name."""
        if (ground := self.grounds.get(log)) is not None:
            return ground.known.topic
        return str(log.topic_id)


def survey(
    reader: BucketReader,
    postgres: RebuildPostgres | None,
    choices: Choices,
    progress: Callable[[int], None] = lambda _: None,
    segments: SegmentReader | None = None,
) -> Survey:
    """Read everything once. ``segments``: without it merged segments are taken to be there, and to
    have no producers. Raises what the store and Postgres raise."""
    entries, unreadable = _entries(reader)
    current = choices.current or _only_history(entries)
    of_catalog = _history_of_catalog(entries, current)
    catalog = fold(entries, of_catalog) if of_catalog else Catalog()
    _add_seeds(catalog, entries)
    here = _living(postgres, catalog, choices.topics) if postgres else {}
    names = _names(catalog, here)
    wanted = _wanted(names, choices.topics)
    streams = Streams(lambda topic: topic not in catalog.deleted and wanted(topic))
    reader.footers(streams, progress)
    if postgres is not None:
        known = postgres.objects(found.key for found in streams.unreadable)
        streams.unreadable = [u for u in streams.unreadable if u.key not in known]
    unreadable += streams.unreadable
    logs = sorted(log for log in {*catalog.logs, *here} if wanted(log.topic_id))
    starts = {log: start for log in logs if (start := _start(log, catalog, here))[0] >= 0}
    rebuilt = rebuild(
        streams,
        {log: start for log, (start, _) in starts.items()},
        known=postgres.objects(o.key for o in streams.tail()) if postgres else None,
        current=current,
        moved={log for log, (_, moved) in starts.items() if moved},
        producers={
            log: _producers_at(start, catalog.logs.get(log), here.get(log))
            for log, (start, _) in starts.items()
        },
    )
    found = Survey(
        rebuilt,
        catalog,
        choices,
        unreadable=unreadable,
        compared=bool(postgres),
        history=current,
    )
    found.records = tuple(e.record for e in entries if e.counted and e.history_id == of_catalog)
    _lay(found, postgres, here, segments)
    return found


def again(
    found: Survey, postgres: RebuildPostgres, segments: SegmentReader | None = None
) -> Survey:
    """What was read, beside Postgres as it is now."""
    result = replace(found, plans={}, grounds={}, compared=True)
    _lay(result, postgres, _living(postgres, found.catalog, found.choices.topics), segments)
    return result


def take_filling(
    found: Survey,
    log: TopicIdPartition,
    filling: FillingObject,
    told: ToldObject,
    rows: Sequence[LogBatch],
) -> None:
    """``filling`` is in the bucket, with ``rows``: plan its log as the next survey will."""
    rebuilt, before = found.rebuilt, found.plans[log]
    found.filled[log] = before.holes
    if before.verdict is not Verdict.UNANSWERED:
        found.lost.add(log)
    rebuilt.told[told.wal_object.key] = told
    rebuilt.logs[log] = with_fillings(rebuilt.logs.get(log) or NOTHING_TOLD, rows)
    rebuilt.open_objects = [
        one
        for one in rebuilt.open_objects
        if one.log != log or one.wal_object.key not in filling.given_up
    ]
    opened = _by_log(rebuilt.open_objects).get(log, ())
    found.plans[log] = _plan(log, rebuilt.logs[log], found.grounds.get(log), opened, found)


def _living(
    postgres: RebuildPostgres, catalog: Catalog, topics: frozenset[str]
) -> dict[TopicIdPartition, KnownLog]:
    """Logs that Postgres has, but for those of topics that were deleted since; with its producers
    where the topic is asked for."""
    here = {
        known.log: known for known in postgres.logs() if known.log.topic_id not in catalog.deleted
    }
    wanted = _wanted(_names(catalog, here), topics)
    return {
        log: replace(known, producers=postgres.producers(log)) if wanted(log.topic_id) else known
        for log, known in here.items()
    }


def _lay(
    found: Survey,
    postgres: RebuildPostgres | None,
    here: Mapping[TopicIdPartition, KnownLog],
    segments: SegmentReader | None,
) -> None:
    """Fill in grounds and plans, log by log."""
    catalog, rebuilt = found.catalog, found.rebuilt
    names = _names(catalog, here)
    wanted = _wanted(names, found.choices.topics)
    opened = _by_log(rebuilt.open_objects)
    for log in sorted({*catalog.logs, *here, *rebuilt.logs}):
        if not wanted(log.topic_id):
            continue
        told = rebuilt.logs.get(log) or NOTHING_TOLD
        known = _with_rows(here.get(log), postgres)
        name = names.get(log.topic_id, "")
        ground = _ground(log, name, catalog.logs.get(log), known, told.batches, segments)
        if ground is not None:
            found.grounds[log] = ground
        found.plans[log] = _plan(log, told, ground, opened.get(log, ()), found)


def _ground(
    log: TopicIdPartition,
    topic: str,
    facts: LogFacts | None,
    known: KnownLog | None,
    rows: Sequence[LogBatch],
    segments: SegmentReader | None,
) -> Ground | None:
    """With segments only as far as they are in their bucket."""
    if segments is None:
        return ground_of(log, topic, facts, known, rows)
    unread: list[str] = []

    def snapshot(segment: MergedSegment) -> tuple[StoredProducerState, ...] | None:
        found = segments.producers(topic, log, segment)
        if found is None:
            unread.append(f"the snapshot of segment {segment.segment_id} cannot be read")
        return found

    ground = ground_of(log, topic, facts, known, rows, snapshot)
    if ground is None:
        return None
    readable = [s for s in ground.segments if s.last_offset >= ground.known.suffix_start]
    unread += segments.missing(topic, log, readable)
    return replace(ground, contradictions=(*ground.contradictions, *unread))


def _plan(
    log: TopicIdPartition,
    told: RebuiltLog,
    ground: Ground | None,
    opened: Sequence[OpenObject],
    found: Survey,
) -> LogPlan:
    said = [text for text in found.rebuilt.contradictions if text.startswith(f"{log}: ")]
    plan = plan_log(
        log,
        told,
        ground.known if ground else None,
        opened,
        said,
        give_up_open=found.choices.give_up_open,
    )
    if ground is not None and ground.contradictions:
        # Nothing is laid on ground that is not known, and no offset of it is given again.
        facts = found.catalog.logs[log]
        ends = [segment.last_offset + 1 for segment in facts.segments]
        rows: tuple[LogBatch, ...] = ()
        plan = replace(
            plan,
            add=rows,
            high_watermark=max([plan.high_watermark, told.reserved, *ends]),
            contradictions=(*plan.contradictions, *ground.contradictions),
        )
    return plan


def _entries(reader: BucketReader) -> tuple[list[Entry], list[UnreadableObject]]:
    entries, unreadable = [], []
    for entry, body in reader.documents():
        try:
            entries.append(decode(body))
        except CatalogError as error:
            unreadable.append(UnreadableObject(entry.key, entry.size, str(error)))
    return entries, unreadable


def _only_history(entries: Collection[Entry]) -> UUID | None:
    histories = {entry.history_id for entry in entries}
    return histories.pop() if len(histories) == 1 else None


def _history_of_catalog(entries: Collection[Entry], current: UUID | None) -> UUID | None:
    """A history that has just begun has noted down nothing yet: then the one before it counts."""
    if any(entry.history_id == current for entry in entries):
        return current
    return _only_history(entries)


def _add_seeds(catalog: Catalog, entries: Collection[Entry]) -> None:
    """A history begun anew has noted down B0 without its seeds; the one before it has them."""
    seeded = {
        (log_of(entry.record), entry.record.boundary): entry.record.seeds
        for entry in entries
        if isinstance(entry.record, Boundary) and entry.counted and entry.record.seeds is not None
    }
    for log, facts in catalog.logs.items():
        told = facts.boundary
        if told is not None and told.seeds is None:
            boundary = replace(told, seeds=seeded.get((log, told.boundary)))
            catalog.logs[log] = replace(facts, boundary=boundary)


def _names(catalog: Catalog, here: Mapping[TopicIdPartition, KnownLog]) -> dict[UUID, str]:
    names = {log.topic_id: known.topic for log, known in here.items()}
    return {**names, **{topic_id: facts.name for topic_id, facts in catalog.topics.items()}}


def _wanted(names: Mapping[UUID, str], topics: frozenset[str]) -> Callable[[UUID], bool]:
    return lambda topic_id: (
        not topics or str(topic_id) in topics or names.get(topic_id, "") in topics
    )


def _start(
    log: TopicIdPartition, catalog: Catalog, here: Mapping[TopicIdPartition, KnownLog]
) -> tuple[int, bool]:
    """First offset that must be in the bucket; below it Postgres and segments have everything. And
    whether it is only where somebody has deleted up to, or where Postgres gives offsets from: an
    earlier rebuild may have left some free before it, for what was open."""
    ground = ground_of(log, "", catalog.logs.get(log), here.get(log))
    if ground is None or ground.known.boundary < 0:
        return -1, False
    known = ground.known
    given = here[log].high_watermark if log in here else -1
    held = max(known.boundary, known.frontier, given)
    return max(known.first, held), known.suffix_start > held or given > known.first


def _producers_at(start: int, facts: LogFacts | None, here: KnownLog | None) -> KnownProducers:
    """Producers where the batches begin that the bucket must have, as far as anybody knows them: of
    Postgres at its high watermark, or at B0."""
    if here is not None and here.high_watermark == start:
        return KnownProducers(here.producers, are_all=True)
    boundary = facts.boundary if facts is not None else None
    if boundary is None or boundary.seeds is None or boundary.boundary != start:
        return NOBODY_KNOWS
    return KnownProducers(entries_from_seeds(boundary.seeds, -1), are_all=True)


def _with_rows(known: KnownLog | None, postgres: RebuildPostgres | None) -> KnownLog | None:
    if known is None or postgres is None:
        return known
    return replace(known, batches=list(postgres.batches(known.log)))


def _by_log(found: Sequence[OpenObject]) -> dict[TopicIdPartition, list[OpenObject]]:
    result: dict[TopicIdPartition, list[OpenObject]] = defaultdict(list)
    for one in found:
        result[one.log].append(one)
    return result
