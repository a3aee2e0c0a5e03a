"""The main job on brokers of each release of Kafka that is supported: a topic crosses under load,
is read across B0, covered and tiered. ``make test-release RELEASE=x.y.z`` is one of them.

Everything else is tested with the release of infra/kafka/pom.xml.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.conftest import HOMES_VARIABLE
from tideline import control_plane
from tideline.demo.context import DemoOptions, DemoOutput
from tideline.demo.run import Demo, summary
from tideline.domain.kafka_release import TRIED
from tideline.settings import GatewaySettings, WorkerSettings
from tideline.stack import Stack
from tideline.stack.kafka_jars import RELEASE

RELEASES = ("4.0.2", "4.1.2", "4.3.1", "4.4.0")
"""The last of each line, but for the line of infra/kafka/pom.xml."""
CHOSEN = (os.environ[RELEASE],) if os.environ.get(RELEASE) else RELEASES
OPTIONS = DemoOptions(partitions=2, java_rate=0, before_s=2.0, after_s=4.0, collect=False)
"""What a release could do otherwise; the rest is the same code whatever the brokers are."""
PARKED_MS = GatewaySettings.model_fields["gateway_park_max_ms"].default
"""For how long a gateway keeps a produce of the write pause: it is stored, and no client is told to
send it again."""
SHOWN = ("consumed = acknowledged", "coverage proves", "merged segments", "after it")


@pytest.fixture(params=CHOSEN)
def stack_of_a_release(
    request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Stack]:
    """Of one broker."""
    monkeypatch.setenv(RELEASE, request.param)
    process = os.environ.get("PYTEST_XDIST_WORKER", "one")
    home = Path(os.environ[HOMES_VARIABLE]) / f"{process}-kafka-{request.param}"
    failed = request.session.testsfailed
    try:
        yield Stack.up(home, brokers=1)
    finally:
        Stack.take_down(home)
    if request.session.testsfailed == failed:  # else all is left to be looked at
        Stack.purge(home)
        shutil.rmtree(home, ignore_errors=True)  # the demo has files of its own there


async def test_a_topic_crosses_is_read_covered_and_tiered(stack_of_a_release: Stack) -> None:
    stack = stack_of_a_release
    settings = WorkerSettings.of(stack.environment("worker"))
    async with control_plane.connect(settings, application_name="tideline-test") as plane:
        proof = await Demo(stack, plane, OPTIONS, DemoOutput(print)).run()
    assert summary(proof) == {"ok": True, "failed": []}
    pauses = proof.pauses()
    assert len(pauses) == OPTIONS.partitions
    assert max(pauses) < PARKED_MS, pauses
    assert f"Kafka version: {os.environ[RELEASE]}" in _started(stack.home)
    done = " ".join(check.name for check in proof.checks)
    for what in SHOWN:
        assert what in done, done


def test_every_line_that_is_said_to_have_been_tried_is_tried_here() -> None:
    """The one that is left out is that of infra/kafka/pom.xml."""
    lines = {release.rpartition(".")[0] for release in RELEASES}
    assert lines | {"4.2"} == set(TRIED)


def _started(home: Path) -> str:
    return "".join(log.read_text(errors="replace") for log in (home / "logs").glob("kafka-1*"))
