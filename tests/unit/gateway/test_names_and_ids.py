"""A name that means another topic in Kafka than the tracked one is refused, whoever asks how."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any
from uuid import UUID, uuid4

import pytest
from kio.schema.errors import ErrorCode

from tests.unit.gateway.fakes import TOPIC, TOPIC_ID, record_batch, tracked_row, tracked_topic
from tests.unit.gateway.tracked_bench import TrackedBench, acknowledging, leased, serving
from tests.unit.kafka.fake_cluster import fake_kafka
from tideline.control_plane.model import TopicStatus, TrackedTopic, TrackingKind
from tideline.gateway.context import ApiKey
from tideline.gateway.messages import messages, no_throttle
from tideline.gateway.tracking import identity as identity_module
from tideline.gateway.tracking import view as view_module
from tideline.gateway.tracking.identity import LOOKS_PER_ROUND, IdentityWatch
from tideline.gateway.tracking.view import TrackingView
from tideline.kafka.topic_identity import TopicIdentity

ANOTHER = UUID(int=0xDEF)
PRODUCE_VERSIONS = range(3, 14)
FETCH_VERSIONS = range(4, 19)
METADATA_VERSIONS = range(14)


class Names:
    """What Kafka's Metadata has under each name."""

    def __init__(self, **ids: UUID | None) -> None:
        self.ids = ids
        self.asked: list[list[str]] = []

    async def ids_of(self, names: list[str]) -> dict[str, UUID | None]:
        self.asked.append(names)
        return {name: self.ids[name] for name in names if name in self.ids}


@pytest.fixture
async def bench(tmp_path: Path) -> AsyncIterator[TrackedBench]:
    async with leased(tmp_path) as made:
        made.show(tracked_row(boundary=0, boundary_epoch=0))
        made.client.broker[ApiKey.PRODUCE] = acknowledging(0)
        made.client.broker[ApiKey.FETCH] = serving({})
        yield made


def watch(bench: TrackedBench, names: Names) -> IdentityWatch:
    identity: Any = names
    return IdentityWatch(bench.parts.tracking, identity)


def _key(version: int, by_id_since: int, topic_id: UUID, name_field: str) -> dict[str, Any]:
    return {"topic_id": topic_id} if version >= by_id_since else {name_field: TOPIC}


async def produced(bench: TrackedBench, version: int, topic_id: UUID = TOPIC_ID) -> str:
    api = messages(ApiKey.PRODUCE, version)
    row = api.request_part("PartitionProduceData", index=0, records=record_batch())
    answer = await bench.ask(
        api.request(
            transactional_id=None,
            acks=-1,
            timeout=timedelta(seconds=5),
            topic_data=(
                api.request_part(
                    "TopicProduceData",
                    **_key(version, 13, topic_id, "name"),
                    partition_data=(row,),
                ),
            ),
        )
    )
    code: ErrorCode = answer.responses[0].partition_responses[0].error_code
    return code.name


async def fetched(bench: TrackedBench, version: int, topic_id: UUID = TOPIC_ID) -> str:
    api = messages(ApiKey.FETCH, version)
    row = api.request_part(
        "FetchPartition", partition=0, fetch_offset=0, partition_max_bytes=1 << 20
    )
    answer = await bench.ask(
        api.request(
            max_wait=timedelta(0),
            min_bytes=1,
            max_bytes=1 << 20,
            isolation_level=0,
            session_id=0,
            session_epoch=-1,
            topics=(
                api.request_part(
                    "FetchTopic", **_key(version, 13, topic_id, "topic"), partitions=(row,)
                ),
            ),
            forgotten_topics_data=(),
            rack_id="",
        )
    )
    code: ErrorCode = answer.responses[0].partitions[0].error_code
    return code.name


