"""Migrate several topics, a few at a time, and stop at the first that does not get there.

    python examples/wave.py orders payments clicks --at-once 2

For hundreds of topics, approvals and a plan that is kept, use the Airflow DAG (docs/airflow.md).
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Sequence

from confluent_kafka import KafkaException
from confluent_kafka.admin import (
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    ResourceType,
)

THROUGH = ("HYBRID", "DISKLESS_ONLY")  # an empty topic becomes DISKLESS_ONLY at once


def ask(admin: AdminClient, topics: Sequence[str]) -> None:
    """One request for all; a topic that may not migrate is refused with rule and remedy."""
    change = ConfigEntry("diskless.enable", "true", incremental_operation=AlterConfigOpType.SET)
    resources = [
        ConfigResource(ResourceType.TOPIC, topic, incremental_configs=[change]) for topic in topics
    ]
    for resource, answer in admin.incremental_alter_configs(resources).items():
        try:
            answer.result(60)
        except KafkaException as error:
            raise SystemExit(f"{resource.name} is refused: {error.args[0].str()}") from error


def states(admin: AdminClient, topics: Sequence[str]) -> dict[str, str]:
    resources = [ConfigResource(ResourceType.TOPIC, topic) for topic in topics]
    answers = admin.describe_configs(resources)
    return {r.name: str(answers[r].result(30)["diskless.migration.state"].value) for r in resources}


def wait(admin: AdminClient, topics: Sequence[str], timeout_s: float) -> None:
    deadline = time.monotonic() + timeout_s
    left = list(topics)
    while left:
        now = states(admin, left)
        for topic in [topic for topic in left if now[topic] in THROUGH]:
            print(f"{topic} is {now[topic]}")
            left.remove(topic)
        if left and time.monotonic() > deadline:
            raise SystemExit(
                f"{left[0]} is still {now[left[0]]}: see `tideline preflight {left[0]}`"
            )
        time.sleep(0.2)


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    arguments.add_argument("topics", nargs="+")
    arguments.add_argument("--at-once", type=int, default=2)
    arguments.add_argument("--timeout", type=float, default=300, help="seconds for each few")
    arguments.add_argument("--bootstrap", default="127.0.0.1:19191", help="the gateways")
    given = arguments.parse_args()
    admin = AdminClient({"bootstrap.servers": given.bootstrap})
    for first in range(0, len(given.topics), given.at_once):
        batch = given.topics[first : first + given.at_once]
        ask(admin, batch)
        wait(admin, batch, given.timeout)
    print(f"{len(given.topics)} topics are through")


if __name__ == "__main__":
    main()
