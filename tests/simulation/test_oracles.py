"""What only one oracle sees: each is shown by a bug that breaks nothing else of what is told."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from itertools import pairwise
from typing import Any
from unittest.mock import patch

import pytest
import structlog

from activities import seed_and_persist
from tests.history.violations import Kind
from tests.simulation.faults import LEADERS, Fault
from tests.simulation.loop import VirtualLoop
from tests.simulation.run import simulate
from tests.simulation.shrink import kinds_of
from tests.simulation.unplanned import Unplanned
from tideline.control_plane.memory import partition, suffix
from tideline.control_plane.model import CommitError
from tideline.domain.producer_state import entries_from_seeds
from tideline.gateway.fetch.from_suffix import HighWatermarks
from tideline.gateway.produce.commit_stream import CommitStream
from tideline.gateway.produce.parking import Admission, ParkingLot
from tideline.gateway.produce.wal import WalWriter
from tideline.kafka.errors import KafkaUnavailable
from tideline.kafka.log_reader import TailScanner

Change = tuple[Any, str, Any]
RESETS = [
    Fault("reset clients' connections to", after, at, 0.0, LEADERS)
    for after in ("quiesce", "roll", "seed")
    for at in (0.0, 0.004)
]
LATE_APPEND = [
    Fault("cut one way", "track ended", 0.0, 0.0005, LEADERS, "broker2", until="roll ended")
]


@contextmanager
def planted(*changes: Change) -> Iterator[None]:
    with ExitStack() as stack:
        for owner, name, new in changes:
            stack.enter_context(patch.object(owner, name, new))
        yield


def the_newest_batch_of_each_producer() -> tuple[Change, ...]:
    def newest(seeds: Any, now_ms: int) -> Any:
        last = {seed.producer_id: seed for seed in sorted(seeds, key=lambda s: s.base_offset)}
        return entries_from_seeds(last.values(), now_ms)

    return ((partition, "entries_from_seeds", newest),)


def parked_batches_without_idempotence_leave_backwards() -> tuple[Change, ...]:
    drain = ParkingLot.drain

    def backwards(self: ParkingLot, log: Any) -> bool:
        lane = self._lanes.get(log)
        if lane and self._rules.admission_of(log) is Admission.SUFFIX:
            plain = [entry for entry in lane if entry.batch.producer_id < 0]
            waiting = [plain.pop() if e.batch.producer_id < 0 else e for e in lane]
            lane.clear()
            lane.extend(waiting)
        return drain(self, log)

    return ((ParkingLot, "drain", backwards),)


def reads_from_the_midst_of_a_batch_begin_with_the_next() -> tuple[Change, ...]:
    def next_ones(batches: Any, offset: int) -> Any:
        """Behind the last one there is none, and a hole would be told as an error."""
        behind = [batch for batch in batches if batch.base_offset >= offset]
        return behind or [batch for batch in batches if batch.last_offset >= offset]

    return ((suffix, "unbroken", next_ones),)


def every_fifth_end_is_one_too_low() -> tuple[Change, ...]:
    known, times = HighWatermarks.known, itertools.count()

    def lower(self: HighWatermarks, log: Any) -> int:
        found = known(self, log)
        return found - 1 if found > 0 and next(times) % 5 == 0 else found

    return ((HighWatermarks, "known", lower),)


def the_second_batch_of_a_time() -> tuple[Change, ...]:
    def second(batches: Any, timestamp: int) -> Any:
        found = [batch for batch in batches if batch.max_timestamp >= timestamp]
        return found[1] if len(found) > 1 else next(iter(found), None)

    return ((suffix, "_first_at", second),)


def the_end_before_the_producers_alone() -> tuple[Change, ...]:
    """A late append's retry is told that it is stored, without an offset."""

    async def says_nothing(services: Any, given: Any, layout: Any) -> None:
        return None

    return ((seed_and_persist, "_confirm_end", says_nothing),)


def a_slip_that_a_retry_hides() -> tuple[Change, ...]:
    look_back, times = TailScanner.look_back, itertools.count()

    async def slips(self: TailScanner, *given: Any, **named: Any) -> Any:
        if next(times) == 0:
            raise TypeError("a slip")
        return await look_back(self, *given, **named)

    return ((TailScanner, "look_back", slips),)


