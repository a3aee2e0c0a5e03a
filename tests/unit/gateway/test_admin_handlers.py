"""Requests that create, change and end topics and transactions, with a broker of our own."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Collection, Mapping
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from importlib import import_module
from typing import Any
from uuid import UUID, uuid4

import pytest
from kio.schema.add_partitions_to_txn.v3 import request as add_v3
from kio.schema.add_partitions_to_txn.v5 import request as add_v5
from kio.schema.alter_configs.v2 import request as alter
from kio.schema.create_partitions.v3 import request as grow
from kio.schema.create_partitions.v3.response import (
    CreatePartitionsResponse,
    CreatePartitionsTopicResult,
)
from kio.schema.create_topics.v5 import request as make_v5
from kio.schema.create_topics.v7 import request as make_v7
from kio.schema.delete_topics.v6 import request as delete
from kio.schema.delete_topics.v6.response import DeletableTopicResult, DeleteTopicsResponse
from kio.schema.describe_configs.v4 import request as describe_request
from kio.schema.describe_configs.v4 import response as describe
from kio.schema.describe_transactions.v0.response import (
    DescribeTransactionsResponse,
    TopicData,
    TransactionState,
)
from kio.schema.end_txn.v3.request import EndTxnRequest
from kio.schema.end_txn.v3.response import EndTxnResponse
from kio.schema.errors import ErrorCode
from kio.schema.incremental_alter_configs.v1 import request as change
from kio.schema.metadata.v12.response import (
    MetadataResponse,
    MetadataResponseBroker,
    MetadataResponsePartition,
    MetadataResponseTopic,
)
from kio.schema.share_fetch.v1 import request as share
from kio.schema.share_fetch.v1.response import ShareFetchResponse
from kio.schema.types import BrokerId, ProducerId, TopicName, TransactionalId
from kio.static.primitive import i8, i16, i32, i32Timedelta

from tests.placed_plane import PlacedPlane
from tests.support.waiting import within
from tests.unit.gateway.fakes import until
from tests.unit.gateway.gateway_under_test import Client, Gateway, gateway
from tests.unit.gateway.tracked_bench import allowing
from tests.unit.kafka.fake_broker import FakeBroker, api_versions
from tideline import __version__
from tideline.background import cancel_and_wait, spawn
from tideline.control_plane.errors import ControlPlaneUnavailable
from tideline.control_plane.model import (
    ClusterAttestation,
    ConfigOverride,
    GatewayRegistration,
    MigrationRequest,
    RequestState,
    TopicStatus,
    TrackedPartition,
    TrackedTopic,
    TrackingKind,
)
from tideline.domain.migration import MigrationState
from tideline.domain.topic_configs import TopicLimits
from tideline.gateway import context as contexts
from tideline.gateway.admin import configs as configs_handler
from tideline.gateway.admin import create_topics
from tideline.gateway.admin.configs import ConfigsHandler
from tideline.gateway.admin.create_topics import CreateTopicsHandler
from tideline.gateway.admin.eligibility import Eligibility
from tideline.gateway.admin.held_configs import HeldConfigs
from tideline.gateway.admin.placing import ReplicaPlacing
from tideline.gateway.admin.share_groups import ShareGroupsHandler
from tideline.gateway.admin.tellings import Tellings
from tideline.gateway.admin.topics import TopicsHandler
from tideline.gateway.context import Rules
from tideline.gateway.messages import messages, nested, no_throttle
from tideline.gateway.tracking.view import TrackingView
from tideline.gateway.transactions import TransactionsHandler
from tideline.kafka.client import KafkaCluster
from tideline.kafka.decoding import AT_ONCE_PARTITIONS
from tideline.kafka.protocol import (
    RequestHeader,
    decode_request,
    decode_response,
    encode_request,
    encode_response,
    response_class,
)


class AdminRules:
    """The rules for Admin requests, and what is told in the background."""

    def __init__(
        self,
        view: TrackingView,
        plane: Any,
        tellings: Tellings,
        gateways: Collection[int] = (),
        trigger: bool = True,
    ) -> None:
        self._view, self._plane, self._tellings = view, plane, tellings
        self._gateways, self._trigger = gateways, trigger

    def __call__(self, cluster: KafkaCluster) -> Rules:
        view, plane, told = self._view, self._plane, self._tellings
        placing = ReplicaPlacing(cluster, self._gateways) if self._gateways else None
        return {
            **ConfigsHandler(
                view,
                plane,
                HeldConfigs(plane, cluster, told),
                Eligibility(cluster, plane),
                self._trigger,
            ).rules(),
            **CreateTopicsHandler(view, plane, cluster, told, placing).rules(),
            **ShareGroupsHandler(view).rules(),
            **TopicsHandler(view, plane, cluster, told, placing).rules(),
            **TransactionsHandler(view).rules(),
        }

    async def close(self) -> None:
        await self._tellings.close()


def admin(
    tracking: TrackingView | None = None,
    plane: Any = None,
    tellings: Tellings | None = None,
    placing_on: Collection[int] = (),
    trigger: bool = True,
) -> AdminRules:
    """Over ``tracking`` and a control plane; ``placing_on``: the brokers with a gateway, where the
    cluster manages the number of replicas; ``trigger``: whether clients may ask for migrations."""
    view = TrackingView(lambda: True) if tracking is None else tracking
    return AdminRules(view, plane, tellings or Tellings(), placing_on, trigger)


TRACKED_ID, CLASSIC_ID = uuid4(), uuid4()
SECONDS = i32Timedelta.parse(timedelta(seconds=1))


def tracked(*boundaries: int, **overrides: ConfigOverride) -> TrackingView:
    """A view with the topic ``tracked``; a boundary of -1: that partition migrates."""
    rows = {
        n: TrackedPartition(
            topic_id=TRACKED_ID,
            partition=n,
            state=MigrationState.MIGRATING if b < 0 else MigrationState.DISKLESS_ONLY,
            generation=1,
            quiesced=False,
            boundary=b,
            boundary_epoch=0,
        )
        for n, b in enumerate(boundaries)
    }
    view = TrackingView(lambda: True)
    view.replace_all(
        [
            TrackedTopic(
                name="tracked",
                topic_id=TRACKED_ID,
                kind=TrackingKind.MIGRATED,
                status=TopicStatus.ACTIVE,
                timestamp_type="CreateTime",
                max_message_bytes=1_000_000,
                partitions=rows,
                overrides={o.key: o for o in overrides.values()},
            )
        ]
    )
    return view


class Kafka:
    """Answers each API by a function of the decoded request, and keeps the requests."""

    def __init__(self, **answers: Callable[[Any], Any]) -> None:
        self._answers = answers
        self.rights = allowing()
        """Answers what the client may do."""
        self.asked: list[Any] = []

    def answer(self, **answers: Callable[[Any], Any]) -> None:
        """Further APIs, known only once the broker has an address."""
        self._answers |= answers

    async def __call__(self, header: RequestHeader, frame: bytes) -> bytes | None:
        if header.api_key == 18:
            return api_versions(header)
        request: Any = decode_request(frame, header)
        if getattr(request, "include_topic_authorized_operations", False):
            return encode_response(self.rights(request), header.correlation_id)
        self.asked.append(request)
        answer = self._answers[type(request).__name__](request)
        return encode_response(answer, header.correlation_id)


async def ask(under_test: Gateway, request: Any) -> Any:
    """Send one request on a connection of its own; the decoded answer."""
    client = await under_test.connect()
    try:
        return await ask_on(client, request)
    finally:
        client.close()


async def ask_on(client: Client, request: Any) -> Any:
    await client.send(encode_request(request, 5, "someone"))
    frame = await client.receive()
    return decode_response(frame, request.__api_key__, request.__version__)


class AdminPlane(PlacedPlane):
    """The control plane in memory, beside two gateways that acknowledge a topic at once unless
    they are ``missing``. Notes what changes it; is ``away`` for so many changes first."""

    has_worker = True

    def __init__(
        self, view: TrackingView | None = None, away: int = 0, missing: tuple[int, ...] = ()
    ) -> None:
        super().__init__(lambda: 1_000)
        self.said: list[tuple[Any, ...]] = []
        self.asked: list[tuple[Any, ...]] = []
        """The first birth."""
        self.away, self.missing, self.heard = away, missing, asyncio.Event()
        for n in (1, 2):
            self.gateways.register(
                GatewayRegistration(
                    n, n, UUID(int=n), "active", 1, 3000, f"host-{n}:1", "1", datetime.now(UTC)
                )
            )
        if view is not None and (topic := view.topic_by_name("tracked")) is not None:
            self.put(topic)

    def __getattribute__(self, name: str) -> Any:
        found = super().__getattribute__(name)
        if name not in CHANGES:
            return found

        async def call(*arguments: Any, **named: Any) -> Any:
            if self.away > 0:
                self.away -= 1
                raise ControlPlaneUnavailable("Postgres: connection refused")
            answer = await found(*arguments, **named)
            self.said.append((name, *arguments))
            self.heard.set()
            return answer

        return call

    async def ask_birth(self, name: str, *how: Any, **named: Any) -> str | None:
        self.asked = self.asked or [(name, *how)]
        return await super().ask_birth(name, *how, **named)

    async def tracked_topic(self, name: str) -> TrackedTopic | None:
        """As it is when the worker has taken one more step of a birth that is asked for."""
        if name in self.reports.births and self.has_worker:
            await self.work(name)
        return await super().tracked_topic(name)

    async def work(self, name: str) -> None:
        """The next step, where Kafka does as it was asked."""
        topic = self.topics.live(name)
        if topic is None:
            await self.begin_birth(name)
        elif topic.topic_id is None:
            await self.complete_creation(name, CLASSIC_ID, 3)
        elif 2 not in self.missing:
            await self.activate_topic(name)
        self._acknowledge(name)

    async def report_deletion(self, topic_id: UUID) -> bool:
        """The worker buries it at once."""
        await super().report_deletion(topic_id)
        if self.has_worker:
            await self.delete_topic(topic_id)
        return await super().report_deletion(topic_id)

    def _acknowledge(self, name: str) -> None:
        for n in {1, 2} - set(self.missing):
            self.topics.live_or_refuse(name).acknowledged[n] = UUID(int=n)


CHANGES = {
    "begin_birth",
    "complete_creation",
    "activate_topic",
    "add_partitions",
    "delete_topic",
    "update_user_config",
    "release_config",
    "request_migration",
}


# -- transactions


def add_partitions(**topics_: tuple[int, ...]) -> add_v3.AddPartitionsToTxnRequest:
    return add_v3.AddPartitionsToTxnRequest(
        v3_and_below_transactional_id=TransactionalId("tx"),
        v3_and_below_producer_id=ProducerId(9),
        v3_and_below_producer_epoch=i16(2),
        v3_and_below_topics=tuple(
            add_v3.AddPartitionsToTxnTopic(name=TopicName(n), partitions=tuple(map(i32, p)))
            for n, p in topics_.items()
        ),
    )


def ongoing(state: str, *partitions: int, epoch: int = 2) -> Callable[[Any], Any]:
    def answer(request: Any) -> DescribeTransactionsResponse:
        return DescribeTransactionsResponse(
            throttle_time=no_throttle(),
            transaction_states=(
                TransactionState(
                    error_code=ErrorCode.none,
                    transactional_id=TransactionalId("tx"),
                    transaction_state=state,
                    transaction_timeout=SECONDS,
                    transaction_start_time=datetime.fromtimestamp(0, UTC),  # type: ignore[arg-type]
                    producer_id=ProducerId(9),
                    producer_epoch=i16(epoch),
                    topics=(
                        TopicData(
                            topic=TopicName("tracked"), partitions=tuple(map(i32, partitions))
                        ),
                    ),
                ),
            ),
        )

    return answer


def added(request: Any) -> Any:
    """As Kafka does it: none of a transaction of which one partition is not there."""
    api = messages(24, int(request.__version__))

    def results(topics: Any) -> Any:
        whole = all(p >= 0 for t in topics for p in t.partitions)

        def code(partition: int) -> ErrorCode:
            if partition < 0:
                return ErrorCode.unknown_topic_or_partition
            return ErrorCode.none if whole else ErrorCode.operation_not_attempted

        return tuple(
            api.response_part(
                "AddPartitionsToTxnTopicResult",
                name=t.name,
                results_by_partition=tuple(
                    api.response_part(
                        "AddPartitionsToTxnPartitionResult",
                        partition_index=p,
                        partition_error_code=code(p),
                    )
                    for p in t.partitions
                ),
            )
            for t in topics
        )

    if request.__version__ < 4:
        return api.response(
            throttle_time=no_throttle(),
            results_by_topic_v3_and_below=results(request.v3_and_below_topics),
        )
    return api.response(
        throttle_time=no_throttle(),
        error_code=ErrorCode.none,
        results_by_transaction=tuple(
            api.response_part(
                "AddPartitionsToTxnResult",
                transactional_id=t.transactional_id,
                topic_results=results(t.topics),
            )
            for t in request.transactions
        ),
    )


def additions(kafka: Kafka) -> list[set[int]]:
    """The partitions of each request to add some, as the broker has got it."""
    return [
        {p for t in r.v3_and_below_topics for p in t.partitions}
        for r in kafka.asked
        if type(r).__name__ == "AddPartitionsToTxnRequest"
    ]


def codes(answer: Any) -> dict[tuple[str, int], ErrorCode]:
    return {
        (t.name, p.partition_index): p.partition_error_code
        for t in answer.results_by_topic_v3_and_below
        for p in t.results_by_partition
    }


async def test_a_new_transaction_on_a_tracked_topic_is_refused_per_partition() -> None:
    kafka = Kafka(
        DescribeTransactionsRequest=ongoing("Ongoing", 0), AddPartitionsToTxnRequest=added
    )
    async with FakeBroker(kafka) as broker, gateway(broker, admin(tracked(-1, -1))) as g:
        answer = await ask(g, add_partitions(tracked=(0, 1), classic=(0,)))
    assert codes(answer) == {
        ("tracked", 0): ErrorCode.operation_not_attempted,
        ("tracked", 1): ErrorCode.transaction_abortable,
        ("classic", 0): ErrorCode.operation_not_attempted,
    }
    assert additions(kafka) == [{-1, 0}], "nothing that Kafka would add"


@pytest.mark.parametrize(
    ("version", "told"),
    [
        (0, ErrorCode.policy_violation),
        (2, ErrorCode.policy_violation),
        (3, ErrorCode.transaction_abortable),
    ],
)
async def test_a_client_is_told_abortable_where_its_version_may_know_that(
    version: int, told: ErrorCode
) -> None:
    """Clients go up to version 3. To franz-go, whose first transaction is always one of version 1,
    every other code there is fatal; aiokafka knows 0 only, and neither code."""
    versions = import_module(f"kio.schema.add_partitions_to_txn.v{version}.request")
    known = add_partitions(tracked=(0,))
    request = versions.AddPartitionsToTxnRequest(
        v3_and_below_transactional_id=known.v3_and_below_transactional_id,
        v3_and_below_producer_id=known.v3_and_below_producer_id,
        v3_and_below_producer_epoch=known.v3_and_below_producer_epoch,
        v3_and_below_topics=(
            versions.AddPartitionsToTxnTopic(name=TopicName("tracked"), partitions=(i32(0),)),
        ),
    )
    kafka = Kafka(DescribeTransactionsRequest=ongoing("Empty"), AddPartitionsToTxnRequest=added)
    async with FakeBroker(kafka) as broker, gateway(broker, admin(tracked(-1))) as g:
        answer = await ask(g, request)
    assert codes(answer) == {("tracked", 0): told}


async def test_a_partition_that_is_in_the_transaction_already_goes_on() -> None:
    kafka = Kafka(
        DescribeTransactionsRequest=ongoing("Ongoing", 0, 1), AddPartitionsToTxnRequest=added
    )
    async with FakeBroker(kafka) as broker, gateway(broker, admin(tracked(-1, -1))) as g:
        answer = await ask(g, add_partitions(tracked=(0, 1), classic=(0,)))
    assert set(codes(answer).values()) == {ErrorCode.none}


@pytest.mark.parametrize(("state", "epoch"), [("CompleteCommit", 2), ("Empty", 2), ("Ongoing", 1)])
async def test_a_transaction_that_is_over_or_another_epochs_does_not_count(
    state: str, epoch: int
) -> None:
    kafka = Kafka(
        DescribeTransactionsRequest=ongoing(state, 0, epoch=epoch), AddPartitionsToTxnRequest=added
    )
    async with FakeBroker(kafka) as broker, gateway(broker, admin(tracked(-1))) as g:
        answer = await ask(g, add_partitions(tracked=(0,)))
    assert codes(answer) == {("tracked", 0): ErrorCode.transaction_abortable}


async def test_classic_partitions_are_added_without_a_question() -> None:
    kafka = Kafka(AddPartitionsToTxnRequest=added)
    async with FakeBroker(kafka) as broker, gateway(broker, admin(tracked(-1))) as g:
        answer = await ask(g, add_partitions(classic=(0, 1)))
    assert set(codes(answer).values()) == {ErrorCode.none}
    assert len(kafka.asked) == 1


async def test_the_batched_form_refuses_one_transaction_and_passes_the_other() -> None:
    def transaction(name: str, topic: str) -> add_v5.AddPartitionsToTxnTransaction:
        wanted = add_v5.AddPartitionsToTxnTopic(name=TopicName(topic), partitions=(i32(0),))
        return add_v5.AddPartitionsToTxnTransaction(
            transactional_id=TransactionalId(name),
            producer_id=ProducerId(9),
            producer_epoch=i16(2),
            topics=(wanted,),
        )

    kafka = Kafka(DescribeTransactionsRequest=ongoing("Empty"), AddPartitionsToTxnRequest=added)
    request = add_v5.AddPartitionsToTxnRequest(
        transactions=(transaction("tx", "tracked"), transaction("other", "classic"))
    )
    async with FakeBroker(kafka) as broker, gateway(broker, admin(tracked(-1))) as g:
        answer = await ask(g, request)
    results = {r.transactional_id: r.topic_results for r in answer.results_by_transaction}
    told = {
        name: [p.partition_error_code for t in topics for p in t.results_by_partition]
        for name, topics in results.items()
    }
    assert told == {"tx": [ErrorCode.transaction_abortable], "other": [ErrorCode.none]}


def end(*, committed: bool) -> EndTxnRequest:
    return EndTxnRequest(
        transactional_id=TransactionalId("tx"),
        producer_id=ProducerId(9),
        producer_epoch=i16(2),
        committed=committed,
    )


def no_transaction(request: Any) -> EndTxnResponse:
    return EndTxnResponse(throttle_time=no_throttle(), error_code=ErrorCode.invalid_txn_state)


async def test_only_the_abort_after_a_refusal_succeeds_without_a_transaction() -> None:
    kafka = Kafka(
        DescribeTransactionsRequest=ongoing("Empty"),
        AddPartitionsToTxnRequest=added,
        EndTxnRequest=no_transaction,
    )
    async with FakeBroker(kafka) as broker, gateway(broker, admin(tracked(-1))) as g:
        before = await ask(g, end(committed=False))
        await ask(g, add_partitions(tracked=(0,)))
        after = await ask(g, end(committed=False))
        again = await ask(g, end(committed=False))
        await ask(g, add_partitions(tracked=(0,)))
        commit = await ask(g, end(committed=True))
    found = [a.error_code for a in (before, after, again, commit)]
    wrong = ErrorCode.invalid_txn_state
    assert found == [wrong, ErrorCode.none, wrong, wrong]


async def test_who_may_not_use_the_transactional_id_ends_nothing_of_it() -> None:
    """Its owner's abort would be refused, which is fatal to librdkafka."""
    said = iter([ErrorCode.transactional_id_authorization_failed, ErrorCode.invalid_txn_state])

    def ended(request: Any) -> EndTxnResponse:
        return EndTxnResponse(throttle_time=no_throttle(), error_code=next(said))

    kafka = Kafka(
        DescribeTransactionsRequest=ongoing("Empty"),
        AddPartitionsToTxnRequest=added,
        EndTxnRequest=ended,
    )
    async with FakeBroker(kafka) as broker, gateway(broker, admin(tracked(-1))) as g:
        await ask(g, add_partitions(tracked=(0,)))
        by_another = await ask(g, end(committed=False))
        own = await ask(g, end(committed=False))
    assert by_another.error_code is ErrorCode.transactional_id_authorization_failed
    assert own.error_code is ErrorCode.none


