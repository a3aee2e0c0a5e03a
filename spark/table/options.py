"""The options of the format ``tideline``, named as those of Spark's source for Kafka where they
mean the same."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime

from pyspark.sql.datasource import (
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    LessThan,
    LessThanOrEqual,
)

from tideline.domain.table import EARLIEST, LATEST, Bounds, Isolation
from tideline.errors import UsageError
from tideline.settings import JobsSettings

NAMES = (
    "topic", "startingOffsets", "endingOffsets", "startingTimestamp", "endingTimestamp",
    "isolation", "pinMs", "failOnDataLoss", "maxOffsetsPerTrigger",
)  # fmt: skip
STREAM_ONLY = ("failondataloss", "maxoffsetspertrigger")
BATCH_ONLY = ("endingoffsets", "endingtimestamp")


@dataclass(frozen=True, slots=True)
class Options:
    """As they were given; what they mean for a topic is said when it is looked at."""

    topic: str
    starting_offsets: str
    ending_offsets: str
    starting_timestamp: int | None
    """ms; begin at the first record that is no older."""
    ending_timestamp: int | None
    """ms; end before the first record that is no older."""
    isolation: Isolation
    pin_ms: int | None
    fail_on_data_loss: bool
    max_offsets: int | None

    def settings(self, given: JobsSettings) -> JobsSettings:
        return given if self.pin_ms is None else given.model_copy(
            update={"table_pin_ms": self.pin_ms}
        )  # fmt: skip


def parse(given: Mapping[str, str], *, stream: bool) -> Options:
    """Raises :class:`UsageError` that names the option."""
    said = {name.lower(): str(value) for name, value in given.items()}
    known = {name.lower(): name for name in NAMES}
    if unknown := sorted(said.keys() - known.keys()):
        raise UsageError(f"option {unknown[0]!r} is not known: {', '.join(NAMES)}")
    for name in BATCH_ONLY if stream else STREAM_ONLY:
        if name in said:
            kind = "a stream" if stream else "a batch read"
            raise UsageError(f"option {known[name]} means nothing to {kind}: leave it out")
    if not said.get("topic"):
        raise UsageError("option topic is not set: name the topic")
    for offsets, timestamp in (
        ("startingoffsets", "startingtimestamp"),
        ("endingoffsets", "endingtimestamp"),
    ):
        if offsets in said and timestamp in said:
            raise UsageError(f"give {known[offsets]} or {known[timestamp]}, not both")
    isolation = said.get("isolation", Isolation.READ_COMMITTED)
    if isolation not in list(Isolation):
        raise UsageError(f"isolation is {isolation!r}: {' or '.join(Isolation)}")
    loss = said.get("failondataloss", "true").lower()
    if loss not in ("true", "false"):
        raise UsageError(f"failOnDataLoss is {loss!r}: true or false")
    return Options(
        said["topic"],
        said.get("startingoffsets", LATEST if stream else EARLIEST),
        said.get("endingoffsets", LATEST),
        _number(said, known, "startingtimestamp", 0, 2**63 - 1),
        _number(said, known, "endingtimestamp", 0, 2**63 - 1),
        Isolation(isolation),
        _number(said, known, "pinms", 60_000, 86_400_000),
        loss == "true",
        _number(said, known, "maxoffsetspertrigger", 1, 2**63 - 1),
    )


def _number(
    said: Mapping[str, str], known: Mapping[str, str], name: str, least: int, most: int
) -> int | None:
    if name not in said:
        return None
    try:
        number = int(said[name])
    except ValueError:
        number = least - 1
    if not least <= number <= most:
        raise UsageError(
            f"option {known[name]} is {said[name]!r}: a whole number from {least} to {most}"
        )
    return number


def bounds_of(filters: Iterable[Filter]) -> Bounds:
    """What filters on ``partition``, ``offset`` and ``timestamp`` leave to read. An upper bound of
    the timestamp leaves everything: an older record may follow a younger one."""
    found = Bounds()
    for one in filters:
        match one:
            case EqualTo(("partition",), int(number)):
                found = found.only([number])
            case In(("partition",), numbers) if all(isinstance(n, int) for n in numbers):
                found = found.only(numbers)
            case EqualTo(("offset",), int(offset)):
                found = _within(found, offset, offset + 1)
            case GreaterThan(("offset",), int(offset)):
                found = _within(found, offset + 1, found.end)
            case GreaterThanOrEqual(("offset",), int(offset)):
                found = _within(found, offset, found.end)
            case LessThan(("offset",), int(offset)):
                found = _within(found, found.first, offset)
            case LessThanOrEqual(("offset",), int(offset)):
                found = _within(found, found.first, offset + 1)
            case (
                GreaterThan(("timestamp",), datetime() as at)
                | GreaterThanOrEqual(("timestamp",), datetime() as at)
                | EqualTo(("timestamp",), datetime() as at)
            ) if at.tzinfo is not None:
                found = _not_before(found, int(at.timestamp() * 1000))
            case _:
                pass
    return found


def _within(found: Bounds, first: int, end: int) -> Bounds:
    first = max(found.first, first)
    return Bounds(found.partitions, first, max(first, min(found.end, end)), found.not_before)


def _not_before(found: Bounds, at_ms: int) -> Bounds:
    return Bounds(found.partitions, found.first, found.end, max(found.not_before, at_ms))
