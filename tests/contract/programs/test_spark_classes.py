"""The archive of a Spark driver's classes is made once, tried once, and never needed."""

from __future__ import annotations

from pathlib import Path

import pytest

from tideline.stack import spark_classes
from tideline.stack.kafka_classes import QUICK_START
from tideline.stack.kafka_jars import KafkaLibraries
from tideline.stack.spark_classes import archive, driver_options, make_archive


@pytest.fixture(autouse=True)
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(spark_classes, "libraries", lambda: KafkaLibraries(tmp_path / "target"))


def test_an_archive_that_cannot_be_made_is_tried_once_and_drivers_start_without(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(spark_classes, "_WORK", "print('it does not work'); raise SystemExit(1)")
    make_archive()
    log = archive().with_suffix(".log")
    assert log.read_text() == "it does not work\n"
    log.unlink()
    make_archive()
    assert not log.exists()
    assert driver_options() == QUICK_START


def test_a_driver_maps_the_archive_that_is_there() -> None:
    archive().parent.mkdir(parents=True)
    archive().touch()
    assert f"-XX:SharedArchiveFile={archive()}" in driver_options()
    make_archive()
    assert archive().read_bytes() == b""