async def metadata_of(bench: TrackedBench, version: int, *, by_id: bool = False) -> list[str]:
    """The errors of the topics in the answer, or what it would be without a look."""
    api = messages(ApiKey.METADATA, version)

    def answer(request: Any) -> Any:
        return api.response(
            brokers=(),
            topics=(
                api.response_part(
                    "MetadataResponseTopic",
                    error_code=ErrorCode.none,
                    name=TOPIC,
                    topic_id=ANOTHER,
                    is_internal=False,
                    partitions=(),
                    topic_authorized_operations=-1,
                ),
            ),
            controller_id=1,
            cluster_id="c",
            throttle_time=no_throttle(),
            cluster_authorized_operations=-1,
            error_code=ErrorCode.none,
        )

    bench.client.broker[ApiKey.METADATA] = answer
    if not bench.rules[ApiKey.METADATA].is_due():
        return ["passed"]
    asked = {"topic_id": ANOTHER, "name": None} if by_id else {"name": TOPIC, "topic_id": None}
    response = await bench.ask(
        api.request(
            topics=(api.request_part("MetadataRequestTopic", **asked),),
            allow_auto_topic_creation=False,
            include_topic_authorized_operations=False,
            include_cluster_authorized_operations=False,
        )
    )
    return [topic.error_code.name for topic in response.topics]


async def described(bench: TrackedBench, *names: str) -> list[tuple[str, str, UUID | None, int]]:
    """Name, error, id and number of partitions of each topic in the answer of
    DescribeTopicPartitions (KIP-966) to a question for these topics; for all without any."""
    api = messages(ApiKey.DESCRIBE_TOPIC_PARTITIONS, 0)

    def topic(name: str) -> Any:
        row = api.response_part(
            "DescribeTopicPartitionsResponsePartition",
            error_code=ErrorCode.none,
            partition_index=0,
            leader_id=1,
            leader_epoch=0,
            replica_nodes=(1,),
            isr_nodes=(1,),
            eligible_leader_replicas=None,
            last_known_elr=None,
            offline_replicas=(),
        )
        return api.response_part(
            "DescribeTopicPartitionsResponseTopic",
            error_code=ErrorCode.none,
            name=name,
            topic_id=ANOTHER,
            is_internal=False,
            partitions=(row,),
            topic_authorized_operations=-1,
        )

    def answer(request: Any) -> Any:
        asked = [one.name for one in request.topics] or [TOPIC, "classic"]
        return api.response(
            throttle_time=no_throttle(), topics=tuple(map(topic, asked)), next_cursor=None
        )

    bench.client.broker[ApiKey.DESCRIBE_TOPIC_PARTITIONS] = answer
    response = await bench.ask(
        api.request(
            topics=tuple(api.request_part("TopicRequest", name=name) for name in names),
            response_partition_limit=2000,
            cursor=None,
        )
    )
    return [(t.name, t.error_code.name, t.topic_id, len(t.partitions)) for t in response.topics]


@pytest.mark.parametrize("version", PRODUCE_VERSIONS)
async def test_a_produce_to_a_name_that_means_another_topic_is_refused(
    bench: TrackedBench, version: int
) -> None:
    assert await produced(bench, version) == "none"
    await watch(bench, Names(orders=ANOTHER)).look()
    gone = "unknown_topic_id" if version >= 13 else "unknown_topic_or_partition"
    assert await produced(bench, version) == gone
    assert len(bench.plane.commits) == 1
    assert bench.client.forwarded == []


@pytest.mark.parametrize("version", FETCH_VERSIONS)
async def test_a_fetch_from_a_name_that_means_another_topic_is_refused(
    bench: TrackedBench, version: int
) -> None:
    assert await fetched(bench, version) == "none"
    await watch(bench, Names(orders=ANOTHER)).look()
    gone = "unknown_topic_id" if version >= 13 else "unknown_topic_or_partition"
    assert await fetched(bench, version) == gone


@pytest.mark.parametrize("version", METADATA_VERSIONS)
async def test_metadata_hides_a_name_that_means_another_topic(
    bench: TrackedBench, version: int
) -> None:
    assert await metadata_of(bench, version) == ["passed"]
    await watch(bench, Names(orders=ANOTHER)).look()
    assert await metadata_of(bench, version) == ["unknown_topic_or_partition"]
    if version >= 12:
        assert await metadata_of(bench, version, by_id=True) == ["unknown_topic_id"]


async def test_the_refusal_ends_when_kafka_shows_the_tracked_id_again(bench: TrackedBench) -> None:
    """A broker that lagged had another topic of the name, or none."""
    names = Names(orders=ANOTHER)
    looks = watch(bench, names)
    await looks.look()
    assert await produced(bench, 12) == "unknown_topic_or_partition"
    names.ids["orders"] = TOPIC_ID
    await looks.look()
    assert await produced(bench, 12) == "none"


