"""What a restarted gateway knows while Postgres is away."""

from __future__ import annotations

import json
import os
from dataclasses import replace
from pathlib import Path

import pytest

from tests.unit.gateway.fakes import TOPIC, TOPIC_ID, tracked_row, tracked_topic
from tideline.control_plane.model import ConfigOverride
from tideline.errors import UsageError
from tideline.gateway.tracking.snapshot import FEW_LINES, PostgresIdentity, SnapshotFile

POSTGRES = PostgresIdentity("7001", 3)


def test_it_is_read_as_it_was_written(tmp_path: Path) -> None:
    """Schedule 18."""
    topic = tracked_topic(
        tracked_row(0), tracked_row(1, boundary=10, boundary_epoch=4, quiesced=True)
    )
    topic.overrides["retention.bytes"] = ConfigOverride("retention.bytes", "-1", None)
    topic = replace(topic, timestamp_before_max_ms=5_000, timestamp_after_max_ms=70)
    creating = tracked_topic(name="new", topic_id=None)
    SnapshotFile(tmp_path / "state", 1).write(POSTGRES, [topic, creating])
    found = SnapshotFile(tmp_path / "state", 1).read()
    assert found is not None
    assert found.identity == POSTGRES
    assert found.topics == (topic, creating)


WRITTEN = {
    "format": 1,
    "gateway_id": 1,
    "identity": ["7001", 3],
    "topics": [
        {
            "name": TOPIC,
            "topic_id": str(TOPIC_ID),
            "kind": "migrated",
            "status": "active",
            "timestamp_type": "CreateTime",
            "max_message_bytes": 1_048_588,
            "timestamp_before_max_ms": 5_000,
            "timestamp_after_max_ms": 70,
            "round": 1,
            "partitions": [
                {
                    "topic_id": str(TOPIC_ID),
                    "partition": 0,
                    "state": "HYBRID",
                    "generation": 2,
                    "quiesced": False,
                    "boundary": 40,
                    "boundary_epoch": 3,
                    "high_watermark": 55,
                    "suffix_start": 41,
                    "prefix_max_timestamp": 900,
                    "prefix_max_timestamp_offset": 39,
                    "ready": True,
                    "accepted_gap_from": -1,
                    "prefix_gone": False,
                }
            ],
            "overrides": [
                {"key": "retention.bytes", "override_value": "-1", "user_value": "5"},
            ],
        }
    ],
}
"""What is on disk."""


def test_the_file_has_the_names_that_its_format_promises(tmp_path: Path) -> None:
    """A gateway that starts anew with another version goes on from what the last one wrote; one
    that has another name for a field must have another format."""
    row = tracked_row(
        generation=2,
        boundary=40,
        boundary_epoch=3,
        high_watermark=55,
        suffix_start=41,
        prefix_max_timestamp=900,
        prefix_max_timestamp_offset=39,
        ready=True,
    )
    topic = replace(tracked_topic(row), timestamp_before_max_ms=5_000, timestamp_after_max_ms=70)
    topic.overrides["retention.bytes"] = ConfigOverride("retention.bytes", "-1", "5")
    file = SnapshotFile(tmp_path, 1)
    file.path.write_text(json.dumps(WRITTEN) + "\n")
    found = file.read()
    assert found is not None
    assert found.topics == (topic,)
    file.write(POSTGRES, [topic])
    assert json.loads(file.path.read_text()) == WRITTEN


def test_another_format_is_refused(tmp_path: Path) -> None:
    """Nothing is guessed for a name that the file lacks."""
    file = SnapshotFile(tmp_path, 1)
    file.path.write_text(json.dumps(WRITTEN | {"format": 2}) + "\n")
    with pytest.raises(UsageError, match=r"format 2, this version reads 1.*remove it"):
        file.read()


def test_of_a_partition_that_changes_no_other_one_is_written(tmp_path: Path) -> None:
    rows = [tracked_row(number) for number in range(1_000)]
    file = SnapshotFile(tmp_path, 1)
    file.write(POSTGRES, [tracked_topic(*rows)])
    before = len(file.path.read_bytes())
    for number in (3, 700):
        rows[number] = replace(rows[number], boundary=40, boundary_epoch=3)
        file.write(POSTGRES, [tracked_topic(*rows)])
    assert len(file.path.read_bytes()) - before < 1_000
    found = SnapshotFile(tmp_path, 1).read()
    assert found is not None
    assert found.topics == (tracked_topic(*rows),)


def test_a_partition_that_is_gone_is_gone_from_it(tmp_path: Path) -> None:
    file = SnapshotFile(tmp_path, 1)
    file.write(POSTGRES, [tracked_topic(tracked_row(0), tracked_row(1))])
    file.write(POSTGRES, [tracked_topic(tracked_row(0))])
    found = SnapshotFile(tmp_path, 1).read()
    assert found is not None
    assert list(found.topics[0].partitions) == [0]


def test_there_is_none_before_the_first_one(tmp_path: Path) -> None:
    assert SnapshotFile(tmp_path, 1).read() is None


