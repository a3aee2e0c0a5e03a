"""The ledger finds every kind of damage, and nothing where there is none."""

from __future__ import annotations

import pytest

from tideline.demo.ledger import NOT_TOLD, Acknowledgement, Ledger, quantile, write_pause


def acked(ledger: Ledger, offset: int, record_id: str, at: float = 0.0) -> None:
    ledger.acknowledge(0, Acknowledgement(offset, record_id, at, 1.0))


def test_a_log_that_was_read_as_written_is_ok() -> None:
    ledger = Ledger()
    for n in range(5):
        acked(ledger, n, f"a/0/{n}")
        ledger.consume(0, n, f"a/0/{n}")
    assert ledger.verdict(0).ok


def test_an_acknowledged_record_that_nobody_reads_is_lost() -> None:
    ledger = Ledger()
    acked(ledger, 0, "a/0/0")
    acked(ledger, 1, "a/0/1")
    ledger.consume(0, 0, "a/0/0")
    assert ledger.verdict(0).lost == ("a/0/1@1",)


def test_a_record_at_two_offsets_is_a_duplicate() -> None:
    ledger = Ledger()
    ledger.consume(0, 0, "a/0/0")
    ledger.consume(0, 1, "a/0/0")
    assert ledger.verdict(0).duplicated == ("a/0/0 at [0, 1]",)


def test_an_acknowledgement_without_an_offset_is_for_wherever_the_record_is_read() -> None:
    ledger = Ledger()
    acked(ledger, NOT_TOLD, "a/0/0")
    assert ledger.verdict(0).lost == ("a/0/0@-1",)
    ledger.consume(0, 435, "a/0/0")
    assert ledger.verdict(0).ok


def test_a_record_read_at_another_offset_than_acknowledged_is_misplaced() -> None:
    ledger = Ledger()
    acked(ledger, 4, "a/0/0")
    ledger.consume(0, 5, "a/0/0")
    assert len(ledger.verdict(0).misplaced) == 1


def test_a_later_record_of_one_producer_before_an_earlier_one_is_a_reordering() -> None:
    ledger = Ledger()
    for offset, sequence in enumerate((0, 2, 1)):
        ledger.consume(0, offset, f"a/0/{sequence}")
    assert ledger.verdict(0).reordered == ("a/0/1",)


def test_an_offset_seen_twice_means_the_consumer_was_sent_back() -> None:
    ledger = Ledger()
    ledger.consume(0, 0, "a/0/0")
    ledger.consume(0, 0, "a/0/0")
    verdict = ledger.verdict(0)
    assert verdict.sent_back == 1
    assert not verdict.duplicated


def test_a_skipped_offset_is_a_gap() -> None:
    ledger = Ledger()
    ledger.consume(0, 7, "a/0/0")
    ledger.consume(0, 10, "a/0/1")
    assert ledger.verdict(0).gaps == ((8, 9),)


def test_the_write_pause_is_the_longest_gap_less_the_steady_latency() -> None:
    acks = [Acknowledgement(n, f"a/0/{n}", at, 20.0) for n, at in enumerate((0, 0.1, 0.4, 0.5))]
    pause = write_pause(0, acks, boundary=2)
    assert pause is not None
    assert pause.raw_gap_ms == pytest.approx(300)
    assert pause.pause_ms == pytest.approx(280)


def test_no_pause_is_claimed_where_nothing_was_acknowledged_before_the_boundary() -> None:
    assert write_pause(0, [Acknowledgement(5, "a/0/0", 1.0, 2.0)], boundary=5) is None


@pytest.mark.parametrize(("q", "expected"), [(0.5, 2.0), (0.99, 4.0), (1.0, 4.0)])
def test_quantiles_are_by_nearest_rank(q: float, expected: float) -> None:
    assert quantile([4.0, 1.0, 2.0, 3.0], q) == expected
