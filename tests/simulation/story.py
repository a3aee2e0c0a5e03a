"""A run that breaks a promise, in plain words and by time: what was done to the parts, what the
migration did, and what those clients did and were told that are the evidence."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import groupby

from tests.history.operations import (
    Deleted,
    EpochEnd,
    Fetch,
    ListOffsets,
    Operation,
    Outcome,
    Partition,
    Produce,
    Truncated,
    Value,
)
from tests.history.violations import Violation
from tests.simulation.run import Result

Line = tuple[float, str]
SHOWN = 6
"""Records of one answer that are named one by one; of more, only those that matter."""


def story(result: Result) -> str:
    """Of each kind of broken promise the first one is told."""
    told = [next(same) for _, same in groupby(_by_kind(result.violations), key=lambda v: v.kind)]
    evidence = list(dict.fromkeys(one for violation in told for one in violation.evidence))
    lines = [*_events(result), *(line for one in evidence for line in _lines(one, evidence))]
    head = [f"seed {result.seed}: {len(result.faults)} faults"]
    if result.without:
        head.append(f"without {', '.join(sorted(result.without))}")
    if result.ends_at is not None:
        head.append(f"the load ends at {result.ends_at:.1f} s")
    return "\n".join(
        [
            "; ".join(head),
            *(f"{at:9.4f} s  {text}" for at, text in sorted(lines, key=lambda line: line[0])),
            *_verdict(result.violations, told),
        ]
    )


def _by_kind(violations: Sequence[Violation]) -> list[Violation]:
    return sorted(violations, key=lambda v: (v.kind.value, not v.evidence))


def _verdict(violations: Sequence[Violation], told: Sequence[Violation]) -> Iterator[str]:
    many = Counter(violation.kind for violation in violations)
    for one in told:
        where = f"{_log(one.partition)}: " if one.partition is not None else ""
        others = f" (and {many[one.kind] - 1} more)" if many[one.kind] > 1 else ""
        yield f"BROKEN: {one.kind.value}: {where}{one.text}{others}"


def _events(result: Result) -> Iterator[Line]:
    words = {}
    for fault in result.faults:
        what = " ".join(filter(None, (fault.kind, fault.who, fault.other)))
        words[str(fault)] = f"FAULT {what}, {fault.at} s after {fault.after}"
        words[f"end of {fault}"] = f"END of {what}"
    for event in result.events:
        at, text = event.split(maxsplit=1)
        yield float(at), words.get(text, text)


def _lines(one: Operation, evidence: Sequence[Operation]) -> Iterator[Line]:
    match one:
        case Produce():
            yield from _produce(one)
        case Fetch():
            yield (
                one.invoked,
                f"{one.reader} asks {one.via} for {_log(one.partition)} from {one.offset} on",
            )
            if one.answered is not None:
                yield one.answered, f"{one.reader} is {_shown(one, evidence)}"
        case EpochEnd() | ListOffsets():
            what = (
                f"a consumer at {one.position} asks {one.via} where its leader epoch ends"
                if isinstance(one, EpochEnd)
                else f"somebody asks {one.via} for the {one.which.value} offset"
                + (f" from {one.timestamp} on" if one.timestamp is not None else "")
            )
            found = one.end_offset if isinstance(one, EpochEnd) else one.offset
            yield one.invoked, f"{what}, of {_log(one.partition)}"
            if one.answered is not None:
                yield one.answered, f"{one.via} says {one.error or found} of {_log(one.partition)}"
        case Truncated():
            yield one.at, f"Kafka loses what it has of {_log(one.partition)} from {one.offset} on"
        case Deleted():
            yield one.at, f"{_log(one.partition)} may lose what is below {one.before}"
        case _:
            yield 0.0, str(one)


def _produce(one: Produce) -> Iterator[Line]:
    first, *others = one.values
    values = f"{first} to {others[-1]}" if others else f"{first}"
    batch = f"batch {one.number} ({values})"
    yield one.invoked, f"{one.producer} sends {batch} to {_log(one.partition)}"
    if one.answered is None:
        return
    tries = f" after {one.attempts} attempts" if one.attempts > 1 else ""
    if one.fatal is not None:
        yield one.answered, f"{one.producer} is over: {one.via} says {one.fatal} of {batch}"
        return
    match one.outcome:
        case Outcome.ACKNOWLEDGED:
            place = "" if one.base_offset is None else f" at offset {one.base_offset}"
            yield one.answered, f"{one.producer} is told{tries} by {one.via}: {batch} lies{place}"
        case Outcome.REFUSED:
            yield one.answered, f"{one.producer} is told{tries} by {one.via}: {batch} is refused"
        case Outcome.UNKNOWN:
            yield one.answered, f"{one.producer} does not know{tries} what became of {batch}"


def _shown(one: Fetch, evidence: Sequence[Operation]) -> str:
    if one.error is not None:
        return f"told {one.error} by {one.via}"
    records = dict(one.records)
    named = list(records) if len(records) <= SHOWN else []
    for offset in sorted(_telling(one.partition, evidence)):
        if one.offset <= offset < one.position_after and offset not in named:
            named.append(offset)
    each = ", ".join(f"{records.get(at, 'nothing')} at {at}" for at in sorted(named))
    among = f"{len(records)} records, of which {each}" if len(records) > SHOWN else each
    return f"shown by {one.via}: {among or 'nothing'}; the log ends at {one.high_watermark}"


def _telling(partition: Partition, evidence: Sequence[Operation]) -> set[int]:
    """The offsets that the evidence is about: those that producers were told, those at which their
    records were shown, and those at which different records were."""
    mine = [one for one in evidence if getattr(one, "partition", None) == partition]
    sent: set[Value] = set()
    found: set[int] = set()
    at: dict[int, Value] = {}
    for one in mine:
        if isinstance(one, Produce):
            sent.update(one.values)
            if one.base_offset is not None:
                found.update(range(one.base_offset, one.base_offset + len(one.values)))
    for one in mine:
        if isinstance(one, Fetch):
            for offset, value in one.records:
                if value in sent or at.setdefault(offset, value) != value:
                    found.add(offset)
    return found


def _log(partition: Partition) -> str:
    """Topics that are created again under one name differ by their ids."""
    return f"{partition.topic[:8]}-{partition.number}"
