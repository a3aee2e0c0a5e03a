"""Of a topic on which it has no right a client hears what Kafka says of every such name, whether it
is tracked, classic or not there: a line for each API that names a topic and is looked into."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterable
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest
from kio.schema.describe_transactions.v0.response import (
    DescribeTransactionsResponse,
    TopicData,
    TransactionState,
)
from kio.schema.errors import ErrorCode

from tests.raw import KEYS, message
from tests.unit.gateway.fakes import TOPIC, TOPIC_ID, record_batch, tracked_row
from tests.unit.gateway.tracked_bench import TrackedBench, allowing, leased
from tideline.control_plane.model import TrackedPartition
from tideline.domain.api_answers import API_RULES
from tideline.gateway.messages import key_fields, messages, topic_key

DENIED = ErrorCode.topic_authorization_failed
NO_CLUSTER = ErrorCode.cluster_authorization_failed
NO_TRANSACTIONAL_ID = ErrorCode.transactional_id_authorization_failed
NONE, SECOND = timedelta(0), timedelta(seconds=1)
NAMES = (TOPIC, "classic", "absent")
IDS = (TOPIC_ID, UUID(int=0x11))
"""Of a tracked topic and of a classic one. An id that no topic has is UNKNOWN_TOPIC_ID to all."""
STATES = {
    "pending": tracked_row(),
    "quiesced": tracked_row(quiesced=True, generation=2),
    "hybrid": tracked_row(generation=2, boundary=100, boundary_epoch=7),
    "diskless": replace(
        tracked_row(generation=2, boundary=100, boundary_epoch=7), prefix_gone=True
    ),
}


def rows(
    request: Any, array: str, topic_part: str, parts: tuple[str, str, str], **values: Any
) -> Any:
    """What a broker answers whose topics are in ``array``, and its partitions, each with
    :data:`DENIED`. ``parts``: the request's field of partitions, the answer's structure of one, and
    its number."""
    api = messages(int(request.__api_key__), int(request.__version__))
    of_topic, partition_part, index = parts
    return tuple(
        api.response_part(
            topic_part,
            **key_fields(topic_key(topic)),
            **{
                "partition_responses"
                if partition_part == "PartitionProduceResponse"
                else "partitions": tuple(
                    api.response_part(
                        partition_part,
                        **{index: getattr(row, index, row)},
                        error_code=DENIED,
                        **values,
                    )
                    for row in getattr(topic, of_topic)
                )
            },
        )
        for topic in getattr(request, array)
    )


def api_of(request: Any) -> Any:
    return messages(int(request.__api_key__), int(request.__version__))


def produce(request: Any) -> Any:
    parts = ("partition_data", "PartitionProduceResponse", "index")
    found = rows(
        request, "topic_data", "TopicProduceResponse", parts, base_offset=-1, record_errors=()
    )
    return api_of(request).response(responses=found, throttle_time=NONE)


def fetch(request: Any) -> Any:
    parts = ("partitions", "PartitionData", "partition_index")
    api = api_of(request)
    return api.response(
        throttle_time=NONE,
        error_code=ErrorCode.none,
        session_id=0,
        responses=tuple(
            api.response_part(
                "FetchableTopicResponse",
                **key_fields(topic_key(topic)),
                partitions=tuple(
                    api.response_part(
                        parts[1],
                        partition_index=row.partition,
                        error_code=DENIED,
                        high_watermark=-1,
                        aborted_transactions=(),
                        records=b"",
                    )
                    for row in topic.partitions
                ),
            )
            for topic in request.topics
        ),
    )


def list_offsets(request: Any) -> Any:
    parts = ("partitions", "ListOffsetsPartitionResponse", "partition_index")
    found = rows(request, "topics", "ListOffsetsTopicResponse", parts)
    return api_of(request).response(throttle_time=NONE, topics=found)


def delete_records(request: Any) -> Any:
    parts = ("partitions", "DeleteRecordsPartitionResult", "partition_index")
    found = rows(request, "topics", "DeleteRecordsTopicResult", parts, low_watermark=-1)
    return api_of(request).response(throttle_time=NONE, topics=found)


def leader_epoch(request: Any) -> Any:
    parts = ("partitions", "EpochEndOffset", "partition")
    found = rows(request, "topics", "OffsetForLeaderTopicResult", parts)
    return api_of(request).response(throttle_time=NONE, topics=found)


def describe_producers(request: Any) -> Any:
    parts = ("partition_indexes", "PartitionResponse", "partition_index")
    found = rows(request, "topics", "TopicResponse", parts, error_message=None, active_producers=())
    return api_of(request).response(throttle_time=NONE, topics=found)


def denied(
    answered: str, part: str, *same: str, asked: str = "topics", **values: Any
) -> Callable[[Any], Any]:
    """Refuses each of the topics, or resources, that were ``asked`` for in the row ``part`` of the
    array ``answered``, which repeats the fields ``same`` of what was asked."""

    def answer(request: Any) -> Any:
        api = api_of(request)
        found = (
            api.response_part(
                part, error_code=DENIED, **{name: getattr(row, name) for name in same}, **values
            )
            for row in getattr(request, asked)
        )
        return api.response(throttle_time=NONE, **{answered: tuple(found)}, **AROUND.get(part, {}))

    return answer


AROUND: dict[str, dict[str, Any]] = {
    "MetadataResponseTopic": {"brokers": (), "cluster_id": "c", "controller_id": 1},
    "DescribeTopicPartitionsResponseTopic": {"next_cursor": None},
}
"""The other fields of an answer, by the row of its topics."""
OF_NO_TOPIC: dict[str, Any] = {"topic_id": None, "is_internal": False, "partitions": ()}
metadata = denied("topics", "MetadataResponseTopic", "name", **OF_NO_TOPIC)
topic_partitions = denied(
    "topics",
    "DescribeTopicPartitionsResponseTopic",
    "name",
    topic_authorized_operations=-(2**31),
    **OF_NO_TOPIC,
)
create_topics = denied(
    "topics",
    "CreatableTopicResult",
    "name",
    topic_id=None,
    error_message="Authorization failed.",
    configs=(),
)
create_partitions = denied("results", "CreatePartitionsTopicResult", "name", error_message=None)
delete_topics = denied("responses", "DeletableTopicResult", "name", "topic_id", error_message=None)
"""Kafka names a topic that was asked for by its id only to who may describe it."""
RESOURCE = ("resource_type", "resource_name")
resources = denied(
    "responses", "AlterConfigsResourceResponse", *RESOURCE, asked="resources", error_message=None
)
describe_configs = denied(
    "results",
    "DescribeConfigsResult",
    *RESOURCE,
    asked="resources",
    error_message=None,
    configs=(),
)


def adding(code: ErrorCode) -> Callable[[Any], Any]:
    """Kafka says it of every partition of a transaction, but refuses the whole of a request of
    between brokers (from version 4 on)."""

    def answer(request: Any) -> Any:
        api = api_of(request)
        if int(request.__version__) >= 4:
            return api.response(
                throttle_time=NONE, error_code=NO_CLUSTER, results_by_transaction=()
            )
        return api.response(
            throttle_time=NONE,
            results_by_topic_v3_and_below=tuple(
                api.response_part(
                    "AddPartitionsToTxnTopicResult",
                    name=topic.name,
                    results_by_partition=tuple(
                        api.response_part(
                            "AddPartitionsToTxnPartitionResult",
                            partition_index=partition,
                            partition_error_code=code,
                        )
                        for partition in topic.partitions
                    ),
                )
                for topic in request.v3_and_below_topics
            ),
        )

    return answer


def markers(request: Any) -> Any:
    api = api_of(request)
    return api.response(
        markers=tuple(
            api.response_part(
                "WritableTxnMarkerResult",
                producer_id=marker.producer_id,
                topics=tuple(
                    api.response_part(
                        "WritableTxnMarkerTopicResult",
                        name=topic.name,
                        partitions=tuple(
                            api.response_part(
                                "WritableTxnMarkerPartitionResult",
                                partition_index=partition,
                                error_code=NO_CLUSTER,
                            )
                            for partition in topic.partition_indexes
                        ),
                    )
                    for topic in marker.topics
                ),
            )
            for marker in request.markers
        )
    )


def share_fetch(request: Any) -> Any:
    api = api_of(request)
    leader = api.response_part("LeaderIdAndEpoch", leader_id=-1, leader_epoch=-1)
    return api.response(
        throttle_time=NONE,
        error_code=ErrorCode.none,
        error_message=None,
        acquisition_lock_timeout=NONE,
        node_endpoints=(),
        responses=tuple(
            api.response_part(
                "ShareFetchableTopicResponse",
                topic_id=topic.topic_id,
                partitions=tuple(
                    api.response_part(
                        "PartitionData",
                        partition_index=row.partition_index,
                        error_code=DENIED,
                        error_message=None,
                        acknowledge_error_code=0,
                        acknowledge_error_message=None,
                        current_leader=leader,
                        records=b"",
                        acquired_records=(),
                    )
                    for row in topic.partitions
                ),
            )
            for topic in request.topics
        ),
    )


def transaction(
    state: str, code: ErrorCode = ErrorCode.none, topics: Iterable[str] = ()
) -> Callable[[Any], Any]:
    """What the broker says of the producer's transaction, if it is asked."""

    def answer(request: Any) -> Any:
        made: Any = TransactionState
        return DescribeTransactionsResponse(
            throttle_time=NONE,  # type: ignore[arg-type]
            transaction_states=(
                made(
                    error_code=code,
                    transactional_id="tx",
                    transaction_state=state,
                    transaction_timeout=SECOND,
                    transaction_start_time=datetime.fromtimestamp(0, UTC),
                    producer_id=9,
                    producer_epoch=2,
                    topics=tuple(TopicData(topic=t, partitions=(0,)) for t in topics),  # type: ignore[arg-type]
                ),
            ),
        )

    return answer