async def test_a_classic_topic_that_may_not_be_written_fails_the_whole_as_at_kafka() -> None:
    """Then the tracked one is told as any other: that it was not attempted."""

    def partly(request: Any) -> Any:
        answer = added(request)
        told = {"classic": ErrorCode.topic_authorization_failed}
        return replace(
            answer,
            results_by_topic_v3_and_below=tuple(
                replace(
                    t,
                    results_by_partition=tuple(
                        replace(p, partition_error_code=told.get(t.name, p.partition_error_code))
                        for p in t.results_by_partition
                    ),
                )
                for t in answer.results_by_topic_v3_and_below
            ),
        )

    kafka = Kafka(AddPartitionsToTxnRequest=partly)
    async with FakeBroker(kafka) as broker, gateway(broker, admin(tracked(-1))) as g:
        answer = await ask(g, add_partitions(tracked=(0,), classic=(0,)))
    assert codes(answer) == {
        ("tracked", 0): ErrorCode.operation_not_attempted,
        ("classic", 0): ErrorCode.topic_authorization_failed,
    }


# -- topics


def grown(request: Any) -> CreatePartitionsResponse:
    return CreatePartitionsResponse(
        throttle_time=no_throttle(),
        results=tuple(
            CreatePartitionsTopicResult(name=t.name, error_code=ErrorCode.none, error_message=None)
            for t in request.topics
        ),
    )


