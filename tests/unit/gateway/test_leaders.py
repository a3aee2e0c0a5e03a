"""Whom Metadata and DescribeTopicPartitions name, and where a Fetch is sent on to, on the wire."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from uuid import UUID, uuid4

import pytest
from kio.schema.errors import ErrorCode
from structlog.testing import capture_logs

from tests.unit.gateway.fakes import TOPIC, TOPIC_ID, HeldSleep, record_batch, tracked_row, until
from tests.unit.gateway.tracked_bench import (
    KafkaLog,
    Script,
    TrackedBench,
    fetch,
    outcomes,
    produce,
    serving,
)
from tideline.control_plane.model import TrackedPartition
from tideline.domain.ids import TopicIdPartition
from tideline.domain.leader_choice import Placement
from tideline.gateway import leaders as leaders_module
from tideline.gateway import metrics
from tideline.gateway.context import ApiKey, RequestContext
from tideline.gateway.messages import messages
from tideline.kafka.errors import KafkaUnavailable
from tideline.kafka.protocol import (
    decode_response,
    encode_request,
    encode_response,
    parse_header,
)

EPOCH = 9
PENDING = tracked_row(generation=1)
NOT_READY = tracked_row(generation=2, boundary=100, boundary_epoch=7)
HYBRID = replace(NOT_READY, ready=True)
PREFIX_GONE = replace(HYBRID, prefix_gone=True)
BORN_DISKLESS = tracked_row(boundary=0, boundary_epoch=0, ready=True)
ON_123 = Placement(leader=1, replicas=(1, 2, 3), in_sync=(1, 2, 3))
LEADERLESS = replace(ON_123, leader=-1, in_sync=(1,))
RACKS = {1: "a", 2: "b", 3: "c", 4: "b"}
PEERS = "1=h:1,2=h:2,3=h:3,4=h:4"
METADATA_VERSIONS = (0, 1, 5, 7, 8, 9, 12, 13)
NEWEST = 13


class Cluster:
    """Brokers 1 to 4, of which this gateway is beside the first, as Kafka tells of them."""

    def __init__(self, bench: TrackedBench) -> None:
        self.bench = bench
        self.racks: dict[int, str | None] = dict(RACKS)
        self.placement = ON_123
        self.incarnations: dict[int, UUID] = {}
        bench.client.broker[ApiKey.METADATA] = self._metadata
        bench.client.broker[ApiKey.DESCRIBE_TOPIC_PARTITIONS] = self._description

    async def start(self, *gateways: int) -> None:
        for number in gateways:
            self.incarnations[number] = uuid4()
            await self.bench.plane.register_gateway(
                number, number, self.incarnations[number], "g:1", "1", 3_000
            )
        await self.bench.parts.leaders.peers.look()

    async def stop(self, *gateways: int) -> None:
        for number in gateways:
            await self.bench.plane.release_gateway(number, self.incarnations[number])
        await self.bench.parts.leaders.peers.look()

    def _metadata(self, request: Any) -> Any:
        api = messages(ApiKey.METADATA, int(request.__version__))
        return api.response(
            throttle_time=timedelta(0),
            brokers=tuple(
                api.response_part(
                    "MetadataResponseBroker", node_id=node, host="h", port=9, rack=rack
                )
                for node, rack in self.racks.items()
            ),
            cluster_id="a cluster",
            controller_id=1,
            topics=tuple(
                api.response_part("MetadataResponseTopic", partitions=(row,), **self._topic(name))
                for name in (TOPIC, "classic")
                for row in [self._partition(api, "MetadataResponsePartition")]
            ),
            cluster_authorized_operations=-2147483648,
            error_code=ErrorCode.none,
        )

    def _description(self, request: Any) -> Any:
        api = messages(ApiKey.DESCRIBE_TOPIC_PARTITIONS, 0)
        row = self._partition(api, "DescribeTopicPartitionsResponsePartition")
        return api.response(
            throttle_time=timedelta(0),
            topics=tuple(
                api.response_part(
                    "DescribeTopicPartitionsResponseTopic", partitions=(row,), **self._topic(name)
                )
                for name in (TOPIC, "classic")
            ),
            next_cursor=None,
        )

    def _topic(self, name: str) -> dict[str, Any]:
        return {
            "error_code": ErrorCode.none,
            "name": name,
            "topic_id": TOPIC_ID if name == TOPIC else UUID(int=5),
            "is_internal": False,
            "topic_authorized_operations": -2147483648,
        }

    def _partition(self, api: Any, structure: str) -> Any:
        at, away = self.placement, set(self.placement.replicas) - self.racks.keys()
        led = at.leader >= 0
        return api.response_part(
            structure,
            error_code=ErrorCode.none if led else ErrorCode.leader_not_available,
            partition_index=0,
            leader_id=at.leader,
            leader_epoch=EPOCH,
            replica_nodes=at.replicas,
            isr_nodes=at.in_sync,
            eligible_leader_replicas=(),
            last_known_elr=(),
            offline_replicas=tuple(sorted(away)),
        )

    async def asked(
        self,
        client_id: str = "a client",
        *,
        api_key: ApiKey = ApiKey.METADATA,
        version: int = NEWEST,
        topics: tuple[str, ...] = (TOPIC, "classic"),
    ) -> tuple[Any, Any]:
        """The broker's answer and the client's."""
        api = messages(api_key, version)
        name = "MetadataRequestTopic" if api_key == ApiKey.METADATA else "TopicRequest"
        message = api.request(
            topics=tuple(api.request_part(name, topic_id=None, name=topic) for topic in topics),
            allow_auto_topic_creation=False,
            include_cluster_authorized_operations=False,
            include_topic_authorized_operations=False,
            response_partition_limit=2000,
            cursor=None,
        )
        frame = encode_request(message, 5, client_id)
        said: list[bytes] = []
        script: Script = self.bench.client.broker[api_key]

        def remembered(request: Any) -> Any:
            answer = script(request)
            said.append(encode_response(answer, 5))
            return answer

        self.bench.client.broker[api_key] = remembered
        context = RequestContext(parse_header(frame), frame, self.bench.client)
        answer = await self.bench.rules[api_key].handler(context)
        self.bench.client.broker[api_key] = script
        assert answer is not None
        return decode_response(said[0], api_key, version), decode_response(answer, api_key, version)

    async def named(self, client_id: str = "a client", version: int = NEWEST) -> int:
        """The leader of the tracked partition that a client is told."""
        _, told = await self.asked(client_id, version=version)
        return int(told.topics[0].partitions[0].leader_id)


@pytest.fixture
async def cluster(tmp_path: Path) -> AsyncIterator[Cluster]:
    bench = TrackedBench(tmp_path, gateway_peers=PEERS)
    await bench.lease()
    made = Cluster(bench)
    await made.start(2, 3, 4)
    yield made
    await bench.close()


ONE_OF_ZONE_C = "orders,diskless_az=c"


@pytest.mark.parametrize("row", [PENDING, NOT_READY])
async def test_while_kafkas_leader_is_needed_its_answer_keeps_its_bytes(
    cluster: Cluster, row: TrackedPartition
) -> None:
    cluster.bench.show(row)
    await cluster.stop(3)
    cluster.placement = replace(ON_123, leader=3)
    said, told = await cluster.asked(ONE_OF_ZONE_C)
    assert told == said


@pytest.mark.parametrize("version", METADATA_VERSIONS)
@pytest.mark.parametrize("placement", [ON_123, LEADERLESS])
async def test_nothing_but_the_leader_changes_and_that_there_is_none(
    cluster: Cluster, version: int, placement: Placement
) -> None:
    """Replicas, ISR, offline replicas and the leader epoch are the real ones."""
    cluster.bench.show(PREFIX_GONE)
    cluster.placement = placement
    await cluster.asked()
    said, told = await cluster.asked(ONE_OF_ZONE_C, version=version)
    tracked, classic = said.topics
    (row,) = tracked.partitions
    changed = replace(row, leader_id=3, error_code=ErrorCode.none)
    assert told == replace(said, topics=(replace(tracked, partitions=(changed,)), classic))


@pytest.mark.parametrize("shown", [HYBRID, PREFIX_GONE])
async def test_a_description_says_what_metadata_says(
    cluster: Cluster, shown: TrackedPartition
) -> None:
    """Who asks it is new enough to fetch from followers, so also below a B0."""
    cluster.bench.show(shown)
    for placement, client_id in ((ON_123, ONE_OF_ZONE_C), (LEADERLESS, "a client")):
        cluster.placement = placement
        leader = await cluster.named(client_id)
        said, told = await cluster.asked(
            client_id, api_key=ApiKey.DESCRIBE_TOPIC_PARTITIONS, version=0
        )
        (row,) = said.topics[0].partitions
        changed = replace(row, leader_id=leader, error_code=ErrorCode.none)
        assert told.topics == (replace(said.topics[0], partitions=(changed,)), said.topics[1])


async def test_topics_that_are_not_tracked_are_not_looked_into(cluster: Cluster) -> None:
    cluster.bench.show(PREFIX_GONE)
    cluster.placement = LEADERLESS
    said, told = await cluster.asked(topics=("classic",))
    assert told == said


@pytest.mark.parametrize("row", [HYBRID, PREFIX_GONE, BORN_DISKLESS])
async def test_the_same_is_said_while_nothing_changes_and_kafkas_leader_while_it_lives(
    cluster: Cluster, row: TrackedPartition
) -> None:
    cluster.bench.show(row)
    for _ in range(3):
        assert await cluster.named() == 1
        assert await cluster.named(ONE_OF_ZONE_C) == 3
        await cluster.bench.parts.leaders.peers.look()


@pytest.mark.parametrize("row", [HYBRID, PREFIX_GONE, BORN_DISKLESS])
async def test_a_partition_is_led_around_a_gateway_that_died_and_back_to_it(
    cluster: Cluster, row: TrackedPartition
) -> None:
    """Its broker lives and goes on leading: Kafka elects nobody."""
    cluster.bench.show(row)
    cluster.placement = replace(ON_123, leader=3)
    counted = metrics.TRANSFORMER_ROUTED_AROUND._value.get()
    assert await cluster.named() == 3
    await cluster.stop(3)
    with capture_logs() as logs:
        around = {await cluster.named() for _ in range(3)}
    assert len(around) == 1
    assert around < {1, 2}
    (entry,) = logs
    assert entry["event"] == "transformer.offline_replica_routed_around"
    assert (entry["offline"], entry["routed_to"]) == ([3], {0: around.pop()})
    assert metrics.TRANSFORMER_ROUTED_AROUND._value.get() == counted + 3
    await cluster.start(3)
    with capture_logs() as logs:
        assert await cluster.named() == 3
    assert [entry["event"] for entry in logs] == ["transformer.leader_is_back"]


async def test_with_every_replica_away_another_gateway_is_named(cluster: Cluster) -> None:
    cluster.bench.show(BORN_DISKLESS)
    cluster.placement = Placement(leader=-1, replicas=(3,), in_sync=(3,))
    del cluster.racks[3]
    counted = metrics.TRANSFORMER_FALLBACK._value.get()
    with capture_logs() as logs:
        assert await cluster.named("x,diskless_az=a") == 1
        assert await cluster.named() in (1, 2, 4)
        assert await cluster.named("x,diskless_az=b") in (2, 4)
    (entry,) = [entry for entry in logs if entry["event"].startswith("transformer.")]
    assert (entry["event"], entry["log_level"]) == ("transformer.all_replicas_offline", "warning")
    assert (entry["offline"], entry["routed_to"]) == ([3], {0: 1})
    assert metrics.TRANSFORMER_FALLBACK._value.get() == counted + 3


async def test_who_may_not_fetch_from_followers_is_told_kafkas_leader(cluster: Cluster) -> None:
    cluster.bench.show(HYBRID)
    assert await cluster.named(ONE_OF_ZONE_C, version=7) == 1
    assert await cluster.named(ONE_OF_ZONE_C, version=8) == 3


async def test_nothing_is_said_by_a_gateway_that_has_not_read_who_lives(tmp_path: Path) -> None:
    bench = TrackedBench(tmp_path, gateway_peers=PEERS)
    await bench.lease()
    bench.show(BORN_DISKLESS)
    cluster = Cluster(bench)
    cluster.placement = LEADERLESS
    assert await cluster.named() == -1
    await cluster.start()
    assert await cluster.named() == 1
    await bench.close()


async def test_switched_off_leaders_are_kafkas(tmp_path: Path) -> None:
    bench = TrackedBench(tmp_path, gateway_peers=PEERS, diskless_transformer_enabled="false")
    await bench.lease()
    bench.show(BORN_DISKLESS)
    cluster = Cluster(bench)
    await cluster.start(2, 3)
    assert await cluster.named(ONE_OF_ZONE_C) == 1
    assert not bench.parts.leaders.is_due()
    await bench.close()


async def test_another_postgres_than_was_pinned_is_not_gone_by(cluster: Cluster) -> None:
    """Schedule 16."""
    cluster.bench.show(BORN_DISKLESS)
    cluster.bench.parts.tracking.stop("another history")
    assert await cluster.named(ONE_OF_ZONE_C) == 1


async def preferred(cluster: Cluster, rack: str, offset: int) -> tuple[str, int]:
    """(error, preferred read replica)"""
    message = replace(fetch((TOPIC, 0, offset)), rack_id=rack)
    row = (await cluster.bench.ask(message)).responses[0].partitions[0]
    return row.error_code.name, int(row.preferred_read_replica)


async def test_a_consumer_of_the_suffix_is_sent_on_to_a_replica_in_its_rack(
    cluster: Cluster,
) -> None:
    """As Kafka does (KIP-392)."""
    cluster.bench.show(HYBRID)
    await cluster.asked()
    assert await preferred(cluster, "c", 100) == ("none", 3)
    assert await preferred(cluster, "b", 100) == ("none", 2)
    for here_or_nowhere in ("a", "", "d"):
        assert await preferred(cluster, here_or_nowhere, 100) == ("none", -1)
    await cluster.stop(3)
    assert await preferred(cluster, "c", 100) == ("none", -1)
    assert not [r for r in cluster.bench.client.forwarded if r.__api_key__ == ApiKey.FETCH]


async def test_a_consumer_is_sent_on_though_nobody_has_asked_where_the_partition_is(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    cluster.bench.show(HYBRID)
    answer, _ = await cluster.asked()
    cluster.bench.show(PENDING)
    cluster.bench.show(HYBRID)
    asked: list[list[str]] = []

    async def described(topics: list[str]) -> Any:
        asked.append(topics)
        return answer

    monkeypatch.setattr(cluster.bench.cluster, "described", described)
    for _ in range(3):
        assert await preferred(cluster, "c", 100) == ("none", 3)
    assert asked == [[TOPIC]]


async def test_a_replica_that_has_moved_is_known_after_a_minute(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    cluster.bench.show(HYBRID)
    loop, at = asyncio.get_running_loop(), TopicIdPartition(TOPIC_ID, 0)
    before = loop.time()
    await cluster.asked()
    assert await preferred(cluster, "c", 100) == ("none", 3)
    after = loop.time()
    cluster.placement = replace(ON_123, replicas=(1, 2), in_sync=(1, 2))
    answer = cluster._metadata(SimpleNamespace(__version__=NEWEST))

    async def described(topics: list[str]) -> Any:
        return answer

    monkeypatch.setattr(cluster.bench.cluster, "described", described)
    leaders = cluster.bench.parts.leaders
    monkeypatch.setattr(leaders, "is_due", lambda: True)  # the lease goes by the same clock
    for now_s, replica in ((before + 59.0, 3), (after + 61.0, None)):
        with monkeypatch.context() as later:
            later.setattr(loop, "time", lambda now_s=now_s: now_s)
            assert await leaders.nearer(at, "c") == replica


async def test_a_broker_that_comes_back_in_another_rack_is_known_there_after_a_minute(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also while no client asks here; what was not answered is asked again sooner."""
    sleep = HeldSleep()
    waited, goes_on = sleep.waited, sleep.goes_on

    async def described(topics: list[str]) -> Any:
        if not cluster.racks:
            raise KafkaUnavailable("no broker answers")
        return cluster._metadata(SimpleNamespace(__version__=NEWEST))

    leaders = cluster.bench.parts.leaders
    monkeypatch.setattr(cluster.bench.cluster, "described", described)
    monkeypatch.setattr(leaders_module, "asyncio", SimpleNamespace(sleep=sleep))
    following = asyncio.create_task(leaders._follow_zones())
    await until(lambda: waited == [60.0])
    cluster.racks.clear()
    goes_on.release()
    await until(lambda: waited == [60.0, 5.0])
    cluster.racks |= {**RACKS, 2: "c"}
    assert leaders.peers.live[2] == "b"
    goes_on.release()
    await until(lambda: waited == [60.0, 5.0, 60.0])
    assert leaders.peers.live[2] == "c"
    following.cancel()