NO_TRANSACTION = transaction("Empty")


@dataclass(frozen=True)
class Line:
    """One API, as a client without a right on the topic asks it."""

    api: str
    version: int
    asked: Callable[[Any], dict[str, Any]]
    """The fields of the request about a topic, by its name or id."""
    refuses: Callable[[Any], Any]
    """Kafka's answer."""
    told: ErrorCode = DENIED
    by_id: bool = False
    transaction: Callable[[Any], Any] = NO_TRANSACTION
    why: str = ""


def add_partitions(topic: str) -> dict[str, Any]:
    return {
        "v3_and_below_transactional_id": "tx",
        "v3_and_below_producer_id": 9,
        "v3_and_below_producer_epoch": 2,
        "v3_and_below_topics": [{"name": topic, "partitions": [0]}],
    }


def add_by_broker(topic: str) -> dict[str, Any]:
    one = {
        "transactional_id": "tx",
        "producer_id": 9,
        "producer_epoch": 2,
        "topics": [{"name": topic, "partitions": [0]}],
    }
    return {"transactions": [one]}


def config(**configs: str) -> Callable[[str], dict[str, Any]]:
    entries = [
        {"name": k.replace("_", "."), "config_operation": 0, "value": v} for k, v in configs.items()
    ]

    def asked(topic: str) -> dict[str, Any]:
        one = {"resource_type": 2, "resource_name": topic, "configs": entries}
        return {"resources": [one], "validate_only": False}

    return asked


