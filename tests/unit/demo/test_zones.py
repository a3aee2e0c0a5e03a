"""What the demo of racks concludes follows from what was counted, and from nothing else."""

from __future__ import annotations

import json

import pytest
from rich.console import Console

from tideline.demo.ledger import Acknowledgement, Ledger
from tideline.demo.racks import stage_table, summary
from tideline.demo.report import Check
from tideline.demo.zones import (
    Crossing,
    Meter,
    Placed,
    Stage,
    acknowledged_since,
    by_broker,
    has_passed,
    in_sync_but,
    longest_gap_ms,
    one_in_each_rack,
    rack_gap_ms,
    racks_led_in,
    since,
)

RACKS = {1: "a", 2: "b", 3: "c", 4: "a"}


def exposition(started: float, **zones: float) -> str:
    """What a gateway tells of bytes that were produced."""
    rows = [
        f'inkless_gateway_suffix_bytes_total{{direction="produced",zone="{zone}"}} {size}'
        for zone, size in zones.items()
    ]
    return "\n".join(
        [
            "# TYPE inkless_gateway_suffix_bytes_total counter",
            *rows,
            "# TYPE process_start_time_seconds gauge",
            f"process_start_time_seconds {started}",
            "",
        ]
    )


def ledger(*acks: tuple[int, str, float]) -> Ledger:
    """Partition, producer, when; offsets as they come."""
    made = Ledger()
    for offset, (partition, producer, at) in enumerate(acks):
        record = f"{producer}/{partition}/{offset}"
        made.acknowledge(partition, Acknowledgement(offset, record, at, 1.0))
    return made


def test_bytes_of_all_gateways_are_added() -> None:
    meter = Meter()
    meter.read("gateway-1", exposition(1.0, same=10, other=20))
    meter.read("gateway-2", exposition(1.0, same=5, unknown=7))
    assert meter.total == {"produced": Crossing(15, 20, 7), "fetched": Crossing()}


def test_a_gateway_that_restarts_counts_from_zero_and_what_it_had_counted_stays() -> None:
    meter = Meter()
    meter.read("gateway-1", exposition(1.0, same=10))
    before = meter.total
    meter.read("gateway-1", exposition(1.0, same=30))
    meter.read("gateway-1", exposition(2.0, same=4))
    meter.read("gateway-1", exposition(2.0, same=40))
    assert since(meter.total, before)["produced"] == Crossing(60)


def test_the_share_that_leaves_is_of_those_who_say_where_they_are() -> None:
    assert Crossing(same=1, other=2, unknown=9).leaving == pytest.approx(2 / 3)
    assert Crossing(unknown=9).leaving == 0.0


@pytest.mark.parametrize(
    ("times", "gap"),
    [
        ([1.0, 2.0, 3.0, 4.0], 1000),
        ([1.9, 2.1, 2.2, 2.3, 4.1], 1800),  # lasts past the end
        ([0.5, 2.5, 2.6, 4.1], 2000),  # began before the beginning
        ([1.0, 2.5], 1500),  # nothing more comes: up to the end, and what was before it
        ([], 2000),
        ([0.0, 9.0], 9000),
    ],
)
def test_a_gap_is_the_longest_that_overlaps_the_stage(times: list[float], gap: float) -> None:
    assert longest_gap_ms(reversed(times), 2.0, 4.0) == pytest.approx(gap)


def test_the_gap_of_a_rack_is_that_of_its_worst_partition_and_of_nobody_else() -> None:
    acks = ledger(
        *((0, "a", at / 10) for at in range(40)),
        *((1, "a", at) for at in (0.0, 1.5, 3.9)),
        *((n, "b", at / 10) for n in (0, 1) for at in range(40)),
    )
    assert rack_gap_ms(acks, "a", 0.0, 3.9) == pytest.approx(2400)
    assert rack_gap_ms(acks, "b", 0.0, 3.9) == pytest.approx(100)


