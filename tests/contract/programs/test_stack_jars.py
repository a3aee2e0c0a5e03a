"""Maven is called when sources changed, and its failure is shown."""

from __future__ import annotations

from pathlib import Path

import pytest

from tideline.stack import kafka_jars
from tideline.stack.errors import StackError
from tideline.stack.kafka_jars import KafkaLibraries, ensure, is_current


@pytest.fixture
def jars(tmp_path: Path) -> KafkaLibraries:
    return KafkaLibraries(tmp_path / "target")


def a_maven_that(script: str, directory: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Puts a fake ``mvn`` first on the path; returns the file in which it counts its calls."""
    calls = directory / "calls"
    maven = directory / "mvn"
    maven.write_text(f"#!/bin/sh\necho called >> {calls}\n{script}\n")
    maven.chmod(0o755)
    monkeypatch.setenv("PATH", f"{directory}:/usr/bin:/bin")
    return calls


def test_jars_are_built_once_for_the_same_sources(
    jars: KafkaLibraries, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls = a_maven_that(f"mkdir -p {jars.broker} {jars.rsm}", tmp_path, monkeypatch)
    ensure(jars)
    ensure(jars)
    assert is_current(jars)
    assert calls.read_text() == "called\n"


def test_a_changed_source_makes_jars_out_of_date(
    jars: KafkaLibraries, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    a_maven_that("true", tmp_path, monkeypatch)
    sources = tmp_path / "sources"
    sources.mkdir()
    (sources / "pom.xml").write_text("one")
    monkeypatch.setattr(kafka_jars, "SOURCES", sources)
    ensure(jars)
    assert is_current(jars)
    (sources / "pom.xml").write_text("two")
    assert not is_current(jars)


def test_a_failed_build_shows_the_end_of_mavens_log_and_is_tried_again(
    jars: KafkaLibraries, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    a_maven_that("echo '[ERROR] no such artifact'; exit 3", tmp_path, monkeypatch)
    with pytest.raises(StackError, match=r"(?s)Maven failed with 3.*no such artifact"):
        ensure(jars)
    assert not is_current(jars)


def test_a_missing_maven_is_named_with_how_to_get_it(
    jars: KafkaLibraries, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(StackError, match="apt-get install maven"):
        ensure(jars)