def grow_to(count: int, *names: str) -> grow.CreatePartitionsRequest:
    return grow.CreatePartitionsRequest(
        topics=tuple(
            grow.CreatePartitionsTopic(name=TopicName(n), count=i32(count), assignments=None)
            for n in names
        ),
        timeout=SECONDS,
        validate_only=False,
    )


async def test_partitions_are_not_added_while_a_topic_migrates() -> None:
    """Schedule 22."""
    view = tracked(5, -1)
    kafka, plane = Kafka(CreatePartitionsRequest=grown), AdminPlane(view)
    async with (
        FakeBroker(kafka) as broker,
        gateway(broker, admin(view, plane)) as g,
    ):
        answer = await ask(g, grow_to(4, "tracked", "classic"))
    refused, passed = answer.results
    assert refused.error_code is ErrorCode.invalid_request
    assert "migrates" in refused.error_message
    assert passed.error_code is ErrorCode.none
    assert [t.name for t in kafka.asked[0].topics] == ["classic"]
    assert plane.said == []


async def test_a_deleted_topics_id_is_told_by_name_and_by_id() -> None:
    """Schedule 19."""

    def deleted(request: Any) -> DeleteTopicsResponse:
        return DeleteTopicsResponse(
            throttle_time=no_throttle(),
            responses=tuple(
                DeletableTopicResult(name=t.name, topic_id=t.topic_id, error_code=ErrorCode.none)
                for t in request.topics
            ),
        )

    for asked in (
        delete.DeleteTopicState(name=TopicName("tracked"), topic_id=None),
        delete.DeleteTopicState(name=None, topic_id=TRACKED_ID),
    ):
        view = tracked(5)
        kafka, plane = Kafka(DeleteTopicsRequest=deleted), AdminPlane(view, away=1)
        classic = delete.DeleteTopicState(name=TopicName("classic"), topic_id=None)
        async with (
            FakeBroker(kafka) as broker,
            gateway(broker, admin(view, plane)) as g,
        ):
            await ask(g, delete.DeleteTopicsRequest(topics=(asked, classic), timeout=SECONDS))
            await within("the control plane to hear of it", plane.heard.wait())
        assert plane.said == [("delete_topic", TRACKED_ID)]


BORN = {"diskless.enable": "true", "max.message.bytes": "2000"}


def born(name: str, seconds: float = 0.3, **configs: str) -> make_v5.CreateTopicsRequest:
    return make_v5.CreateTopicsRequest(
        topics=(
            make_v5.CreatableTopic(
                name=TopicName(name),
                num_partitions=i32(3),
                replication_factor=i16(1),
                assignments=(),
                configs=tuple(
                    make_v5.CreatableTopicConfig(name=k, value=v)
                    for k, v in (configs or BORN).items()
                ),
            ),
        ),
        timeout=i32Timedelta.parse(timedelta(seconds=seconds)),
        validate_only=False,
    )


NO_DEFAULTS: Mapping[str, str] = {}


def created(
    code: ErrorCode = ErrorCode.none,
    refuse: str = "",
    defaults: Mapping[str, str] | None = NO_DEFAULTS,
) -> Callable[[Any], Any]:
    """``defaults``: what Kafka says that the topic would have; ``None``: it says that the client
    may not know."""

    def answer(request: Any) -> Any:
        refused = bool(refuse) and not request.validate_only
        api = messages(19, int(request.__version__))
        return api.response(
            throttle_time=no_throttle(),
            topics=tuple(
                api.response_part(
                    "CreatableTopicResult",
                    name=t.name,
                    topic_id=None if refused else CLASSIC_ID,
                    error_code=ErrorCode.policy_violation if refused else code,
                    error_message=refuse or None,
                    topic_config_error_code=i16(0 if defaults is not None else 29),
                    num_partitions=i32(3 if defaults is not None else -1),
                    replication_factor=i16(1 if defaults is not None else -1),
                    configs=tuple(
                        api.response_part(
                            "CreatableTopicConfigs",
                            name=key,
                            value=value,
                            read_only=False,
                            config_source=i8(5),
                            is_sensitive=False,
                        )
                        for key, value in (defaults or {}).items()
                    ),
                )
                for t in request.topics
            ),
        )

    return answer


async def test_a_topic_is_tracked_everywhere_before_kafka_creates_it_sealed() -> None:
    kafka, plane = Kafka(CreateTopicsRequest=created()), AdminPlane()
    async with (
        FakeBroker(kafka) as broker,
        gateway(broker, admin(plane=plane)) as g,
    ):
        answer = await ask(g, born("new", 5))
    assert answer.topics[0].error_code is ErrorCode.none
    said = [call[0] for call in plane.said]
    assert said == ["begin_birth", "complete_creation", "activate_topic"]
    assert plane.asked == [("new", 3, "CreateTime", 2000, None, None, "2000")]
    validated, made = kafka.asked
    assert validated.validate_only
    configs = {c.name: c.value for c in made.topics[0].configs}
    assert configs == {"max.message.bytes": "78"}