async def test_a_name_that_kafka_does_not_know_is_refused_from_the_second_look(
    bench: TrackedBench,
) -> None:
    looks = watch(bench, Names(orders=None))
    await looks.look()
    assert await produced(bench, 12) == "none"
    await looks.look()
    assert await produced(bench, 12) == "unknown_topic_or_partition"


async def test_a_name_of_which_the_broker_says_nothing_stays_as_it_was(bench: TrackedBench) -> None:
    """It answers with an error of its own, or not at all."""
    names = Names(orders=ANOTHER)
    looks = watch(bench, names)
    await looks.look()
    del names.ids["orders"]
    await looks.look()
    assert await produced(bench, 12) == "unknown_topic_or_partition"
    names.ids["orders"] = None
    await looks.look()
    assert await produced(bench, 12) == "unknown_topic_or_partition", "deleted again"


class ManyTopics:
    """Ten thousand tracked topics, as Kafka has them too."""

    COUNT = 10_000

    def __init__(self) -> None:
        self.view = TrackingView(lambda: True)
        topics = [self.topic(number) for number in range(self.COUNT)]
        self.view.replace_all(topics)
        self.names = Names(**{topic.name: topic.topic_id for topic in topics})
        identity: Any = self.names
        self.looks = IdentityWatch(self.view, identity)

    @staticmethod
    def topic(number: int) -> TrackedTopic:
        return tracked_topic(name=f"topic-{number:05d}", topic_id=UUID(int=number + 1))

    def displaced(self) -> list[int]:
        return [n for n in range(self.COUNT) if self.view.is_hidden(f"topic-{n:05d}")]


async def test_a_look_at_many_names_is_at_a_part_of_them_and_a_round_at_all() -> None:
    many = ManyTopics()
    for _ in range(2 * LOOKS_PER_ROUND):
        await many.looks.look()
    assert {len(asked) for asked in many.names.asked} == {1000}
    for of_round in (many.names.asked[:LOOKS_PER_ROUND], many.names.asked[LOOKS_PER_ROUND:]):
        assert len({name for asked in of_round for name in asked}) == many.COUNT


