"""How often a run came to the places that are hard to come to.

Counted around the real functions, whatever is planted in them. Each is a milestone as well:
``gateway2 parked``.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from functools import wraps
from math import inf
from typing import TYPE_CHECKING, Any
from unittest.mock import patch

from tests.history.operations import Operation, Partition, Produce
from tests.simulation.loop import current
from tests.simulation.milestones import Milestones
from tideline.control_plane.memory.gateways import Gateways
from tideline.control_plane.memory.partition import Partition as Row
from tideline.control_plane.memory.partition import QuiesceState
from tideline.control_plane.memory.suffix import Suffix
from tideline.control_plane.model import CommitError
from tideline.domain.ack_gate import AckVerdict
from tideline.gateway.produce.parking import ParkedProduce, ParkingLot
from tideline.gateway.produce.wal import WalWriter
from tideline.gateway.tracking import quiesce
from tideline.gateway.tracking.sync import TrackingSync
from tideline.kafka import log_reader

if TYPE_CHECKING:
    from tests.simulation.run import Result

AT_B0, AT_B0_MET = "batch under way at B0", "batch under way at B0 met a fault"
SENT_AGAIN = "batch sent again"
OLDER, LOST = "start over an older disk", "start over a lost disk"
FROM_SNAPSHOT = "start from a snapshot"
PLACES = (
    "answer WAIT", "answer WITHHOLD", "parked", "refused for order", "refused for bytes",
    "refused for time", "gateway fenced", "dropped with an incarnation", "WAL object failed",
    "closing repeated", "seed by the broker's word", "a step of the scan is full",
    "suffix DUPLICATE", "suffix OUT_OF_ORDER_SEQUENCE", FROM_SNAPSHOT, OLDER, LOST,
    AT_B0, AT_B0_MET, SENT_AGAIN,
)  # fmt: skip
"""What schedules have to come to (tests/nightly/simulation)."""
UNREACHED = "never reached: "


class Coverage:
    def __init__(self, milestones: Milestones) -> None:
        self.counts: Counter[str] = Counter()
        self._milestones = milestones

    def note(self, place: str, who: str = "") -> None:
        """The process ``who``, or the one whose code runs, has come to ``place``."""
        if place:
            self.counts[place] += 1
            self._milestones.reach(place, who or current().name)

    @contextmanager
    def counting(self) -> Iterator[None]:
        with ExitStack() as stack:
            for owner, name, looks in LOOKS:
                stack.enter_context(patch.object(owner, name, self._around(owner, name, looks)))
            yield

    def _around(self, owner: Any, name: str, looks: Callable[..., str]) -> Any:
        method = getattr(owner, name)

        @wraps(method)
        def counted(*args: Any, **values: Any) -> Any:
            before = looks(BEGINS, *args, **values)
            found = method(*args, **values)
            self.note(before or looks(found, *args, **values))
            return found

        return counted

    def at_boundaries(
        self,
        operations: Iterable[Operation],
        boundaries: Mapping[Partition, float],
        faults: Sequence[tuple[float, float]],
    ) -> None:
        """Count batches that were under way when B0 of their partition was set, those of them
        during which a fault (began, ended) was, and those that were sent more than once."""
        for produce in operations:
            if not isinstance(produce, Produce):
                continue
            self.counts[SENT_AGAIN] += produce.attempts > 1
            at = boundaries.get(produce.partition, -inf)
            ends = inf if produce.answered is None else produce.answered
            if produce.invoked <= at <= ends:
                self.counts[AT_B0] += 1
                met = any(began <= ends and ended >= produce.invoked for began, ended in faults)
                self.counts[AT_B0_MET] += met


def summary(results: Iterable[Result]) -> str:
    """What the runs came to, how often and in how many of them, and what none came to."""
    counts: Counter[str] = Counter()
    runs: Counter[str] = Counter()
    for result in results:
        counts.update(result.reached)
        runs.update(result.reached.keys())
    lines = [f"{counts[place]:7} in {runs[place]:5} runs: {place}" for place in sorted(counts)]
    lines += [f"{UNREACHED}{place}" for place in missing(counts)]
    return "\n".join(lines)


def missing(counts: Mapping[str, int]) -> list[str]:
    return [place for place in PLACES if not counts.get(place)]


# -- where it is looked: each is told what a call gave, or that it begins, and names the place


def _verdict(found: Any, *_: Any, **__: Any) -> str:
    return f"answer {found.name}" if found in (AckVerdict.WAIT, AckVerdict.WITHHOLD) else ""


def _parked(found: Any, lot: ParkingLot, log: Any, entry: ParkedProduce) -> str:
    return "parked" if found is None and entry.number >= 0 else ""


def _refused(found: Any, lot: ParkingLot, log: Any, entry: Any, error: Any, bound: str) -> str:
    return f"refused for {bound}" if found is None else ""


def _fenced(found: Any, *_: Any, **__: Any) -> str:
    return "gateway fenced" if found is True else ""


def _drained(found: Any, writer: WalWriter) -> str:
    return "dropped with an incarnation" if found is not BEGINS and found else ""


def _failed(found: Any, *_: Any, **__: Any) -> str:
    return "WAL object failed" if found is None else ""


def _closing(found: Any, row: Row, *_: Any, **__: Any) -> str:
    return "closing repeated" if found is BEGINS and row.quiesce is QuiesceState.CLOSED else ""


def _persisted(found: Any, row: Row, boundary: Any, epoch: Any, generation: Any, seeds: Any,
               *_: Any, **__: Any) -> str:  # fmt: skip
    return (
        "seed by the broker's word"
        if found is True and any(seed.is_unlocated for seed in seeds)
        else ""
    )


def _step(found: Any, batches: Any, start: int, size: int, *, is_complete: bool) -> str:
    full = found is BEGINS and size >= log_reader.STEP_BYTES
    return "a step of the scan is full" if full else ""


def _appended(found: Any, *_: Any, **__: Any) -> str:
    if found is BEGINS or found.error is CommitError.NONE:
        return ""
    return f"suffix {found.error.name}"


def _snapshot(found: Any, sync: TrackingSync) -> str:
    return FROM_SNAPSHOT if found is None else ""


BEGINS = object()
LOOKS: tuple[tuple[Any, str, Callable[..., str]], ...] = (
    (quiesce, "judge", _verdict),
    (ParkingLot, "_park", _parked),
    (ParkingLot, "_refuse", _refused),
    (Gateways, "fence", _fenced),
    (WalWriter, "_drain_everything", _drained),
    (WalWriter, "_failed", _failed),
    (Row, "close", _closing),
    (Row, "persist", _persisted),
    (log_reader, "FoundBefore", _step),
    (Suffix, "append", _appended),
    (TrackingSync, "_note_drained", _snapshot),
)