def all_configs(topic: str) -> dict[str, Any]:
    entries = [{"name": "retention.ms", "value": "1"}]
    one = {"resource_type": 2, "resource_name": topic, "configs": entries}
    return {"resources": [one], "validate_only": False}


def creating(*entries: tuple[str, str]) -> Callable[[str], dict[str, Any]]:
    def asked(topic: str) -> dict[str, Any]:
        one = {
            "name": topic,
            "num_partitions": 1,
            "replication_factor": 1,
            "assignments": [],
            "configs": [{"name": name, "value": value} for name, value in entries],
        }
        return {"topics": [one], "timeout": SECOND, "validate_only": False}

    return asked


def fetching(key: Any) -> dict[str, Any]:
    named = {"topic_id": key} if isinstance(key, UUID) else {"topic": key}
    row = {"partition": 0, "fetch_offset": 100, "partition_max_bytes": 1_000}
    return {
        "max_wait": NONE,
        "min_bytes": 1,
        "max_bytes": 1 << 20,
        "isolation_level": 0,
        "session_id": 0,
        "session_epoch": -1,
        "topics": [{**named, "partitions": [row]}],
        "forgotten_topics_data": [],
        "rack_id": "",
    }


def producing(key: Any) -> dict[str, Any]:
    named = {"topic_id": key} if isinstance(key, UUID) else {"name": key}
    row = {"index": 0, "records": record_batch(1)}
    return {
        "transactional_id": None,
        "acks": -1,
        "timeout": SECOND,
        "topic_data": [{**named, "partition_data": [row]}],
    }


