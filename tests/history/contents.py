"""What lies at which offset: nothing lost, twice, out of order, or different for two readers."""

from __future__ import annotations

from bisect import bisect_left
from collections import defaultdict
from collections.abc import Iterable, Sequence
from itertools import chain, pairwise
from math import inf

from tests.history.log import Log, acknowledgements, answered_at, shown
from tests.history.operations import Fetch, Operation, Outcome, Produce, TransactionEnd, Value
from tests.history.violations import Bounds, Kind, Teller


def contents(log: Log, told: Teller, bounds: Bounds) -> None:
    """One offset has one value, whoever tells it; each value was sent, and is there once."""
    first: dict[int, list[tuple[Value, Produce | Fetch]]] = defaultdict(list)
    places: dict[Value, dict[int, Operation]] = defaultdict(dict)
    witnesses: list[tuple[int, Value, Produce | Fetch]] = [*acknowledgements(log), *shown(log)]
    witnesses.sort(key=lambda seen: answered_at(seen[2]))
    for offset, value, operation in witnesses:
        places[value].setdefault(offset, operation)
        if all(known != value for known, _ in first[offset]):
            first[offset].append((value, operation))
    for offset, values in first.items():
        for (one, earlier), (other, later) in pairwise(values):
            # What was sent before the loss may be told behind what was sent after it.
            sent_at = min(earlier.invoked, later.invoked)
            if not log.cut_between(offset, sent_at, answered_at(later)):
                told(Kind.DIFFERENT, f"{one!r} and {other!r} at {offset}", earlier, later)
    sent = {value: produce for produce in log.produces for value in produce.values}
    for value, offsets in places.items():
        produce = sent.get(value)
        if produce is None or produce.outcome is Outcome.REFUSED:
            told(Kind.INVENTED, f"{value!r} at {sorted(offsets)}", *offsets.values())
            continue
        allowed = 1 if produce.idempotent else produce.attempts
        if len(offsets) > allowed and not _moved(log, offsets):
            told(Kind.TWICE, f"{value!r} at {sorted(offsets)}", produce, *offsets.values())


def _moved(log: Log, offsets: Iterable[int]) -> bool:
    """Whether Kafka lost all these places but one, so that the retry was right."""
    return sum(not log.cut_between(offset, -inf, inf) for offset in offsets) <= 1


def _without_offsets(log: Log, told: Teller, seen: set[Value]) -> None:
    """A producer that is told ``DUPLICATE_SEQUENCE_NUMBER`` takes its batch as stored, somewhere.
    Not judged where some of the log may be gone, since that may be where."""
    for produce in log.produces:
        if produce.outcome is not Outcome.ACKNOWLEDGED or produce.base_offset is not None:
            continue
        if produce.acks != -1 or produce.transaction or log.may_be_gone(0):
            continue
        missing = [value for value in produce.values if value not in seen]
        if missing and all(cut.at < produce.invoked for cut in log.truncated):
            told(Kind.LOST, f"{missing[0]!r}, told without an offset, was never shown", produce)


def acknowledged(log: Log, told: Teller, bounds: Bounds) -> None:
    """What acks=all acknowledged is shown, and by every fetch that passes over its offset."""
    seen_at: dict[int, set[Value]] = defaultdict(set)
    for offset, value, _ in shown(log):
        seen_at[offset].add(value)
    durable = sorted(
        (seen for seen in acknowledgements(log) if seen[2].acks == -1), key=lambda seen: seen[0]
    )
    for offset, value, produce in durable:
        # What a transaction wrote is judged by how it ended.
        if value in seen_at[offset] or log.may_be_gone(offset) or produce.transaction:
            continue
        if not log.cut_between(offset, produce.invoked, inf):
            text = f"{value!r}, told at {offset}, was never shown"
            told(Kind.LOST, text, produce)
    _without_offsets(log, told, {value for values in seen_at.values() for value in values})
    offsets = [offset for offset, _, _ in durable]
    for fetch in log.fetches:
        if fetch.error is None and fetch.answered is not None:
            first = bisect_left(offsets, fetch.offset)
            last = bisect_left(offsets, fetch.position_after)
            _passed_over(fetch, durable[first:last], log, told)


def _passed_over(
    fetch: Fetch, durable: Sequence[tuple[int, Value, Produce]], log: Log, told: Teller
) -> None:
    got = {offset for offset, _ in fetch.records}
    by = answered_at(fetch)
    for offset, value, produce in durable:
        known = answered_at(produce) <= fetch.invoked
        if offset in got or produce.transaction or not known or log.may_be_gone(offset, by):
            continue
        if not log.cut_between(offset, produce.invoked, by):
            told(Kind.LOST, f"{value!r} at {offset} was passed over", produce, fetch)


