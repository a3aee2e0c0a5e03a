"""What a survey says, for programs and for people."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from tideline.domain.ids import TopicIdPartition
from tideline.domain.rebuild_filling import holes_to_fill
from tideline.domain.rebuild_plan import REMEDIES, LogPlan, Verdict
from tideline.domain.wal_filling import is_filling
from tideline.domain.wal_placing import Hole
from tideline.rebuild.survey import Survey

SHOWN = 20
"""Of a list of objects or texts that may be long; their number is always told."""
FINE = (Verdict.WHOLE, Verdict.BEHIND, Verdict.UNANSWERED)


def unknown_producers(found: Survey) -> list[TopicIdPartition]:
    """Logs of which the bucket does not tell all producers: a retry of what one of the others wrote
    may be stored a second time."""
    return [
        log
        for log, plan in found.plans.items()
        if plan.known is not None and plan.known.boundary >= 0 and not plan.known.has_all_producers
    ]


def is_fine(found: Survey) -> bool:
    """Every batch that was acknowledged has its place, as far as the bucket can tell, and its
    producer. What earlier runs gave up is not asked for again; what this run gives up is
    missing."""
    return (
        all(plan.verdict in FINE for plan in found.plans.values())
        and not found.lost
        and not found.unreadable
        and not found.catalog.contradictions
        and not found.rebuilt.contradictions
        and not unknown_producers(found)
    )


def blockers(found: Survey) -> list[str]:
    """Why nothing may be written at all; empty: nothing speaks against it."""
    result = []
    if count := len(found.unreadable):
        result.append(
            f"{count} objects cannot be read, and may hold what was acknowledged last (the first: "
            f"{found.unreadable[0].key}): bring them back, restore a Postgres that knows them, or "
            "move what no gateway wrote out of wal/"
        )
    result += [f"the catalog contradicts itself: {text}" for text in found.catalog.contradictions]
    return result


def document(found: Survey) -> dict[str, Any]:
    """One JSON document. Holes are [first offset, last offset]."""
    rebuilt = found.rebuilt
    return {
        "objects": rebuilt.objects,
        "batches": rebuilt.batches,
        "compared_with_postgres": found.compared,
        "never_committed": len(rebuilt.never_committed),
        "tail": {"objects": rebuilt.tail, "ms": rebuilt.tail_ms},
        "gone": len(rebuilt.gone),
        "unreadable": _listed(
            [{"key": u.key, "size": u.size, "why": u.why} for u in found.unreadable]
        ),
        "other_histories": _listed([{"key": k, "history": str(h)} for k, h in rebuilt.foreign]),
        "contradictions": [*found.catalog.contradictions, *rebuilt.contradictions],
        "blockers": blockers(found),
        "deleted_topics": len(found.catalog.deleted),
        "unknown_producers": _listed([{"log": str(log)} for log in unknown_producers(found)]),
        "logs": [_log(found, log, plan) for log, plan in found.plans.items()],
        "fine": is_fine(found),
    }


def lines(found: Survey) -> Iterator[str]:
    """For people: one line for each log, then what is wrong and what to do."""
    told = document(found)
    yield (
        f"{told['objects']} WAL objects with {told['batches']} batches; "
        f"{told['gone']} that are told of are gone, {told['never_committed']} were never committed"
        + ("" if found.compared else "; compared with no Postgres")
    )
    if told["tail"]["objects"]:
        yield (
            f"{told['tail']['objects']} of them have outcomes that nobody tells, the oldest is "
            f"{told['tail']['ms']} ms older than the newest"
        )
    for log in told["logs"]:
        yield (
            f"{log['topic']}-{log['partition']}: {log['verdict']}; start {log['start']}, "
            f"B0 {log['boundary']}, {log['batches']} batches, high watermark "
            f"{log['high_watermark']}" + _difference(log)
        )
        for hole in log["holes"]:
            yield f"    nothing known from offset {hole[0]} to {hole[1]}"
        for first, last in log["to_fill"]:
            yield f"    --write would give up offsets {first} to {last}, with an empty batch"
        if log["doubtful"]:
            yield "    not to be given up: contradicting things are told of an object of it"
        for first, last in log["filled"]:
            yield f"    given up: offsets {first} to {last}, readers pass over them"
        if log["found_where_given_up"]:
            yield f"    {log['found_where_given_up']} batches lie where offsets were given up"
        for opened in log["open"]["first"]:
            yield f"    open: {opened['key']} with {opened['records']} records: {opened['why']}"
        yield from (f"    {text}" for text in (*log["contradictions"], *log["undecided"]))
        if log["remedy"]:
            yield f"    -> {log['remedy']}"
    for name in ("unreadable", "other_histories"):
        if count := told[name]["count"]:
            yield f"{name.replace('_', ' ')}: {count} objects"
            yield from (f"    {one['key']}" for one in told[name]["first"])
    if count := told["unknown_producers"]["count"]:
        yield (
            f"producers unknown: {count} logs, of which B0 or a merged segment does not tell who "
            "wrote before: keep their producers stopped for their delivery.timeout.ms, or what "
            "they send again may be stored a second time"
        )
        yield from (f"    {one['log']}" for one in told["unknown_producers"]["first"])
    yield from (f"contradiction: {text}" for text in told["contradictions"])
    yield from (f"nothing can be written: {text}" for text in told["blockers"])


def _difference(log: dict[str, Any]) -> str:
    parts = []
    if log["behind"] > 0:
        parts.append(f"{log['behind']} offsets more than Postgres has")
    if log["to_add"]:
        parts.append(f"{log['to_add']} batches to add")
    if log["inferred"]:
        parts.append(f"{log['inferred']} of them inferred")
    return "".join(f", {part}" for part in parts)


def _log(found: Survey, log: TopicIdPartition, plan: LogPlan) -> dict[str, Any]:
    known, ground = plan.known, found.grounds.get(log)
    rows = found.rebuilt.logs.get(log)
    unsettled = [o for o in plan.open_objects if not o.settled]
    return {
        "topic": found.topic_of(log),
        "topic_id": str(log.topic_id),
        "partition": log.partition,
        "verdict": plan.verdict.value,
        "remedy": REMEDIES[plan.verdict],
        "start": known.suffix_start if known else -1,
        "boundary": known.boundary if known else -1,
        "merged_below": known.frontier if known else -1,
        "batches": len(rows.batches) if rows else 0,
        "to_add": len(plan.add),
        "inferred": plan.inferred,
        "end": plan.end,
        "high_watermark": plan.high_watermark,
        "known_high_watermark": known.high_watermark if known and found.compared else -1,
        "behind": plan.end - known.high_watermark if known else 0,
        "given_up_with_an_older_history": found.rebuilt.given_up.get(log, 0),
        "holes": [_span(hole) for hole in plan.holes],
        "to_fill": [_span(hole) for hole in _to_fill(found, plan)],
        "doubtful": log in found.rebuilt.doubtful,
        "filled": _filled(found, log, plan),
        "filled_now": [_span(hole) for hole in found.filled.get(log, ())],
        "found_where_given_up": found.rebuilt.filled_over.get(log, 0),
        "open": _listed(
            [{"key": o.wal_object.key, "records": o.records, "why": o.why} for o in unsettled]
        ),
        "contradictions": list(plan.contradictions),
        "undecided": list(ground.undecided) if ground else [],
    }


def _to_fill(found: Survey, plan: LogPlan) -> tuple[Hole, ...]:
    """What a run that writes would give up."""
    return holes_to_fill(plan, found.rebuilt, asked=found.choices.fill_holes)


def _filled(found: Survey, log: TopicIdPartition, plan: LogPlan) -> list[list[int]]:
    """Offsets that were given up and are not merged or deleted yet, adjacent ones together."""
    spans: list[list[int]] = []
    rows, first = found.rebuilt.logs.get(log), plan.known.first if plan.known else 0
    for row in rows.batches if rows else ():
        if not is_filling(row.footer.byte_size) or row.last_offset < first:
            continue
        if spans and spans[-1][1] + 1 == row.base_offset:
            spans[-1][1] = row.last_offset
        else:
            spans.append([row.base_offset, row.last_offset])
    return spans


def _listed(objects: list[dict[str, Any]]) -> dict[str, Any]:
    return {"count": len(objects), "first": objects[:SHOWN]}


def _span(hole: Hole) -> list[int]:
    return [hole.base_offset, hole.last_offset]
