"""A topic that is deleted and created again under its name while clients go on, judged by what they
were told (docs/proof.md)."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import replace
from uuid import UUID

import pytest
from confluent_kafka import KafkaException
from confluent_kafka.admin import NewTopic

from tests.harness import Breakpoint, Case, create_topics, delete_topics, id_of, migration_case
from tests.history.checker import judge
from tests.history.operations import (
    Fetch,
    Operation,
    Outcome,
    Partition,
    Produce,
    TransactionEnd,
    Value,
)
from tests.recorder import BOUNDS, Recorder
from tests.support.waiting import until
from tideline.demo import topic as topics
from tideline.demo.ledger import Ledger
from tideline.domain.migration import Phase
from tideline.stack import Stack

PRODUCERS = ("idempotent", "plain")


def test_a_hybrid_topic_replaced_under_its_producers_gives_nothing_to_the_next_one(
    stack: Stack,
) -> None:
    """The same producers write to a topic with a suffix, to nothing, to the classic topic that
    takes its name, and to that one's suffix."""
    with ExitStack() as held:
        case, recorder = written(stack, held)
        case.trigger()
        (boundary,) = case.until_crossed()
        until("a suffix", lambda: recorder.told_through("plain") > boundary + 20)
        replaced(case, recorder, held)


@pytest.mark.parametrize("phase", [Phase.DRAIN_TRANSACTIONS, Phase.READINESS])
def test_a_topic_replaced_while_it_migrates_gives_nothing_to_the_next_one(
    stack: Stack, phase: Phase
) -> None:
    """Before B0 and after it. What the migration had under way goes on when the next topic has the
    name, and does nothing to it: that one migrates when it is asked to."""
    with ExitStack() as held:
        case, recorder = written(stack, held)
        stop = Breakpoint(case.superuser_dsn, case.topic_id, phase)
        held.callback(stop.release)
        case.trigger()
        stop.wait_until_hit()
        assert (case.boundaries()[0] >= 0) == (phase is Phase.READINESS)
        recorder.until_told(*PRODUCERS)
        replaced(case, recorder, held, when_created=stop.release)


def written(stack: Stack, held: ExitStack) -> tuple[Case, Recorder]:
    """A topic to which both producers write until ``held`` is over."""
    case = held.enter_context(migration_case(stack, name="replaced", history=0))
    recorder = Recorder(case.topic)
    held.callback(recorder.stop)
    for name in PRODUCERS:
        recorder.produce(name, case.bootstrap, idempotent=name == "idempotent")
    recorder.until_told(*PRODUCERS)
    return case, recorder


def replaced(
    case: Case,
    recorder: Recorder,
    held: ExitStack,
    when_created: Callable[[], object] = lambda: None,
) -> None:
    """Delete the topic, create the next one, migrate that, and judge both."""
    gateways = {str(n): where for n, where in case.stack.endpoints.gateways.items()}
    end = recorder.read_through(gateways)
    deleting, deleted = len(recorder.operations), time.monotonic()
    delete_topics(case.admin, case.topic)
    again = Case(
        case.stack, case.topic, 1, created_again(case), Ledger(), case.admin, case.bootstrap
    )
    held.callback(again.stop)
    created = time.monotonic()
    when_created()
    recorder.until_told(*PRODUCERS)
    assert again.boundaries() == [], "nobody has asked for its migration"
    again.trigger()
    (next_boundary,) = again.until_crossed()
    recorder.until_told(*PRODUCERS, more=50)
    recorder.stop()
    second = Recorder(case.topic)
    assert next_boundary < second.read_through(gateways)

    seen = values(second.operations)
    first = [o for o in until_deleted(recorder.operations, deleting, deleted, end, seen)
             if not isinstance(o, Produce) or (o.base_offset or 0) < end]  # fmt: skip
    judged("the first", case.topic_id, first)
    told = {v for o in first if isinstance(o, Produce) and o.base_offset is not None
            for v in o.values}  # fmt: skip
    assert told
    assert not seen & told, "the next topic has records that the first one had told"
    # What was under way while there was no topic belongs to the one in which it is found.
    sent = [o for o in recorder.operations if isinstance(o, Produce)]
    after = [o for o in sent if o.invoked > created or seen & set(o.values)]
    assert len(after) > 100
    judged("the next", again.topic_id, [*after, *second.operations])


def until_deleted(
    operations: list[Operation], deleting: int, deleted: float, end: int, seen: set[Value]
) -> list[Operation]:
    """Of the first topic. What was sent to it may be told later; what the next topic has, too, was
    under way at the deletion, and its producer sent it again (Kafka's clients know names)."""
    found: list[Operation] = []
    for place, one in enumerate(operations):
        if not isinstance(one, Produce):
            if place < deleting:
                found.append(below(end, one))
        elif one.invoked < deleted:
            again = seen & set(one.values)
            found.append(replace(one, base_offset=None, outcome=Outcome.UNKNOWN) if again else one)
    return found


def below(end: int, one: Operation) -> Operation:
    """A reader may be given more than was there when the end was asked for."""
    if not isinstance(one, Fetch):
        return one
    return replace(one, records=tuple(r for r in one.records if r[0] < end))


def created_again(case: Case) -> UUID:
    """The id of a tiered topic of the same name."""

    def create() -> bool:
        try:
            create_topics(case.admin, NewTopic(case.topic, 1, 3, config=topics.TIERED_CONFIGS))
        except KafkaException:
            return False  # a broker still knows the first one
        return True

    def known() -> UUID | None:
        found = id_of(case.admin, case.topic)
        return None if found == case.topic_id else found

    until("the name to be free", create)
    return until("the next topic to be known", known)


def values(operations: list[Operation]) -> set[Value]:
    """What readers were shown."""
    return {value for o in operations if isinstance(o, Fetch) for _, value in o.records}


def judged(which: str, topic_id: UUID, operations: list[Operation]) -> None:
    partition = Partition(str(topic_id))
    renamed = [
        replace(o, partition=partition) for o in operations if not isinstance(o, TransactionEnd)
    ]
    found = judge(renamed, BOUNDS)
    assert [str(violation) for violation in found] == [], which
