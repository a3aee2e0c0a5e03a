"""What clients are told of offsets and positions, and how long they wait for it."""

from __future__ import annotations

import sys
from collections import defaultdict
from collections.abc import Iterator
from math import inf

from tests.history.log import (
    Log,
    acknowledgements,
    answered_at,
    away_for,
    ends,
    known_ends,
    reached,
    requests,
    shown,
)
from tests.history.operations import (
    Commit,
    Committed,
    Fetch,
    ListOffsets,
    Outcome,
    Produce,
    Request,
    Which,
)
from tests.history.violations import Bounds, Kind, Teller


def stale(log: Log, told: Teller, bounds: Bounds) -> None:
    """An end of the log is not below what was acknowledged, shown or told `stale` earlier."""
    known: list[tuple[float, int, Request, Kind]] = []
    for offset, _, produce in acknowledgements(log):
        if produce.acks == -1 and produce.answered is not None and not produce.transaction:
            known.append((produce.answered, offset + 1, produce, Kind.STALE))
    for _, answered, end, operation in ends(log):
        known.append((answered, end, operation, Kind.BACK))
    known.sort(key=lambda item: item[0])
    highest: tuple[int, Request, Kind, float] | None = None
    taken = 0
    for invoked, answered, end, operation in sorted(ends(log), key=lambda item: item[0]):
        while taken < len(known) and known[taken][0] + bounds.stale < invoked:
            at, offset, source, kind = known[taken]
            if highest is None or offset > highest[0]:
                highest = (offset, source, kind, at)
            taken += 1
        if highest is None or end >= highest[0]:
            continue
        offset, source, kind, at = highest
        if not log.cut_between(offset - 1, at, answered):
            text = f"end {end}, {invoked - at:.3f} s after {offset} was told"
            told(kind, text, source, operation)


def starts(log: Log, told: Teller, bounds: Bounds) -> None:
    """The start of the log goes up only, and no further than what was deleted."""
    known: list[tuple[float, float, int, Request]] = []
    for fetch in log.fetches:
        if fetch.log_start is not None and fetch.answered is not None:
            known.append((fetch.invoked, fetch.answered, fetch.log_start, fetch))
    for asked in log.lists:
        start, answered = asked.offset, asked.answered
        if asked.which is Which.EARLIEST and answered is not None and start is not None:
            known.append((asked.invoked, answered, start, asked))
    for _, answered, start, operation in known:
        allowed = max((d.before for d in log.deleted if d.at <= answered), default=0)
        if start > allowed:
            told(Kind.LOST, f"the log starts at {start}; deleted is up to {allowed}", operation)
    by_answer = sorted(known, key=lambda item: item[1])
    highest, source, taken = -1, None, 0
    for invoked, _, start, operation in sorted(known, key=lambda item: item[0]):
        while taken < len(by_answer) and by_answer[taken][1] + bounds.stale < invoked:
            if by_answer[taken][2] > highest:
                highest, source = by_answer[taken][2], by_answer[taken][3]
            taken += 1
        if start < highest and source is not None:
            told(Kind.BACK, f"the start went from {highest} to {start}", source, operation)


def back(log: Log, told: Teller, bounds: Bounds) -> None:
    """What one connection tells of an end, of the last stable offset or of the start never goes
    back, and no end is below what it has shown: one broker answers it, whose replica only grows.

    Of an answer without records the ends are not judged: a gateway that cannot confirm more tells
    the end that it confirmed last, as a leader does whose high watermark lags (KIP-207).
    """
    known: dict[tuple[int, str], tuple[int, Request]] = {}
    for operation in sorted([*log.fetches, *log.lists], key=answered_at):
        connection = operation.connection
        if operation.answered is None or operation.error is not None or connection is None:
            continue
        for what, offset in _told_by(operation):
            before, source = known.get((connection, what), (-1, operation))
            if offset < before and what != START and _is_empty(operation):
                continue
            if offset < before and not log.cut_between(offset, -inf, operation.answered):
                told(Kind.BACK, f"the {what} went from {before} to {offset}", source, operation)
            elif offset > before:
                known[connection, what] = (offset, operation)
        if isinstance(operation, Fetch) and operation.records:
            before, _ = known.get((connection, END), (-1, operation))
            if operation.position_after > before:
                known[connection, END] = (operation.position_after, operation)


END, START = "end of the log", "start of the log"


def _is_empty(operation: Request) -> bool:
    return isinstance(operation, Fetch) and not operation.records


def _told_by(operation: Fetch | ListOffsets) -> Iterator[tuple[str, int]]:
    if isinstance(operation, Fetch):
        if operation.high_watermark is not None and not operation.read_committed:
            yield END, operation.high_watermark
        if operation.last_stable is not None:
            yield "last stable offset", operation.last_stable
        if operation.log_start is not None:
            yield START, operation.log_start
    elif operation.offset is not None and operation.which is not Which.BY_TIME:
        yield (END if operation.which is Which.LATEST else START), operation.offset


