"""Which files the driver of split claims for a round."""

from __future__ import annotations

from typing import cast
from uuid import UUID

from spark.common.entry import Job
from spark.tiering.job import CLAIMS_PER_TASK, claim_round
from tideline.control_plane.jobs import JobsControlPlane
from tideline.control_plane.tiering_model import ClaimedBatch, ClaimedFile
from tideline.settings import JobsSettings

WORKER, TOPIC = UUID(int=1), UUID(int=2)


def file(number: int, *times: int) -> ClaimedFile:
    batches = (
        ClaimedBatch("t", TOPIC, 0, 7, n, n, 0, 100, False, 0, time, 0)
        for n, time in enumerate(times)
    )
    return ClaimedFile(number, f"wal/{number}", number, tuple(batches))


class Claims:
    """A control plane that answers one claim after the other, then none."""

    def __init__(self, *answers: list[ClaimedFile]) -> None:
        self._answers = list(answers)
        self.begun_at: list[int | None] = []

    def claim_wal_files(self, _: UUID, *, from_ms: int | None, **limits: object) -> object:
        self.begun_at.append(from_ms)
        return self._answers.pop(0) if self._answers else []


def claimed(plane: Claims) -> list[int]:
    job = Job(
        "split", JobsSettings.model_validate({"postgres_dsn": "host=x", "kafka_bootstrap": "a:1"})
    )
    job.__dict__["parallelism"] = 1  # no Spark is started for it
    found = claim_round(job, cast(JobsControlPlane, plane), WORKER, {TOPIC: 1_000})
    return [one.file_id for one in found]


def test_each_claim_of_a_round_goes_on_where_the_one_before_ended() -> None:
    plane = Claims([file(1, 10, 900), file(2, 700, 30)], [file(3, 40)])
    assert claimed(plane) == [1, 2, 3]
    assert plane.begun_at == [None, 30, 40]


def test_each_round_begins_at_the_oldest_batch() -> None:
    plane = Claims(*[[file(n, n)] for n in range(CLAIMS_PER_TASK + 1)])
    assert len(claimed(plane)) == CLAIMS_PER_TASK
    assert claimed(plane) == [CLAIMS_PER_TASK]
    assert [n for n, begun in enumerate(plane.begun_at) if begun is None] == [0, CLAIMS_PER_TASK]
    assert claimed(plane) == []