def test_it_is_on_disk_when_the_write_returns(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """File before rename, directory after it."""
    done: list[str] = []
    fsync, replace = os.fsync, os.replace
    kind = {True: "fsync directory", False: "fsync file"}
    monkeypatch.setattr(
        os,
        "fsync",
        lambda fd: (done.append(kind[os.path.isdir(f"/proc/self/fd/{fd}")]), fsync(fd)),
    )
    monkeypatch.setattr(os, "replace", lambda a, b: (done.append("rename"), replace(a, b)))
    SnapshotFile(tmp_path, 1).write(POSTGRES, [])
    assert done == ["fsync file", "rename", "fsync directory"]


def test_a_whole_write_that_fails_leaves_the_old_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    SnapshotFile(tmp_path, 1).write(POSTGRES, [tracked_topic()])
    file = SnapshotFile(tmp_path, 1)

    def no_space(fd: int) -> None:
        raise OSError("no space left on device")

    monkeypatch.setattr(os, "fsync", no_space)
    with pytest.raises(OSError, match="no space"):
        file.write(POSTGRES, [])
    found = file.read()
    assert found is not None
    assert len(found.topics) == 1


def test_a_change_is_appended_and_read_back(tmp_path: Path) -> None:
    file = SnapshotFile(tmp_path, 1)
    file.write(POSTGRES, [tracked_topic(), tracked_topic(name="gone", topic_id=None)])
    whole = file.path.read_text()
    crossed = tracked_topic(tracked_row(boundary=40, boundary_epoch=3))
    new = tracked_topic(name="new", topic_id=None)
    file.write(POSTGRES, [crossed, new])
    assert file.path.read_text().startswith(whole)
    found = SnapshotFile(tmp_path, 1).read()
    assert found is not None
    assert {topic.name: topic for topic in found.topics} == {TOPIC: crossed, "new": new}


def test_nothing_is_written_for_what_moves_with_commits(tmp_path: Path) -> None:
    file = SnapshotFile(tmp_path, 1)
    row = tracked_row(boundary=40, boundary_epoch=3)
    file.write(POSTGRES, [tracked_topic(row)])
    before = file.path.stat()
    file.write(POSTGRES, [tracked_topic(replace(row, high_watermark=99, generation=7))])
    assert file.path.stat() == before


def test_a_line_that_was_being_written_at_the_end_is_not_told(tmp_path: Path) -> None:
    file = SnapshotFile(tmp_path, 1)
    file.write(POSTGRES, [tracked_topic()])
    file.write(POSTGRES, [tracked_topic(), tracked_topic(name="new", topic_id=None)])
    whole, line, _ = file.path.read_text().split("\n")
    for end in range(len(line)):
        file.path.write_text(whole + "\n" + line[:end])
        found = SnapshotFile(tmp_path, 1).read()
        assert found is not None
        assert [topic.name for topic in found.topics] == [TOPIC]
    successor = SnapshotFile(tmp_path, 1)
    successor.write(POSTGRES, [tracked_topic(name="new", topic_id=None)])
    found = successor.read()
    assert found is not None
    assert [topic.name for topic in found.topics] == ["new"]


def test_a_damaged_line_in_the_middle_is_refused(tmp_path: Path) -> None:
    file = SnapshotFile(tmp_path, 1)
    file.write(POSTGRES, [tracked_topic()])
    file.path.write_text(file.path.read_text() + '{"name": "ne\n')
    with pytest.raises(UsageError, match="is not a snapshot"):
        file.read()


def test_the_file_does_not_grow_for_ever(tmp_path: Path) -> None:
    file = SnapshotFile(tmp_path, 1)
    for boundary in range(3 * FEW_LINES):
        file.write(POSTGRES, [tracked_topic(tracked_row(boundary=boundary, boundary_epoch=1))])
        assert len(file.path.read_text().splitlines()) <= FEW_LINES + 1
    found = file.read()
    assert found is not None
    assert found.topics[0].partitions[0].boundary == 3 * FEW_LINES - 1


def test_after_an_append_that_failed_everything_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = SnapshotFile(tmp_path, 1)
    file.write(POSTGRES, [tracked_topic()])
    with monkeypatch.context() as full:

        def no_space(fd: int) -> None:
            raise OSError("no space left on device")

        full.setattr(os, "fsync", no_space)
        with pytest.raises(OSError, match="no space"):
            file.write(POSTGRES, [])
    file.write(POSTGRES, [])
    assert len(file.path.read_text().splitlines()) == 1
    found = file.read()
    assert found is not None
    assert found.topics == ()


@pytest.mark.parametrize("text", ["", "{", "{}", "{}\n", '{"format": 9}', "[1]"])
def test_a_damaged_one_is_refused_with_a_remedy(tmp_path: Path, text: str) -> None:
    """Guessing would pass a diskless topic through."""
    file = SnapshotFile(tmp_path, 1)
    file.path.write_text(text)
    with pytest.raises(UsageError, match=r"is not a snapshot of gateway 1.*remove it"):
        file.read()


def test_another_gateways_is_refused(tmp_path: Path) -> None:
    SnapshotFile(tmp_path, 2).write(POSTGRES, [])
    with pytest.raises(UsageError, match="it belongs to gateway 2"):
        SnapshotFile(tmp_path, 1).read()
