"""The main job on brokers of each release of Kafka that is supported: a topic crosses under load,
is read across B0, covered, tiered and verified. ``make test-release RELEASE=x.y.z`` is one of them.

Everything else is tested with the release of infra/kafka/pom.xml.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.conftest import HOMES_VARIABLE
from tideline.domain.kafka_release import TRIED
from tideline.stack import Stack
from tideline.stack.kafka_jars import RELEASE

RELEASES = ("4.0.2", "4.1.2", "4.3.1", "4.4.0")
"""The last of each line, but for the line of infra/kafka/pom.xml."""
CHOSEN = (os.environ[RELEASE],) if os.environ.get(RELEASE) else RELEASES
SHOWN = ("consumed = acknowledged", "coverage proves", "merged segments", "verify:")
LONGER_THAN_EVER_S = 3_000


@pytest.mark.timeout(LONGER_THAN_EVER_S + 300)
@pytest.mark.parametrize("release", CHOSEN)
def test_a_topic_crosses_is_read_covered_and_tiered(release: str, tmp_path: Path) -> None:
    process = os.environ.get("PYTEST_XDIST_WORKER", "one")
    home = Path(os.environ[HOMES_VARIABLE]) / f"{process}-kafka-{release}"
    home.mkdir(mode=0o755)
    demo = ["demo", "--partitions", "2", "--home", str(home), "--reports", str(tmp_path)]
    ended = None
    try:
        ended = subprocess.run(
            [sys.executable, "-m", "tideline", *demo, "-o", "json"],
            env=os.environ | {RELEASE: release},
            stdin=subprocess.DEVNULL,
            timeout=LONGER_THAN_EVER_S,
            check=False,
        )
        assert ended.returncode == 0, "what it said is shown as captured output"
        assert f"Kafka version: {release}" in _started(home)
        (proof,) = tmp_path.glob("*.json")
        done = " ".join(check["name"] for check in json.loads(proof.read_text())["checks"])
        for what in SHOWN:
            assert what in done, done
    finally:
        Stack.take_down(home)
    Stack.purge(home)  # a run that failed leaves all to be looked at
    shutil.rmtree(home, ignore_errors=True)  # the demo has files of its own there


def test_every_line_that_is_said_to_have_been_tried_is_tried_here() -> None:
    """The one that is left out is that of infra/kafka/pom.xml."""
    lines = {release.rpartition(".")[0] for release in RELEASES}
    assert lines | {"4.2"} == set(TRIED)


def _started(home: Path) -> str:
    return "".join(log.read_text(errors="replace") for log in (home / "logs").glob("kafka-1*"))
