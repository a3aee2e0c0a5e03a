"""Every case of the table of answers, asked of a gateway in raw frames over a made broker."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from kio.schema.errors import ErrorCode

from tests.asked import API, Places, Told, api_of, expected, request, told
from tests.unit.gateway.fakes import TOPIC, TOPIC_ID, record_batch, tracked_row, until
from tests.unit.gateway.tracked_bench import TrackedBench
from tideline.domain.answers import (
    KAFKA_SAYS,
    Asked,
    Behaviour,
    Case,
    LeaseState,
    Request,
    Role,
    State,
)
from tideline.domain.request_handling import KafkaErrorCode
from tideline.gateway.messages import key_fields, topic_key
from tideline.kafka.batches import patch
from tideline.kafka.errors import KafkaUnavailable

CROSSED = tracked_row(generation=2, boundary=100, boundary_epoch=7, accepted_gap_from=80)
PENDING = tracked_row(generation=1)
ROWS = {
    State.CLASSIC: PENDING,
    State.PENDING: PENDING,
    State.QUIESCING: tracked_row(generation=2, quiesced=True),
    State.NOT_READY: CROSSED,
    State.READY: replace(CROSSED, ready=True),
    State.NO_PREFIX: replace(CROSSED, prefix_gone=True),
    State.DELETED: PENDING,
    State.UNKNOWN: PENDING,
}
PLACES = Places(prefix=5, suffix=100, end=102, old_epoch=3, new_epoch=7, gap=90)
BESIDE, AT_LEADER = 17, 23
"""Offsets that tell who of the brokers was asked."""
SOON_MS = "100"


def says(asked: Asked, code: KafkaErrorCode, offset: int, message: Any) -> Any:
    """A broker's answer to ``message``, which names one partition."""
    api, good = api_of(asked), code is KafkaErrorCode.NONE
    names = {
        Request.PRODUCE: ("TopicProduceResponse", "PartitionProduceResponse"),
        Request.FETCH: ("FetchableTopicResponse", "PartitionData"),
        Request.LIST_OFFSETS: ("ListOffsetsTopicResponse", "ListOffsetsPartitionResponse"),
        Request.LEADER_EPOCH: ("OffsetForLeaderTopicResult", "EpochEndOffset"),
        Request.DELETE_RECORDS: ("DeleteRecordsTopicResult", "DeleteRecordsPartitionResult"),
    }[asked.request]
    (topic,) = message.topic_data if asked is Asked.PRODUCE else message.topics
    (row,) = topic.partition_data if asked is Asked.PRODUCE else topic.partitions
    number = next(
        getattr(row, n) for n in ("index", "partition_index", "partition") if hasattr(row, n)
    )
    batch = bytearray(record_batch(10))
    patch(batch, PLACES.prefix, 3)
    deletes = getattr(row, "offset", -1)
    values = {
        "base_offset": offset,
        "offset": offset,
        "timestamp": -1,
        "leader_epoch": 3,
        # Of B0's epoch: that it has the whole prefix.
        "end_offset": 100 if asked is Asked.EPOCH_PREFIX and row.leader_epoch == 7 else offset,
        "low_watermark": deletes if asked is Asked.DELETE_SUFFIX and deletes > 0 else offset,
        "high_watermark": 100,
        "last_stable_offset": 100,
        "log_start_offset": 0,
        "records": bytes(batch),
    }
    found = api.response_part(
        names[1],
        index=number,
        partition_index=number,
        partition=number,
        error_code=ErrorCode(int(code)),
        **(values if good else dict.fromkeys(values, -1) | {"records": b""}),
        aborted_transactions=(),
        record_errors=(),
        preferred_read_replica=-1,
        diverging_epoch=api.response_part("EpochEndOffset", epoch=-1, end_offset=-1)
        if asked.request is Request.FETCH
        else None,
    )
    told_of = api.response_part(
        names[0],
        **key_fields(topic_key(topic)),
        partitions=(found,),
        partition_responses=(found,),
    )
    return api.response(
        throttle_time=timedelta(0),
        error_code=ErrorCode.none,
        session_id=0,
        topics=(told_of,),
        responses=(told_of,),
    )


