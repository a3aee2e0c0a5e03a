"""The watches find what went past the gateways, keep it and tell it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from dataclasses import replace
from functools import partial
from types import SimpleNamespace
from typing import Any, cast
from uuid import UUID

import pytest
from prometheus_client import CollectorRegistry

from tests.unit.activities.world import World, record_batch
from tests.unit.gateway.fakes import HeldSleep, until
from tideline.background import cancel_and_wait
from tideline.control_plane.errors import ControlPlaneUnavailable
from tideline.control_plane.model import TopicStatus, TrackedTopic
from tideline.domain.migration import MigrationState
from tideline.domain.watched import FindingKind, HostAcl, HostAcls
from tideline.kafka.errors import KafkaUnavailable
from tideline.object_store import ObjectStoreUnavailable
from tideline.worker import kept_tails, watches
from tideline.worker.access import ASK_EVERY_S, AccessLook
from tideline.worker.looking import compare, in_portions
from tideline.worker.watches import FOLLOW_AFTER_S, LOOK_EVERY_S, KafkaWatch, WatchGauges


def crossed(world: World) -> World:
    """B0 is 100, which is where every replica's log ends."""
    world.plane.row = replace(world.plane.row, state=MigrationState.HYBRID, boundary=100)
    return world


class Watched:
    """A watch over the world, and what its gauges say."""

    def __init__(self, world: World) -> None:
        self.registry = CollectorRegistry()
        self.world = world
        self.watch = KafkaWatch(world.services, WatchGauges(self.registry))
        self.now = 0.0
        self.watch._access = AccessLook(world.services, lambda: self.now)

    async def look(self, times: int = 1) -> list[tuple[FindingKind, str]]:
        for _ in range(times):
            told = await self.watch.look()
            self.now += LOOK_EVERY_S
        return [(f.kind, f.subject) for f in told.get("orders", [])]

    def gauge(self, name: str, **labels: str) -> float | None:
        return self.registry.get_sample_value(name, labels)

    async def open(self) -> Iterable[str]:
        return [f.subject for f in await self.world.plane.findings() if f.ended_at is None]


async def test_kafka_as_it_should_be_is_silence(world: World) -> None:
    watched = Watched(crossed(world))
    assert await watched.look(2) == []
    assert watched.gauge("inkless_boundary_unwatched_replicas") == 0
    assert watched.gauge("inkless_watch_last_look_timestamp_seconds")
    assert await world.plane.findings() == []


async def test_what_a_broker_took_past_b0_is_told_at_once_and_kept(world: World) -> None:
    """A client that reached the broker directly was acknowledged; nobody serves its records."""
    watched = Watched(crossed(world))
    world.kafka.tail_bytes = record_batch(100, 2)
    world.kafka.ends[2] = world.kafka.watermarks[2] = 102
    assert await watched.look() == [(FindingKind.TAIL, "0")]
    ((key, data),) = world.store.exported.items()
    assert data == world.kafka.tail_bytes
    assert key.startswith("forensics/orders-")
    (finding,) = await world.plane.findings("orders")
    assert finding.detail["log_ends"] == {"2": 102}
    assert finding.detail["object"] == f"s3://diskless/{key}"
    assert "past the gateways" in str(finding)
    assert watched.gauge("inkless_boundary_tail_offsets", topic="orders", partition="0") == 2


def grow(world: World, *batches: bytes, end: int) -> None:
    """Replica 2's log has these batches past B0, up to ``end`` (exclusive)."""
    world.kafka.tail_bytes = b"".join(batches)
    world.kafka.ends[2] = world.kafka.watermarks[2] = end