async def test_a_creation_is_answered_with_the_users_configs_and_not_with_the_seal() -> None:
    """DescribeConfigs shows the same a moment later."""

    def made(request: Any) -> Any:
        own = {config.name: config.value for config in request.topics[0].configs}
        return created(defaults=own)(request)

    async with (
        FakeBroker(Kafka(CreateTopicsRequest=made)) as broker,
        gateway(broker, admin(plane=AdminPlane())) as g,
    ):
        (result,) = (await ask(g, born("new", 5))).topics
    assert (result.error_code, result.num_partitions) == (ErrorCode.none, 3)
    assert {c.name: c.value for c in result.configs} == {"max.message.bytes": "2000"}


@pytest.mark.parametrize("validate_only", [False, True])
@pytest.mark.parametrize(
    ("key", "value"), [("cleanup.policy", "compact"), ("compression.type", "zstd")]
)
async def test_a_default_that_the_suffix_cannot_honour_is_no_topics_at_birth(
    key: str, value: str, validate_only: bool
) -> None:
    kafka, plane = Kafka(CreateTopicsRequest=created(defaults={key: value})), AdminPlane()
    async with FakeBroker(kafka) as broker, gateway(broker, admin(plane=plane)) as g:
        answer = await ask(g, replace(born("new", 5), validate_only=validate_only))
    (result,) = answer.topics
    assert result.error_code is ErrorCode.invalid_config
    assert f"{key}={value} is the cluster's default" in result.error_message
    assert (plane.asked, plane.said) == ([], [])
    assert all(request.validate_only for request in kafka.asked)


def brokers_of(*addresses: tuple[str, int]) -> Callable[[Any], MetadataResponse]:
    """Brokers 1, 2, … at ``addresses``."""

    def answer(request: Any) -> MetadataResponse:
        return MetadataResponse(
            throttle_time=no_throttle(),
            brokers=tuple(
                MetadataResponseBroker(node_id=BrokerId(n), host=host, port=i32(port), rack=None)
                for n, (host, port) in enumerate(addresses, 1)
            ),
            cluster_id="c",
            controller_id=BrokerId(1),
            topics=(),
        )

    return answer


async def born_of_one_who_may_not_see_configs(plane: AdminPlane, **defaults: str) -> Any:
    """``defaults`` of the broker, with dots as underscores."""
    told = {key.replace("_", "."): value for key, value in defaults.items()}

    def configs(request: Any) -> describe.DescribeConfigsResponse:
        (resource,) = request.resources
        assert (resource.resource_type, resource.resource_name) == (4, "1")
        entries = tuple(
            describe.DescribeConfigsResourceResult(
                name=key,
                value=told[key],
                read_only=False,
                config_source=i8(5),
                is_sensitive=False,
                synonyms=(),
                config_type=i8(2),
                documentation=None,
            )
            for key in resource.configuration_keys
            if key in told
        )
        return describe.DescribeConfigsResponse(
            throttle_time=no_throttle(),
            results=(
                describe.DescribeConfigsResult(
                    error_code=ErrorCode.none,
                    error_message=None,
                    resource_type=resource.resource_type,
                    resource_name=resource.resource_name,
                    configs=entries,
                ),
            ),
        )

    kafka = Kafka(CreateTopicsRequest=created(defaults=None), DescribeConfigsRequest=configs)
    async with FakeBroker(kafka) as broker, gateway(broker, admin(plane=plane)) as g:
        kafka.answer(MetadataRequest=brokers_of(broker.address))
        (result,) = (await ask(g, born("new", 5))).topics
    return result


async def test_the_gateway_looks_at_defaults_that_kafka_keeps_from_the_client() -> None:
    plane = AdminPlane()
    result = await born_of_one_who_may_not_see_configs(plane, log_cleanup_policy="compact")
    assert result.error_code is ErrorCode.invalid_config
    assert plane.said == []


async def test_limits_that_kafka_keeps_from_the_client_are_in_force_all_the_same() -> None:
    plane = AdminPlane()
    result = await born_of_one_who_may_not_see_configs(
        plane,
        log_cleanup_policy="delete",
        log_message_timestamp_type="LogAppendTime",
        log_message_timestamp_after_max_ms="5",
    )
    assert result.error_code is ErrorCode.none
    assert plane.asked == [("new", 1, "LogAppendTime", 2000, None, 5, "2000")]


async def test_a_birth_whose_defaults_nobody_tells_may_be_tried_again() -> None:
    kafka, plane = Kafka(CreateTopicsRequest=created(defaults=None)), AdminPlane()
    async with FakeBroker(kafka) as broker, gateway(broker, admin(plane=plane)) as g:
        kafka.answer(MetadataRequest=brokers_of(("127.0.0.1", 1)))
        (result,) = (await ask(g, born("new", 5))).topics
    assert result.error_code is ErrorCode.request_timed_out
    assert "would take from the brokers" in result.error_message
    assert plane.said == []


def nowhere(request: Any) -> MetadataResponse:
    """Kafka has no such topic."""
    return MetadataResponse(
        throttle_time=no_throttle(),
        brokers=(),
        cluster_id="c",
        controller_id=BrokerId(1),
        topics=tuple(
            MetadataResponseTopic(
                error_code=ErrorCode.unknown_topic_or_partition,
                name=topic.name,
                topic_id=None,
                is_internal=False,
                partitions=(),
            )
            for topic in request.topics
        ),
    )


async def test_a_gateway_that_does_not_track_holds_the_creation_up_by_name() -> None:
    plane = AdminPlane(missing=(2,))
    kafka = Kafka(CreateTopicsRequest=created(), MetadataRequest=nowhere)
    async with (
        FakeBroker(kafka) as broker,
        gateway(broker, admin(plane=plane)) as g,
    ):
        answer = await ask(g, born("new", 1.5))
    (result,) = answer.topics
    assert result.error_code is ErrorCode.request_timed_out
    assert "gateway 2 did not answer" in result.error_message
    assert "host-2" not in result.error_message
    creations = [r for r in kafka.asked if isinstance(r, make_v7.CreateTopicsRequest)]
    assert creations
    assert all(request.validate_only for request in creations)