def order(log: Log, told: Teller, bounds: Bounds) -> None:
    """An idempotent producer's records lie in the order in which they were sent; those that may
    have been lost since lie nowhere."""
    sent = {value: produce for produce in log.produces for value in produce.values}
    place = {v: n for produce in log.produces for n, v in enumerate(produce.values)}
    last: dict[str, tuple[int, int]] = {}
    lies: dict[int, Value] = {
        offset: value
        for offset, value, operation in (*acknowledgements(log), *shown(log))
        if not log.cut_between(offset, operation.invoked, inf)
    }
    for offset, value in sorted(lies.items(), key=lambda lie: lie[0]):
        produce = sent.get(value)
        if produce is None or not produce.idempotent:
            continue
        here = (produce.number, place[value])
        if here < last.get(produce.producer, (-1, -1)):
            text = f"{value!r} of {produce.producer} lies at {offset}, behind a later one"
            told(Kind.REORDERED, text, produce)
        else:
            last[produce.producer] = here


def after_what_was_told(log: Log, told: Teller, bounds: Bounds) -> None:
    """What was sent after another batch was acknowledged lies behind that one, every copy of it: so
    a producer with one batch in flight, which it sends until it is answered, keeps its order
    without idempotence, too. On one connection batches keep their order in any case.

    The last copies of two batches may lie the other way round: an attempt that was given up is done
    late, behind what was sent next.
    """
    places: dict[Value, list[int]] = defaultdict(list)
    for offset, value, _ in [*acknowledgements(log), *shown(log)]:
        places[value].append(offset)
    known = sorted(
        (
            (answered_at(p), p.base_offset + len(p.values) - 1, p)
            for p in log.produces
            if p.outcome is Outcome.ACKNOWLEDGED and p.base_offset is not None and p.acks == -1
        ),
        key=lambda item: item[:2],
    )
    highest: tuple[int, Produce] | None = None
    taken = 0
    for produce in sorted(log.produces, key=lambda item: item.invoked):
        while taken < len(known) and known[taken][0] < produce.invoked:
            if highest is None or known[taken][1] > highest[0]:
                highest = known[taken][1:]
            taken += 1
        first = min(chain.from_iterable(places[value] for value in produce.values), default=None)
        if first is None or highest is None or first > highest[0]:
            continue
        if not log.cut_between(first, -inf, inf):
            text = f"{produce.values[0]!r} lies at {first}, before what was told at {highest[0]}"
            told(Kind.REORDERED, text, highest[1], produce)
    _on_one_connection(log, told)


def _on_one_connection(log: Log, told: Teller) -> None:
    """Of what was sent once: what is sent again comes on another one, or behind others."""
    last: dict[tuple[str, int], Produce] = {}
    for produce in sorted(log.produces, key=lambda item: item.number):
        if produce.base_offset is None or produce.connection is None:
            continue
        place = (produce.producer, produce.connection)
        before, offset = last.get(place, produce), produce.base_offset
        if offset < (before.base_offset or 0) and not log.cut_between(offset, -inf, inf):
            text = f"{produce.producer}'s batches of one connection lie the other way round"
            told(Kind.REORDERED, text, before, produce)
        last[place] = produce


def gaps(log: Log, told: Teller, bounds: Bounds) -> None:
    """Where every offset has a record, a fetch shows that of its own offset first, and no offset is
    left out behind it."""
    for fetch in log.fetches if bounds.dense else ():
        expected = fetch.offset
        for offset, _ in fetch.records:
            at, left_out, expected = answered_at(fetch), expected, offset + 1
            if offset == left_out or log.may_be_gone(offset - 1, at):
                continue
            if not log.cut_between(left_out, -inf, at):
                text = f"{fetch.reader}, at {left_out}, was shown {offset} next"
                told(Kind.LOST, text, fetch)


def transactions(log: Log, ends: dict[str, TransactionEnd], told: Teller) -> None:
    """Readers of committed records see a transaction when it is committed, never otherwise."""
    readable = {value: fetch for _, value, fetch in shown(log) if fetch.read_committed}
    for produce in log.produces:
        end = ends.get(produce.transaction) if produce.transaction else None
        if end is None or end.committed is None:
            continue
        seen = [value for value in produce.values if value in readable]
        if not end.committed and seen:
            text = f"{seen[0]!r} of {produce.transaction}"
            told(Kind.ABORTED, text, produce, readable[seen[0]])
        if not end.committed or produce.base_offset is None or len(seen) == len(produce.values):
            continue
        gone = log.may_be_gone(produce.base_offset)
        if not gone and not log.cut_between(produce.base_offset, produce.invoked, inf):
            told(Kind.LOST, f"of {produce.transaction}, which is committed", produce)
