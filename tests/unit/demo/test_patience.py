from __future__ import annotations

from tideline.demo.patience import MOST, Patience, crowd


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


def waited(seconds: float, wanted_by: float) -> int:
    """Whole seconds until a wait of ``seconds`` is over."""
    clock = Clock()
    patience = Patience(seconds, crowd=lambda: wanted_by, clock=clock)
    while not patience.over:
        clock.now += 1
    return int(clock.now)


def test_a_wait_lasts_as_said_where_there_is_a_core_for_each_program() -> None:
    assert waited(60, 0.5) == waited(60, 1.0) == 60


def test_a_wait_grows_with_the_programs_that_want_a_core_up_to_a_bound() -> None:
    assert waited(60, 4.0) == 240
    assert waited(60, 1_000.0) == 60 * MOST


def test_a_wait_that_is_begun_anew_counts_from_then() -> None:
    clock = Clock()
    patience = Patience(10, crowd=lambda: 1.0, clock=clock)
    clock.now = 9
    assert not patience.over
    patience.renew()
    clock.now = 18
    assert not patience.over
    clock.now = 19
    assert patience.over


def test_this_process_counts_as_a_program_that_wants_a_core() -> None:
    assert crowd() > 0