LINES = (
    Line("Produce", 9, producing, produce),
    Line("Produce", 13, producing, produce, by_id=True),
    Line("Fetch", 12, fetching, fetch),
    Line("Fetch", 17, fetching, fetch, by_id=True),
    Line(
        "ListOffsets",
        7,
        lambda topic: {
            "replica_id": -1,
            "isolation_level": 0,
            "topics": [
                {
                    "name": topic,
                    "partitions": [
                        {
                            "partition_index": 0,
                            "current_leader_epoch": -1,
                            "timestamp": -1,
                        }
                    ],
                }
            ],
        },
        list_offsets,
    ),
    Line(
        "Metadata",
        12,
        lambda topic: {
            "topics": [{"name": topic, "topic_id": None}],
            "allow_auto_topic_creation": False,
            "include_topic_authorized_operations": False,
        },
        metadata,
    ),
    Line("CreateTopics", 7, creating(), create_topics),
    Line("CreateTopics", 7, creating(("diskless.enable", "true")), create_topics, why="born"),
    Line("CreateTopics", 7, creating(("diskless.enable", "maybe")), create_topics, why="wrong"),
    Line(
        "CreateTopics",
        7,
        creating(("diskless.migration.state", "HYBRID")),
        create_topics,
        why="state",
    ),
    Line(
        "CreateTopics",
        7,
        creating(("diskless.enable", "true"), ("cleanup.policy", "compact")),
        create_topics,
        why="compacted",
    ),
    Line(
        "DeleteTopics",
        6,
        lambda topic: {"topics": [{"name": topic, "topic_id": None}], "timeout": SECOND},
        delete_topics,
    ),
    Line(
        "DeleteRecords",
        2,
        lambda topic: {
            "topics": [{"name": topic, "partitions": [{"partition_index": 0, "offset": 1}]}],
            "timeout": SECOND,
        },
        delete_records,
    ),
    Line(
        "OffsetForLeaderEpoch",
        4,
        lambda topic: {
            "replica_id": -1,
            "topics": [
                {
                    "topic": topic,
                    "partitions": [{"partition": 0, "current_leader_epoch": -1, "leader_epoch": 0}],
                }
            ],
        },
        leader_epoch,
    ),
    Line("AddPartitionsToTxn", 3, add_partitions, adding(DENIED), why="no transaction"),
    Line(
        "AddPartitionsToTxn",
        3,
        add_partitions,
        adding(DENIED),
        transaction=transaction("", ErrorCode.not_coordinator),
        why="another broker is its coordinator",
    ),
    Line(
        "AddPartitionsToTxn",
        0,
        add_partitions,
        adding(DENIED),
        transaction=transaction("", ErrorCode.coordinator_load_in_progress),
        why="its coordinator loads",
    ),
    Line(
        "AddPartitionsToTxn",
        3,
        add_partitions,
        adding(DENIED),
        transaction=transaction("Ongoing", topics=NAMES),
        why="it has the partition",
    ),
    Line(
        "AddPartitionsToTxn",
        3,
        add_partitions,
        adding(NO_TRANSACTIONAL_ID),
        told=NO_TRANSACTIONAL_ID,
        why="of somebody else, who may describe it",
    ),
    Line(
        "AddPartitionsToTxn",
        5,
        add_by_broker,
        adding(NO_CLUSTER),
        told=NO_CLUSTER,
        why="as brokers ask",
    ),
    Line(
        "WriteTxnMarkers",
        1,
        lambda topic: {
            "markers": [
                {
                    "producer_id": 9,
                    "producer_epoch": 2,
                    "transaction_result": False,
                    "topics": [{"name": topic, "partition_indexes": [0]}],
                    "coordinator_epoch": 0,
                }
            ]
        },
        markers,
        told=NO_CLUSTER,
    ),
    Line(
        "DescribeConfigs",
        4,
        lambda topic: {
            "resources": [{"resource_type": 2, "resource_name": topic, "configuration_keys": None}],
            "include_synonyms": False,
            "include_documentation": True,
        },
        describe_configs,
    ),
    Line("AlterConfigs", 2, all_configs, resources),
    Line(
        "CreatePartitions",
        3,
        lambda topic: {
            "topics": [{"name": topic, "count": 4, "assignments": None}],
            "timeout": SECOND,
            "validate_only": False,
        },
        create_partitions,
    ),
    *(
        Line("IncrementalAlterConfigs", 1, config(**configs), resources, why=str(configs))
        for configs in (
            {"diskless_enable": "true"},
            {"diskless_enable": "false"},
            {"diskless_enable": "maybe"},
            {"diskless_migration_state": "HYBRID"},
            {"retention_ms": "1"},
            {"max_message_bytes": "no number"},
        )
    ),
    Line(
        "DescribeProducers",
        0,
        lambda topic: {"topics": [{"name": topic, "partition_indexes": [0]}]},
        describe_producers,
    ),
    Line(
        "DescribeTopicPartitions",
        0,
        lambda topic: {
            "topics": [{"name": topic}],
            "response_partition_limit": 10,
            "cursor": None,
        },
        topic_partitions,
    ),
    Line(
        "ShareFetch",
        1,
        lambda topic_id: {
            "member_id": "m",
            "share_session_epoch": 0,
            "max_wait": NONE,
            "min_bytes": 0,
            "max_records": 1,
            "batch_size": 1,
            "topics": [
                {
                    "topic_id": topic_id,
                    "partitions": [{"partition_index": 0, "acknowledgement_batches": []}],
                }
            ],
            "forgotten_topics_data": [],
        },
        share_fetch,
        by_id=True,
    ),
)
NAMES_NO_TOPIC = {"FindCoordinator", "ApiVersions", "EndTxn", "DescribeCluster"}
NAMES_WHAT_WAS_READ = {"ShareAcknowledge"}
"""Which a client without the right to read has not been given."""


