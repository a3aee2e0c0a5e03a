"""What consumers are told: fetches, offsets, ends of leader epochs."""

from __future__ import annotations

from typing import Any

from tests.history.violations import Kind
from tests.simulation.plants.bug import PAST_B0, Theme, edited, instead
from tideline.control_plane.memory import suffix
from tideline.domain.read_ceiling import NO_CEILING, ReadCeiling
from tideline.domain.request_handling import RouteKind
from tideline.gateway.fetch import from_kafka
from tideline.gateway.fetch.from_kafka import KafkaSide
from tideline.gateway.offsets import leader_epoch
from tideline.gateway.offsets.list_offsets import ListOffsetsHandler
from tideline.gateway.tracking.quiesce import Fences, QuiesceKeeper

THEME = Theme()
bug = THEME.bug
SENT_BACK = (Kind.SENT, Kind.BACK, Kind.STALE)


def _no_ceiling(self: ReadCeiling, route: Any) -> int:
    return int(route.boundary) if route.kind is RouteKind.SUFFIX else NO_CEILING


async def _confirmed(self: Fences, at: Any) -> bool:
    return True


bug("read ceiling", "what Kafka shows while B0 is unset is shown", (*PAST_B0, Kind.INVENTED),
    instead(ReadCeiling, "limit", _no_ceiling), is_gross=True)  # fmt: skip
bug("leader epochs", "Kafka's word on where a leader epoch ends is passed on while B0 is unknown",
    (*SENT_BACK, *PAST_B0), instead(Fences, "confirmed", _confirmed),
    instead(ReadCeiling, "limit", _no_ceiling))  # fmt: skip


def _whole(buffer: Any, boundary: int) -> Any:
    return buffer


bug("prefix end", "an answer of Kafka is not cut at B0", PAST_B0,
    instead(from_kafka, "truncate_at", _whole))  # fmt: skip
bug("readers by the lease", "what consumers see of Kafka's log is raised by a valid lease, without "
    "asking Postgres, and not frozen by the acknowledgement of a closing",
    (*PAST_B0, *SENT_BACK, Kind.INVENTED),
    edited(Fences, "confirmed", ("        with suppress(TimeoutError):\n",
                                 "        return True\n        with suppress(TimeoutError):\n")),
    edited(QuiesceKeeper, "_acknowledge",
           ("fence.ceiling.freeze()", "fence.ceiling.highest_seen")))  # fmt: skip
bug("ceiling never lowered", "the shorter log of a new leader does not count, nor that what lies "
    "behind it there is of a newer epoch: what B0 leaves behind is shown",
    (*PAST_B0, Kind.INVENTED),
    edited(ReadCeiling, "confirmed",
           ("self.highest_seen, self.leader_epoch = end, leader_epoch",
            "self.highest_seen = max(self.highest_seen, end)\n"
            "            self.leader_epoch = leader_epoch")),
    edited(KafkaSide, "_as_far_as_known",
           ("            records = await self._walked(until_epoch, records, newest)\n",
            "            pass\n")))  # fmt: skip
bug("one past B0", "an answer of Kafka may hold the record at B0: a late append is shown there, "
    "and what the suffix has is passed over", PAST_B0,
    edited(ReadCeiling, "limit", ("return route.boundary", "return route.boundary + 1"))
    )  # fmt: skip
bug("out of range believed", "a broker that is behind says that a position below B0 is out of "
    "range, or has nothing there, and is believed", (*SENT_BACK, Kind.LOST),
    edited(from_kafka, "may_say_out_of_range",
           ("return log_start is not None and fetch_offset < log_start", "return True")),
    edited(from_kafka, "prefix_answer",
           ("if empty and fetch_offset < boundary and broker_high_watermark < boundary:",
            "if False:")))  # fmt: skip


async def _shown(self: Any, split: Any, item: Any, row: Any, log: Any) -> bool:
    return True


bug("offsets ungated", "ListOffsets tells Kafka's word while B0 is unset, or set without the "
    "gateway's knowing", (*SENT_BACK, *PAST_B0),
    instead(ListOffsetsHandler, "_may_be_shown", _shown))  # fmt: skip
bug("earliest is B0", "the earliest offset is where the suffix begins, whatever Kafka holds below: "
    "a consumer that begins there misses the prefix", (*SENT_BACK, Kind.LOST),
    edited(ListOffsetsHandler, "_whole_log",
           ("                if below(kafka, route.prefix_end) is not NOTHING:\n"
            "                    return kafka\n", "")))  # fmt: skip
bug("time found past B0", "a search by time tells what Kafka has at or past B0: a consumer begins "
    "behind records that the suffix has", (*SENT_BACK, Kind.LOST),
    edited(ListOffsetsHandler, "_answer",
           ("if prefix and item not in searched and _ends_outside(item, route, prefix):",
            "if False:")),
    edited(ListOffsetsHandler, "_whole_log",
           ("        if below(kafka, route.prefix_end) is not NOTHING:\n            return kafka\n"
            "        async with", "        if kafka.offset >= 0:\n            return kafka\n"
            "        async with")))  # fmt: skip
bug("end of B0's epoch", "Kafka is asked where B0's leader epoch ended: a consumer past B0 that "
    "validates its position is sent back to B0", SENT_BACK,
    edited(leader_epoch, "asked_by_epoch", ("leader_epoch >= route.boundary_epoch",
                                            "leader_epoch > route.boundary_epoch")))  # fmt: skip
bug("last record of a batch", "a fetch at the last offset of a batch begins with the next one: no "
    "fetch from there returns it", (Kind.LOST,),
    edited(suffix, "unbroken", ("(batch for batch in batches if batch.last_offset >= offset)",
                                "(b for b in batches if b.last_offset > offset"
                                " or b.base_offset == b.last_offset)")))  # fmt: skip
