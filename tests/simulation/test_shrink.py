"""What breaks a promise is made small, and told so that a person sees what happened."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from tests.history.operations import Fetch, Operation, Outcome, Partition, Produce
from tests.history.violations import Kind, Violation
from tests.simulation import shrink as shrinking
from tests.simulation.faults import Fault
from tests.simulation.run import MIGRATION, Result
from tests.simulation.shrink import kinds_of, shrink
from tests.simulation.story import story

LOG = Partition("orders")
NEEDED, IDLE = Fault("kill", "track", 0.1, 4.0, "gateway1"), Fault("cut", "seed", 0.2, 3.0, "s3")
SENT = Produce(LOG, "java-2.1", "gateway2", 3.0, 3.5, ("a",), Outcome.ACKNOWLEDGED, 7, 40)
SHOWN = Fetch(LOG, "consumer-1", "gateway3", 4.0, 4.2, 38, ((39, "b"), (41, "c")), None, 42)
BYSTANDER = Fetch(LOG, "consumer-2", "gateway3", 4.0, 4.2, 0)


def _found(kind: Kind, faults: Sequence[Fault], **given: Any) -> Result:
    violation = Violation(kind, LOG, "'a' at 40 was passed over", (SENT, SHOWN))
    operations: list[Operation] = [SENT, SHOWN, BYSTANDER]
    return Result(
        1, tuple(faults), [violation], operations, [f"   3.2000  {NEEDED}"], True, 12.0, **given
    )


def test_what_is_not_needed_is_left_out_and_what_is_needed_stays(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A record is lost while the needed fault lasts for 1 s, until second 6, to a producer and a
    consumer; otherwise the run is stuck, which is another violation."""

    def played(seed: int, faults: Sequence[Fault], **given: Any) -> Result:
        ends_at, without = given["ends_at"] or 12.0, given["without"]
        lasts = max((f.lasts for f in faults if f.kind == "kill"), default=0.0)
        is_lost = lasts >= 1.0 and ends_at >= 6.0 and not without & {"java-2", "consumer-1"}
        del given["planted"]
        return _found(Kind.LOST if is_lost else Kind.STUCK, faults, **given)

    monkeypatch.setattr(shrinking, "simulate", played)
    found = _found(Kind.LOST, [IDLE, NEEDED], family=MIGRATION)
    small = shrink(found)
    assert small.faults == (Fault("kill", "track", 0.1, 1.0, "gateway1"),)
    assert small.without == {"consumer-2"}
    assert small.ends_at is not None
    assert 6.0 <= small.ends_at < 6.0 + shrinking.AS_EXACT_S
    assert kinds_of(small) == {Kind.LOST}


def test_the_story_tells_by_time_who_sent_what_and_was_told_and_shown_what() -> None:
    assert story(_found(Kind.LOST, [NEEDED])).splitlines() == [
        "seed 1: 1 faults",
        "   3.0000 s  java-2.1 sends batch 7 (a) to orders-0",
        "   3.2000 s  FAULT kill gateway1, 0.1 s after track",
        "   3.5000 s  java-2.1 is told by gateway2: batch 7 (a) lies at offset 40",
        "   4.0000 s  consumer-1 asks gateway3 for orders-0 from 38 on",
        "   4.2000 s  consumer-1 is shown by gateway3: b at 39, nothing at 40, c at 41; "
        "the log ends at 42",
        "BROKEN: lost: orders-0: 'a' at 40 was passed over",
    ]
