"""``tideline export remote-log-metadata``: complete files, and clear refusals."""

from __future__ import annotations

import base64
import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from uuid import UUID

import pytest
from aiokafka.record import MemoryRecords
from typer.testing import CliRunner

from tideline.cli import export
from tideline.cli.app import app
from tideline.control_plane.tiering_model import MergedSegmentRow, MergedSegmentState
from tideline.domain.remote_log import RemoteLogIndex, SegmentState
from tideline.errors import RefusedError, UnreachableError, UsageError
from tideline.kafka.remote_log_metadata import decode

runner = CliRunner()
TOPIC_ID = UUID(int=5)


def row(log_id: int, base: int, state: MergedSegmentState) -> MergedSegmentRow:
    return MergedSegmentRow(
        log_id=log_id,
        topic="orders",
        topic_id=TOPIC_ID,
        partition=log_id - 10,
        segment_id=UUID(int=base + 1),
        state=state,
        object_key_stem=f"orders/{base}",
        base_offset=base,
        last_offset=base + 9,
        size_bytes=1_000,
        max_timestamp=500,
        leader_epoch=3,
        record_count=10,
        batch_count=2,
        offset_index_bytes=8,
        time_index_bytes=12,
        created_at=700,
        finished_at=None if state is MergedSegmentState.COPY_SEGMENT_STARTED else 800,
    )


@dataclass
class Plane:
    """Two partitions: two finished segments in one, one that is being copied in the other."""

    rows: dict[int, list[MergedSegmentRow]] = field(
        default_factory=lambda: {
            11: [row(11, 40, MergedSegmentState.COPY_SEGMENT_STARTED)],
            10: [
                row(10, 0, MergedSegmentState.COPY_SEGMENT_FINISHED),
                row(10, 10, MergedSegmentState.COPY_SEGMENT_FINISHED),
            ],
        }
    )
    away: bool = False

    def tiering_status(self, topic: str) -> list[SimpleNamespace]:
        known = self.rows if topic == "orders" else {}
        return [SimpleNamespace(partition=log_id - 10, log_id=log_id) for log_id in known]

    def merged_segments(self, lo: int, hi: int) -> Iterator[MergedSegmentRow]:
        yield from (row for log_id in range(lo, hi) for row in self.rows[log_id])
        if self.away:
            raise UnreachableError("Postgres does not answer")


@pytest.fixture
def plane(monkeypatch: pytest.MonkeyPatch) -> Plane:
    plane = Plane()

    @contextmanager
    def connect(_: object, *, application_name: str) -> Iterator[Plane]:
        yield plane

    monkeypatch.setattr(export, "connect_jobs", connect)
    monkeypatch.setattr(export, "load", lambda _: None)
    return plane


def run(*arguments: str) -> str:
    result = runner.invoke(app, ["export", "remote-log-metadata", *arguments])
    if result.exception is not None:
        raise result.exception
    return result.stdout


@pytest.mark.usefixtures("plane")
def test_each_record_is_a_line_of_json_whose_value_is_kafkas() -> None:
    lines = [json.loads(line) for line in run("orders").splitlines()]
    assert [(line["partition"], line["start_offset"], line["state"]) for line in lines] == [
        (0, 0, "COPY_SEGMENT_STARTED"),
        (0, 0, "COPY_SEGMENT_FINISHED"),
        (0, 10, "COPY_SEGMENT_STARTED"),
        (0, 10, "COPY_SEGMENT_FINISHED"),
        (1, 40, "COPY_SEGMENT_STARTED"),
    ]
    index = RemoteLogIndex()
    for line in lines:
        event = decode(base64.b64decode(line["value"]))
        assert event is not None
        index.apply(event)
    folded = {s.start_offset: s.state for s in index.topic_segments(TOPIC_ID)}
    finished, started = SegmentState.COPY_SEGMENT_FINISHED, SegmentState.COPY_SEGMENT_STARTED
    assert folded == {0: finished, 10: finished, 40: started}
    assert index.anomalies == 0


@pytest.mark.usefixtures("plane")
def test_a_file_is_a_kafka_log(tmp_path: Path) -> None:
    path = tmp_path / "00000000000000000000.log"
    run("orders", "-o", str(path))
    batch = MemoryRecords(path.read_bytes()).next_batch()
    assert [record.offset for record in batch] == [0, 1, 2, 3, 4]
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.usefixtures("plane")
def test_json_goes_to_a_file_too(tmp_path: Path) -> None:
    path = tmp_path / "out.json"
    run("orders", "--format", "json", "-o", str(path))
    assert path.read_text() == run("orders")


@pytest.mark.usefixtures("plane")
def test_binary_does_not_go_to_a_terminal() -> None:
    with pytest.raises(UsageError, match="name a file with -o"):
        run("orders", "--format", "log")


@pytest.mark.usefixtures("plane")
def test_a_topic_without_a_suffix_is_refused() -> None:
    with pytest.raises(RefusedError, match="'other' has no diskless partition"):
        run("other")


@pytest.mark.usefixtures("plane")
def test_a_directory_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"cannot write .*/none/x: No such file"):
        run("orders", "-o", str(tmp_path / "none" / "x"))


def test_a_failure_on_the_way_leaves_no_file_and_the_old_one_as_it_was(
    plane: Plane, tmp_path: Path
) -> None:
    path = tmp_path / "records.log"
    path.write_bytes(b"old")
    plane.away = True
    with pytest.raises(UnreachableError):
        run("orders", "-o", str(path))
    assert path.read_bytes() == b"old"
    assert list(tmp_path.iterdir()) == [path]
