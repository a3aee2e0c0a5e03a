"""The picture shows every range once, on one scale, with its bounds."""

from __future__ import annotations

from tideline.demo.report import Moment, draw
from tideline.domain.tiering import LogBounds

CLASSIC = LogBounds(
    log_start=0, boundary=-1, suffix_start=-1, tiered_high_offset=-1, high_watermark=30
)
HYBRID = LogBounds(
    log_start=0, boundary=30, suffix_start=30, tiered_high_offset=29, high_watermark=60
)
TIERED = LogBounds(
    log_start=0, boundary=30, suffix_start=30, tiered_high_offset=49, high_watermark=60
)


def test_each_moment_is_a_line_with_the_ranges_in_order_and_their_ends() -> None:
    lines = draw(
        [
            Moment("classic", {0: CLASSIC}, 0),
            Moment("hybrid", {0: HYBRID}, 300),
            Moment("tiered", {0: TIERED}, 100),
        ],
        width=60,
    )
    assert lines[2:5] == [
        "   0  classic  0 " + "▒" * 30 + " 30",
        "      hybrid   0 " + "▓" * 30 + " 30 " + "░" * 30 + " 60",
        "      tiered   0 " + "▓" * 30 + " 30 " + "█" * 20 + " 50 " + "░" * 10 + " 60",
    ]
    assert lines[-1] == "rows of batches in Postgres, tiered   100"


def test_a_short_range_beside_a_long_one_is_still_seen() -> None:
    long = LogBounds(0, 100_000, 100_000, 99_999, 100_001)
    (line,) = draw([Moment("now", {7: long}, 1)])[2:3]
    assert line.endswith("100000 ░ 100001")


def test_an_empty_partition_says_so() -> None:
    empty = LogBounds(0, 0, 0, -1, 0)
    assert draw([Moment("now", {0: empty}, 0)])[2].endswith("empty")