def test_all_go_on_once_each_producer_was_answered_in_each_partition() -> None:
    acks = [(0, "a", 1.0), (1, "b", 1.0), (0, "a", 5.0), (0, "b", 6.0), (1, "a", 6.0)]
    assert acknowledged_since(ledger(*acks), ["a", "b"], 2, at=4.0) is None
    assert acknowledged_since(ledger(*acks, (1, "b", 7.0)), ["a", "b"], 2, at=4.0) == {0: 3, 1: 5}
    assert acknowledged_since(ledger(), ["a"], 1, at=0.0) is None


def test_a_reader_goes_on_once_it_has_passed_what_was_answered() -> None:
    reader = Ledger()
    for offset in range(4):
        reader.consume(0, offset, f"a/0/{offset}")
    assert has_passed(reader, {0: 3})
    assert not has_passed(reader, {0: 4})
    assert not has_passed(reader, {0: 3, 1: 0})


def test_one_replica_in_each_rack_is_neither_two_nor_none() -> None:
    def placed(*replicas: int) -> Placed:
        return Placed(replicas, replicas, replicas[0])

    assert one_in_each_rack([placed(1, 2, 3), placed(3, 4, 2)], RACKS)
    assert not one_in_each_rack([placed(1, 2, 3), placed(1, 2)], RACKS)
    assert not one_in_each_rack([placed(1, 4, 2)], RACKS)
    assert not one_in_each_rack([placed(1, 2, 3, 4)], RACKS)
    assert by_broker([placed(1, 2, 3), placed(3, 4, 2)]) == {1: 1, 2: 2, 3: 2, 4: 1}


def test_the_isr_is_the_replicas_that_live() -> None:
    assert in_sync_but([Placed((1, 2, 3), (3, 2), 2)], {1, 4})
    assert not in_sync_but([Placed((1, 2, 3), (1, 2, 3), 2)], {1})
    assert not in_sync_but([Placed((1, 2, 3), (2,), 2)], {1})


def test_where_clients_are_led_is_told_by_the_leaders_racks() -> None:
    def led(*leaders: int) -> list[Placed]:
        return [Placed((1, 2, 3), (1, 2, 3), leader) for leader in leaders]

    assert racks_led_in(led(1, 4), RACKS) == {"a"}
    assert racks_led_in(led(2, -1), RACKS) == {"b", "none"}


def test_several_readers_are_held_against_the_same_acknowledgements() -> None:
    producers, reader = Ledger(), Ledger()
    for offset in range(2):
        producers.acknowledge(0, Acknowledgement(offset, f"a/0/{offset}", 0.0, 1.0))
    reader.consume(0, 0, "a/0/0")
    reader.compare_with(producers)
    assert reader.verdict(0).lost == ("a/0/1@1",)
    assert producers.counts() == (2, 0)


def test_the_report_names_bytes_and_gaps_of_each_stage() -> None:
    counted = {"produced": Crossing(1_000, 3_000), "fetched": Crossing(8_000, 0, 5)}
    stage = Stage("a rack lost", 10.0, 15.0, counted, {"rack-1": 4_200.4, "rack-2": 90.0})
    console = Console(width=100)
    with console.capture() as shown:
        console.print(stage_table([stage]))
    row = next(line for line in shown.get().splitlines() if line.startswith("a rack lost"))
    assert row.split() == ["a", "rack", "lost", "5", "4", "75%", "8", "0%", "4200", "90"]
    said = json.loads(json.dumps(summary(False, [stage], [Check("c", False, "f")], 61.23)))
    assert said["stages"][0]["bytes"]["produced"] == {"same": 1_000, "other": 3_000, "unknown": 0}
    assert said["stages"][0]["longest_gap_ms"] == {"rack-1": 4_200, "rack-2": 90}
    assert (said["ok"], said["seconds"]) == (False, 61.2)
    assert said["checks"] == [{"name": "c", "ok": False, "found": "f"}]
