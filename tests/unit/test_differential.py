"""The odd requests that a gateway and a broker are asked (``tests/differential``)."""

from __future__ import annotations

from collections import Counter
from types import SimpleNamespace

import pytest

from tests.differential import sides
from tests.differential.answers import differing
from tests.differential.differences import BY_DESIGN, OF_PARTITIONS, Seen, named_twice
from tests.differential.questions import (
    BATCHES,
    ODD_NAMES,
    Edges,
    Question,
    Questions,
    batches_of,
)
from tests.differential.sides import Side, twin_of


def asked(count: int) -> list[Question]:
    """The first ones of a seed."""
    questions = Questions(1, {"orders": range(2)}, {"orders": Edges((0, 1), (0, 1))})
    return [questions.next(lambda *_: True) for _ in range(count)]


def test_every_api_that_is_about_partitions_is_asked_of_one_twice() -> None:
    twice = Counter(question.api for question in asked(4_000) if named_twice(question))
    assert twice.keys() >= OF_PARTITIONS, twice


def test_two_batches_of_one_partition_are_the_same_or_well_made_ones_that_differ() -> None:
    produces = [question for question in asked(4_000) if question.api == "Produce"]
    twice = [{b.kind for b in batches_of(one.values)} for one in produces if named_twice(one)]
    assert {1, 2} <= {len(kinds) for kinds in twice}
    assert all(len(kinds) < 2 or kinds <= set(BATCHES.usual) for kinds in twice)
    assert any(kinds and kinds.isdisjoint(BATCHES.usual) for kinds in twice)


def test_the_topics_of_both_sides_stand_in_the_same_places_among_odd_names() -> None:
    """DescribeTopicPartitions answers in the order of names, up to a limit."""
    own = ["moving-1-2", "born-of-moving-1-2", "classic-of-moving-1-2"]
    twins = {twin_of(name): name for name in own}
    told = sorted([*twins, *ODD_NAMES])
    assert [twins.get(name, name) for name in told] == sorted([*own, *ODD_NAMES])


def test_a_gateway_that_takes_no_connection_for_a_moment_is_asked_when_it_does(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """As one does whose broker is busy. Nothing was asked by then, so a produce may be repeated."""
    left = [ConnectionRefusedError(), ConnectionRefusedError()]

    def connection(*_: object) -> SimpleNamespace:
        if left:
            raise left.pop()
        return SimpleNamespace(ask=lambda _: "answered")

    monkeypatch.setattr(sides, "Connection", connection)
    side = Side({1: "127.0.0.1:1"}, {}, {}, 0)
    question = Question(1, "ListOffsets", 5, "leader", 0, "moving", {
        "replica_id": -1, "isolation_level": 0, "topics": [],
    })  # fmt: skip
    assert side.ask(question, 1) == "answered"
    assert not left


def test_a_topic_that_the_broker_names_again_has_the_same_partitions_at_the_gateway() -> None:
    def row(partition: int, **values: object) -> dict[str, object]:
        return {"partition": partition, "error_code": "none", "records": [], **values}

    def topics(*rows: tuple[str, list[dict[str, object]]]) -> dict[str, object]:
        return {"responses": [{"topic": name, "partitions": some} for name, some in rows]}

    broker = topics(("moving", [row(2)]), ("other", [row(5)]), ("moving", [row(-7, offset=-1)]))
    question = Question(1, "Fetch", 8, "leader", 2, "moving", {})
    (rule,) = (rule for rule in BY_DESIGN if rule.name == "topics-once")
    for same, told, other in (
        (True, row(-7, offset=-1), row(2)),
        (False, row(-7, offset=0), row(2)),
        (False, row(-7), row(2)),
        (False, row(-7, offset=-1), {"partition": 2, "records": []}),
    ):
        gateway = topics(("other", [row(5)]), ("moving", [told, other]))
        pairs = differing(gateway, broker)
        assert pairs
        seen = [Seen(question, {"moving": ()}, path, *pair, pairs) for path, pair in pairs.items()]
        assert all(rule.applies(one) for one in seen) is same
