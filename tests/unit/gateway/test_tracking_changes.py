"""Showing what has changed shows the same as showing everything anew."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from uuid import UUID

from hypothesis import given
from hypothesis import strategies as st

from tests.unit.gateway.tracked_bench import TrackedBench
from tideline.control_plane.model import (
    TopicStatus,
    TrackedPartition,
    TrackedTopic,
    TrackingKind,
)
from tideline.domain.ids import TopicIdPartition
from tideline.domain.migration import MigrationState
from tideline.gateway.tracking.view import TrackingView

NAMES = ("a", "b", "c")


def topic(
    name: str, number: int, partitions: int, boundary: int, kind: TrackingKind
) -> TrackedTopic:
    topic_id = UUID(int=ord(name) * 10 + number)
    rows = {
        n: TrackedPartition(topic_id, n, MigrationState.MIGRATING, 0, False, boundary=boundary)
        for n in range(partitions)
    }
    return TrackedTopic(name, topic_id, kind, TopicStatus.ACTIVE, "CreateTime", 1_000, rows)


topics = st.builds(
    topic,
    st.sampled_from(NAMES),
    st.integers(1, 3),
    st.integers(0, 3),
    st.sampled_from([-1, 0, 7]),
    st.sampled_from(TrackingKind),
)
readings = st.lists(st.lists(topics, unique_by=lambda t: t.name, max_size=3), max_size=6)


@given(readings)
def test_changes_shown_one_by_one_are_the_whole_shown_at_once(
    history: list[list[TrackedTopic]],
) -> None:
    step_by_step, told = TrackingView(lambda: True), set()
    step_by_step.changed.add(told.update)
    shown: dict[str, TrackedTopic] = {}
    for reading in history:
        now = {t.name: t for t in reading}
        names = {n for n in shown.keys() | now.keys() if shown.get(n) != now.get(n)}
        before = step_by_step.routes()
        told.clear()
        step_by_step.replace_named(names, [now[n] for n in names if n in now])
        shown = now
        at_once = TrackingView(lambda: True)
        at_once.replace_all(reading)
        assert step_by_step.routes() == at_once.routes()
        assert {t.name: t for t in step_by_step.topics()} == shown
        for known in shown.values():
            assert step_by_step.topic_by_id(known.topic_id or UUID(int=0)) == known
            assert step_by_step.is_hidden(known.name) == at_once.is_hidden(known.name)
        after = step_by_step.routes()
        assert told == {log for log in before | after if before.get(log) != after.get(log)}


rows = st.dictionaries(
    st.tuples(st.sampled_from(NAMES), st.integers(1, 2), st.integers(0, 3)),
    st.none() | st.tuples(st.sampled_from([-1, 0, 7]), st.booleans()),
    max_size=4,
)


@given(st.lists(topics, unique_by=lambda t: t.name), st.lists(rows, max_size=4))
def test_partitions_shown_for_themselves_are_the_topics_shown_with_them(
    begun: list[TrackedTopic],
    history: list[dict[tuple[str, int, int], tuple[int, bool] | None]],
) -> None:
    step_by_step, told = TrackingView(lambda: True), set()
    step_by_step.replace_all(begun)
    step_by_step.changed.add(told.update)
    shown = {t.name: t for t in begun}
    for changes in history:
        before = step_by_step.routes()
        told.clear()
        made: dict[TopicIdPartition, TrackedPartition | None] = {}
        for (name, number, partition), row in changes.items():
            log = TopicIdPartition(UUID(int=ord(name) * 10 + number), partition)
            made[log] = row and TrackedPartition(
                log.topic_id, partition, MigrationState.MIGRATING, 1, row[1], boundary=row[0]
            )
            known = shown.get(name)
            if known is not None and known.topic_id == log.topic_id:
                merged = {**known.partitions, partition: made[log]}
                kept = {n: each for n, each in merged.items() if each is not None}
                shown[name] = replace(known, partitions=kept)
        step_by_step.replace_rows(made)
        at_once = TrackingView(lambda: True)
        at_once.replace_all(shown.values())
        assert step_by_step.routes() == at_once.routes()
        assert {t.name: t for t in step_by_step.topics()} == shown
        assert step_by_step.has_suffixes() == at_once.has_suffixes()
        after = step_by_step.routes()
        assert told == {log for log in before | after if before.get(log) != after.get(log)}


@given(readings)
def test_who_follows_the_members_hears_of_each_change_of_them_and_of_nothing_else(
    history: list[list[TrackedTopic]],
) -> None:
    view, heard = TrackingView(lambda: True), 0

    def hear() -> None:
        nonlocal heard
        heard += 1

    view.members_changed.add(hear)
    for reading in history:
        before, heard = (set(view.names()), set(view.ids())), 0
        view.replace_named(NAMES, reading)
        assert heard == (before != (set(view.names()), set(view.ids())))


def test_an_id_that_joins_grows_the_version_and_a_row_that_moves_does_not() -> None:
    view = TrackingView(lambda: True)
    first = topic("a", 1, 1, -1, TrackingKind.MIGRATED)
    view.replace_named({"a"}, [first])
    version = view.version
    moved = replace(first, partitions={0: replace(first.partitions[0], generation=4)})
    view.replace_named({"a"}, [moved])
    assert view.version == version
    view.replace_named({"a"}, [topic("a", 2, 1, -1, TrackingKind.MIGRATED)])
    assert view.version == version + 1
    assert view.partition(first.topic_id, 0) != view.partition(UUID(int=ord("a") * 10 + 2), 0)


async def test_a_gateway_reads_everything_once_and_then_what_has_changed(tmp_path: Path) -> None:
    bench = TrackedBench(tmp_path)
    await bench.lease()
    whole = 0
    read = bench.plane.tracked_topics

    async def counted() -> list[TrackedTopic]:
        nonlocal whole
        whole += 1
        return await read()

    bench.plane.tracked_topics = counted  # type: ignore[method-assign]
    sync, view = bench.parts.sync, bench.parts.tracking
    await sync.learn_anew()
    first = topic("a", 1, 2, -1, TrackingKind.MIGRATED)
    before = whole
    bench.plane.put(first)
    await sync.reload()
    assert view.topic_by_name("a") == await bench.plane.tracked_topic("a")
    since = await bench.plane.tracked_changes_begin()
    await bench.plane.next_generation(TopicIdPartition(UUID(int=ord("a") * 10 + 1), 1))
    await sync.reload()
    assert view.topic_by_name("a") == await bench.plane.tracked_topic("a")
    assert whole == before
    (changed,) = (await bench.plane.tracked_changes(since)).rows
    assert changed.partition == 1
    bench.plane.forget_tracking_changes(0)
    await sync.reload()
    assert whole == before + 1
    assert view.topic_by_name("a") == await bench.plane.tracked_topic("a")
    await bench.close()
