"""A generated history that one log could have produced is accepted; one change is found."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.history.checker import judge
from tests.history.operations import (
    Commit,
    Committed,
    Fetch,
    ListOffsets,
    Operation,
    Outcome,
    Partition,
    Produce,
    Which,
)
from tests.history.violations import Kind

ORDERS = Partition("orders", 0)
GATEWAYS = ("g1", "g2")


@dataclass
class OneLog:
    """A log that does everything right, one step after the other; answers arrive late and in
    any order, as they may on a network."""

    draw: st.DataObject
    now: float = 0.0
    values: list[str] = field(default_factory=list)
    sent: dict[str, int] = field(default_factory=dict)
    read: dict[str, int] = field(default_factory=dict)
    commits: dict[str, int] = field(default_factory=dict)
    operations: list[Operation] = field(default_factory=list)

    def times(self) -> tuple[float, float, float]:
        """When the request leaves, when it takes effect (later than all before), when it is told"""
        before, after = self.draw.draw(st.tuples(*[st.floats(0.01, 3.0)] * 2))
        self.now += 1.0
        return self.now - before, self.now, self.now + after

    def via(self) -> str:
        return self.draw.draw(st.sampled_from(GATEWAYS))

    def produce(self, producer: str = "", outcome: Outcome | None = None) -> None:
        producer = producer or self.draw.draw(st.sampled_from(["p", "q", "plain"]))
        number = self.sent.get(producer, 0)
        self.sent[producer] = number + 1
        size = self.draw.draw(st.integers(1, 3))
        values = tuple(f"{producer}{number}.{place}" for place in range(size))
        invoked, _, answered = self.times()
        outcome = outcome or self.draw.draw(st.sampled_from([Outcome.ACKNOWLEDGED, *Outcome]))
        batch = Produce(
            ORDERS, producer, self.via(), invoked, answered, values, outcome, number,
            base_offset=len(self.values) if outcome is Outcome.ACKNOWLEDGED else None,
            idempotent=producer != "plain",
        )  # fmt: skip
        if outcome is Outcome.ACKNOWLEDGED or (
            outcome is Outcome.UNKNOWN and self.draw.draw(st.booleans())
        ):
            self.values.extend(values)
        self.operations.append(batch)

    def fetch(self, reader: str, most: int = 4) -> None:
        offset = self.read.get(reader, 0)
        records = tuple(enumerate(self.values))[offset : offset + most]
        invoked, _, answered = self.times()
        # One reader asks again after it was answered.
        invoked = max(invoked, self.answered_last(reader))
        self.operations.append(
            Fetch(
                ORDERS, reader, self.via(), invoked, max(answered, invoked), offset, records,
                high_watermark=len(self.values), log_start=0,
            )
        )  # fmt: skip
        self.read[reader] = offset + len(records)

    def answered_last(self, reader: str) -> float:
        fetches = [o for o in self.operations if isinstance(o, Fetch) and o.reader == reader]
        last = max((fetch.answered or 0.0 for fetch in fetches), default=-10.0)
        self.now = max(self.now, last)
        return last

    def end(self) -> None:
        invoked, _, answered = self.times()
        self.operations.append(
            ListOffsets(ORDERS, self.via(), invoked, answered, Which.LATEST, len(self.values))
        )

    def commit(self, group: str) -> None:
        invoked, _, answered = self.times()
        self.commits[group] = self.draw.draw(st.integers(0, len(self.values)))
        self.operations.append(
            Commit(ORDERS, group, self.via(), invoked, answered, self.commits[group])
        )

    def committed(self, group: str) -> None:
        invoked, _, answered = self.times()
        self.operations.append(
            Committed(ORDERS, group, self.via(), invoked, answered, self.commits.get(group))
        )

    def to_the_end(self) -> None:
        self.now += 100.0
        self.fetch("last", most=len(self.values) + 1)


def history(data: st.DataObject) -> OneLog:
    log = OneLog(data)
    log.produce("p", Outcome.ACKNOWLEDGED)
    log.produce("q", Outcome.REFUSED)
    log.produce("p", Outcome.ACKNOWLEDGED)
    steps = st.sampled_from(["produce", "produce", "a", "b", "end", "commit", "committed"])
    for step in data.draw(st.lists(steps, min_size=3, max_size=25)):
        match step:
            case "produce":
                log.produce()
            case "end":
                log.end()
            case "commit":
                log.commit("group")
            case "committed":
                log.committed("group")
            case reader:
                log.fetch(reader)
    log.to_the_end()
    return log


@settings(max_examples=150, deadline=None)
@given(st.data())
def test_what_one_log_did_is_accepted_however_late_it_was_told(data: st.DataObject) -> None:
    log = history(data)
    assert [str(violation) for violation in judge(log.operations)] == []


Mutation = Callable[[OneLog, st.DataObject], Kind]


def last_fetch(log: OneLog) -> Fetch:
    last = log.operations[-1]
    assert isinstance(last, Fetch)
    return last


def acknowledged(log: OneLog) -> list[Produce]:
    return [
        o for o in log.operations if isinstance(o, Produce) and o.outcome is Outcome.ACKNOWLEDGED
    ]


def pick(data: st.DataObject, produces: list[Produce]) -> Produce:
    return data.draw(st.sampled_from(produces))


def without(fetch: Fetch, gone: str) -> Fetch:
    records = tuple(record for record in fetch.records if record[1] != gone)
    return replace(fetch, records=records, next_offset=fetch.position_after)


def lose_a_record(log: OneLog, data: st.DataObject) -> Kind:
    gone = pick(data, acknowledged(log)).values[0]
    log.operations = [
        replace(
            o, records=tuple(r for r in o.records if r[1] != gone), next_offset=o.position_after
        )
        if isinstance(o, Fetch)
        else o
        for o in log.operations
    ]
    return Kind.LOST


def show_a_record_again(log: OneLog, data: st.DataObject) -> Kind:
    value = pick(data, acknowledged(log)).values[0]
    fetch = last_fetch(log)
    log.operations[-1] = replace(fetch, records=(*fetch.records, (fetch.position_after, value)))
    return Kind.TWICE


def swap_the_first_two(log: OneLog, data: st.DataObject) -> Kind:
    fetch = last_fetch(log)
    (one, first), (two, second), *rest = fetch.records
    log.operations[-1] = replace(fetch, records=((one, second), (two, first), *rest))
    return Kind.DIFFERENT


def swap_what_a_producer_sent(log: OneLog, data: st.DataObject) -> Kind:
    one, two, *_ = [p for p in acknowledged(log) if p.producer == "p"]
    swapped = {
        one.number: replace(one, number=two.number),
        two.number: replace(two, number=one.number),
    }
    log.operations = [
        swapped.get(o.number, o) if isinstance(o, Produce) and o.producer == "p" else o
        for o in log.operations
    ]
    return Kind.REORDERED


def forget_the_end(log: OneLog, data: st.DataObject) -> Kind:
    pick(data, acknowledged(log))
    at = log.now + 1000.0
    log.operations.append(
        ListOffsets(ORDERS, "g1", at, at, Which.LATEST, data.draw(st.integers(0, 0)))
    )
    # Either is right: what was acknowledged is shown as an end by the last fetch too.
    return Kind.STALE if judge(log.operations)[-1].kind is Kind.STALE else Kind.BACK


def put_a_reader_back(log: OneLog, data: st.DataObject) -> Kind:
    fetch = last_fetch(log)
    at = log.now + 1000.0
    log.operations.append(replace(fetch, invoked=at, answered=at, records=fetch.records[:1]))
    return Kind.SENT


def show_what_was_refused(log: OneLog, data: st.DataObject) -> Kind:
    refused = [o for o in log.operations if isinstance(o, Produce) and o.outcome is Outcome.REFUSED]
    value = pick(data, refused).values[0]
    fetch = last_fetch(log)
    log.operations[-1] = replace(fetch, records=(*fetch.records, (fetch.position_after, value)))
    return Kind.INVENTED


def forget_a_commit(log: OneLog, data: st.DataObject) -> Kind:
    at = log.now + 1000.0
    log.operations += [
        Commit(ORDERS, "other", "g1", at, at + 1, 7),
        Committed(ORDERS, "other", "g2", at + 2, at + 3, data.draw(st.sampled_from([None, 6]))),
    ]
    return Kind.BACK


@pytest.mark.parametrize(
    "mutation",
    [
        lose_a_record,
        show_a_record_again,
        swap_the_first_two,
        swap_what_a_producer_sent,
        forget_the_end,
        put_a_reader_back,
        show_what_was_refused,
        forget_a_commit,
    ],
    ids=lambda mutation: mutation.__name__,
)
def test_one_change_of_it_is_found(mutation: Mutation) -> None:
    @settings(max_examples=25, deadline=None)
    @given(st.data())
    def changed(data: st.DataObject) -> None:
        log = history(data)
        assert judge(log.operations) == []
        kind = mutation(log, data)
        assert kind in {violation.kind for violation in judge(log.operations)}

    changed()
