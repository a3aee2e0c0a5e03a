"""B0: the log's end, the producers at it, and when it may be set."""

from __future__ import annotations

from typing import Any

from activities import seed_and_persist
from tests.history.violations import Kind
from tests.simulation.plants.bug import PAST_B0, Theme, as_in_table, edited, instead
from tideline.control_plane.memory import partition, suffix
from tideline.control_plane.memory.partition import Partition
from tideline.control_plane.memory.topics import Topic
from tideline.domain import producer_tail
from tideline.domain.producer_tail import ProducerTail
from tideline.gateway.tracking.quiesce import QuiesceKeeper
from tideline.kafka.log_reader import LogReader, TailScanner
from tideline.kafka.observer import LogEnd

THEME = Theme()
bug = THEME.bug
PRODUCERS = (Kind.FATAL, Kind.TWICE, Kind.REORDERED, Kind.LOST, Kind.DIFFERENT)
"""What the suffix does to producers that it takes for others than they are."""


def _no_seeds(seeds: Any, now_ms: int) -> dict[int, Any]:
    return {}


bug("seeds dropped", "the suffix begins without the producers' last batches",
    (Kind.TWICE, Kind.REORDERED), instead(partition, "entries_from_seeds", _no_seeds))  # fmt: skip


async def _says_nothing(services: Any, given: Any, layout: Any) -> None:
    return None


END_NOT_READ_AGAIN = instead(seed_and_persist, "_confirm_end", _says_nothing)
NOT_IDLE = edited(
    QuiesceKeeper,
    "_acknowledge",
    (
        "await asyncio.gather(self._find_ceiling(at, topic.name), fence.idle.wait())",
        "await self._find_ceiling(at, topic.name)",
    ),
)

bug("end not read again (A)", "the log's end is not read again after the producers: the sequence "
    "of a late append is known at B0, and its retry is told that it is stored", PRODUCERS,
    END_NOT_READ_AGAIN)  # fmt: skip
bug("end not read again, produces in flight (B)", "neither is the log's end read again, nor does a "
    "gateway wait for what is in flight before it acknowledges", PRODUCERS,
    END_NOT_READ_AGAIN, NOT_IDLE)  # fmt: skip
bug("unsettled end", "B0 is the high watermark, whatever replicas hold behind it, which is not "
    "looked at again, nor waited for: the producers at B0 are those behind it", PRODUCERS,
    edited(LogEnd, "settled", ("at is not None and not self.problems", "True")),
    END_NOT_READ_AGAIN, NOT_IDLE)  # fmt: skip
bug("newest batch alone (L)", "only the newest batch of each producer is known at B0: a retry of "
    "the one before it is told a fatal error", PRODUCERS,
    edited(ProducerTail, "seeds", ("                for b in mine\n",
                                   "                for b in mine[-1:]\n")))  # fmt: skip
bug("retry not found is out of order (F1)", "a retry of a batch below B0 that the scan for "
    "producers did not find is out of order: the Java client stores it again", PRODUCERS,
    as_in_table(suffix, "judge",
                "retry-not-found-is-out-of-order"))  # fmt: skip
bug("seed of a made-up offset (F1)", "a batch that the scan for producers did not find has an "
    "offset all the same, which its retry is told", PRODUCERS,
    as_in_table(producer_tail, "_unlocated", "seed-of-a-made-up-offset"))  # fmt: skip
bug("scan without the newest batch (F1)", "what the scan for producers found is believed although "
    "the broker knows a newer batch of one, and of a scan that began in an older epoch",
    PRODUCERS,
    as_in_table(ProducerTail, "seeds", "scan-without-the-newest-batch"),
    edited(TailScanner, "_kept", ("kept[0] == layout.leader_epoch", "True")))  # fmt: skip
bug("scan cut short (F1)", "the scan for producers ends after its first step, nobody is looked for "
    "elsewhere, and a retry that it did not find is out of order", PRODUCERS,
    edited(TailScanner, "_go_back", ("tail.bytes_back < max_bytes", "tail.bytes_back < 1")),
    edited(TailScanner, "look_back", ("away[:LOCATED_AT_ONCE]", "away[:0]")),
    as_in_table(suffix, "judge",
                "retry-not-found-is-out-of-order"))  # fmt: skip
bug("throttled fetch (F9)", "a fetch of the worker that a broker throttles ends the scan for "
    "producers", (Kind.UNPLANNED,),
    as_in_table(LogReader, "fetch", "throttled-fetch"))  # fmt: skip
bug("B0 after the hold", "B0 is set although the quiesce is past its deadline or void, and the "
    "log's end is not read again: what gateways have appended since is behind it", PAST_B0,
    edited(Partition, "_assert_may_set",
           ("if self.quiesce is not QuiesceState.CLOSED or self.deadline_ms <= now_ms:",
            "if False:")),
    END_NOT_READ_AGAIN)  # fmt: skip
bug("B0 of a zombie", "an attempt whose generation is over sets its B0 under the closing of a "
    "later one: neither the generation nor the log's end nor what was acknowledged is compared",
    PAST_B0,
    edited(Partition, "persist", ("        self.assert_generation(generation)\n", "")),
    edited(Partition, "_assert_may_set", ("if boundary <= highest:", "if False:")),
    END_NOT_READ_AGAIN)  # fmt: skip
bug("abort keeps the generation", "an aborted migration does not end its generation, and the next "
    "round counts from the one before it: an attempt of the round before may set its B0, whatever "
    "was acknowledged since", PAST_B0,
    edited(Partition, "_assert_may_set", ("if boundary <= highest:", "if False:")),
    edited(Partition, "abort", ("        self.begin_generation()\n", "")),
    edited(Topic, "begin_anew", ("            partition.begin_generation()\n",
           "            partition.begin_generation()\n"
           "            partition.generation = max(partition.generation - 2, 0)\n")))  # fmt: skip
