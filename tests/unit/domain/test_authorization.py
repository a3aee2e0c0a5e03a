"""What a client needs a right for, and how long the broker's word of it holds."""

from __future__ import annotations

import pytest

from tideline.domain.api_answers import API_RULES
from tideline.domain.authorization import (
    ALL_OPERATIONS,
    CANNOT_ASK,
    DENIED_FOR_S,
    NEEDED,
    OMITTED,
    Operation,
    Rights,
    Verdict,
    operations_of,
    refusal,
)
from tideline.domain.request_handling import KafkaErrorCode

AUTHORIZATION_FAILED = KafkaErrorCode.TOPIC_AUTHORIZATION_FAILED
KAFKA_IS_ASKED_FIRST = {
    "Metadata",
    "FindCoordinator",
    "ApiVersions",
    "CreateTopics",
    "DeleteTopics",
    "AddPartitionsToTxn",
    "EndTxn",
    "WriteTxnMarkers",
    "DescribeConfigs",
    "AlterConfigs",
    "IncrementalAlterConfigs",
    "DescribeCluster",
    "DescribeTopicPartitions",
    "ShareAcknowledge",
}
"""What is looked into and answered as, or after, the broker has answered this very client."""


def test_every_api_that_is_looked_into_needs_a_right_or_asks_kafka_for_its_answer() -> None:
    looked_into = {key for key, rule in API_RULES.items() if not rule.passes}
    by_kafka = {key for key in looked_into if API_RULES[key].name in KAFKA_IS_ASKED_FIRST}
    assert looked_into == by_kafka | NEEDED.keys()
    assert not by_kafka & NEEDED.keys()


@pytest.mark.parametrize(
    ("api", "operation"),
    [
        ("Produce", Operation.WRITE),
        ("Fetch", Operation.READ),
        ("ListOffsets", Operation.DESCRIBE),
        ("OffsetForLeaderEpoch", Operation.DESCRIBE),
        ("DeleteRecords", Operation.DELETE),
        ("DescribeProducers", Operation.READ),
        ("CreatePartitions", Operation.ALTER),
        ("ShareFetch", Operation.READ),
    ],
)
def test_the_right_is_the_one_that_kafka_asks_for(api: str, operation: Operation) -> None:
    assert {API_RULES[key].name: needed for key, needed in NEEDED.items()}[api] is operation


def test_a_right_holds_for_its_time_and_a_refusal_for_a_second() -> None:
    reads = Rights(1 << Operation.READ, asked_at=100.0)
    assert reads.verdict(Operation.READ, 104.9, 5) is Verdict.ALLOWED
    assert reads.verdict(Operation.READ, 105.0, 5) is Verdict.UNKNOWN
    assert reads.verdict(Operation.WRITE, 100 + DENIED_FOR_S / 2, 5) is Verdict.DENIED
    assert reads.verdict(Operation.WRITE, 100 + DENIED_FOR_S, 5) is Verdict.UNKNOWN
    assert reads.verdict(Operation.WRITE, 100.2, 0.1) is Verdict.UNKNOWN, "not longer than a right"


def test_it_is_asked_for_anew_while_it_still_holds() -> None:
    rights = Rights(ALL_OPERATIONS, asked_at=100.0)
    assert not rights.is_due(102.9, 5)
    assert rights.is_due(103.1, 5)
    assert rights.verdict(Operation.READ, 103.1, 5) is Verdict.ALLOWED


def test_without_an_authorizer_everything_is_allowed() -> None:
    assert all(Rights(ALL_OPERATIONS, 0).allows(operation) for operation in Operation)
    assert ALL_OPERATIONS == 0b1111_1111_1000


@pytest.mark.parametrize(
    ("code", "operations", "found"),
    [
        (KafkaErrorCode.NONE, 1 << Operation.READ, 1 << Operation.READ),
        # A broker that has not heard of the topic yet knows the rights all the same.
        (KafkaErrorCode.UNKNOWN_TOPIC_OR_PARTITION, ALL_OPERATIONS, ALL_OPERATIONS),
        (AUTHORIZATION_FAILED, OMITTED, 0),
        (AUTHORIZATION_FAILED, ALL_OPERATIONS, 0),
        (KafkaErrorCode.NONE, OMITTED, None),
    ],
)
def test_what_a_row_of_metadata_tells(code: int, operations: int, found: int | None) -> None:
    assert operations_of(code, operations) == found


def test_who_may_not_hears_so_and_of_whom_it_is_not_known_tries_again() -> None:
    assert refusal(Verdict.ALLOWED) is None
    assert refusal(Verdict.DENIED) is AUTHORIZATION_FAILED
    assert refusal(Verdict.UNKNOWN) is CANNOT_ASK
