"""What a client hears of each failure of the control plane, and of each of its words.

Seed 000, "Error semantics": what passes by itself is REQUEST_TIMED_OUT, what does not is
KAFKA_STORAGE_ERROR, and an identity that is gone is UNKNOWN_TOPIC_OR_PARTITION. Codes are read off
the frames of a gateway that is asked about a partition without a prefix, so that Kafka is asked
nothing.
"""

from __future__ import annotations

from contextlib import AbstractContextManager
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest

from tests.asked import Places, Told, request, told
from tests.unit.gateway.fakes import TOPIC, record_batch, tracked_row
from tests.unit.gateway.tracked_bench import TrackedBench, leased
from tideline.control_plane.errors import (
    BoundaryUnset,
    ControlPlaneFailure,
    ControlPlaneUnavailable,
    OffsetOutOfRange,
    TopicDeleted,
    UnknownLog,
)
from tideline.control_plane.model import CommitError, CommittedBatch, FoundBatches, SuffixOffset
from tideline.domain.answers import Asked
from tideline.kafka.record_search import FoundRecord

CROSSED = tracked_row(generation=2, boundary=100, boundary_epoch=7, prefix_gone=True)
PLACES = Places(prefix=5, suffix=100, end=102, old_epoch=3, new_epoch=7)
COLUMNS = (
    Asked.PRODUCE,
    Asked.FETCH_SUFFIX,
    Asked.LATEST,
    Asked.EARLIEST,
    Asked.MAX_TIMESTAMP,
    Asked.BY_TIME,
    Asked.EPOCH_SUFFIX,
    Asked.DELETE_SUFFIX,
)
AWAY = ControlPlaneUnavailable("Postgres is away")
BROKEN = ControlPlaneFailure("Postgres answers what no rule explains")
T, S, N, U, R = (
    "REQUEST_TIMED_OUT",
    "KAFKA_STORAGE_ERROR",
    "NOT_LEADER_OR_FOLLOWER",
    "UNKNOWN_TOPIC_OR_PARTITION",
    "OFFSET_OUT_OF_RANGE",
)
_ = ""  # it does not say so there
# fmt: off
HEARD = (
    # what Postgres says     produce fetch latest earliest max time epoch delete
    (AWAY,                   (T,      S,    T,     T,       T,  T,   T,    T)),
    (BROKEN,                 (S,      S,    S,     S,       S,  S,   S,    S)),
    ("UNKNOWN_LOG",          (N,      N,    N,     N,       N,  N,   N,    N)),
    ("BOUNDARY_UNSET",       (N,      N,    N,     N,       N,  N,   N,    N)),
    ("TOPIC_DELETED",        (U,      U,    U,     U,       U,  U,   _,    U)),
    ("BELOW_BOUNDARY",       (_,      N,    N,     N,       N,  N,   _,    _)),
    ("OFFSET_OUT_OF_RANGE",  (_,      R,    _,     _,       _,  _,   _,    R)),
    ("SUFFIX_HOLE",          (_,      S,    S,     S,       S,  S,   _,    _)),
    ("a word of a newer one", (_,     S,    S,     S,       S,  S,   _,    _)),
)
# fmt: on
OF_ENDS = [row for row in HEARD if row[1][COLUMNS.index(Asked.LATEST)]]
RAISED = {
    "UNKNOWN_LOG": UnknownLog("no such row"),
    "BOUNDARY_UNSET": BoundaryUnset("no suffix"),
    "TOPIC_DELETED": TopicDeleted("the id is gone"),
    "OFFSET_OUT_OF_RANGE": OffsetOutOfRange("past the end"),
}
"""As DeleteRecords is refused, whose answer has no word."""


def saying(bench: TrackedBench, said: Exception | str) -> AbstractContextManager[Any]:
    """Each call about the partition is answered so."""

    def answer(made: Any) -> Any:
        async def call(*_: Any, **__: Any) -> Any:
            if isinstance(said, Exception):
                raise said
            return made()

        return call

    def refused() -> int:
        raise RAISED[str(said)]

    return patch.multiple(
        bench.plane,
        commit_file=answer(lambda: [CommittedBatch(CommitError(said))]),
        find_batches=answer(lambda: [FoundBatches(str(said), 100, 102)]),
        list_offsets=answer(lambda: SuffixOffset(str(said))),
        high_watermarks=answer(dict),
        delete_records=answer(refused),
    )


async def heard(bench: TrackedBench, asked: Asked) -> Told:
    return told(asked, await bench.ask(request(asked, TOPIC, 0, PLACES, record_batch(2))))


@pytest.mark.parametrize(("said", "codes"), HEARD, ids=[str(row[0]) for row in HEARD])
async def test_each_failure_and_each_word_is_heard_as_seed_000_says(
    tmp_path: Path, said: Exception | str, codes: tuple[str, ...]
) -> None:
    async with leased(tmp_path) as bench:
        bench.show(CROSSED)
        assert (await heard(bench, Asked.PRODUCE)).error == "NONE"
        with saying(bench, said), bench.impatient():
            for asked, code in zip(COLUMNS, codes, strict=True):
                if code:
                    assert await heard(bench, asked) == Told(code, -1), asked
    assert not bench.client.forwarded


@pytest.mark.parametrize(("said", "codes"), OF_ENDS, ids=[str(row[0]) for row in OF_ENDS])
async def test_a_deletion_up_to_an_offset_is_refused_by_what_is_said_of_the_end(
    tmp_path: Path, said: Exception | str, codes: tuple[str, ...]
) -> None:
    """It is looked up before Kafka deletes what lies below B0."""
    message = request(Asked.DELETE_SUFFIX, TOPIC, 0, PLACES, b"")
    (topic,) = message.topics
    (row,) = topic.partitions
    named = replace(topic, partitions=(replace(row, offset=101),))
    async with leased(tmp_path) as bench:
        bench.show(replace(CROSSED, prefix_gone=False))
        with saying(bench, said):
            response = await bench.ask(replace(message, topics=(named,)))
    code = codes[COLUMNS.index(Asked.LATEST)]
    assert told(Asked.DELETE_SUFFIX, response) == Told(code, -1)
    assert not bench.client.forwarded


@pytest.mark.parametrize("asked", [Asked.BY_TIME, Asked.MAX_TIMESTAMP])
async def test_a_record_of_the_suffix_below_b0_is_a_storage_error(
    tmp_path: Path, asked: Asked
) -> None:
    """Seed 000: "the suffix candidate must be >= B0 … violations return KAFKA_STORAGE_ERROR"."""
    async with leased(tmp_path) as bench:
        bench.show(CROSSED)

        async def below(*_: Any) -> tuple[SuffixOffset, FoundRecord]:
            return SuffixOffset("NONE"), FoundRecord(99, 1_000)

        reader: Any = bench.parts.reader
        reader.first_at_or_after = reader.record_of_max_timestamp = below
        assert await heard(bench, asked) == Told("KAFKA_STORAGE_ERROR", -1)