def two_outcomes_of_one_object_are_told_the_other_way_round() -> tuple[Change, ...]:
    committed, tell = WalWriter._committed, CommitStream.committed
    current: list[Any] = []

    def noted(self: Any, obj: Any, outcomes: Any) -> None:
        current.append(obj)
        try:
            committed(self, obj, outcomes)
        finally:
            current.pop()

    def exchanged(self: Any, sequence: int, key: str, count: int, live: Any, told: Any) -> None:
        batches, told = [current[-1].placed[place] for place in live], list(told)
        for number, (one, other) in enumerate(pairwise(batches)):
            alike = (one.log, one.record_count) == (other.log, other.record_count)
            done = {outcome.error for outcome in told[number : number + 2]} == {CommitError.NONE}
            if alike and done and one.producer_id != other.producer_id:
                told[number : number + 2] = told[number + 1], told[number]
                break
        tell(self, sequence, key, count, live, told)

    return ((WalWriter, "_committed", noted), (CommitStream, "committed", exchanged))


@pytest.mark.parametrize(
    ("plant", "seed", "faults", "kind"),
    [
        (the_newest_batch_of_each_producer, 1, RESETS, Kind.FATAL),
        (parked_batches_without_idempotence_leave_backwards, 2, [], Kind.REORDERED),
        (reads_from_the_midst_of_a_batch_begin_with_the_next, 7, [], Kind.LOST),
        (every_fifth_end_is_one_too_low, 1, [], Kind.BACK),
        (the_second_batch_of_a_time, 1, [], Kind.LOST),
        (the_end_before_the_producers_alone, 3, LATE_APPEND, Kind.LOST),
        (a_slip_that_a_retry_hides, 1, [], Kind.UNPLANNED),
        (two_outcomes_of_one_object_are_told_the_other_way_round, 1, [], Kind.MISTOLD),
    ],
    ids=lambda given: getattr(given, "__name__", None),
)
def test_a_bug_is_seen_by_its_oracle_alone(
    plant: Callable[[], tuple[Change, ...]], seed: int, faults: list[Fault], kind: Kind
) -> None:
    result = simulate(seed, faults, planted(*plant()))
    assert kinds_of(result) == {kind}, result.text()


# -- exceptions that nobody planned


async def _raise(error: BaseException) -> None:
    raise error


def _told(error: BaseException | None, log_as: str = "") -> list[str]:
    """What is told of a task that ends by ``error``, which is caught; or that is logged."""
    loop = VirtualLoop()
    unplanned = Unplanned(loop)

    async def run() -> None:
        try:
            await asyncio.ensure_future(_raise(error) if error else asyncio.sleep(0))
        except BaseException:
            if log_as:
                structlog.get_logger().exception(log_as)
        if error is None:
            structlog.get_logger().critical(log_as, exc_info=None)

    with structlog.testing.capture_logs() as logs:
        loop.run_until_complete(run())
    for entry in logs:
        with pytest.raises(structlog.DropEvent):
            unplanned.processor(None, "", {**entry, "exc_info": error})
    return [str(violation) for violation in unplanned.found]


@pytest.mark.parametrize("error", [TypeError("a"), KeyError("b"), AssertionError("c")])
def test_a_task_that_ends_by_a_slip_is_told_also_where_somebody_catches_it(
    error: BaseException,
) -> None:
    (told,) = _told(error)
    assert type(error).__name__ in told


@pytest.mark.parametrize(
    "error", [KafkaUnavailable("away"), TimeoutError(), ConnectionResetError("reset")]
)
def test_what_somebody_named_and_what_comes_from_outside_is_planned(error: BaseException) -> None:
    assert _told(error, "request failed") == []


def test_an_object_that_fails_for_whatever_reason_but_its_own_is_told() -> None:
    assert len(_told(KafkaUnavailable("away"), "wal.unexpected")) == 1


def test_a_kept_task_that_ends_without_an_error_is_told() -> None:
    assert len(_told(None, "a background task ended")) == 1