async def test_a_broker_is_asked_for_a_part_of_many_names_by_a_look(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Over Kafka's protocol; a topic was deleted and created past the gateways."""
    monkeypatch.setattr(identity_module, "NAMES_PER_LOOK", 50)
    view = TrackingView(lambda: True)
    async with fake_kafka() as kafka, kafka.client() as cluster:
        ids = {f"topic-{n:03d}": kafka.controller.create(f"topic-{n:03d}") for n in range(500)}
        view.replace_all([tracked_topic(name=name, topic_id=ids[name]) for name in ids])
        looks = IdentityWatch(view, TopicIdentity(cluster))
        kafka.controller.delete("topic-321")
        kafka.controller.create("topic-321")
        for _ in range(LOOKS_PER_ROUND):
            await looks.look()
        assert view.is_hidden("topic-321")
        asked = [len(request.topics) for node in kafka.nodes for request in node.asked]
        assert sum(asked) <= 500 + LOOKS_PER_ROUND
        assert max(asked) <= 51
    assert [name for name in ids if view.is_hidden(name)] == ["topic-321"]


async def test_another_topic_under_one_of_many_names_is_seen_within_a_round() -> None:
    """Wherever in the round it comes to be; and that it is over is seen by the next look."""
    many = ManyTopics()
    for _ in range(4):
        await many.looks.look()
    for number in (0, 3_999, 4_000, 9_999):
        many.names.ids[f"topic-{number:05d}"] = ANOTHER
    for _ in range(LOOKS_PER_ROUND):
        await many.looks.look()
    assert many.displaced() == [0, 3_999, 4_000, 9_999]
    many.names.ids["topic-03999"] = UUID(int=4_000)
    await many.looks.look()
    assert many.displaced() == [0, 4_000, 9_999]


async def test_a_missing_name_of_many_is_looked_at_again_by_the_next_look() -> None:
    many = ManyTopics()
    await many.looks.look()
    many.names.ids["topic-01500"] = None
    await many.looks.look()
    assert many.displaced() == [], "by one look nothing is sure"
    await many.looks.look()
    assert many.displaced() == [1_500]
    assert len(many.names.asked[-1]) == 1_001


async def test_a_topic_that_joins_many_is_looked_at_first() -> None:
    many = ManyTopics()
    for _ in range(LOOKS_PER_ROUND):
        await many.looks.look()
    many.view.replace_named(["new"], [tracked_topic(name="new", topic_id=UUID(int=99_999))])
    await many.looks.look()
    assert "new" in many.names.asked[-1]
    many.view.replace_named(["new"], [])
    for _ in range(LOOKS_PER_ROUND):
        await many.looks.look()
        assert "new" not in many.names.asked[-1]


@pytest.mark.parametrize("version", [9, 12, 13])
async def test_a_dead_id_is_refused_and_its_name_is_free(bench: TrackedBench, version: int) -> None:
    await bench.plane.delete_topic(TOPIC_ID)
    await bench.parts.sync.reload()
    if version >= 13:
        assert await produced(bench, version) == "unknown_topic_id"
        assert bench.client.forwarded == []
        assert await produced(bench, version, ANOTHER) == "none"
    else:
        assert await produced(bench, version) == "none"
    assert len(bench.client.forwarded) == 1, "the new topic is Kafka's"
    assert bench.plane.commits == []


async def test_a_deletion_outweighs_a_row_that_was_read_before_it() -> None:
    view = TrackingView(lambda: True)
    topic = tracked_topic(tracked_row(boundary=0, boundary_epoch=0))
    view.bury([TOPIC_ID])
    view.replace_all([topic])
    assert view.topic_by_name(TOPIC) is None
    assert view.partition(TOPIC_ID, 0).kind == "deleted"


async def test_what_a_gateway_remembers_of_deleted_topics_is_bounded(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(view_module, "MAX_TOMBSTONES", 3)
    now = [0.0]
    view = TrackingView(lambda: True, lambda: now[0])
    ids = [uuid4() for _ in range(5)]
    view.bury(ids)
    assert [view.is_deleted(one) for one in ids] == [False, False, True, True, True]
    now[0] = view_module.TOMBSTONE_S + 1
    view.bury([])
    assert view.is_empty


@pytest.mark.parametrize("topic_id", [None, TOPIC_ID])
async def test_a_topic_that_is_being_born_is_hidden_until_every_gateway_knows_its_id(
    bench: TrackedBench, topic_id: UUID | None
) -> None:
    born = replace(
        tracked_topic(topic_id=topic_id, status=TopicStatus.TRACKING),
        kind=TrackingKind.BORN_DISKLESS,
        partitions={},
    )
    bench.parts.tracking.replace_all([born])
    assert await metadata_of(bench, 12) == ["unknown_topic_or_partition"]
    assert await metadata_of(bench, 12, by_id=True) == ["unknown_topic_id"]
    bench.parts.tracking.replace_all([replace(born, topic_id=TOPIC_ID, status=TopicStatus.ACTIVE)])
    assert await metadata_of(bench, 12) == ["passed"]


async def test_descriptions_hide_what_metadata_hides(bench: TrackedBench) -> None:
    """The Java Admin describes topics by DescribeTopicPartitions: it learned the id and the leaders
    of a topic that Metadata did not show."""
    rule = bench.rules[ApiKey.DESCRIBE_TOPIC_PARTITIONS]
    assert not rule.is_due(), "passed as it came while nothing is hidden"
    born = replace(
        tracked_topic(status=TopicStatus.TRACKING), kind=TrackingKind.BORN_DISKLESS, partitions={}
    )
    bench.parts.tracking.replace_all([born])
    assert rule.is_due()
    classic = ("classic", "none", ANOTHER, 1)
    unknown = (TOPIC, "unknown_topic_or_partition", None, 0)
    assert await described(bench, TOPIC, "classic") == [unknown, classic]
    assert await described(bench) == [classic], "left out of all topics"
    bench.parts.tracking.replace_all([replace(born, status=TopicStatus.ACTIVE)])
    assert not rule.is_due()
    bench.show(tracked_row(boundary=0, boundary_epoch=0))
    await watch(bench, Names(orders=ANOTHER)).look()
    assert await described(bench, TOPIC) == [unknown], "a name that means another topic"