def by_time(log: Log, told: Teller, bounds: Bounds) -> None:
    """Who begins to read at a time misses nothing of that time or later, and begins with such a
    record. That there is none is told against what the same connection has told of the end."""
    asked_by_time = [a for a in log.lists if a.which is Which.BY_TIME and a.timestamp is not None]
    if not asked_by_time:
        return
    times = {value: p.timestamp for p in log.produces for value in p.values}
    lies: dict[int, tuple[float, int, Request]] = {}
    for offset, value, operation in [*acknowledgements(log), *shown(log)]:
        at, timestamp = answered_at(operation), times.get(value)
        if timestamp is not None and at < lies.get(offset, (inf, 0, operation))[0]:
            lies[offset] = (at, timestamp, operation)
    for asked in asked_by_time:
        assert asked.timestamp is not None
        if asked.error is not None or asked.answered is None:
            continue
        until = asked.offset if asked.offset is not None else _end_told_before(log, asked)
        for offset, (at, timestamp, operation) in lies.items():
            is_late = timestamp >= asked.timestamp
            passed_over = is_late and offset < until and at < asked.invoked
            if not passed_over and (is_late or offset != asked.offset):
                continue
            gone = log.may_be_gone(offset, asked.answered)
            if gone or log.cut_between(offset, -inf, inf):
                continue
            if passed_over:
                text = f"{offset}, of {timestamp}, is passed over from {asked.timestamp} on"
                told(Kind.LOST, text, operation, asked)
                break
            text = f"{offset}, of {timestamp}, was told as not before {asked.timestamp}"
            told(Kind.BACK, text, operation, asked)


def _end_told_before(log: Log, asked: ListOffsets) -> int:
    told = [
        end
        for _, answered, end, operation in ends(log)
        if isinstance(operation, Fetch | ListOffsets)
        and operation.connection == asked.connection is not None
        and answered <= asked.invoked
    ]
    return max(told, default=-1)


def sent_later(log: Log, told: Teller, bounds: Bounds) -> None:
    """Who begins to read at an end that it was told misses nothing that was sent afterwards: an
    end lies above no record that was first sent after that answer."""
    sent = {value: produce for produce in log.produces for value in produce.values}
    lie = {offset: sent[v] for offset, v, _ in [*acknowledgements(log), *shown(log)] if v in sent}
    newest = sorted(lie.items(), key=lambda item: item[1].invoked, reverse=True)
    for asked in log.lists:
        end, answered = asked.offset, asked.answered
        if asked.which is not Which.LATEST or answered is None or end is None:
            continue
        for offset, produce in newest:
            if produce.invoked <= answered:
                break
            if offset < end and not log.cut_between(offset, -inf, inf):
                text = f"end {end} was told; {produce.values[0]!r}, sent later, lies at {offset}"
                told(Kind.LOST, text, asked, produce)
                break


def fatal(log: Log, told: Teller, bounds: Bounds) -> None:
    """No idempotent producer is told that its place is not known, unless its records were deleted
    or Kafka lost some of the log meanwhile."""
    of: dict[str, list[Produce]] = defaultdict(list)
    for produce in log.produces:
        of[produce.producer].append(produce)
    for produce in log.produces:
        if produce.fatal is None or produce.answered is None or not produce.idempotent:
            continue
        own = of[produce.producer]
        places = [p.base_offset for p in own if p.base_offset is not None]
        deleted = log.may_be_gone(max(places, default=-1), produce.answered)
        if not deleted and not log.cut_between(
            sys.maxsize, min(p.invoked for p in own), produce.answered
        ):
            told(Kind.FATAL, f"{produce.producer} was told {produce.fatal}", produce)


