"""On the way of a produce to the suffix: parking, order, WAL objects, the stream of commits."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from tests.history.violations import Kind
from tests.simulation import bucket
from tests.simulation.plants.bug import PAST_B0, Theme, edited, instead
from tideline.control_plane.memory.files import FileStatus, WalFiles
from tideline.control_plane.memory.plane import MemoryControlPlane
from tideline.domain.ids import TopicIdPartition
from tideline.domain.pipelining import RefusedSequences
from tideline.domain.wal_footer import EarlierCommit
from tideline.gateway.produce import handler
from tideline.gateway.produce.commit_stream import CommitStream, LeftOver
from tideline.gateway.produce.object_keys import ObjectKeys
from tideline.gateway.produce.parking import ParkingLot
from tideline.gateway.produce.wal import WalWriter

THEME = Theme()
bug = THEME.bug
DISORDER = (Kind.FATAL, Kind.TWICE, Kind.REORDERED, Kind.LOST)


def _forgetful(self: WalFiles, gateway_id: int, key: str, size: int, batches: int) -> Any:
    found = CLAIM(self, gateway_id, key, size, batches)
    if found.status is FileStatus.COMMITTED:
        found.status = FileStatus.REGISTERED
    return found


CLAIM = WalFiles.claim
bug("commit repeated", "a commit of unknown outcome does not find its own success",
    (Kind.TWICE, Kind.REORDERED), instead(WalFiles, "claim", _forgetful))  # fmt: skip


COMMIT: Callable[..., Any] = MemoryControlPlane.commit_file


async def _told_before(
    self: MemoryControlPlane,
    gateway_id: int,
    incarnation: Any,
    object_key: str,
    size: int,
    batches: Sequence[Any],
    stream: Any = None,
) -> Any:
    """Every eighth commit is lost with the process that did it."""
    outcome = await COMMIT(self, gateway_id, incarnation, object_key, size, batches, stream)
    for batch in batches:
        found = self.topics.partition(batch.log)
        if found is not None and found.suffix is not None and found.suffix.batches:
            last = found.suffix.batches[-1]
            if len(found.suffix.batches) % 8 == 0:
                found.suffix.batches.pop()
                found.suffix.high_watermark = last.base_offset
    return outcome


bug("commit told early", "a commit that is lost with its Postgres was told before it lasted",
    (Kind.LOST, Kind.DIFFERENT, Kind.REORDERED),
    instead(MemoryControlPlane, "commit_file", _told_before))  # fmt: skip

# -- what the bucket tells

TELL: Callable[..., Any] = CommitStream.committed


def _backwards(
    self: Any, sequence: int, key: str, count: int, live: Any, outcomes: Sequence[Any]
) -> None:
    TELL(self, sequence, key, count, live, outcomes[::-1])


bug("told in disorder", "an object tells the outcomes of an earlier one in another order than its "
    "batches have: who rebuilds from the bucket puts them elsewhere", (Kind.MISTOLD,),
    instead(CommitStream, "committed", _backwards))  # fmt: skip


def _nothing_first(self: CommitStream, *_: Any, **__: Any) -> tuple[EarlierCommit, ...]:
    return ()


bug("given up untold", "a commit goes past an object that was given up before the bucket tells of "
    "that: who rebuilds takes the two for one line, and puts the second one behind the first",
    (Kind.MISTOLD,), instead(CommitStream, "before", _nothing_first))  # fmt: skip


def _all_unsent(self: CommitStream, left: Sequence[LeftOver]) -> tuple[EarlierCommit, ...]:
    return CLOSING(self, [replace(one, sent=False) for one in left])


def _no_seeds(seeds: Any, now_ms: int) -> dict[int, Any]:
    return {}


CLOSING = CommitStream.closing
bug("sent is not committed", "a stream that ends says of what it has sent that it was not "
    "committed, which Postgres may have done", (Kind.MISTOLD,),
    instead(CommitStream, "closing", _all_unsent))  # fmt: skip
bug("retry placed", "who rebuilds gives an offset to a batch that its producer wrote below B0, and "
    "sent once more", (Kind.MISTOLD,), instead(bucket, "entries_from_seeds", _no_seeds)
    )  # fmt: skip
bug("second attempt unsaid", "an upload that is tried again under another key does not say that it "
    "is a later one, and the bucket hears nothing of the first: who rebuilds may take the object "
    "that was not committed", (Kind.MISTOLD,),
    edited(WalWriter, "_next_body",
           ("            obj.end_with(self._stream.again(obj.ending))\n", "")),
    edited(WalWriter, "_commit", ("again=obj.again", "again=False")))  # fmt: skip
bug("keys of the ended incarnation", "objects go on under keys that the incarnation before had "
    "registered, in the stream of the next one", (Kind.MISTOLD,),
    edited(ObjectKeys, "take", ("            self._pool.clear()", "            pass")),
    edited(ObjectKeys, "refill", ("            self._pool.clear()\n", "")))  # fmt: skip

# -- order


def _always(self: Any, key: Any, batch: Any) -> bool:
    return True


NO_ORDER = instead(RefusedSequences, "may_pass", _always)

bug("commits as uploads end (F)", "objects are committed in the order in which their uploads end: "
    "of a producer that the suffix does not know the later batch is the first", DISORDER,
    edited(WalWriter, "_commit_in_order",
           ("            obj = self._pipeline[0]\n",
            "            while not (stored := [o for o in self._pipeline if o.upload.done()]):\n"
            "                await asyncio.sleep(0.005)\n"
            "            obj = stored[0]\n"),
           ("if not self._pipeline or self._pipeline[0] is not obj:",
            "if obj not in self._pipeline:"),
           ("self._pipeline.popleft()", "self._pipeline.remove(obj)")),
    edited(WalWriter, "_commit", ("if not self._pipeline or self._pipeline[0] is not obj:",
                                  "if obj not in self._pipeline:")))  # fmt: skip
bug("behind a refused batch (G)", "what was sent behind a refused batch is accepted before that "
    "comes again: its producer, new to the suffix, is told a fatal error", DISORDER,
    NO_ORDER)  # fmt: skip
bug("behind a failed object (H)", "what was accepted behind a failed WAL object is committed, and "
    "what is sent behind a refused batch passes", DISORDER,
    NO_ORDER,
    edited(WalWriter, "_failed",
           ("orders = {append.order for append in obj.appends}", "orders = set()")))  # fmt: skip


def _goes_on(self: WalWriter) -> None:
    return None


bug("objects of a fenced incarnation (I)", "what a fenced incarnation has under way is committed "
    "by the next one, in the stream of that", (*DISORDER, Kind.MISTOLD),
    instead(WalWriter, "drop_all", _goes_on))  # fmt: skip


def _a_moment_later(self: ParkingLot, logs: frozenset[TopicIdPartition]) -> None:
    for log in logs:
        asyncio.get_running_loop().call_later(0.05, self.drain, log)


bug("parked ones overtaken (K)", "parked ones are let through a moment after B0 is known, and "
    "what comes meanwhile overtakes them: the first batch that the suffix sees of a new producer "
    "is not its first", DISORDER,
    edited(ParkingLot, "goes_on",
           ("        if self._lanes.get(log) or log in self._draining:\n"
            "            return False\n", "")),
    edited(ParkingLot, "offer", ("if not lane and log not in self._draining:",
                                 "if True:")),
    instead(ParkingLot, "_drain_some", _a_moment_later))  # fmt: skip
bug("last parked first", "what was parked is let through from its end on: the first batch that the "
    "suffix sees of a new producer is its last", DISORDER,
    edited(ParkingLot, "_take", ("lane.popleft()", "lane.pop()")))  # fmt: skip
bug("behind an expired one", "of what is parked on a connection only what is late is refused, and "
    "what waits behind it goes to the suffix", DISORDER,
    edited(ParkingLot, "_refuse_from", ("            return reached\n",
                                        "            return entry.deadline <= now\n")),
    edited(ParkingLot, "_refuse_behind",
           ("        lane = self._lanes.get(log)\n", "        lane = None\n")),
    edited(ParkingLot, "drain",
           ("elif self._refused.may_pass((log, entry.source), entry.batch):",
            "elif True:")))  # fmt: skip
bug("at once past a refusal", "a produce whose partitions are all in the suffix is appended "
    "without a look at what was refused of its producer", DISORDER,
    edited(handler, "appended_at_once",
           ("if not all(may_pass((_log(batch.at), source), batch.producer) for batch in found):",
            "if may_pass is None:")))  # fmt: skip
bug("withdrawn ones shifted", "an object some of whose batches were withdrawn is committed with "
    "as many from its front: what is told is stored nowhere, what was refused is",
    (*PAST_B0, Kind.INVENTED, Kind.MISTOLD),
    edited(WalWriter, "_commit", ("[obj.placed[place] for place in obj.live]",
                                  "obj.placed[: len(obj.live)]")))  # fmt: skip
bug("unanswered is not committed", "a commit whose outcome is not known for two seconds is given "
    "up as one that failed, in the bucket, too", (*DISORDER, Kind.MISTOLD),
    edited(WalWriter, "_commit_known", ("wait=_FAST_RETRY)",
                                        "wait=_FAST_RETRY, stop=stop_after_delay(2))")),
    edited(WalWriter, "_failed", ("if obj.sent and not isinstance(error, ObjectKeyRejected):",
                                  "if False:")))  # fmt: skip
