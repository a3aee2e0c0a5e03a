"""Produces that wait: in order, within bounds of bytes and time."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.unit.gateway.fakes import LOG, TOPIC_ID, FakeClock
from tideline.domain.ids import TopicIdPartition
from tideline.domain.pipelining import ProducerBatch
from tideline.domain.request_handling import KafkaErrorCode
from tideline.gateway.produce.parking import Admission, AdmissionRefused, ParkedProduce, ParkingLot
from tideline.gateway.produce.wal import RefusedProduces

OTHER = TopicIdPartition(TOPIC_ID, 1)
TIMED_OUT = KafkaErrorCode.REQUEST_TIMED_OUT


@dataclass
class Bench:
    """A lot whose admission the test decides."""

    admission: Admission | AdmissionRefused = Admission.WAIT
    max_bytes: int = 1000
    clock: FakeClock = field(default_factory=FakeClock)
    told: list[tuple[str, Admission | KafkaErrorCode]] = field(default_factory=list)
    changed: Callable[[frozenset[TopicIdPartition]], None] | None = None
    opened: Callable[[], None] | None = None
    hurried: int = 0

    def __post_init__(self) -> None:
        self.refused: RefusedProduces = RefusedProduces(self.clock)
        self.lot = ParkingLot(
            self,
            self.refused,
            max_bytes=self.max_bytes,
            max_wait_s=20.0,
            clock=self.clock,
        )

    def admission_of(self, log: TopicIdPartition) -> Admission | AdmissionRefused:
        return self.admission

    def watch(
        self, *, some: Callable[[frozenset[TopicIdPartition]], None], every: Callable[[], None]
    ) -> None:
        """The test says itself when admission has changed."""
        self.changed, self.opened = some, every

    def hurry(self) -> None:
        self.hurried += 1

    def offer(
        self,
        name: str,
        *,
        log: TopicIdPartition = LOG,
        source: str = "a",
        size: int = 10,
        sequence: int = -1,
        max_wait_s: float = 60.0,
    ) -> None:
        producer = 7 if sequence >= 0 else -1
        self.lot.offer(
            log,
            ParkedProduce(
                source=source,
                size=size,
                batch=ProducerBatch(producer, 0, sequence),
                max_wait_s=max_wait_s,
                admit=lambda gate: self.told.append((name, gate)),
                refuse=lambda code: self.told.append((name, code)),
            ),
        )


async def test_an_open_gate_lets_through_at_once() -> None:
    bench = Bench(Admission.KAFKA)
    bench.offer("one")
    assert bench.told == [("one", Admission.KAFKA)]


async def test_what_waited_for_a_boundary_is_hurried_and_what_waited_for_room_is_not() -> None:
    bench = Bench()
    assert bench.changed is not None
    assert bench.opened is not None
    bench.offer("one")
    bench.offer("two", log=OTHER)
    bench.changed(frozenset({LOG}))
    assert not bench.hurried, "it still waits"
    bench.admission = Admission.KAFKA
    bench.changed(frozenset({LOG}))
    bench.admission = Admission.SUFFIX
    bench.opened()
    assert bench.told == [("one", Admission.KAFKA), ("two", Admission.SUFFIX)]
    assert not bench.hurried
    bench.admission = Admission.WAIT
    bench.offer("three")
    bench.offer("four", log=OTHER)
    bench.admission = Admission.SUFFIX
    bench.changed(frozenset({LOG, OTHER}))
    assert bench.hurried == 1


async def test_parked_produces_leave_in_the_order_of_their_arrival() -> None:
    bench = Bench()
    for name in ("one", "two", "three"):
        bench.offer(name, source=name)
    bench.admission = Admission.SUFFIX
    bench.lot.drain(LOG)
    assert bench.told == [(name, Admission.SUFFIX) for name in ("one", "two", "three")]
    assert bench.lot.parked_bytes == 0


async def test_a_newcomer_does_not_overtake_what_is_parked() -> None:
    """The gate is open again, but the lane has not been drained yet."""
    bench = Bench()
    bench.offer("one")
    bench.admission = Admission.SUFFIX
    bench.offer("two", source="b")
    bench.lot.drain(LOG)
    assert [name for name, _ in bench.told] == ["one", "two"]


async def test_draining_stops_when_the_gate_closes_again() -> None:
    bench = Bench()
    for name in ("one", "two"):
        bench.offer(name)
    bench.admission_of = lambda _: Admission.SUFFIX if not bench.told else Admission.WAIT  # type: ignore[method-assign]
    bench.lot.drain(LOG)
    assert bench.told == [("one", Admission.SUFFIX)]
    assert bench.lot.waiting(LOG) == 1


async def test_what_has_waited_too_long_is_refused_with_all_behind_it_on_its_connection() -> None:
    """Schedule 10."""
    bench = Bench()
    bench.offer("first of a", source="a")
    bench.clock.now += 15
    bench.offer("of b", source="b")
    bench.offer("second of a", source="a")
    bench.offer("other partition of a", source="a", log=OTHER)
    bench.clock.now += 6
    bench.lot.expire()
    assert bench.told == [("first of a", TIMED_OUT), ("second of a", TIMED_OUT)]
    bench.admission = Admission.SUFFIX
    bench.lot.drain_all()
    assert bench.told[2:] == [
        ("of b", Admission.SUFFIX),
        ("other partition of a", Admission.SUFFIX),
    ]


async def test_the_requests_own_timeout_is_a_bound_too() -> None:
    bench = Bench()
    bench.offer("hasty", max_wait_s=1.0)
    bench.clock.now += 1.5
    bench.lot.expire()
    assert bench.told == [("hasty", TIMED_OUT)]


async def test_a_hasty_produce_parked_behind_a_patient_one_is_refused_when_its_own_time_is_over(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """By the timer, which was set for the patient one."""
    bench = Bench()
    rings: list[float] = []

    class Timer:
        def cancel(self) -> None:
            rings.pop()

    def call_later(delay: float, _: object) -> Timer:
        rings.append(bench.clock.now + delay)
        return Timer()

    monkeypatch.setattr(asyncio.get_running_loop(), "call_later", call_later)
    bench.offer("patient")
    bench.offer("hasty", max_wait_s=1.0, source="b")
    assert rings == [bench.clock.now + 1.0]


async def test_what_has_not_waited_too_long_is_not_looked_at_when_something_else_has() -> None:
    """A thousand lanes wait; one of them is late, again and again."""
    bench = Bench(max_bytes=1_000_000)
    looked_at: list[ParkedProduce] = []

    class Lane(deque[ParkedProduce]):
        def __iter__(self) -> Iterator[ParkedProduce]:
            for entry in super().__iter__():
                looked_at.append(entry)
                yield entry

    for number in range(1000):
        log = TopicIdPartition(TOPIC_ID, 10 + number)
        bench.offer(f"patient {number}", log=log)
        bench.lot._lanes[log] = Lane(bench.lot._lanes[log])
    for round_ in range(10):
        bench.offer(f"hasty {round_}", max_wait_s=0.5)
        bench.clock.now += 1
        bench.lot.expire()
    assert bench.told == [(f"hasty {round_}", TIMED_OUT) for round_ in range(10)]
    assert not looked_at
    bench.lot.drop("a")


async def test_what_was_let_through_leaves_no_deadline_behind() -> None:
    """Parked and let through at once, over and over, while one produce waits on."""
    bench = Bench(max_bytes=1_000_000)
    bench.offer("waits", log=OTHER)
    bench.admission_of = lambda log: Admission.WAIT  # type: ignore[method-assign]
    for _ in range(1000):
        bench.offer("passes")
        bench.admission_of = (  # type: ignore[method-assign]
            lambda log: Admission.WAIT if log == OTHER else Admission.SUFFIX
        )
        bench.lot.drain(LOG)
        bench.admission_of = lambda log: Admission.WAIT  # type: ignore[method-assign]
    assert bench.lot.waiting(OTHER) == 1
    assert len(bench.lot._deadlines._heap) < 100
    bench.lot.drop("a")


async def test_past_the_bound_of_bytes_a_connection_is_refused_until_its_lane_is_empty() -> None:
    """A small one behind a large one that was refused would overtake it."""
    bench = Bench(max_bytes=100)
    bench.offer("fits", size=80)
    bench.offer("too much", size=30)
    bench.offer("small, behind it", size=5)
    bench.offer("small, of another", size=5, source="b")
    assert bench.told == [("too much", TIMED_OUT), ("small, behind it", TIMED_OUT)]
    bench.admission = Admission.SUFFIX
    bench.lot.drain(LOG)
    bench.offer("afterwards", size=5)
    assert [name for name, _ in bench.told[2:]] == ["fits", "small, of another", "afterwards"]


async def test_after_a_refusal_later_sequences_wait_for_the_refused_one() -> None:
    """Schedule 10: a producer without state may start anywhere, so it must start with this."""
    bench = Bench()
    bench.offer("sequence 0", sequence=0)
    bench.clock.now += 21
    bench.lot.expire()
    bench.admission = Admission.SUFFIX
    bench.offer("sequence 5, pipelined", sequence=5)
    bench.offer("sequence 0 again", sequence=0)
    bench.offer("sequence 5 again", sequence=5)
    assert bench.told == [
        ("sequence 0", TIMED_OUT),
        ("sequence 5, pipelined", TIMED_OUT),
        ("sequence 0 again", Admission.SUFFIX),
        ("sequence 5 again", Admission.SUFFIX),
    ]


async def test_what_waits_behind_a_batch_that_is_refused_elsewhere_is_refused_at_once() -> None:
    """Of the same producer and connection alone, and nothing that comes before it."""
    bench = Bench()
    for sequence in (4, 6, 7):
        bench.offer(f"sequence {sequence}", sequence=sequence)
    bench.offer("of another connection", source="b", sequence=6)
    bench.offer("of no producer")
    bench.offer("of another log", log=OTHER, sequence=6)
    bench.refused.refuse((LOG, "a"), ProducerBatch(7, 0, 5))
    assert bench.told == [("sequence 6", TIMED_OUT), ("sequence 7", TIMED_OUT)]
    assert bench.lot.parked_bytes == 40
    bench.offer("sequence 5", sequence=5)
    bench.offer("sequence 6 again", sequence=6)
    bench.admission = Admission.SUFFIX
    bench.lot.drain_all()
    assert [name for name, _ in bench.told[2:]] == [
        "sequence 4",
        "of another connection",
        "of no producer",
        "sequence 5",
        "sequence 6 again",
        "of another log",
    ]
    assert not bench.lot._of_producer


async def test_past_the_bound_of_bytes_the_refusal_may_empty_the_lane() -> None:
    bench = Bench(max_bytes=100)
    bench.offer("sequence 6", sequence=6, size=80)
    bench.offer("sequence 5", sequence=5, size=80)
    assert [name for name, _ in bench.told] == ["sequence 6", "sequence 5"]
    bench.admission = Admission.SUFFIX
    bench.offer("sequence 5 again", sequence=5)
    assert bench.told[-1] == ("sequence 5 again", Admission.SUFFIX)


async def test_a_gate_that_is_shut_for_good_answers_what_it_says() -> None:
    bench = Bench()
    bench.offer("parked")
    bench.admission = AdmissionRefused(KafkaErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
    bench.offer("new", log=OTHER)
    bench.lot.drain(LOG)
    code = KafkaErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert bench.told == [("new", code), ("parked", code)]


async def test_a_connection_that_ends_takes_its_parked_produces_along() -> None:
    bench = Bench()
    bench.offer("gone", source="a")
    bench.offer("stays", source="b")
    bench.lot.drop("a")
    bench.admission = Admission.KAFKA
    bench.lot.drain(LOG)
    assert bench.told == [("stays", Admission.KAFKA)]
    assert bench.lot.parked_bytes == 0


steps = st.lists(
    st.one_of(
        st.tuples(st.just("offer"), st.sampled_from("abc"), st.integers(1, 40)),
        st.tuples(st.just("gate"), st.sampled_from(list(Admission)), st.just(0)),
        st.tuples(st.just("pass"), st.just(""), st.integers(1, 25)),
    ),
    max_size=60,
)


@given(steps)
@pytest.mark.asyncio
async def test_a_connections_produces_are_let_through_in_order_and_never_after_a_later_one(
    plan: list[tuple[str, object, int]],
) -> None:
    """For any mix of arrivals, gates and time: order holds, and every one is told once or is
    still parked within the bounds."""
    bench = Bench(max_bytes=100)
    sent = 0
    for kind, what, number in plan:
        if kind == "offer":
            bench.offer(f"{what}{sent:04d}", source=str(what), size=number)
            sent += 1
        elif kind == "gate":
            assert isinstance(what, Admission)
            bench.admission = what
            bench.lot.drain_all()
        else:
            bench.clock.now += number
            bench.lot.expire()
        assert bench.lot.parked_bytes <= 100
    names = [name for name, _ in bench.told]
    assert len(names) == len(set(names)) == sent - bench.lot.waiting(LOG)
    for source in "abc":
        admitted = [n for n, how in bench.told if n[0] == source and isinstance(how, Admission)]
        assert admitted == sorted(admitted)
    if bench.lot._timer is not None:
        bench.lot._timer.cancel()