async def test_of_a_tail_that_grows_only_what_is_new_is_exported(world: World) -> None:
    watched = Watched(crossed(world))
    first, second, third = (record_batch(100 + 2 * n, 2) for n in range(3))
    grow(world, first, end=102)
    await watched.look(3)
    assert list(world.store.exported.values()) == [first]
    grow(world, first, second, third, end=106)
    await watched.look(3)
    assert list(world.store.exported.values()) == [first, second + third]
    (finding,) = await world.plane.findings("orders")
    assert finding.detail["exported_to"] == 106
    assert finding.detail["objects"] == 2
    assert finding.detail["bytes"] == len(first + second + third)
    assert "2 exports up to offset 106" in str(finding)


async def test_a_look_at_a_tail_that_has_not_grown_fetches_nothing(world: World) -> None:
    watched = Watched(crossed(world))
    grow(world, record_batch(100, 2), end=102)
    await watched.look()
    world.kafka.fetched.clear()
    await watched.look(3)
    assert world.kafka.fetched == []


async def test_another_worker_goes_on_where_the_first_one_was(world: World) -> None:
    first, second = record_batch(100, 2), record_batch(102, 2)
    grow(crossed(world), first, end=102)
    await Watched(world).look()
    grow(world, first, second, end=104)
    await Watched(world).look()
    assert list(world.store.exported.values()) == [first, second]


async def test_a_tail_that_was_cut_off_and_grew_anew_is_exported_from_b0_beside_the_old_one(
    world: World,
) -> None:
    """An unclean election: what was acknowledged by the log that is gone stays kept."""
    watched = Watched(crossed(world))
    grow(world, record_batch(100, 2), record_batch(102, 2), end=104)
    await watched.look()
    other = record_batch(100, 1) + record_batch(101, 4)
    grow(world, other, end=105)
    await watched.look()
    assert len(world.store.exported) == 2
    assert list(world.store.exported.values())[1] == other


