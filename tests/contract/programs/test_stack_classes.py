"""The archive of a broker's classes is made once, used by every JVM of Kafka, and never needed."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.support.waiting import HANGS_S
from tideline.stack import kafka_classes, kafka_jars
from tideline.stack.kafka_classes import ARCHIVE, archive_classes, archived_classes
from tideline.stack.kafka_jars import KafkaLibraries, ensure, java, libraries, tool_command


@pytest.fixture(scope="module")
def built() -> KafkaLibraries:
    ensure(libraries())
    return libraries()


def random_uuid() -> subprocess.CompletedProcess[str]:
    """What Kafka's smallest tool says."""
    return subprocess.run(
        tool_command("kafka.tools.StorageTool", "random-uuid"),
        stdin=subprocess.DEVNULL, capture_output=True, text=True, check=True, timeout=HANGS_S,
    )  # fmt: skip


def test_the_archive_is_there_once_the_jars_are_built(built: KafkaLibraries) -> None:
    assert (built.output / ARCHIVE).stat().st_size > 1_000_000
    assert any(str(built.output / ARCHIVE) in word for word in tool_command("kafka.Kafka"))


@pytest.mark.parametrize("content", ["damaged", "of other jars"])
def test_a_jvm_that_cannot_use_the_archive_starts_as_without_and_says_nothing(
    built: KafkaLibraries, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, content: str
) -> None:
    copy = KafkaLibraries(tmp_path / "target", built.config)
    copy.output.mkdir()
    os.symlink(built.broker, copy.broker)
    archive = copy.output / ARCHIVE
    if content == "damaged":
        archive.write_bytes(b"\0" * 100_000)
    else:
        shutil.copyfile(built.output / ARCHIVE, archive)
    monkeypatch.setattr(kafka_jars, "libraries", lambda: copy)
    said = random_uuid()
    assert len(said.stdout.strip()) == 22
    assert said.stderr == ""


def test_a_broker_that_does_not_start_leaves_no_archive(tmp_path: Path) -> None:
    (tmp_path / "broker-libs").mkdir()
    archive_classes(java(), tmp_path / "broker-libs", tmp_path, tmp_path, tmp_path)
    assert archived_classes(tmp_path) == ()
    assert [path.name for path in tmp_path.iterdir() if path.is_dir()] == ["broker-libs"]


def test_a_machine_that_is_too_slow_for_it_goes_on_without(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "broker-libs").mkdir()
    slow = tmp_path / "java"
    slow.write_text("#!/bin/sh\nexec sleep 600\n")
    slow.chmod(0o755)
    monkeypatch.setattr(kafka_classes, "STARTS_WITHIN_S", 0.2)
    archive_classes(str(slow), tmp_path / "broker-libs", tmp_path, tmp_path, tmp_path)
    assert archived_classes(tmp_path) == ()