async def test_a_creation_ends_in_time_whatever_timeout_its_client_names(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It goes on when the client leaves: one of 24 days would be under way for that long."""
    monkeypatch.setattr(create_topics, "LONGEST_CREATION_S", 1.5)
    plane = AdminPlane(missing=(2,))
    kafka = Kafka(CreateTopicsRequest=created(), MetadataRequest=nowhere)
    async with FakeBroker(kafka) as broker, gateway(broker, admin(plane=plane)) as g:
        answer = await ask(g, born("new", seconds=2_000_000))
    assert answer.topics[0].error_code is ErrorCode.request_timed_out
    assert "gateway 2" in answer.topics[0].error_message


async def test_what_kafka_refuses_is_let_go_of() -> None:
    kafka, plane = Kafka(CreateTopicsRequest=created(refuse="not here")), AdminPlane()
    async with (
        FakeBroker(kafka) as broker,
        gateway(broker, admin(plane=plane)) as g,
    ):
        answer = await ask(g, born("new", 5))
    assert answer.topics[0].error_code is ErrorCode.policy_violation
    assert [call[0] for call in plane.said] == ["begin_birth"]
    await until(lambda: not plane.reports.births)


async def test_a_creation_waits_for_the_worker_and_says_so() -> None:
    plane = AdminPlane()
    plane.has_worker = False
    kafka = Kafka(CreateTopicsRequest=created())
    async with FakeBroker(kafka) as broker, gateway(broker, admin(plane=plane)) as g:
        answer = await ask(g, born("new", 0.3))
    (result,) = answer.topics
    assert result.error_code is ErrorCode.request_timed_out
    assert "the worker did not answer" in result.error_message
    assert all(request.validate_only for request in kafka.asked)
    await until(lambda: not plane.reports.births)


async def test_what_the_worker_refuses_is_told_and_kafka_creates_nothing() -> None:
    plane = AdminPlane()
    plane.has_worker = False
    kafka = Kafka(CreateTopicsRequest=created())
    async with FakeBroker(kafka) as broker, gateway(broker, admin(plane=plane)) as g:
        asking = asyncio.ensure_future(ask(g, born("new", 5)))
        await until(lambda: "new" in plane.reports.births)
        await plane.refuse_birth("new", "Kafka has a topic new whose log takes records")
        answer = await asking
    (result,) = answer.topics
    assert (result.error_code, "takes records" in result.error_message) == (
        ErrorCode.invalid_request,
        True,
    )
    assert all(request.validate_only for request in kafka.asked)


# -- configs


def altered(request: Any) -> Any:
    schema = response_class(request.__api_key__, request.__version__)
    return schema(
        throttle_time=no_throttle(),
        responses=tuple(
            nested(schema, "responses")(
                error_code=ErrorCode.none,
                error_message=None,
                resource_type=r.resource_type,
                resource_name=r.resource_name,
            )
            for r in request.resources
        ),
    )


DEFAULTS = {
    "remote.storage.enable": "false",
    "remote.log.copy.disable": "false",
    "remote.log.delete.on.disable": "false",
    "cleanup.policy": "delete",
    "compression.type": "producer",
    "retention.ms": "604800000",
    "retention.bytes": "-1",
    "local.retention.ms": "-2",
    "local.retention.bytes": "-2",
    "max.message.bytes": "1048588",
    "message.timestamp.type": "CreateTime",
    "message.timestamp.before.max.ms": str(2**63 - 1),
    "message.timestamp.after.max.ms": "3600000",
}


def describing(**own: str) -> Callable[[Any], describe.DescribeConfigsResponse]:
    """A topic on which ``own`` (with dots as underscores) is set."""
    on_topic = {key.replace("_", "."): value for key, value in own.items()}

    def entry(key: str) -> describe.DescribeConfigsResourceResult:
        default = describe.DescribeConfigsSynonym(name=key, value=DEFAULTS[key], source=i8(5))
        return describe.DescribeConfigsResourceResult(
            name=key,
            value=on_topic.get(key, DEFAULTS[key]),
            read_only=False,
            config_source=i8(1 if key in on_topic else 5),
            is_sensitive=False,
            synonyms=(default,),
            config_type=i8(2),
            documentation=None,
        )

    def answer(request: Any) -> describe.DescribeConfigsResponse:
        return describe.DescribeConfigsResponse(
            throttle_time=no_throttle(),
            results=tuple(
                describe.DescribeConfigsResult(
                    error_code=ErrorCode.none,
                    error_message=None,
                    resource_type=r.resource_type,
                    resource_name=r.resource_name,
                    configs=tuple(
                        entry(key) for key in r.configuration_keys or DEFAULTS if key in DEFAULTS
                    ),
                )
                for r in request.resources
            ),
        )

    return answer


class HeardPlane(AdminPlane):
    """One whose changes reach the gateway's view, unless it is ``deaf``."""

    def __init__(self, view: TrackingView, *, deaf: bool = False) -> None:
        super().__init__(view)
        self.view, self.deaf = view, deaf

    async def update_topic_limits(self, topic_id: UUID, **limits: Any) -> None:
        await super().update_topic_limits(topic_id, **limits)
        if not self.deaf:
            self.view.replace_all(await self.tracked_topics())


def replacing(**configs: str) -> alter.AlterConfigsRequest:
    return alter.AlterConfigsRequest(
        resources=(
            alter.AlterConfigsResource(
                resource_type=i8(2),
                resource_name="tracked",
                configs=tuple(
                    alter.AlterableConfig(name=k.replace("_", "."), value=v)
                    for k, v in configs.items()
                ),
            ),
        ),
        validate_only=False,
    )


def setting(operation: int = 0, **configs: str | None) -> change.IncrementalAlterConfigsRequest:
    return change.IncrementalAlterConfigsRequest(
        resources=(
            change.AlterConfigsResource(
                resource_type=i8(2),
                resource_name="tracked",
                configs=tuple(
                    change.AlterableConfig(
                        name=k.replace("_", "."),
                        config_operation=i8(1 if v is None else operation),
                        value=v,
                    )
                    for k, v in configs.items()
                ),
            ),
        ),
        validate_only=False,
    )


async def changed(
    view: TrackingView, request: Any, plane: AdminPlane | None = None, **own: str
) -> tuple[Any, Kafka, AdminPlane]:
    """The answer's only result, and what Kafka and the control plane were told."""
    kafka = Kafka(
        AlterConfigsRequest=altered,
        IncrementalAlterConfigsRequest=altered,
        DescribeConfigsRequest=describing(**own),
    )
    plane = plane or HeardPlane(view)
    async with FakeBroker(kafka) as broker, gateway(broker, admin(view, plane)) as g:
        answer = await ask(g, request)
    (result,) = answer.responses
    return result, kafka, plane


def changes_in(kafka: Kafka) -> list[Any]:
    return [r for r in kafka.asked if not getattr(r, "validate_only", True)]


async def test_replacing_all_configs_keeps_what_tideline_holds() -> None:
    view = tracked(
        5,
        a=ConfigOverride("retention.bytes", "-1", "1000"),
        b=ConfigOverride("flush.messages", None, "7"),
        c=ConfigOverride("max.message.bytes", "78", None),
    )
    request = replacing(retention_ms="1", max_message_bytes="3000")
    result, kafka, plane = await changed(view, request)
    assert result.error_code is ErrorCode.none
    (sent,) = changes_in(kafka)
    assert {c.name: c.value for c in sent.resources[0].configs} == {
        "retention.ms": "1",
        "retention.bytes": "-1",
        "max.message.bytes": "78",
    }
    assert sorted(call[2:] for call in plane.said) == [
        ("flush.messages", None),
        ("max.message.bytes", "3000"),
        ("retention.bytes", None),
    ]


@pytest.mark.parametrize(
    ("configs", "reason"),
    [
        ({"remote_storage_enable": "false"}, "tiered storage"),
        ({"remote_storage_enable": None}, "tiered storage"),
        ({"remote_storage_enable": "false", "remote_log_delete_on_disable": "true"}, "B0"),
        ({"remote_log_delete_on_disable": "true"}, "leave it false"),
        ({"remote_log_delete_on_disable": "perhaps"}, "leave it false"),
        ({"remote_log_copy_disable": "true"}, "must reach remote storage"),
        ({"remote_log_copy_disable": "perhaps"}, "must reach remote storage"),
        ({"cleanup_policy": "compact"}, "compaction"),
        ({"compression_type": "gzip"}, "as producers wrote them"),
        ({"local_retention_bytes": "2000", "retention_bytes": "1000"}, "local.retention.bytes"),
    ],
)
async def test_what_the_suffix_cannot_honour_is_refused_and_nothing_changes(
    configs: dict[str, str | None], reason: str
) -> None:
    view = tracked(-1)
    result, kafka, plane = await changed(view, setting(**configs), remote_storage_enable="true")
    assert result.error_code is ErrorCode.invalid_config
    assert reason in result.error_message
    assert next(iter(configs)).replace("_", ".") in result.error_message
    assert changes_in(kafka) == []
    assert plane.said == []


async def test_a_malformed_value_of_a_topic_without_a_prefix_is_refused_in_kafkas_words() -> None:
    says = "Invalid value perhaps for configuration remote.log.delete.on.disable"

    def refused(request: Any) -> Any:
        answer = altered(request)
        row = replace(answer.responses[0], error_code=ErrorCode.invalid_config, error_message=says)
        return replace(answer, responses=(row,))

    kafka, view = Kafka(IncrementalAlterConfigsRequest=refused), tracked(0)
    kafka.answer(DescribeConfigsRequest=describing())
    async with FakeBroker(kafka) as broker, gateway(broker, admin(view, HeardPlane(view))) as g:
        answer = await ask(g, setting(remote_log_delete_on_disable="perhaps"))
    (result,) = answer.responses
    assert (result.error_code, result.error_message) == (ErrorCode.invalid_config, says)


async def test_compaction_is_refused_also_where_it_is_appended() -> None:
    result, kafka, _ = await changed(tracked(5), setting(2, cleanup_policy="compact"))
    assert result.error_code is ErrorCode.invalid_config
    assert "cleanup.policy=delete,compact" in result.error_message
    assert changes_in(kafka) == []


async def test_replacing_all_configs_does_not_turn_tiered_storage_off_by_leaving_it_out() -> None:
    result, kafka, _ = await changed(
        tracked(-1), replacing(retention_ms="1"), remote_storage_enable="true"
    )
    assert result.error_code is ErrorCode.invalid_config
    assert "remote.storage.enable=false" in result.error_message
    assert changes_in(kafka) == []


async def test_limits_are_in_force_at_this_gateway_when_the_change_is_answered() -> None:
    view = tracked(5, a=ConfigOverride("max.message.bytes", "78", None))
    request = setting(
        max_message_bytes="2000",
        message_timestamp_type="LogAppendTime",
        message_timestamp_after_max_ms="7",
    )
    result, _, _ = await changed(view, request)
    assert result.error_code is ErrorCode.none
    topic = view.topic_by_name("tracked")
    assert topic is not None
    assert topic.limits == TopicLimits("LogAppendTime", 2_000, 2**63 - 1, 7)


async def test_a_limit_that_is_removed_becomes_the_default_again() -> None:
    view = tracked(5, a=ConfigOverride("max.message.bytes", "78", "2000"))
    result, _, _ = await changed(view, setting(max_message_bytes=None))
    assert result.error_code is ErrorCode.none
    topic = view.topic_by_name("tracked")
    assert topic is not None
    assert topic.limits.max_message_bytes == 1_048_588


@pytest.mark.parametrize("key", ["max.message.bytes", "retention.ms", "diskless.enable"])
@pytest.mark.parametrize("incremental", [True, False])
async def test_a_config_that_is_set_to_nothing_is_refused_as_by_kafka(
    key: str, incremental: bool
) -> None:
    """Of what Tideline holds nothing is sent to Kafka, which would say so."""
    view = tracked(5, a=ConfigOverride("max.message.bytes", "78", "2000"))
    whole = replacing(**{key: "1"})
    if incremental:
        whole = setting(**{key: "1"})
    (resource,) = whole.resources
    (config,) = resource.configs
    nothing = replace(resource, configs=(replace(config, value=None),))
    result, kafka, plane = await changed(view, replace(whole, resources=(nothing,)))
    assert result.error_code is ErrorCode.invalid_request
    assert f"config {key} has no value" in result.error_message
    assert changes_in(kafka) == []
    assert "update_user_config" not in {said[0] for said in plane.said}


async def test_an_answer_does_not_claim_a_limit_that_this_gateway_has_not_heard_of(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(configs_handler, "ENFORCED_WITHIN_S", 0.05)
    view = tracked(5)
    request = setting(message_timestamp_type="LogAppendTime")
    result, _, _ = await changed(view, request, HeardPlane(view, deaf=True))
    assert result.error_code is ErrorCode.request_timed_out
    assert "try again" in result.error_message


async def test_describe_configs_shows_the_limits_in_force() -> None:
    """Somebody changed them at a broker, past the gateways: the suffix does not follow."""
    view = tracked(5)
    kafka = Kafka(DescribeConfigsRequest=describing(message_timestamp_type="LogAppendTime"))
    request = describe_request.DescribeConfigsRequest(
        resources=(
            describe_request.DescribeConfigsResource(
                resource_type=i8(2), resource_name="tracked", configuration_keys=None
            ),
        ),
        include_synonyms=False,
        include_documentation=False,
    )
    async with FakeBroker(kafka) as broker, gateway(broker, admin(view)) as g:
        answer = await ask(g, request)
    shown = {c.name: c.value for c in answer.results[0].configs}
    assert shown["message.timestamp.type"] == "CreateTime"
    assert shown["max.message.bytes"] == "1000000"


@pytest.mark.parametrize("keys", [None, ("diskless.migration.state",), ("diskless.enable",)])
async def test_a_topic_that_no_migration_concerns_has_no_state(
    keys: tuple[str, ...] | None,
) -> None:
    def kafka_has(request: Any) -> Any:
        answers = []
        for resource in request.resources:
            has = "true" if resource.resource_name == "tiered" else "false"
            answer = describing(remote_storage_enable=has)(
                replace(request, resources=(resource,))
            ).results[0]
            wanted = resource.configuration_keys
            known = tuple(c for c in answer.configs if not wanted or c.name in wanted)
            answers.append(replace(answer, configs=known))
        return describe.DescribeConfigsResponse(throttle_time=no_throttle(), results=tuple(answers))

    kafka = Kafka(DescribeConfigsRequest=kafka_has)
    request = describe_request.DescribeConfigsRequest(
        resources=tuple(
            describe_request.DescribeConfigsResource(
                resource_type=i8(2), resource_name=name, configuration_keys=keys
            )
            for name in ("tracked", "tiered", "classic")
        ),
        include_synonyms=False,
        include_documentation=False,
    )
    async with FakeBroker(kafka) as broker, gateway(broker, admin(tracked(5))) as g:
        answer = await ask(g, request)
    shown = [
        next((c.value for c in r.configs if c.name == "diskless.migration.state"), None)
        for r in answer.results
    ]
    wanted = keys != ("diskless.enable",)
    assert shown == (["DISKLESS_ONLY", "TIERED_ONLY", None] if wanted else [None] * 3)
    assert len(kafka.asked) == (2 if keys == ("diskless.migration.state",) else 1)


# What is shown may be written back

STATES = ("TIERED_ONLY", "MIGRATING", "HYBRID", "DISKLESS_ONLY")
OF_USERS = {"remote.storage.enable": "true", "retention.ms": "86400000"}


def in_state(state: str) -> tuple[TrackingView, Any]:
    """The topic ``tracked`` in this state, with configs that Tideline holds unless it is not
    tracked; and its broker, which lets configs be altered and topics be created."""
    seal = ConfigOverride("max.message.bytes", "78", "2000")
    held = ConfigOverride("retention.bytes", "-1", None)
    view = tracked(-1 if state == "MIGRATING" else 5, a=seal, b=held)
    (topic,) = view.topics()
    rows = {n: replace(row, state=MigrationState(state)) for n, row in topic.partitions.items()}
    now = replace(topic, partitions=rows, max_message_bytes=2000)
    view.replace_all([] if state == "TIERED_ONLY" else [now])
    sealed = {} if state == "TIERED_ONLY" else {"max.message.bytes": "78", "retention.bytes": "-1"}
    kafka = Kafka(
        AlterConfigsRequest=altered,
        CreateTopicsRequest=created(),
        DescribeConfigsRequest=describing(**OF_USERS, **sealed),
        IncrementalAlterConfigsRequest=altered,
    )
    return view, kafka


def deleting(*names: str) -> change.IncrementalAlterConfigsRequest:
    return setting(**dict.fromkeys(names))


async def shown_of(g: Gateway) -> dict[str, Any]:
    (result,) = (await ask(g, describing_all("tracked", documented=False))).results
    return {config.name: config for config in result.configs}


def sent_to(kafka: Kafka) -> set[str]:
    """Names of all configs that Kafka was told, of topics that exist and that do not."""
    requests = (
        r for r in kafka.asked if not isinstance(r, describe_request.DescribeConfigsRequest)
    )
    topics = (t for r in requests for t in getattr(r, "resources", None) or r.topics)
    return {config.name for topic in topics for config in topic.configs}


@pytest.mark.parametrize("state", STATES)
async def test_what_nobody_can_set_is_not_shown_as_set_on_the_topic(state: str) -> None:
    """In Kafka a config of a topic is never set on it and read-only (``ConfigHelper``)."""
    view, kafka = in_state(state)
    async with FakeBroker(kafka) as broker, gateway(broker, admin(view)) as g:
        shown = await shown_of(g)
    assert shown["diskless.migration.state"].value == state
    set_on_it = {name: c.value for name, c in shown.items() if c.config_source == 1}
    of_tracked = {"diskless.enable": "true", "max.message.bytes": "2000"}
    assert set_on_it == OF_USERS | ({} if state == "TIERED_ONLY" else of_tracked)
    assert {n: c.config_source for n, c in shown.items() if c.read_only} == {
        "diskless.migration.state": 5
    }


@pytest.mark.parametrize("state", STATES)
@pytest.mark.parametrize("which", ["all", "set on it"])
@pytest.mark.parametrize("alter_by", [replacing, setting])
async def test_configs_of_a_topic_may_be_written_back_as_they_were_read(
    alter_by: Callable[..., Any], which: str, state: str
) -> None:
    view, kafka = in_state(state)
    plane = HeardPlane(view)
    async with FakeBroker(kafka) as broker, gateway(broker, admin(view, plane)) as g:
        before = await shown_of(g)
        read = {n: c.value for n, c in before.items() if which == "all" or c.config_source == 1}
        (result,) = (await ask(g, alter_by(**read))).responses
        assert (result.error_code, result.error_message) == (ErrorCode.none, None)
        view.replace_all(await plane.tracked_topics())
        after = await shown_of(g)
    assert {n: c.value for n, c in after.items()} == {n: c.value for n, c in before.items()}
    assert not {name for name in sent_to(kafka) if name.startswith("diskless.")}
    assert "request_migration" not in {call[0] for call in plane.said}


@pytest.mark.parametrize("state", STATES)
async def test_a_state_may_be_deleted_and_stays_what_it_is(state: str) -> None:
    """Tools delete what they find on a topic and nobody wrote down; the rest of the request
    must not fail for it."""
    view, kafka = in_state(state)
    request = deleting("diskless.migration.state", "retention.ms")
    async with FakeBroker(kafka) as broker, gateway(broker, admin(view, HeardPlane(view))) as g:
        (result,) = (await ask(g, request)).responses
        assert (result.error_code, result.error_message) == (ErrorCode.none, None)
        assert (await shown_of(g))["diskless.migration.state"].value == state
    assert sent_to(kafka) == {"retention.ms"}


@pytest.mark.parametrize(
    ("state", "written"),
    [
        ("TIERED_ONLY", "HYBRID"),
        ("MIGRATING", "HYBRID"),
        ("HYBRID", "DISKLESS_ONLY"),
        ("DISKLESS_ONLY", "TIERED_ONLY"),
        ("HYBRID", "hybrid"),
        ("HYBRID", ""),
    ],
)
async def test_a_state_that_is_not_the_topics_cannot_be_written(written: str, state: str) -> None:
    view, _ = in_state(state)
    request = setting(diskless_migration_state=written)
    result, _, _ = await changed(view, request, HeardPlane(view))
    assert result.error_code is ErrorCode.invalid_config
    assert f"diskless.migration.state={written!r}" in result.error_message
    assert "leave it out" in result.error_message
    (result,) = (await changed(view, setting(2, diskless_migration_state=state)))[:1]
    assert result.error_code is ErrorCode.invalid_config


@pytest.mark.parametrize("state", STATES)
@pytest.mark.parametrize("which", ["all", "set on it"])
async def test_a_topic_may_be_created_with_what_was_read_of_another(which: str, state: str) -> None:
    view, kafka = in_state(state)
    async with FakeBroker(kafka) as broker, gateway(broker, admin(view)) as g:
        shown = await shown_of(g)
    read = {n: c.value for n, c in shown.items() if which == "all" or c.config_source == 1}
    plane = AdminPlane()
    kafka = Kafka(CreateTopicsRequest=created())
    async with FakeBroker(kafka) as broker, gateway(broker, admin(plane=plane)) as g:
        (result,) = (await ask(g, born("new", 5, **read))).topics
    assert (result.error_code, result.error_message) == (ErrorCode.none, None)
    assert bool(plane.asked) is (state != "TIERED_ONLY")
    assert not {name for name in sent_to(kafka) if name.startswith("diskless.")}


@pytest.mark.parametrize(
    ("enable", "state"),
    [("false", "DISKLESS_ONLY"), ("false", "HYBRID"), ("true", "TIERED_ONLY"), ("true", "hybrid")],
)
async def test_a_topic_is_not_created_with_a_state_that_it_cannot_come_to(
    enable: str, state: str
) -> None:
    kafka = Kafka(CreateTopicsRequest=created())
    request = born("new", 5, **{"diskless.enable": enable, "diskless.migration.state": state})
    async with FakeBroker(kafka) as broker, gateway(broker, admin(plane=AdminPlane())) as g:
        (result,) = (await ask(g, request)).topics
    assert result.error_code is ErrorCode.invalid_config
    assert f"diskless.migration.state={state!r}" in result.error_message
    assert sent_to(kafka) == set()


async def test_who_deletes_the_trigger_reads_what_to_write_down() -> None:
    view, _ = in_state("HYBRID")
    result, kafka, _ = await changed(view, deleting("diskless.enable"))
    assert result.error_code is ErrorCode.invalid_config
    assert "write diskless.enable=true down" in result.error_message
    assert changes_in(kafka) == []


async def test_a_description_of_many_topics_is_made_beside_the_loop_which_turns_meanwhile(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    encode, complete = contexts.encode_response, configs_handler._complete
    here: list[bool] = []
    turns: list[int] = []
    turned = 0

    def noting(*arguments: Any) -> bytes:
        here.append(threading.current_thread() is threading.main_thread())
        return encode(*arguments)

    async def completed(*arguments: Any) -> Any:
        turns.append(turned)
        return await complete(*arguments)

    monkeypatch.setattr(contexts, "encode_response", noting)
    monkeypatch.setattr(configs_handler, "_complete", completed)
    many = describing_all(*(f"classic-{n}" for n in range(300)), documented=False)

    async def turning() -> None:
        nonlocal turned
        while True:
            turned += 1
            await asyncio.sleep(0)

    kafka = Kafka(DescribeConfigsRequest=describing())
    async with FakeBroker(kafka) as broker, gateway(broker, admin(tracked(5))) as g:
        task = spawn(turning(), "turning")
        answer = await ask(g, many)
        await cancel_and_wait(task)
    assert len(answer.results) == 300
    assert here == [False]
    entries = sum(len(result.configs) - 2 for result in answer.results)
    assert turns[-1] - turns[0] >= entries // (2 * AT_ONCE_PARTITIONS) > 1


@pytest.mark.parametrize("version", [1, 2, 3, 4])
async def test_describe_configs_does_not_say_where_brokers_listen(version: int) -> None:
    """Nor what they listened on by default. Everything else of a broker is shown as it is."""
    api = messages(32, version)
    told = {
        "listeners": "PLAINTEXT://10.0.0.1:9092,CONTROLLER://10.0.0.1:9093",
        "advertised.listeners": "PLAINTEXT://broker-1:9092",
        "controller.quorum.voters": "1@broker-1:9093",
        "controller.quorum.bootstrap.servers": "broker-1:9093",
        "log.dirs": "/var/lib/kafka",
    }

    def entry(key: str, value: str) -> Any:
        synonym = api.response_part("DescribeConfigsSynonym", name=key, value=value, source=i8(4))
        return api.response_part(
            "DescribeConfigsResourceResult",
            name=key,
            value=value,
            read_only=True,
            config_source=i8(4),
            is_sensitive=False,
            synonyms=(synonym,),
            config_type=i8(2),
            documentation=None,
        )

    def answer(request: Any) -> Any:
        return api.response(
            throttle_time=no_throttle(),
            results=(
                api.response_part(
                    "DescribeConfigsResult",
                    error_code=ErrorCode.none,
                    error_message=None,
                    resource_type=i8(4),
                    resource_name="1",
                    configs=tuple(entry(key, value) for key, value in told.items()),
                ),
            ),
        )

    asked = api.request_part(
        "DescribeConfigsResource",
        resource_type=i8(4),
        resource_name="1",
        configuration_keys=None,
    )
    request = api.request(resources=(asked,), include_synonyms=True, include_documentation=False)
    kafka = Kafka(DescribeConfigsRequest=answer)
    async with FakeBroker(kafka) as broker, gateway(broker, admin()) as g:
        response = await ask(g, request)
    shown = {c.name: c for c in response.results[0].configs}
    assert shown.keys() == told.keys()
    assert {name for name, c in shown.items() if c.value is None} == told.keys() - {"log.dirs"}
    assert all(c.is_sensitive == (c.value is None) for c in shown.values())
    assert "9092" not in str(response)
    assert "9093" not in str(response)


def with_a_classic_topic(
    request: Any, in_sync: tuple[int, ...] = (1,), leader: int = 1
) -> MetadataResponse:
    """The cluster ``c``, and in it the topic ``classic``, which is tiered and lies on broker 1."""
    partition = MetadataResponsePartition(
        error_code=ErrorCode.none,
        partition_index=i32(0),
        leader_id=BrokerId(leader),
        leader_epoch=i32(0),
        replica_nodes=(BrokerId(1),),
        isr_nodes=tuple(map(BrokerId, in_sync)),
        offline_replicas=(),
    )
    return MetadataResponse(
        throttle_time=no_throttle(),
        brokers=(),
        cluster_id="c",
        controller_id=BrokerId(1),
        topics=tuple(
            MetadataResponseTopic(
                error_code=ErrorCode.none,
                name=topic.name,
                topic_id=CLASSIC_ID,
                is_internal=False,
                partitions=(partition,),
            )
            for topic in request.topics or ()
        ),
    )


class Attested(AdminPlane):
    """Whose gateways renew their leases, except those that are ``silent``."""

    def __init__(self, silent: Collection[int] = (), lease_ms: int = 100) -> None:
        super().__init__()
        self._silent, self._lease_ms = silent, lease_ms

    async def list_gateways(self) -> list[GatewayRegistration]:
        for known in await super().list_gateways():
            if known.gateway_id not in self._silent:
                await self.renew_lease(known.gateway_id, known.incarnation)
        return [
            replace(known, lease_ms=self._lease_ms, version=__version__)
            for known in await super().list_gateways()
        ]


class Taciturn(Kafka):
    """Leaves unanswered what it has no answer to."""

    async def __call__(self, header: RequestHeader, frame: bytes) -> bytes | None:
        known = (
            header.api_key == 18 or type(decode_request(frame, header)).__name__ in self._answers
        )
        return await super().__call__(header, frame) if known else None


def may_migrate(**answers: Callable[[Any], Any]) -> Taciturn:
    """A broker with the topic ``classic``, which tells what a trigger has to know and no more."""
    return Taciturn(
        **{
            "IncrementalAlterConfigsRequest": altered,
            "DescribeConfigsRequest": describing(remote_storage_enable="true"),
            "MetadataRequest": with_a_classic_topic,
            **answers,
        }
    )


def trigger_of_classic() -> change.IncrementalAlterConfigsRequest:
    (wanted,) = setting(diskless_enable="true").resources
    return replace(
        setting(diskless_enable="true"), resources=(replace(wanted, resource_name="classic"),)
    )


async def triggered(plane: AdminPlane, **answers: Callable[[Any], Any]) -> Any:
    """What the trigger of ``classic`` answers, at a broker that says nothing else."""
    kafka, request = may_migrate(**answers), trigger_of_classic()
    async with FakeBroker(kafka) as broker, gateway(broker, admin(plane=plane)) as g:
        (answer,) = (await ask(g, request)).responses
    return answer


@pytest.fixture
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Time enough for whoever is to be answered on a slow machine, and less than by default."""
    monkeypatch.setattr(configs_handler, "PATIENCE_S", 2.0)


@pytest.mark.usefixtures("patient")
async def test_a_config_change_starts_nothing_before_the_cluster_is_attested() -> None:
    plane = Attested()
    refused = await triggered(plane)
    requested = plane.said.copy()
    await plane.attest_cluster("c", "ann", "listeners are firewalled")
    accepted = await triggered(plane)
    assert refused.error_code is ErrorCode.invalid_config
    assert "cluster c" in refused.error_message
    assert "tideline cluster attest" in refused.error_message
    assert requested == []
    assert accepted.error_code is ErrorCode.none
    assert [call[:2] for call in plane.said] == [("request_migration", "classic")]


def out_of_sync(request: Any) -> MetadataResponse:
    return with_a_classic_topic(request, in_sync=())


def without_a_leader(request: Any) -> MetadataResponse:
    return with_a_classic_topic(request, leader=-1)


@pytest.mark.usefixtures("patient")
@pytest.mark.parametrize(
    ("plane", "metadata", "said"),
    [
        (
            Attested(),
            out_of_sync,
            "replicas_in_sync: 1 partitions are not fully in sync (bring the missing",
        ),
        (Attested(), without_a_leader, "replicas_in_sync: 1 partitions are not fully in sync"),
        (Attested(silent=(2,)), with_a_classic_topic, "no sign of life from 1 gateways"),
    ],
    ids=["a replica is behind", "no leader", "a gateway is dead"],
)
async def test_a_trigger_is_refused_at_once_by_what_the_preflight_would_refuse(
    plane: AdminPlane, metadata: Any, said: str
) -> None:
    await plane.attest_cluster("c", "ann", "listeners are firewalled")
    refused = await triggered(plane, MetadataRequest=metadata)
    assert refused.error_code is ErrorCode.invalid_config
    assert said in refused.error_message
    assert plane.said == []


class SlowToTell(Attested):
    """Who attests what is told only when a trigger's patience is over."""

    async def attestations(self, cluster_id: str | None = None) -> list[ClusterAttestation]:
        await asyncio.sleep(configs_handler.PATIENCE_S)
        return await super().attestations(cluster_id)


@pytest.mark.usefixtures("patient")
async def test_a_dead_gateway_is_found_while_everything_else_takes_its_time() -> None:
    plane = SlowToTell(silent=(2,))
    await plane.attest_cluster("c", "ann", "listeners are firewalled")
    refused = await triggered(plane)
    assert refused.error_code is ErrorCode.invalid_config
    assert "no sign of life from 1 gateways" in refused.error_message


@pytest.mark.usefixtures("patient")
async def test_what_a_trigger_cannot_see_in_time_is_left_to_the_workflow() -> None:
    """The broker tells neither groups nor ACLs nor log ends, and a gateway's lease is longer than
    the trigger's patience."""
    plane = Attested(silent=(2,), lease_ms=60_000)
    await plane.attest_cluster("c", "ann", "listeners are firewalled")
    assert (await triggered(plane)).error_code is ErrorCode.none
    assert [call[:2] for call in plane.said] == [("request_migration", "classic")]


@pytest.mark.usefixtures("patient")
async def test_a_topic_without_tiered_storage_may_be_empty_only_if_its_leaders_say_so() -> None:
    plane = Attested()
    await plane.attest_cluster("c", "ann", "listeners are firewalled")
    answer = await triggered(plane, DescribeConfigsRequest=describing())
    assert answer.error_code is ErrorCode.request_timed_out
    assert plane.said == []


# -- share groups


def share_fetch(epoch: int, *ids: UUID) -> share.ShareFetchRequest:
    return share.ShareFetchRequest(
        member_id="m",
        share_session_epoch=i32(epoch),
        max_wait=no_throttle(),
        min_bytes=i32(0),
        max_records=i32(1),
        batch_size=i32(1),
        topics=tuple(
            share.FetchTopic(
                topic_id=t,
                partitions=(
                    share.FetchPartition(partition_index=i32(0), acknowledgement_batches=()),
                ),
            )
            for t in ids
        ),
        forgotten_topics_data=(),
    )


def shared(request: Any) -> ShareFetchResponse:
    return ShareFetchResponse(
        throttle_time=no_throttle(),
        error_code=ErrorCode.none,
        error_message=None,
        acquisition_lock_timeout=no_throttle(),
        responses=(),
        node_endpoints=(),
    )


async def test_a_share_group_does_not_read_a_tracked_topic() -> None:
    kafka = Kafka(ShareFetchRequest=shared)
    async with FakeBroker(kafka) as broker, gateway(broker, admin(tracked(-1))) as g:
        client = await g.connect()
        old = await ask_on(client, share_fetch(3))
        assert old.error_code is ErrorCode.share_session_not_found
        answer = await ask_on(client, share_fetch(0, TRACKED_ID, CLASSIC_ID))
        (refused,) = answer.responses
        assert refused.topic_id == TRACKED_ID
        assert refused.partitions[0].error_code is ErrorCode.topic_authorization_failed
        assert [t.topic_id for t in kafka.asked[0].topics] == [CLASSIC_ID]
        following = await ask_on(client, share_fetch(1))
        assert following.error_code is ErrorCode.none
        client.close()


async def test_a_share_session_ends_with_its_own_topic_and_with_no_other() -> None:
    """It names its topics once, as a fetch session does."""
    view = tracked(-1)
    classic, joins = uuid4(), uuid4()

    def track(name: str, topic_id: UUID) -> None:
        (topic,) = [t for t in view.topics() if t.name == "tracked"]
        view.replace_named([name], [replace(topic, name=name, topic_id=topic_id, partitions={})])

    kafka = Kafka(ShareFetchRequest=shared)
    async with FakeBroker(kafka) as broker, gateway(broker, admin(view)) as g:
        client = await g.connect()
        assert (await ask_on(client, share_fetch(0, classic))).error_code is ErrorCode.none
        assert (await ask_on(client, share_fetch(1, CLASSIC_ID))).error_code is ErrorCode.none
        track("another", joins)
        assert (await ask_on(client, share_fetch(2))).error_code is ErrorCode.none
        track("classic", CLASSIC_ID)
        ended = await ask_on(client, share_fetch(3))
        assert ended.error_code is ErrorCode.share_session_not_found
        client.close()


class RequestedPlane(AdminPlane):
    """Knows one request, and counts who asks for it."""

    def __init__(self, *, silent: bool) -> None:
        super().__init__()
        self.silent, self.asked_for = silent, list[str | None]()

    async def list_requests(self, topic: str | None = None) -> list[MigrationRequest]:
        self.asked_for.append(topic)
        if self.silent:
            raise ControlPlaneUnavailable("no answer")
        at = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)
        state = RequestState.RETRYING
        return [MigrationRequest("classic", UUID(int=7), "ada", {}, at, state, "no S3", 2, at)]


def describing_all(*names: str, documented: bool, keys: tuple[str, ...] | None = None) -> Any:
    return describe_request.DescribeConfigsRequest(
        resources=tuple(
            describe_request.DescribeConfigsResource(
                resource_type=i8(2), resource_name=name, configuration_keys=keys
            )
            for name in names
        ),
        include_synonyms=False,
        include_documentation=documented,
    )


@pytest.mark.parametrize(
    ("request_", "asked_for"),
    [
        (describing_all("classic", documented=True, keys=("diskless.enable",)), ["classic"]),
        (describing_all("classic", "b", documented=True, keys=("diskless.enable",)), [None]),
        (describing_all("classic", documented=False, keys=("diskless.enable",)), []),
        (describing_all("classic", documented=True, keys=("retention.bytes",)), []),
    ],
)
async def test_who_wants_documentation_reads_what_became_of_the_request_to_migrate(
    request_: Any, asked_for: list[str | None]
) -> None:
    for silent in (False, True):
        plane = RequestedPlane(silent=silent)
        kafka = Kafka(DescribeConfigsRequest=describing())
        async with FakeBroker(kafka) as broker, gateway(broker, admin(tracked(5), plane)) as g:
            answer = await ask(g, request_)
        assert plane.asked_for == asked_for
        shown = {c.name: c.documentation or "" for c in answer.results[0].configs}
        said = (
            "Last request: unknown, the control plane does not answer"
            if silent
            else "Last request: retrying, tried 2 times, again at 2026-01-02 03:04:05; "
            "`tideline request list classic` says by whom and why"
        )
        assert shown.get("diskless.enable", "").endswith(said) is bool(asked_for)
        assert "Last request" not in shown.get("diskless.migration.state", "")
        assert "ada" not in str(answer)
        assert "no S3" not in str(answer)


async def test_a_description_of_classic_topics_asks_postgres_nothing() -> None:
    """Seed 000, I1: consoles ask for all configs of all topics, with documentation."""
    plane = RequestedPlane(silent=True)
    kafka = Kafka(DescribeConfigsRequest=describing())
    async with FakeBroker(kafka) as broker, gateway(broker, admin(tracked(5), plane)) as g:
        answer = await ask(g, describing_all("classic", "other", documented=True))
        assert "Last request" not in str(answer)
        assert plane.asked_for == []
        answer = await ask(g, describing_all("classic", "tracked", documented=True))
    assert plane.asked_for == ["tracked"]
    assert ["Last request" in str(result) for result in answer.results] == [False, True]