def readers(log: Log, told: Teller, bounds: Bounds) -> None:
    """A reader goes on where it was, and nobody is told to go elsewhere without a reason."""
    at: dict[str, Fetch] = {}
    for fetch in sorted(log.fetches, key=lambda item: item.invoked):
        before = at.get(fetch.reader)
        if before is not None and fetch.offset != before.position_after:
            start_moved = log.may_be_gone(before.position_after, fetch.invoked)
            cut = log.cut_between(before.position_after - 1, -inf, fetch.invoked)
            if not start_moved and not cut:
                text = f"{fetch.reader} was at {before.position_after}, went on at {fetch.offset}"
                told(Kind.SENT, text, before, fetch)
        offsets = [offset for offset, _ in fetch.records]
        if offsets != sorted(set(offsets)) or any(offset < fetch.offset for offset in offsets):
            told(Kind.REORDERED, f"{fetch.reader} was shown {offsets} at {fetch.offset}", fetch)
        if fetch.answered is not None:
            at[fetch.reader] = fetch
    known = known_ends(log)
    for fetch in log.fetches:
        if fetch.error == "OFFSET_OUT_OF_RANGE" and fetch.answered is not None:
            end = reached(known, fetch.invoked - bounds.sent_elsewhere)
            gone = log.may_be_gone(fetch.offset, fetch.answered)
            cut = log.cut_between(fetch.offset - 1, -inf, fetch.answered)
            if fetch.offset <= end and not gone and not cut:
                told(Kind.SENT, f"out of range told at {fetch.offset} of {end}", fetch)
    for asked in log.epochs:
        if asked.error is None and asked.end_offset is not None and asked.answered is not None:
            end, position = asked.end_offset, asked.position
            cut = log.cut_between(position - 1, -inf, asked.answered)
            known_end = reached(known, asked.invoked - bounds.sent_elsewhere)
            gone = log.may_be_gone(position - 1, asked.answered)
            if 0 <= end < position <= known_end and not cut and not gone:
                told(Kind.SENT, f"at {position}, told that the log diverges at {end}", asked)


NOTHING_AT_MOST = 3
"""Answers in succession. One that holds no news is an answer, too: whoever was to say what lies
there did not say it in time."""


def nothing(log: Log, told: Teller, bounds: Bounds) -> None:
    """With `dense`: who is told an end past its position is shown something there. A reader that is
    told nothing, and no error, does not look for another broker, and waits for ever."""
    if not bounds.dense:
        return
    at: dict[str, tuple[int, int]] = {}
    for fetch in sorted(log.fetches, key=lambda item: item.invoked):
        end = fetch.high_watermark if fetch.last_stable is None else fetch.last_stable
        answered = fetch.answered
        silent = answered is not None and not fetch.records and fetch.error is None
        if not silent or answered is None or end is None or end <= fetch.offset:
            at.pop(fetch.reader, None)
            continue
        if log.may_be_gone(fetch.offset, answered) or log.cut_between(fetch.offset, -inf, answered):
            continue
        offset, times = at.get(fetch.reader, (fetch.offset, 0))
        times = times + 1 if offset == fetch.offset else 1
        at[fetch.reader] = fetch.offset, times
        if times == NOTHING_AT_MOST + 1:
            told(Kind.STALE, f"nothing is shown at {fetch.offset} of {end}, {times} times", fetch)


def groups(log: Log, told: Teller, bounds: Bounds) -> None:
    """A group is told its last commit, or one that was under way."""
    for read in log.committed:
        if read.error is not None or read.answered is None:
            continue
        done = [
            commit
            for commit in log.commits
            if commit.group == read.group
            and commit.error is None
            and commit.answered is not None
            and commit.answered < read.invoked
        ]
        last = max(done, key=answered_at, default=None)
        if last is None:
            continue
        others = [
            commit
            for commit in log.commits
            if commit.group == read.group
            and commit.invoked <= read.answered
            and (commit.answered is None or commit.answered > last.invoked)
        ]
        if read.offset not in {commit.offset for commit in others}:
            text = f"{read.group} committed {last.offset} and was told {read.offset}"
            told(Kind.BACK, text, last, read)


def _succeeded(request: Request) -> bool:
    if isinstance(request, Produce):
        return request.outcome is Outcome.ACKNOWLEDGED
    return request.error is None and request.answered is not None


def _client(request: Request) -> str:
    match request:
        case Produce():
            return f"producer {request.producer}"
        case Fetch():
            return f"reader {request.reader}"
        case Commit() | Committed():
            return f"group {request.group}"
        case _:
            return f"{type(request).__name__} by {request.via}"


SILENCE_S = 6.0
"""Who is told an error, and still wants to know, asks again sooner."""


def stuck(log: Log, told: Teller, bounds: Bounds, finish: float) -> None:
    failing: dict[str, Request] = {}
    heard: dict[str, float] = {}
    for request in sorted(requests(log), key=lambda item: answered_at(item, item.invoked)):
        until = answered_at(request, finish)
        took = until - request.invoked - away_for(log, request, request.invoked, until)
        if took > bounds.answer:
            told(Kind.STUCK, f"{took:.3f} s for one request", request)
        client = _client(request)
        if request.invoked - heard.get(client, request.invoked) > SILENCE_S:
            failing.pop(client, None)
        heard[client] = answered_at(request, request.invoked)
        if _succeeded(request):
            since = failing.pop(client, None)
            until = answered_at(request, finish)
        else:
            since = failing.setdefault(client, request)
            until = answered_at(request, request.invoked)
        if since is None:
            continue
        took = until - since.invoked - away_for(log, request, since.invoked, until)
        if took > bounds.progress:
            failing.pop(client, None)
            told(Kind.STUCK, f"{client} heard nothing but errors for {took:.3f} s", since, request)