async def test_who_cannot_be_sent_on_is_served_here(cluster: Cluster) -> None:
    """No broker says where the partition is."""
    cluster.bench.show(HYBRID)
    assert await preferred(cluster, "c", 100) == ("none", -1)


async def test_before_readiness_nobody_is_sent_on(cluster: Cluster) -> None:
    cluster.bench.show(HYBRID)
    await cluster.asked()
    cluster.bench.show(NOT_READY)
    assert await preferred(cluster, "c", 100) == ("none", -1)


def crossing(direction: str) -> dict[str, float]:
    counter = metrics.SUFFIX_BYTES
    return {
        zone: counter.labels(direction, zone)._value.get() for zone in ("same", "other", "unknown")
    }


@pytest.mark.parametrize(
    ("client_id", "rack", "zone"),
    [
        ("x,diskless_az=a", "", "same"),
        ("x,diskless_az=c", "", "other"),
        ("x,diskless_az=c", "a", "same"),
        ("x", "", "unknown"),
        ("x,diskless_az=a-StreamThread-1-producer", "", "same"),
        ("x,diskless_az=c-StreamThread-1-producer", "", "other"),
        ("x,diskless_az=cc", "", "unknown"),
        ("x", "cc", "unknown"),
    ],
)
async def test_bytes_are_counted_by_whether_they_leave_the_zone(
    cluster: Cluster, client_id: str, rack: str, zone: str
) -> None:
    bench = cluster.bench
    bench.show(BORN_DISKLESS)
    await cluster.asked()
    before = {direction: crossing(direction) for direction in ("produced", "fetched")}
    batch = record_batch(1)
    told = await bench.ask(produce((TOPIC, 0, batch)), client_id=client_id)
    assert outcomes(told) == {(TOPIC, 0): ("none", 0)}
    message = replace(fetch((TOPIC, 0, 0)), rack_id=rack)
    await bench.ask(message, client_id=client_id)
    for direction, known in before.items():
        if direction == "fetched" or not rack:
            assert crossing(direction) == {**known, zone: known[zone] + len(batch)}


