"""Writes what a survey found into a Postgres that nobody uses: one log, one transaction.

What always holds: it may be ended anywhere and run again. What is written stays, what is not is
written by the next run, and nobody is served before the last step, a new history. An object that
Postgres knows is not placed again, so that all logs in which a batch was inferred are written
together with their objects, or none of them is.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any
from uuid import UUID

from tideline.control_plane.errors import RebuildRefused
from tideline.domain.catalog import Entry, encode, log_of, object_key
from tideline.domain.ids import TopicIdPartition
from tideline.domain.rebuild_ground import Ground
from tideline.domain.rebuild_plan import LogPlan, Verdict
from tideline.domain.wal_footer import WITHDRAWN
from tideline.domain.wal_streams import Carrier, ToldObject, WalObject
from tideline.rebuild.postgres import Holder, RebuildPostgres
from tideline.rebuild.survey import Survey

HANGS_S = 10.0
"""How late a worker that lives may write the fleet's position."""


@dataclass(frozen=True, slots=True)
class Stillness:
    """Everybody who might live, as they stood still."""

    holders: tuple[Holder, ...]
    beat: int
    position: object


def watch(
    postgres: RebuildPostgres,
    fleet_position: Callable[[], object],
    position_s: float,
    sleep: Callable[[float], None] = time.sleep,
) -> Stillness:
    """Look twice at gateways, beats and the fleet's position in the bucket: further apart than two
    writes of the position by a worker (``position_s``), and than any lease.

    Raises ``RebuildRefused`` for whoever lives, with this Postgres or another one.
    """
    still = Stillness(tuple(postgres.holders()), postgres.identity().beat, fleet_position())
    sleep(max([position_s + HANGS_S, *(2 * holder.lease_ms / 1000 for holder in still.holders)]))
    assert_still(still, postgres, fleet_position)
    return still


def assert_still(
    still: Stillness, postgres: RebuildPostgres, fleet_position: Callable[[], object]
) -> None:
    """Raises ``RebuildRefused``."""
    if fleet_position() != still.position:
        raise RebuildRefused(
            "a worker lives: it wrote the fleet's position in the bucket meanwhile, perhaps with "
            "another Postgres. Stop every gateway and worker of this installation, then begin again"
        )
    moved = [holder for holder in postgres.holders() if holder not in still.holders]
    if moved:
        raise RebuildRefused(
            f"gateway {moved[0].gateway_id} at {moved[0].address} lives: its counter has moved. "
            "Stop every gateway, then begin again"
        )


def write(
    found: Survey,
    postgres: RebuildPostgres,
    tiered_prefix: str,
    progress: Callable[[int, int], None] = lambda *_: None,
) -> int:
    """Write everything that ``found`` adds; ``RebuildPostgres.begin`` came before. Answers how
    many logs changed.

    ``progress`` hears of how many logs how many are done.
    """
    _write_topics(found, postgres)
    rows = _rows_by_object(found)
    _write_files(found, rows, postgres)
    wanted = [
        (log, plan, ground)
        for log, plan in found.plans.items()
        if (ground := found.grounds.get(log)) and _is_to_be_written(found, plan, ground)
    ]
    done = 0

    def write_log(log: TopicIdPartition, plan: LogPlan, ground: Ground) -> None:
        nonlocal done
        _write_log(log, plan, ground, postgres, tiered_prefix)
        done += 1
        progress(done, len(wanted))

    with postgres.transaction():
        _write_inferred_files(found, rows, postgres)
        for one in wanted:
            if one[1].inferred:
                write_log(*one)
    for one in wanted:
        if not one[1].inferred:
            with postgres.transaction():
                write_log(*one)
    return sum(plan.has_changes for _, plan, _ in wanted)


def tell_catalog(found: Survey, history_id: UUID, put: Callable[[str, bytes], object]) -> None:
    """The facts of the history before are facts of the new one: else it would lack what Postgres
    does not keep, until the worker and the collection have told the rest. Of a log that
    contradicts itself nothing is told. ``put`` takes a key without prefix, and the object."""
    doubtful = {log for log, ground in found.grounds.items() if ground.contradictions}
    for record in found.records:
        if log_of(record) not in doubtful:
            entry = Entry(history_id, True, record)
            put(object_key("", entry), encode(entry))


def _is_to_be_written(found: Survey, plan: LogPlan, ground: Ground) -> bool:
    if plan.verdict is Verdict.UNKNOWN_TOPIC:
        return False
    return ground.known.boundary >= 0 or ground.log.topic_id in _crossed(found)


