"""Who is let in: bounds in all, by address, for strangers, and on the rate of an address."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from tideline.domain import admission
from tideline.domain.admission import AdmissionLimits, Admissions, Bound, Verdict


def books(
    connections: int = 100, per_address: int = 100, young: int = 100, rate: int = 0
) -> Admissions[int]:
    return Admissions(AdmissionLimits(connections, per_address, young, rate))


def test_one_beyond_the_bound_in_all_is_refused_until_another_one_leaves() -> None:
    door = books(connections=2)
    assert door.arrive(1, "a", 0).admitted
    assert door.arrive(2, "b", 0).admitted
    assert door.arrive(3, "c", 0) == Verdict(Bound.CONNECTIONS)
    door.leave(1)
    assert door.arrive(3, "c", 0).reached is None


def test_one_address_cannot_take_the_places_of_all() -> None:
    door = books(per_address=2)
    for guest in (1, 2):
        assert door.arrive(guest, "a", 0).admitted
        door.show(guest)
    assert door.arrive(3, "a", 0) == Verdict(Bound.ADDRESS)
    assert door.arrive(4, "b", 0).reached is None
    door.leave(1)
    assert door.arrive(3, "a", 0).reached is None


def test_the_oldest_stranger_of_the_address_that_has_most_gives_way() -> None:
    door = books(young=3)
    for guest, address in ((1, "client"), (2, "crowd"), (3, "crowd")):
        door.arrive(guest, address, 0)
    assert door.arrive(4, "other", 0) == Verdict(Bound.YOUNG, gives_way=2)
    assert (len(door), door.young) == (3, 3)


def test_who_has_shown_himself_never_gives_way() -> None:
    door = books(young=1)
    door.arrive(1, "a", 0)
    door.show(1)
    assert door.arrive(2, "a", 0).gives_way is None
    assert door.arrive(3, "a", 0).gives_way == 2
    assert len(door) == 2


def test_an_address_may_open_a_burst_and_then_so_many_in_a_second() -> None:
    door = books(rate=10)
    burst = int(10 * admission.BURST_S)
    for guest in range(burst):
        assert door.arrive(guest, "a", 0.0).throttle_s == 0
    beyond = door.arrive(burst, "a", 0.0)
    assert beyond.reached is Bound.RATE
    assert beyond.throttle_s == 0.1
    assert beyond.admitted
    assert door.arrive(1000, "b", 0.0).throttle_s == 0
    assert door.arrive(1001, "a", 0.3).throttle_s == 0


def test_a_throttled_one_waits_a_second_at_most_however_many_came() -> None:
    door = books(connections=10_000, per_address=10_000, young=10_000, rate=5)
    longest = max(door.arrive(guest, "a", 0.0).throttle_s for guest in range(1_000))
    assert longest == admission.LONGEST_THROTTLE_S
    assert door.arrive(5_000, "a", 1.3).throttle_s == 0, "what was closed is not owed for ever"


def test_addresses_that_were_quiet_for_longest_are_forgotten() -> None:
    door = books(connections=30_000, per_address=30_000, young=30_000, rate=1)
    for guest in range(admission.MOST_RATES + 10):
        door.arrive(guest, f"a{guest}", 0)
    assert len(door._rates) == admission.MOST_RATES


@given(
    st.lists(st.tuples(st.sampled_from("asl"), st.integers(0, 9), st.sampled_from("xyz"))),
    st.integers(1, 6),
    st.integers(1, 4),
    st.integers(1, 4),
)
def test_the_books_agree_with_what_happened(
    steps: list[tuple[str, int, str]], most: int, per_address: int, young: int
) -> None:
    door = books(most, per_address, young)
    there: dict[int, tuple[str, bool]] = {}
    for step, guest, address in steps:
        if step == "a" and guest not in there:
            verdict = door.arrive(guest, address, 0.0)
            if verdict.gives_way is not None:
                assert not there.pop(verdict.gives_way)[1]
            if verdict.admitted:
                there[guest] = (address, False)
        elif step == "s":
            door.show(guest)
            if guest in there:
                there[guest] = (there[guest][0], True)
        elif step == "l":
            door.leave(guest)
            there.pop(guest, None)
        strangers = [guest for guest, (_, shown) in there.items() if not shown]
        assert (len(door), door.young) == (len(there), len(strangers))
        assert len(there) <= most
        assert len(strangers) <= young
        for one in "xyz":
            assert sum(address == one for address, _ in there.values()) <= per_address
