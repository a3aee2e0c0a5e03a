"""The APIs beside those that move records: whose answer a tracked partition gets (docs/apis.md)."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from kio.schema.errors import ErrorCode

from infra.apis_page import offered_up_to, render
from infra.apis_shown import NOT_SHOWN, ONLY_REFUSED, SHOWN
from tests.pages.references import missing_tests
from tests.unit.gateway.fakes import LOG, TOPIC, tracked_row
from tests.unit.gateway.tracked_bench import TrackedBench, leased
from tideline.control_plane.errors import ControlPlaneUnavailable
from tideline.control_plane.model import LogProducer
from tideline.domain.api_answers import API_RULES, BROKER_HIGHEST, CAPPED, NOT_OFFERED, Whose
from tideline.domain.request_handling import RouteKind
from tideline.gateway.context import ApiKey
from tideline.gateway.messages import messages, no_throttle
from tideline.gateway.transport.addresses import NodeAddresses, ResponseRewriter
from tideline.gateway.transport.passed_apis import PASSED

PENDING = tracked_row(generation=1)
QUIESCING = tracked_row(generation=1, quiesced=True)
CROSSED = tracked_row(generation=2, boundary=100, boundary_epoch=7)
BROKERS = 41
"""A producer id that the broker knows."""


@pytest.fixture
async def bench(tmp_path: Path) -> AsyncIterator[TrackedBench]:
    async with leased(tmp_path) as made:
        made.show(PENDING)
        yield made


def test_the_page_of_apis_is_the_one_that_the_tables_make() -> None:
    assert Path("docs/apis.md").read_text() == render(), "run `make docs`"


def test_every_api_is_shown_on_brokers_by_one_test_or_says_why_not() -> None:
    """That a test asks for what it is said to show is seen when it runs (tests/conftest.py)."""
    shown = [name for names in SHOWN.values() for name in names]
    assert sorted([*shown, *NOT_SHOWN]) == sorted(rule.name for rule in API_RULES.values())
    assert ONLY_REFUSED.keys() <= set(shown)
    assert missing_tests(" ".join(f"`{test}`" for test in SHOWN)) == []


def test_every_api_of_a_broker_has_one_rule_or_is_not_offered() -> None:
    assert API_RULES.keys() | NOT_OFFERED.keys() == BROKER_HIGHEST.keys()
    assert not API_RULES.keys() & NOT_OFFERED.keys()
    rewriter = ResponseRewriter(NodeAddresses({}), ApiKey)
    for key, highest in BROKER_HIGHEST.items():
        assert rewriter.offers(key, highest) == (key in API_RULES), key


def test_what_passes_has_no_handler_and_what_has_one_does_not_pass(bench: TrackedBench) -> None:
    passing = {key for key, rule in API_RULES.items() if rule.passes}
    assert passing == PASSED.keys()
    assert not passing & bench.rules.keys()
    in_transport = {ApiKey.FIND_COORDINATOR, ApiKey.API_VERSIONS, ApiKey.DESCRIBE_CLUSTER}
    assert bench.rules.keys() | in_transport == API_RULES.keys() - passing


def test_an_api_in_fewer_versions_than_the_broker_has_says_why() -> None:
    less = {key for key, high in offered_up_to().items() if high < BROKER_HIGHEST[key]}
    assert less == CAPPED.keys()


@pytest.mark.parametrize("kind", RouteKind)
def test_every_api_has_an_answer_in_every_state(kind: RouteKind) -> None:
    for rule in API_RULES.values():
        answer = rule.answer(kind)
        assert bool(answer.error) == (answer.whose is Whose.REFUSED)


# -- DescribeProducers


def described(topic: str = TOPIC) -> Any:
    api = messages(ApiKey.DESCRIBE_PRODUCERS, 0)
    return api.request(
        topics=(api.request_part("TopicRequest", name=topic, partition_indexes=(0,)),)
    )


def broker_says(bench: TrackedBench, code: ErrorCode = ErrorCode.none) -> None:
    api = messages(ApiKey.DESCRIBE_PRODUCERS, 0)

    def answer(request: Any) -> Any:
        known = api.response_part(
            "ProducerState", producer_id=BROKERS, producer_epoch=0, last_sequence=3,
            last_timestamp=9, coordinator_epoch=-1, current_txn_start_offset=-1,
        )  # fmt: skip
        row = api.response_part(
            "PartitionResponse", partition_index=0, error_code=code, error_message=None,
            active_producers=(known,) if code is ErrorCode.none else (),
        )  # fmt: skip
        return api.response(
            throttle_time=no_throttle(),
            topics=tuple(
                api.response_part("TopicResponse", name=t.name, partitions=(row,))
                for t in request.topics
            ),
        )

    bench.client.broker[ApiKey.DESCRIBE_PRODUCERS] = answer


def told(answer: Any) -> tuple[ErrorCode, list[tuple[int, int, int, int]]]:
    ((row,),) = (topic.partitions for topic in answer.topics)
    return row.error_code, [
        (int(p.producer_id), int(p.producer_epoch), int(p.last_sequence), int(p.last_timestamp))
        for p in row.active_producers
    ]


def suffix_has(bench: TrackedBench, *producers: LogProducer, fails: bool = False) -> None:
    async def describe(logs: Any, limit: int) -> Any:
        if fails:
            raise ControlPlaneUnavailable("Postgres is away")
        assert list(logs) == [LOG]
        return {LOG: list(producers)} if producers else {}

    bench.plane.describe_producers = describe  # type: ignore[method-assign]


OURS = LogProducer(7, 2, 49, 5_000)


@pytest.mark.parametrize("code", [ErrorCode.none, ErrorCode.not_leader_or_follower])
async def test_the_producers_of_a_suffix_are_told_whether_the_broker_has_a_replica_or_not(
    bench: TrackedBench, code: ErrorCode
) -> None:
    bench.show(CROSSED)
    broker_says(bench, code)
    suffix_has(bench, OURS)
    assert told(await bench.ask(described())) == (ErrorCode.none, [(7, 2, 49, 5_000)])
    suffix_has(bench)
    assert told(await bench.ask(described())) == (ErrorCode.none, [])


async def test_who_may_not_read_the_topic_is_told_no_producers_of_its_suffix(
    bench: TrackedBench,
) -> None:
    bench.show(CROSSED)
    broker_says(bench, ErrorCode.topic_authorization_failed)
    suffix_has(bench, OURS)
    answer = await bench.ask(described())
    assert told(answer) == (ErrorCode.topic_authorization_failed, [])


async def test_producers_of_a_suffix_are_not_made_up_while_postgres_is_away(
    bench: TrackedBench,
) -> None:
    bench.show(CROSSED)
    broker_says(bench)
    suffix_has(bench, fails=True)
    assert told(await bench.ask(described())) == (ErrorCode.request_timed_out, [])


async def test_before_the_boundary_the_brokers_producers_are_told_if_it_is_unset_still(
    bench: TrackedBench,
) -> None:
    broker_says(bench)
    assert told(await bench.ask(described())) == (ErrorCode.none, [(BROKERS, 0, 3, 9)])
    bench.plane.put_row(CROSSED)
    assert told(await bench.ask(described())) == (ErrorCode.not_leader_or_follower, [])


async def test_producers_of_another_topic_are_the_brokers(bench: TrackedBench) -> None:
    broker_says(bench)
    answer = await bench.ask(described("another"))
    assert told(answer) == (ErrorCode.none, [(BROKERS, 0, 3, 9)])


# -- WriteTxnMarkers


def markers(*topics: str) -> Any:
    api = messages(ApiKey.WRITE_TXN_MARKERS, 1)
    return api.request(
        markers=tuple(
            api.request_part(
                "WritableTxnMarker", producer_id=producer, producer_epoch=0,
                transaction_result=False, coordinator_epoch=0,
                topics=tuple(
                    api.request_part("WritableTxnMarkerTopic", name=t, partition_indexes=(0,))
                    for t in topics
                ),
            )
            for producer in (5, 6)
        )
    )  # fmt: skip


def broker_writes(request: Any, code: ErrorCode = ErrorCode.none) -> Any:
    """In an order of its own, as Kafka does."""
    api = messages(ApiKey.WRITE_TXN_MARKERS, 1)

    def written(partition: int) -> Any:
        no_such = partition < 0 and code is ErrorCode.none
        return api.response_part(
            "WritableTxnMarkerPartitionResult",
            partition_index=partition,
            error_code=ErrorCode.unknown_topic_or_partition if no_such else code,
        )

    return api.response(
        markers=tuple(
            api.response_part(
                "WritableTxnMarkerResult",
                producer_id=m.producer_id,
                topics=tuple(
                    api.response_part(
                        "WritableTxnMarkerTopicResult",
                        name=t.name,
                        partitions=tuple(map(written, t.partition_indexes)),
                    )
                    for t in m.topics
                ),
            )
            for m in reversed(request.markers)
        )
    )


def codes(answer: Any) -> dict[tuple[int, str], ErrorCode]:
    return {
        (int(m.producer_id), t.name): row.error_code
        for m in answer.markers
        for t in m.topics
        for row in t.partitions
    }


@pytest.mark.parametrize(
    ("row", "code"),
    [
        (PENDING, ErrorCode.none),
        (QUIESCING, ErrorCode.not_leader_or_follower),
        (CROSSED, ErrorCode.invalid_txn_state),
    ],
)
async def test_an_administrators_marker_is_written_before_the_pause_only(
    bench: TrackedBench, row: Any, code: ErrorCode
) -> None:
    bench.show(row)
    bench.client.broker[ApiKey.WRITE_TXN_MARKERS] = broker_writes
    answer = await bench.ask(markers(TOPIC, "another"))
    assert codes(answer) == {
        (producer, topic): code if topic == TOPIC else ErrorCode.none
        for producer in (5, 6)
        for topic in (TOPIC, "another")
    }
    (sent,) = bench.client.forwarded
    reached = {t.name for m in sent.markers for t in m.topics}
    assert reached == ({TOPIC, "another"} if row is PENDING else {"another"})


async def test_of_markers_that_are_all_refused_no_partition_of_the_topic_hears(
    bench: TrackedBench,
) -> None:
    bench.show(CROSSED)
    bench.client.broker[ApiKey.WRITE_TXN_MARKERS] = broker_writes
    answer = await bench.ask(markers(TOPIC))
    assert codes(answer) == {(producer, TOPIC): ErrorCode.invalid_txn_state for producer in (5, 6)}
    (sent,) = bench.client.forwarded
    assert [p for m in sent.markers for t in m.topics for p in t.partition_indexes] == [-1]


@pytest.mark.parametrize("row", [PENDING, QUIESCING, CROSSED])
@pytest.mark.parametrize("others", [(), ("another",)])
async def test_who_may_write_no_markers_is_not_told_which_topics_are_tracked(
    bench: TrackedBench, row: Any, others: tuple[str, ...]
) -> None:
    """Kafka refuses the whole request, whatever topics it names."""
    bench.show(row)
    bench.client.broker[ApiKey.WRITE_TXN_MARKERS] = lambda request: broker_writes(
        request, ErrorCode.cluster_authorization_failed
    )
    assert set(codes(await bench.ask(markers(TOPIC, *others))).values()) == {
        ErrorCode.cluster_authorization_failed
    }
