"""What Kafka refuses of Admin requests is refused here too, before anything else is told of a
tracked topic."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from kio.schema.errors import ErrorCode

from tests.raw import message
from tests.unit.gateway.fakes import tracked_row, tracked_topic
from tests.unit.gateway.gateway_under_test import gateway
from tests.unit.gateway.test_admin_handlers import (
    CLASSIC_ID,
    SECONDS,
    TRACKED_ID,
    AdminPlane,
    Kafka,
    add_partitions,
    added,
    admin,
    ask,
    codes,
    created,
    grow_to,
    grown,
    nowhere,
    replacing,
    setting,
    share_fetch,
    shared,
    tracked,
)
from tests.unit.gateway.tracked_bench import allowing
from tests.unit.kafka.fake_broker import FakeBroker
from tideline.domain.authorization import ALL_OPERATIONS, Operation
from tideline.gateway.messages import nested, no_throttle
from tideline.kafka.protocol import response_class

DENIED = ErrorCode.topic_authorization_failed


def without(operation: Operation) -> int:
    return ALL_OPERATIONS & ~(1 << operation)


def denying(request: Any) -> Any:
    """A broker that lets this client alter nothing."""
    schema: Any = response_class(int(request.__api_key__), int(request.__version__))
    row = nested(schema, "responses")
    return schema(
        throttle_time=no_throttle(),
        responses=tuple(
            row(
                error_code=DENIED,
                error_message=None,
                resource_type=resource.resource_type,
                resource_name=resource.resource_name,
            )
            for resource in request.resources
        ),
    )


async def test_who_may_not_alter_a_topic_does_not_hear_that_it_migrates() -> None:
    view = tracked(5, -1)
    kafka, plane = Kafka(CreatePartitionsRequest=grown), AdminPlane(view)
    kafka.rights = allowing(without(Operation.ALTER))
    async with FakeBroker(kafka) as broker, gateway(broker, admin(view, plane)) as g:
        answer = await ask(g, grow_to(4, "tracked", "classic"))
    refused, passed = answer.results
    assert (refused.error_code, refused.error_message) == (DENIED, None)
    assert passed.error_code is ErrorCode.none
    assert [t.name for t in kafka.asked[0].topics] == ["classic"]


async def test_who_may_not_write_hears_so_of_a_transaction_and_not_that_it_is_to_abort() -> None:
    def denied(request: Any) -> Any:
        answer = added(request)
        (topics, *rest) = answer.results_by_topic_v3_and_below
        (row,) = topics.results_by_partition
        refused = replace(row, partition_error_code=DENIED)
        topics = replace(topics, results_by_partition=(refused,))
        return replace(answer, results_by_topic_v3_and_below=(topics, *rest))

    kafka = Kafka(AddPartitionsToTxnRequest=denied)
    async with FakeBroker(kafka) as broker, gateway(broker, admin(tracked(-1))) as g:
        answer = await ask(g, add_partitions(tracked=(0,), classic=(0,)))
    assert codes(answer) == {
        ("tracked", 0): DENIED,
        ("classic", 0): ErrorCode.operation_not_attempted,
    }


async def test_a_share_consumer_that_may_not_read_hears_no_reason() -> None:
    kafka = Kafka(ShareFetchRequest=shared)
    kafka.rights = allowing(without(Operation.READ))
    async with FakeBroker(kafka) as broker, gateway(broker, admin(tracked(-1))) as g:
        answer = await ask(g, share_fetch(0, TRACKED_ID, CLASSIC_ID))
        (refused,) = answer.responses
        (row,) = refused.partitions
        assert (row.error_code, row.error_message) == (DENIED, None)
        kafka.rights = allowing()
        answer = await ask(g, share_fetch(0, TRACKED_ID, CLASSIC_ID))
        (refused,) = answer.responses
        assert "diskless" in refused.partitions[0].error_message


@pytest.mark.parametrize(
    "request_",
    [
        setting(**{"diskless.enable": "false"}),
        setting(**{"diskless.migration.state": "HYBRID"}),
        setting(**{"diskless.enable": "true"}),
        setting(**{"retention.ms": "1"}),
        replacing(**{"diskless.enable": "false"}),
    ],
)
async def test_who_may_not_alter_configs_hears_nothing_of_tidelines_rules(request_: Any) -> None:
    """A refusal of ours, that a topic is tracked and cannot be set back, would tell too much."""
    view = tracked(5)
    kafka = Kafka(IncrementalAlterConfigsRequest=denying, AlterConfigsRequest=denying)
    plane = AdminPlane(view)
    async with FakeBroker(kafka) as broker, gateway(broker, admin(view, plane)) as g:
        answer = await ask(g, request_)
    (row,) = answer.responses
    assert (row.error_code, row.error_message) == (DENIED, None)
    assert plane.said == []


async def test_who_may_not_create_a_name_does_not_hear_that_it_is_tracked() -> None:
    view = tracked(5)
    kafka, plane = Kafka(CreateTopicsRequest=created(DENIED)), AdminPlane(view)
    async with FakeBroker(kafka) as broker, gateway(broker, admin(view, plane)) as g:
        topic = {
            "name": "tracked",
            "num_partitions": 1,
            "replication_factor": 1,
            "assignments": [],
            "configs": [{"name": "diskless.enable", "value": "true"}],
        }
        to_be_born = message(
            "CreateTopics", 7, topics=[topic], timeout=SECONDS, validate_only=False
        )
        answer = await ask(g, to_be_born)
    assert [t.error_code for t in answer.topics] == [DENIED]
    assert all(request.validate_only for request in kafka.asked)
    assert plane.said == []


async def test_a_topic_that_migrates_since_the_rights_of_another_were_asked_does_not_grow() -> None:
    """Its new partitions would have no row, and be served by nobody (schedule 22)."""
    view = tracked(5)
    kafka, plane = Kafka(CreatePartitionsRequest=grown, MetadataRequest=nowhere), AdminPlane(view)

    def joins(request: Any) -> Any:
        kept = view.topics()
        more = tracked_topic(tracked_row(topic_id=CLASSIC_ID), name="classic", topic_id=CLASSIC_ID)
        view.replace_all([*kept, more])
        return allowing()(request)

    kafka.rights = joins
    async with FakeBroker(kafka) as broker, gateway(broker, admin(view, plane)) as g:
        answer = await ask(g, grow_to(4, "tracked", "classic"))
    passed, refused = answer.results
    assert passed.error_code is ErrorCode.none
    assert refused.error_code is ErrorCode.request_timed_out
    assert "try again" in refused.error_message
    (growing,) = (r for r in kafka.asked if type(r).__name__ == "CreatePartitionsRequest")
    assert [t.name for t in growing.topics] == ["tracked"]
