"""Maven is called when sources changed, and its failure is shown."""

from __future__ import annotations

from pathlib import Path

import pytest

from tideline.stack import kafka_jars
from tideline.stack.errors import StackError
from tideline.stack.kafka_jars import RELEASE, KafkaLibraries, ensure, is_current, libraries


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


def test_another_release_is_built_in_a_place_of_its_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    a_maven_that(f'echo "$@" > {tmp_path}/told', tmp_path, monkeypatch)
    (tmp_path / "pom.xml").write_text("one")
    monkeypatch.setattr(kafka_jars, "SOURCES", tmp_path)
    monkeypatch.delenv(RELEASE, raising=False)
    usual = libraries()
    ensure(usual)
    assert "kafka.version" not in (tmp_path / "told").read_text()
    monkeypatch.setenv(RELEASE, "4.1.2")
    other = libraries()
    assert other.broker != usual.broker
    assert not is_current(other)
    ensure(other)
    assert f"-Doutput={other.output} -Dkafka.version=4.1.2" in (tmp_path / "told").read_text()


def test_what_is_no_release_is_refused_with_an_example(monkeypatch: pytest.MonkeyPatch) -> None:
    for wrong in ("4.1", "latest", "../4.1.2"):
        monkeypatch.setenv(RELEASE, wrong)
        with pytest.raises(StackError, match=r"as 4\.1\.2"):
            libraries()
