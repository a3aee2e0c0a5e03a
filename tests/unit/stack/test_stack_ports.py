"""Ports stay where they were, move when taken, and never collide."""

from __future__ import annotations

import socket

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tideline.stack.errors import StackError
from tideline.stack.ports import LOOPBACK, allocate, is_free, preferred


def test_the_usual_ports_are_taken_when_they_are_free() -> None:
    assert allocate(preferred(3), {}, lambda _: True) == preferred(3)


def test_a_remembered_port_wins_over_the_usual_one() -> None:
    chosen = allocate({"postgres": 15432}, {"postgres": 16000}, lambda _: True)
    assert chosen == {"postgres": 16000}


def test_a_taken_port_moves_and_the_others_stay() -> None:
    wanted = preferred(3)
    chosen = allocate(wanted, {}, lambda port: port != wanted["kafka-2"])
    moved = {name for name, port in chosen.items() if port != wanted[name]}
    assert moved == {"kafka-2"}


def test_a_listener_makes_a_port_taken() -> None:
    with socket.create_server((LOOPBACK, 0)) as listener:
        port = listener.getsockname()[1]
        assert not is_free(port)
    assert is_free(port)


def test_no_free_port_is_an_error_that_names_the_listener() -> None:
    with pytest.raises(StackError, match="no free port for postgres: tried 15432"):
        allocate({"postgres": 15432}, {}, lambda _: False)


@given(
    brokers=st.integers(1, 9),
    taken=st.sets(st.integers(15000, 20000), max_size=300),
    remembered=st.dictionaries(st.sampled_from(sorted(preferred(9))), st.integers(15000, 20000)),
)
def test_chosen_ports_are_free_distinct_and_below_the_kernels_own(
    brokers: int, taken: set[int], remembered: dict[str, int]
) -> None:
    wanted = preferred(brokers)
    chosen = allocate(wanted, remembered, lambda port: port not in taken)
    assert chosen.keys() == wanted.keys()
    assert len(set(chosen.values())) == len(chosen)
    assert not taken & set(chosen.values())
    assert max(chosen.values()) < 32768
