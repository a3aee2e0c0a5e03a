"""The scripts of examples/ do what they say."""

from __future__ import annotations

import subprocess
import sys
from datetime import UTC, datetime

from tests.harness import migration_case
from tests.support.waiting import HANGS_S
from tideline.stack import Stack


def example(stack: Stack, name: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    bootstrap = stack.endpoints.gateway_bootstrap
    command = [sys.executable, f"examples/{name}.py", *arguments, "--bootstrap", bootstrap]
    return subprocess.run(command, capture_output=True, text=True, timeout=HANGS_S, check=False)


def test_one_topic_migrates_and_is_read_by_offset_and_by_time(stack: Stack) -> None:
    topic = f"example-{datetime.now(UTC):%H%M%S%f}"
    migrated = example(stack, "one_topic", topic)
    assert migrated.returncode == 0, migrated.stdout + migrated.stderr
    assert f"{topic} is HYBRID" in migrated.stdout
    assert "partition 1: 500 records, in order, across the boundary" in migrated.stdout

    across = example(stack, "read_hybrid", topic, "--offset", "248", "--count", "4")
    assert across.returncode == 0, across.stderr
    bounds, *records = across.stdout.splitlines()
    assert bounds == f"{topic} 0: offsets 0 to 499"
    assert [line.split()[::2] for line in records] == [
        ["248", "496"],
        ["249", "498"],
        ["250", "500"],
        ["251", "502"],
    ]

    since = records[2].split()[1]
    by_time = example(stack, "read_hybrid", topic, "--since", since, "--count", "1")
    assert by_time.stdout.splitlines()[1] == records[2]


def test_a_wave_goes_a_few_topics_at_a_time_and_names_the_one_that_is_refused(
    stack: Stack,
) -> None:
    with (
        migration_case(stack, name="wave-a", history=20) as first,
        migration_case(stack, name="wave-b", history=20) as second,
    ):
        done = example(stack, "wave", first.topic, second.topic, "--at-once", "1")
        assert done.returncode == 0, done.stdout + done.stderr
        assert "2 topics are through" in done.stdout
    refused = example(stack, "wave", "__consumer_offsets")
    assert refused.returncode == 1
    assert "__consumer_offsets is refused" in refused.stderr