async def test_a_long_tail_is_kept_in_portions_and_no_tail_keeps_another_waiting(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    watched = Watched(crossed(world))
    batches = [record_batch(100 + 2 * n, 2) for n in range(4)]
    monkeypatch.setattr(kept_tails, "MAX_TAIL_BYTES", len(batches[0]))
    monkeypatch.setattr(world.kafka, "most_batches", 1)
    grow(world, *batches, end=108)
    await watched.look()
    assert list(world.store.exported.values()) == batches[:1]
    await watched.look(4)
    assert list(world.store.exported.values()) == batches


async def test_what_was_kept_stays_on_record_while_the_store_is_away(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    watched = Watched(crossed(world))
    grow(world, record_batch(100, 2), end=102)
    await watched.look()

    async def away(key: str, data: bytes) -> str:
        raise ObjectStoreUnavailable("S3 does not answer")

    with monkeypatch.context() as without:
        without.setattr(world.store, "export", away)
        grow(world, record_batch(100, 2), record_batch(102, 2), end=104)
        await watched.look()
    (finding,) = await world.plane.findings("orders")
    assert finding.detail["exported_to"] == 102
    assert "S3 does not answer" in str(finding)
    await watched.look()
    (finding,) = await world.plane.findings("orders")
    assert finding.detail["exported_to"] == 104
    assert "not_exported" not in finding.detail


async def test_many_topics_cost_a_few_requests(world: World) -> None:
    """1,000 topics on three brokers: 20 portions of one, one and one per broker."""
    row = world.plane.row
    topic = (await world.plane.tracked_topics())[0]
    many = [
        replace(topic, name=f"t{n}", topic_id=UUID(int=1_000 + n), partitions={0: row})
        for n in range(1_000)
    ]
    portions = list(in_portions(many))
    assert [len(p) for p in portions] == [50] * 20
    await compare(world.services, portions[0], None)
    assert world.kafka.asked == ["topics"]
    world.kafka.asked.clear()
    await Watched(crossed(world)).look()
    assert world.kafka.asked == [
        "defaults", "topics",
        "offsets of broker 1", "offsets of broker 2", "offsets of broker 3", "configs",
    ]  # fmt: skip


def test_a_topic_of_many_partitions_is_a_portion_of_its_own() -> None:
    def topic(partitions: int) -> TrackedTopic:
        rows = {n: cast(Any, None) for n in range(partitions)}
        return cast(TrackedTopic, SimpleNamespace(partitions=rows))

    sizes = [[len(t.partitions) for t in p] for p in in_portions(map(topic, [600, 600, 5_000, 1]))]
    assert sizes == [[600], [600], [5_000], [1]]


async def test_a_tail_stays_on_record_when_the_broker_does_not_have_it_any_more(
    world: World,
) -> None:
    watched = Watched(crossed(world))
    world.kafka.ends[2] = 102
    await watched.look()
    world.kafka.ends[2] = 100
    assert await watched.look() == []
    (finding,) = await world.plane.findings("orders")
    assert finding.ended_at is not None
    assert watched.gauge("inkless_boundary_tail_offsets", topic="orders", partition="0") is None


async def test_a_replica_that_is_short_of_b0_is_told_when_it_is_seen_twice(world: World) -> None:
    watched = Watched(crossed(world))
    world.kafka.ends[3] = 90
    assert await watched.look() == []
    assert await watched.look() == [(FindingKind.SHORT, "0")]
    assert watched.gauge("inkless_boundary_short_offsets", topic="orders", partition="0") == 10
    world.kafka.ends[3] = 100
    assert await watched.look() == []
    assert await watched.open() == []


async def test_a_log_gap_is_told_with_what_remote_segments_hold_of_it(world: World) -> None:
    """No replica reaches B0: seen twice, then with both kinds of ranges."""
    watched = Watched(crossed(world))
    world.kafka.ends = dict.fromkeys((1, 2, 3), 80)
    world.store.found = [replace(world.store.found[0], end_offset=94)]
    assert await watched.look(2) == [(FindingKind.SHORT, "0")]
    where = {"topic": "orders", "partition": "0"}
    for who, offsets in (("remote_segments", 15), ("nobody", 5)):
        assert watched.gauge("inkless_boundary_gap_offsets", **where, held_by=who) == offsets
    (finding,) = await world.plane.findings("orders")
    assert "log gap, no replica that answers reaches 80 to 99" in str(finding)
    assert "remote segments hold 80 to 94" in str(finding)
    assert "nobody holds 95 to 99" in str(finding)
    world.kafka.ends[1] = 100
    await watched.look()
    assert watched.gauge("inkless_boundary_gap_offsets", **where, held_by="nobody") is None


async def test_a_log_gap_is_told_also_while_remote_segments_cannot_be_looked_at(
    world: World,
) -> None:
    watched = Watched(crossed(world))
    world.kafka.ends = dict.fromkeys((1, 2, 3), 80)

    async def away(*_: object) -> None:
        raise KafkaUnavailable("no broker answers")

    world.store.objects = away  # type: ignore[method-assign, assignment]
    assert await watched.look(2) == [(FindingKind.SHORT, "0")]
    (finding,) = await world.plane.findings("orders")
    assert "what remote segments hold is not known" in str(finding)


async def test_a_config_that_was_changed_at_a_broker_is_told_at_the_second_look(
    world: World,
) -> None:
    watched = Watched(crossed(world))
    world.kafka.own_configs = {"cleanup.policy": "compact", "max.message.bytes": "1000"}
    await world.plane.override_config(UUID(int=1), "max.message.bytes", "78", None)
    assert await watched.look() == []
    assert await watched.look() == [
        (FindingKind.CONFIG, "cleanup.policy"),
        (FindingKind.CONFIG, "max.message.bytes"),
    ]
    assert watched.gauge("inkless_config_drift", topic="orders", key="max.message.bytes") == 1
    world.kafka.own_configs = {"max.message.bytes": "78"}
    assert await watched.look() == []
    assert await watched.open() == []


async def held(world: World) -> None:
    """What Tideline holds of a topic that has crossed, and in Kafka what somebody has set."""
    await world.plane.override_config(UUID(int=1), "max.message.bytes", "78", None)
    await world.plane.override_config(UUID(int=1), "retention.bytes", "-1", "5000")
    world.kafka.own_configs = {"max.message.bytes": "1000000", "retention.bytes": "1"}


async def test_what_tideline_holds_is_put_back_when_another_value_was_seen_twice(
    world: World,
) -> None:
    watched = Watched(crossed(world))
    await held(world)
    assert await watched.look() == []
    assert world.kafka.done == []
    assert len(await watched.look()) == 2
    assert world.kafka.done == ["alter max.message.bytes=78, retention.bytes=-1"]
    assert await watched.look() == []
    assert await watched.open() == []
    assert len(await world.plane.findings("orders")) == 2


async def test_what_is_let_go_of_while_it_is_put_back_is_the_users(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    watched = Watched(crossed(world))
    await held(world)
    alter = world.kafka.alter_configs

    async def released(topic: str, changes: Any) -> None:
        await world.plane.release_config(UUID(int=1), "retention.bytes", "5000")
        await alter(topic, changes)

    monkeypatch.setattr(world.kafka, "alter_configs", released)
    await watched.look(2)
    assert world.kafka.own_configs == {"max.message.bytes": "78", "retention.bytes": "5000"}


@pytest.mark.parametrize("silent", ["postgres", "kafka"])
async def test_what_is_let_go_of_while_nobody_says_so_is_the_users_at_the_next_look(
    world: World, monkeypatch: pytest.MonkeyPatch, silent: str
) -> None:
    """Kafka has carried the write out; its answer, or the question after it, is lost."""
    watched = Watched(crossed(world))
    await held(world)
    alter = world.kafka.alter_configs

    async def away(name: str) -> None:
        raise ControlPlaneUnavailable("Postgres: connection refused")

    async def released(topic: str, changes: Any) -> None:
        await world.plane.release_config(UUID(int=1), "retention.bytes", "5000")
        await alter(topic, changes)
        if silent == "kafka":
            raise KafkaUnavailable("no answer within 10000 ms")
        outage.setattr(world.plane, "tracked_topic", away)

    with monkeypatch.context() as outage:
        outage.setattr(world.kafka, "alter_configs", released)
        await watched.look(2)
    assert world.kafka.own_configs == {"max.message.bytes": "78", "retention.bytes": "-1"}
    await watched.look()
    assert world.kafka.own_configs == {"max.message.bytes": "78", "retention.bytes": "5000"}


@pytest.mark.parametrize(("answered", "users"), [(True, "-1"), (False, "7")])
async def test_what_a_user_sets_once_it_was_let_go_of_stays(
    world: World, monkeypatch: pytest.MonkeyPatch, answered: bool, users: str
) -> None:
    """Tideline's own value, too, unless nobody knows who has set it."""
    watched = Watched(crossed(world))
    await held(world)
    alter = world.kafka.alter_configs

    async def carried_out(topic: str, changes: Any) -> None:
        await alter(topic, changes)
        if not answered:
            raise KafkaUnavailable("no answer within 10000 ms")

    with monkeypatch.context() as slow:
        slow.setattr(world.kafka, "alter_configs", carried_out)
        await watched.look(2)
    await world.plane.release_config(UUID(int=1), "retention.bytes", "5000")
    world.kafka.own_configs["retention.bytes"] = users
    await watched.look(2)
    assert world.kafka.own_configs == {"max.message.bytes": "78", "retention.bytes": users}


async def test_an_abort_while_it_is_put_back_gives_the_user_what_was_set(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    watched = Watched(crossed(world))
    await held(world)
    alter = world.kafka.alter_configs

    async def aborted(topic: str, changes: Any) -> None:
        world.plane.status = TopicStatus.ABORTED
        await alter(topic, changes)

    monkeypatch.setattr(world.kafka, "alter_configs", aborted)
    await watched.look(2)
    assert world.kafka.own_configs == {"retention.bytes": "5000"}


async def test_what_cannot_be_put_back_is_told_and_tried_again(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    watched = Watched(crossed(world))
    await held(world)

    async def away(topic: str, changes: Any) -> None:
        raise KafkaUnavailable("no broker answers")

    with monkeypatch.context() as without:
        without.setattr(world.kafka, "alter_configs", away)
        assert len(await watched.look(3)) == 2
    await watched.look()
    assert world.kafka.own_configs == {"max.message.bytes": "78", "retention.bytes": "-1"}


def defaults_are(world: World, key: str, *values: str) -> None:
    """Of brokers 1, 2 and 3."""
    for (_, found), value in zip(sorted(world.kafka.default_limits.items()), values, strict=True):
        found[key] = value


LIMIT, TYPE = "max.message.bytes", "message.timestamp.type"


async def test_a_limit_follows_a_default_that_was_seen_changed_twice(world: World) -> None:
    """Of a sealed topic Tideline holds one of them, whose user has set none."""
    watched = Watched(crossed(world))
    await world.plane.override_config(UUID(int=1), LIMIT, "78", None)
    world.kafka.own_configs = {LIMIT: "78"}
    defaults_are(world, LIMIT, "2000", "2000", "2000")
    defaults_are(world, TYPE, "LogAppendTime", "LogAppendTime", "LogAppendTime")
    assert await watched.look() == []
    assert world.plane.topic.max_message_bytes == 1_000
    assert await watched.look() == []
    assert world.plane.topic.max_message_bytes == 2_000
    assert world.plane.topic.timestamp_type == "LogAppendTime"


async def test_a_default_that_was_seen_changed_is_looked_at_again_soon(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In Kafka it counts at once: a user who raises it waits for the second look."""
    sleep = HeldSleep()
    monkeypatch.setattr(watches, "asyncio", SimpleNamespace(sleep=sleep))
    running = asyncio.ensure_future(Watched(crossed(world)).watch.run())
    await until(lambda: sleep.waited == [LOOK_EVERY_S])
    defaults_are(world, LIMIT, "2000", "2000", "2000")
    sleep.goes_on.release()
    await until(lambda: sleep.waited == [LOOK_EVERY_S, FOLLOW_AFTER_S])
    sleep.goes_on.release()
    await until(lambda: sleep.waited == [LOOK_EVERY_S, FOLLOW_AFTER_S, LOOK_EVERY_S])
    assert world.plane.topic.max_message_bytes == 2_000
    await cancel_and_wait(running)


async def test_a_default_that_goes_on_changing_is_not_followed_yet(world: World) -> None:
    watched = Watched(crossed(world))
    for value in ("2000", "3000", "4000"):
        defaults_are(world, LIMIT, value, value, value)
        await watched.look()
    assert world.plane.topic.max_message_bytes == 1_000


@pytest.mark.parametrize("held", [True, False])
async def test_a_limit_that_the_user_has_set_follows_no_default(world: World, held: bool) -> None:
    watched = Watched(crossed(world))
    world.kafka.own_configs = {LIMIT: "1000"}
    if held:
        await world.plane.override_config(UUID(int=1), LIMIT, "78", "1000")
        world.kafka.own_configs = {LIMIT: "78"}
    defaults_are(world, LIMIT, "2000", "2000", "2000")
    assert await watched.look(3) == []
    assert world.plane.topic.max_message_bytes == 1_000


async def test_a_limit_in_whose_default_brokers_differ_is_told_and_stays(world: World) -> None:
    watched = Watched(crossed(world))
    await world.plane.override_config(UUID(int=1), LIMIT, "78", None)
    world.kafka.own_configs = {LIMIT: "78"}
    defaults_are(world, LIMIT, "2000", "2000", "1000")
    assert await watched.look() == []
    assert await watched.look(2) == [(FindingKind.CONFIG, LIMIT)]
    assert world.plane.topic.max_message_bytes == 1_000
    assert world.kafka.done == []
    (finding,) = await world.plane.findings("orders")
    assert (
        "orders: brokers have different defaults of max.message.bytes: 2000 on broker 1, 2000 on "
        "broker 2, 1000 on broker 3; 1000 is enforced until they agree"
    ) in str(finding)


def before_it_follows(
    world: World, monkeypatch: pytest.MonkeyPatch, happens: Callable[[], None]
) -> None:
    """Between the look and what Postgres is asked by it."""
    follow = world.plane.follow_default_limit

    async def then_follow(*about: Any) -> bool:
        happens()
        return await follow(*about)

    monkeypatch.setattr(world.plane, "follow_default_limit", then_follow)


async def away(*_: object) -> None:
    raise KafkaUnavailable("broker 3 is away")


async def test_what_a_user_sets_while_a_default_is_followed_wins(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """To the value that was enforced, of which Postgres sees no change."""
    watched = Watched(crossed(world))
    defaults_are(world, LIMIT, "2000", "2000", "2000")
    set_by_the_user = partial(setattr, world.kafka, "own_configs", {LIMIT: "1000"})
    before_it_follows(world, monkeypatch, set_by_the_user)
    await watched.look(2)
    assert world.plane.topic.max_message_bytes == 1_000
    await watched.look(2)
    assert world.plane.topic.max_message_bytes == 1_000


async def test_a_default_is_not_followed_while_nobody_says_what_the_user_has_set_since(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    watched = Watched(crossed(world))
    defaults_are(world, LIMIT, "2000", "2000", "2000")

    with monkeypatch.context() as without:
        goes_away = partial(without.setattr, world.kafka, "configs_by_broker", away)
        before_it_follows(world, without, goes_away)
        await watched.look(2)
        assert world.plane.topic.max_message_bytes == 1_000
    await watched.look(2)
    assert world.plane.topic.max_message_bytes == 2_000


async def test_while_a_broker_does_not_tell_its_defaults_none_is_followed(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    watched = Watched(crossed(world))
    defaults_are(world, LIMIT, "2000", "2000", "2000")
    await watched.look()

    with monkeypatch.context() as without:
        without.setattr(world.kafka, "topic_defaults", away)
        assert await watched.look() == []
    await watched.look()
    assert world.plane.topic.max_message_bytes == 1_000
    await watched.look()
    assert world.plane.topic.max_message_bytes == 2_000


async def test_what_is_merged_is_not_what_kafka_must_keep(world: World) -> None:
    """The state is HYBRID also of a partition whose prefix is gone, once it has merged segments."""
    crossed(world)
    watched = Watched(world)
    world.kafka.own_configs = {
        "remote.storage.enable": "false",
        "remote.log.delete.on.disable": "true",
    }
    assert await watched.look(2) == [
        (FindingKind.CONFIG, "remote.log.delete.on.disable"),
        (FindingKind.CONFIG, "remote.storage.enable"),
    ]
    world.plane.row = replace(world.plane.row, prefix_gone=True)
    world.kafka.ends[2] = 99
    assert await watched.look(2) == []


async def test_what_another_process_left_open_ends_with_the_first_look(world: World) -> None:
    crossed(world).kafka.ends[2] = 102
    await Watched(world).look()
    world.kafka.ends[2] = 100
    await Watched(world).look()
    assert await Watched(world).open() == []


async def test_what_another_process_left_open_and_is_there_goes_on(world: World) -> None:
    """It was seen twice: by that process, and by this one."""
    crossed(world).kafka.ends[3] = 90
    await Watched(world).look(2)
    another = Watched(world)
    assert await another.look() == [(FindingKind.SHORT, "0")]
    assert await another.open() == ["0"]


async def test_a_replica_that_does_not_answer_is_counted_and_nothing_is_concluded(
    world: World,
) -> None:
    watched = Watched(crossed(world))
    world.kafka.silent = {2}
    assert await watched.look(2) == []
    assert watched.gauge("inkless_boundary_unwatched_replicas") == 1


async def test_another_topic_of_the_name_is_not_compared(world: World) -> None:
    watched = Watched(crossed(world))
    world.kafka.topic_id = UUID(int=77)
    world.kafka.ends[2] = 102
    assert await watched.look(2) == []


async def test_a_topic_that_kafka_does_not_answer_for_keeps_its_findings(world: World) -> None:
    watched = Watched(crossed(world))
    world.kafka.ends[2] = 102
    await watched.look()

    async def away(topic: str) -> None:
        raise KafkaUnavailable("no broker answers")

    world.kafka.configs_by_broker = away  # type: ignore[method-assign, assignment]
    assert await watched.look() == [(FindingKind.TAIL, "0")]
    assert await watched.open() == ["0"]
    assert watched.gauge("inkless_boundary_tail_offsets", topic="orders", partition="0") == 2


async def test_bytes_that_are_no_batches_do_not_end_the_watch(world: World) -> None:
    watched = Watched(crossed(world))
    damaged = bytearray(record_batch(100, 2))
    damaged[16] = 9  # the format
    world.kafka.tail_bytes = bytes(damaged)
    world.kafka.ends[2] = world.kafka.watermarks[2] = 102
    assert await watched.look() == [(FindingKind.TAIL, "0")]


def added(world: World, **ends: dict[int, int]) -> None:
    """Somebody has added partitions at a broker: ``p1`` and so on, with each replica's log end."""
    world.kafka.more_ends = {int(name[1:]): found for name, found in ends.items()}


def rows(world: World) -> dict[int, int]:
    """B0 by partition."""
    return {n: row.boundary for n, row in world.plane.topic.partitions.items()}


EMPTY, RECORDS = dict.fromkeys((1, 2, 3), 0), {1: 7, 2: 7, 3: 5}


async def test_a_partition_that_nobody_knows_is_told_and_an_empty_one_is_taken_in(
    world: World,
) -> None:
    """Schedule 22."""
    watched = Watched(crossed(world))
    added(world, p1=EMPTY, p2=RECORDS, p3=EMPTY)
    assert await watched.look() == []
    assert rows(world) == {0: 100, 1: 0}
    assert await watched.look() == [(FindingKind.GROWN, "2"), (FindingKind.GROWN, "3")]
    assert rows(world) == {0: 100, 1: 0}
    for partition, offsets in (("2", 7), ("3", 0)):
        where = {"topic": "orders", "partition": partition}
        assert watched.gauge("inkless_unknown_partition_offsets", **where) == offsets
    held, behind = map(str, await world.plane.findings("orders"))
    assert "orders-2: it came past the gateways and nobody serves it" in held
    assert "holds 7 offsets on replica 1, 2, 3: `tideline migrate orders`" in held
    assert "waits for partition 2" in behind
    assert watched.gauge("inkless_boundary_unwatched_replicas") == 0


async def test_a_record_that_one_replica_alone_has_keeps_a_partition_out(world: World) -> None:
    watched = Watched(crossed(world))
    added(world, p1={1: 0, 2: 0, 3: 1})
    assert await watched.look(2) == [(FindingKind.GROWN, "1")]
    assert rows(world) == {0: 100}


async def test_a_partition_of_which_a_replica_says_nothing_is_not_taken_for_empty(
    world: World,
) -> None:
    watched = Watched(crossed(world))
    added(world, p1=EMPTY)
    world.kafka.silent = {3}
    assert await watched.look(2) == [(FindingKind.GROWN, "1")]
    assert rows(world) == {0: 100}
    (finding,) = await world.plane.findings("orders")
    assert "replica 3 does not say that it is empty" in str(finding)
    world.kafka.silent = set()
    assert await watched.look() == []
    assert rows(world) == {0: 100, 1: 0}
    assert await watched.open() == []


async def test_a_partition_that_comes_while_others_migrate_waits_for_their_b0(
    world: World,
) -> None:
    """Until then the topic's producers write to Kafka's logs."""
    watched = Watched(world)
    added(world, p1=EMPTY)
    assert await watched.look(2) == [(FindingKind.GROWN, "1")]
    assert rows(world) == {0: -1}
    crossed(world)
    assert await watched.look() == []
    assert rows(world) == {0: 100, 1: 0}


async def test_what_is_appended_between_the_look_and_the_row_is_found_as_a_tail(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    watched = Watched(crossed(world))
    added(world, p1=EMPTY)
    take_in = world.plane.add_partitions

    async def appended(*about: Any) -> None:
        world.kafka.more_ends = {1: RECORDS}
        await take_in(*about)

    monkeypatch.setattr(world.plane, "add_partitions", appended)
    await watched.look()
    assert rows(world) == {0: 100, 1: 0}
    assert await watched.look() == [(FindingKind.TAIL, "1")]
    assert await watched.open() == ["1"]


async def test_two_workers_and_a_gateway_take_the_same_partition_in(world: World) -> None:
    added(crossed(world), p1=EMPTY)
    first, second = Watched(world), Watched(world)
    await world.plane.add_partitions("orders", UUID(int=1), 1, 2)
    assert [await first.look(), await second.look()] == [[], []]
    assert rows(world) == {0: 100, 1: 0}


OF_A_HOST = HostAcl("ord", True, "ALLOW READ to User:ada from 10.0.0.1")


async def test_an_acl_that_names_a_host_is_told_while_it_is_there(world: World) -> None:
    """It came after the preflight: no client matches it, since brokers see the gateway's host."""
    watched = Watched(crossed(world))
    world.kafka.acls_of_hosts = [OF_A_HOST, replace(OF_A_HOST, pattern="other")]
    assert await watched.look() == []
    assert await watched.look() == [(FindingKind.ACL, "acl")]
    assert watched.gauge("inkless_unsupported_access", topic="orders", kind="acl") == 1
    (finding,) = await world.plane.findings("orders")
    assert "ALLOW READ to User:ada from 10.0.0.1" in str(finding)
    world.kafka.access_unknown = True
    watched.now += ASK_EVERY_S
    assert await watched.look() == [(FindingKind.ACL, "acl")], "nobody says that it has gone"
    another = Watched(world)
    assert await another.look(2) == [(FindingKind.ACL, "acl")], "nor to another process"
    world.kafka.access_unknown = False
    world.kafka.acls_of_hosts = []
    assert await another.look() == [(FindingKind.ACL, "acl")], "not asked again at each look"
    another.now += ASK_EVERY_S
    assert await another.look() == []
    (finding,) = await world.plane.findings("orders")
    assert finding.ended_at is not None


async def test_a_share_group_on_a_tracked_topic_is_told(world: World) -> None:
    watched = Watched(crossed(world))
    groups = tuple(f"group {n}" for n in range(9))
    world.kafka.share_groups_on = {"orders": groups, "another": ("g",)}
    assert await watched.look(2) == [(FindingKind.SHARE_GROUP, "share_group")]
    assert watched.gauge("inkless_unsupported_access", topic="orders", kind="share_group") == 9
    (finding,) = await world.plane.findings("orders")
    assert "group 0, group 1, group 2 and 6 more" in str(finding)


@pytest.mark.parametrize(
    ("acl", "applies"),
    [
        (HostAcl("orders", False, ""), True),
        (HostAcl("*", False, ""), True),
        (HostAcl("ord", True, ""), True),
        (HostAcl("", True, ""), True),
        (HostAcl("ord", False, ""), False),
        (HostAcl("orders-2", True, ""), False),
        (HostAcl("*", True, ""), False),
    ],
)
def test_an_acl_applies_as_its_pattern_says(acl: HostAcl, applies: bool) -> None:
    acls = HostAcls([replace(acl, words="it"), HostAcl("other", False, "another")])
    assert acls.of("orders") == (["it"] if applies else [])