@pytest.fixture
async def bench(tmp_path: Path) -> AsyncIterator[TrackedBench]:
    async with leased(tmp_path) as made:
        yield made


@pytest.mark.parametrize("state", STATES.values(), ids=STATES)
@pytest.mark.parametrize("line", LINES, ids=lambda one: f"{one.api}-{one.version}-{one.why}")
async def test_who_has_no_right_hears_the_same_of_every_name(
    bench: TrackedBench, line: Line, state: TrackedPartition
) -> None:
    bench.show(state)
    client = bench.client
    client.rights = allowing(0, DENIED)
    client.broker |= {KEYS[line.api]: line.refuses, KEYS["DescribeTransactions"]: line.transaction}
    answers = []
    for key in IDS if line.by_id else NAMES:
        asked = message(line.api, line.version, **line.asked(key))
        answers.append(repr(await bench.ask(asked)).replace(repr(key), "KEY"))
    assert all(answer == answers[-1] for answer in answers)
    assert line.told.name in answers[-1]
    assert not bench.plane.commits


def test_every_api_that_names_a_topic_and_is_looked_into_has_its_line() -> None:
    looked_into = {rule.name for rule in API_RULES.values() if not rule.passes}
    assert {line.api for line in LINES} == looked_into - NAMES_NO_TOPIC - NAMES_WHAT_WAS_READ
