"""What clients are told of offsets and positions, and how long they wait for it."""

from __future__ import annotations

from math import inf

from tests.history.log import (
    Log,
    acknowledgements,
    answered_at,
    ends,
    known_ends,
    reached,
    requests,
)
from tests.history.operations import Commit, Committed, Fetch, Outcome, Produce, Request, Which
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


def stuck(log: Log, told: Teller, bounds: Bounds, finish: float) -> None:
    failing: dict[str, Request] = {}
    for request in sorted(requests(log), key=lambda item: answered_at(item, item.invoked)):
        took = answered_at(request, finish) - request.invoked
        if took > bounds.answer:
            told(Kind.STUCK, f"{took:.3f} s for one request", request)
        client = _client(request)
        if _succeeded(request):
            since = failing.pop(client, None)
            until = answered_at(request, finish)
        else:
            since = failing.setdefault(client, request)
            until = answered_at(request, request.invoked)
            if until - since.invoked <= bounds.progress:
                continue
            del failing[client]
        if since is not None and until - since.invoked > bounds.progress:
            text = f"{client} heard nothing but errors for {until - since.invoked:.3f} s"
            told(Kind.STUCK, text, since, request)