def _crossed(found: Survey) -> set[object]:
    """Topics of the catalog with a B0: a migration that has none yet is begun anew."""
    return {
        ground.log.topic_id
        for ground in found.grounds.values()
        if ground.known.boundary >= 0 and ground.log.topic_id in found.catalog.topics
    }


def _write_topics(found: Survey, postgres: RebuildPostgres) -> None:
    if not found.choices.topics:
        # First: the name of one that was deleted may be another one's by now.
        postgres.tombstones(found.catalog.deleted)
    crossed = _crossed(found)
    topics = {i: facts for i, facts in found.catalog.topics.items() if i in crossed}
    postgres.topics(
        [
            {
                "topic_id": str(topic_id),
                "name": facts.name,
                "kind": "born_diskless" if facts.born_diskless else "migrated",
                **facts.limits,
            }
            for topic_id, facts in topics.items()
        ]
    )
    for topic_id, facts in topics.items():
        held = [
            {"key": key, "override_value": one.override_value, "user_value": one.user_value}
            for key, one in facts.held.items()
        ]
        if held or facts.let_go:
            postgres.overrides(topic_id, held, facts.let_go)


def _write_log(
    log: TopicIdPartition,
    plan: LogPlan,
    ground: Ground,
    postgres: RebuildPostgres,
    tiered_prefix: str,
) -> None:
    if ground.boundary is not None or ground.known.boundary < 0:
        postgres.log(log, ground.generation, ground.known.boundary, ground.boundary)
    if ground.known.boundary < 0:
        return
    for segment in ground.segments:
        is_last = segment is ground.segments[-1]
        postgres.segment(log, tiered_prefix, segment, ground.producers if is_last else ())
    postgres.starts(log, ground.known.suffix_start, ground.prefix_start, ground.accepted_gap_from)
    postgres.add_batches(log, plan.add)
    postgres.end_log(log, plan.high_watermark, plan.max_timestamp, plan.producers)


Places = dict[int, tuple[int, int]]
"""Base offset and time of the commit by byte offset, of batches of one object that are added."""


def _rows_by_object(found: Survey) -> dict[str, Places]:
    rows: dict[str, Places] = {}
    for plan in found.plans.values():
        for row in plan.add:
            places = rows.setdefault(row.object_key, {})
            places[row.footer.byte_offset] = (row.base_offset, row.append_time)
    return rows


def _write_files(found: Survey, rows: Mapping[str, Places], postgres: RebuildPostgres) -> None:
    """Objects of the rows that are added and told of, and those that tell of them."""
    told = {key: one for key in rows if (one := found.rebuilt.told.get(key)) is not None}
    carriers = {c.key: c for one in told.values() if (c := one.carrier) is not None}
    postgres.files(_carrier(one) for key, one in carriers.items() if key not in rows)
    postgres.files(map(_told_file, told.values()))
    postgres.carriers({key: one.carrier.key for key, one in told.items() if one.carrier})


def _write_inferred_files(
    found: Survey, rows: Mapping[str, Places], postgres: RebuildPostgres
) -> None:
    inferred = {o.wal_object.key: o.wal_object for o in found.rebuilt.open_objects}
    postgres.files(_inferred_file(inferred[k], rows[k]) for k in rows if k in inferred)


def _told_file(found: ToldObject) -> dict[str, Any]:
    committed = [told for told in found.outcomes if told.error != WITHDRAWN]
    withdrawn = [n for n, told in enumerate(found.outcomes) if told.error == WITHDRAWN]
    return {
        **_object(found.wal_object),
        "sequence": found.wal_object.sequence,
        "withdrawn": withdrawn or None,
        "errors": [told.error for told in committed],
        "base_offsets": [told.base_offset for told in committed],
        "append_times": [told.append_time for told in committed],
    }


def _inferred_file(found: WalObject, places: Places) -> dict[str, Any]:
    """Its outcome is told by nobody yet: the next gateway of its id tells what is written here."""
    placed = {
        number: places[b.byte_offset] for number, b in found.batches if b.byte_offset in places
    }
    numbers = sorted(placed)
    return {
        **_object(found),
        "sequence": found.sequence,
        "withdrawn": [number for number in range(found.count) if number not in placed] or None,
        "errors": ["NONE"] * len(numbers),
        "base_offsets": [placed[number][0] for number in numbers],
        "append_times": [placed[number][1] for number in numbers],
    }


def _carrier(found: Carrier) -> dict[str, Any]:
    return {
        **_object(found),
        "sequence": None,
        "withdrawn": None,
        "errors": [],
        "base_offsets": [],
        "append_times": [],
    }


def _object(found: WalObject | Carrier) -> dict[str, Any]:
    return {
        "object_key": found.key,
        "gateway_id": found.gateway_id,
        "incarnation": str(found.incarnation),
        "size": found.size,
    }