@dataclass
class Brokers:
    """The one beside the gateway, on the client's connection, and Kafka's leader, on the
    gateway's own."""

    bench: TrackedBench
    asked: Asked
    at_leader: list[Any] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.bench.cluster.leader_id = self._leader_id
        self.bench.cluster.node = self._node

    def be(self, role: Role) -> None:
        """The role of the one beside the gateway from now on."""
        code = KAFKA_SAYS[self.asked.request][role]
        self.bench.client.forwarded.clear()
        self.at_leader.clear()
        self.bench.client.broker[API[self.asked.request]] = lambda message: says(
            self.asked, code, BESIDE, message
        )

    async def _leader_id(self, topic: str, partition: int) -> int:
        return 2

    async def _node(self, node: int, *, apart: bool = False) -> Brokers:
        if node != 2:
            raise KafkaUnavailable("only the leader answers here")
        return self

    async def send(self, message: Any, *, timeout_ms: int) -> Any:
        self.at_leader.append(message)
        return says(self.asked, KafkaErrorCode.NONE, AT_LEADER, message)


class Scene:
    """One partition in one state, behind one gateway."""

    def __init__(self, directory: Path, case: Case) -> None:
        self.bench = TrackedBench(directory, gateway_park_max_ms=SOON_MS)
        self.case = case
        self.brokers = Brokers(self.bench, case.asked)
        self.topic = "classic" if case.state is State.CLASSIC else TOPIC
        self.partition = 1 if case.state is State.UNKNOWN else 0

    async def ask(self, asked: Asked) -> Told:
        message = request(asked, self.topic, self.partition, PLACES, record_batch(2))
        return told(asked, await self.bench.ask(message))

    async def reach(self) -> None:
        """The case's state and lease."""
        bench, state = self.bench, self.case.state
        await bench.lease()
        bench.show(PENDING)
        if state is State.QUIESCING:
            await self._read_before()
        bench.show(ROWS[state])
        if state is State.QUIESCING:
            await until(lambda: bench.plane.quiesce_acks)
        if ROWS[state].boundary >= 0:
            assert (await self.ask(Asked.PRODUCE)).error == "NONE"
        if state is State.DELETED:
            bench.parts.tracking.displace({TOPIC_ID})
        if self.case.lease is LeaseState.LAPSED:
            bench.lapse()
        if self.case.lease is LeaseState.STOPPED:
            bench.parts.tracking.stop("another Postgres")

    def take_role(self, case: Case) -> None:
        """The same state and lease, and another broker beside the gateway."""
        self.case = case
        self.bench.plane.commits.clear()
        self.brokers.be(case.role)

    async def _read_before(self) -> None:
        """A consumer has seen the log's end, so that reads go on in the pause."""
        self.brokers.asked = Asked.FETCH_PREFIX
        self.brokers.be(Role.LEADER)
        assert (await self.ask(Asked.FETCH_PREFIX)).error == "NONE"
        self.brokers.asked = self.case.asked


@pytest.mark.parametrize("state", list(State))
@pytest.mark.parametrize("asked", list(Asked))
async def test_a_gateway_answers_as_the_table_says(
    tmp_path: Path, asked: Asked, state: State
) -> None:
    for lease in LeaseState:
        scene = Scene(tmp_path / lease, Case(asked, state, lease, Role.LEADER))
        try:
            await scene.reach()
            for role in Role:
                case = Case(asked, state, lease, role)
                scene.take_role(case)
                await check(scene, case)
        finally:
            await scene.bench.close()


async def check(scene: Scene, case: Case) -> None:
    found, handling = await scene.ask(case.asked), case.handling
    assert found.error == expected(case).name, case
    assert bool(scene.bench.client.forwarded) is handling.asks_kafka, case
    assert bool(scene.brokers.at_leader) is case.asks_leader, case
    in_suffix = case.asked is Asked.PRODUCE and case.answer.behaviour is Behaviour.SUFFIX
    assert bool(scene.bench.plane.commits) is in_suffix, case
    if found.error != "NONE":
        assert found.offset == -1, case
    elif case.asked.request is Request.FETCH:
        assert found.offset == (PLACES.prefix if handling.asks_kafka else PLACES.suffix), case
    elif case.asked is not Asked.DELETE_SUFFIX:
        who = AT_LEADER if case.asks_leader else BESIDE
        assert (found.offset == who) is handling.asks_kafka, case