async def test_a_client_of_streams_is_told_the_replica_in_its_zone(cluster: Cluster) -> None:
    cluster.bench.show(HYBRID)
    assert await cluster.named("orders,diskless_az=c-StreamThread-1-producer") == 3


@pytest.mark.parametrize(("row", "told"), [(HYBRID, -1), (NOT_READY, 2)])
async def test_no_hint_names_another_leader_than_metadata_may(
    cluster: Cluster, row: TrackedPartition, told: int
) -> None:
    """Without a hint (KIP-951) a client asks for Metadata."""
    cluster.bench.show(row)
    script = serving({(TOPIC, 0): KafkaLog(code=ErrorCode.fenced_leader_epoch)})

    def with_hint(request: Any) -> Any:
        response = script(request)
        (topic,) = response.responses
        (row,) = topic.partitions
        hint = replace(row.current_leader, leader_id=2, leader_epoch=EPOCH)
        row = replace(row, current_leader=hint)
        return replace(response, responses=(replace(topic, partitions=(row,)),))

    cluster.bench.client.broker[ApiKey.FETCH] = with_hint
    response = await cluster.bench.ask(fetch((TOPIC, 0, 50)))
    found = response.responses[0].partitions[0]
    assert found.error_code is ErrorCode.fenced_leader_epoch
    assert int(found.current_leader.leader_id) == told
