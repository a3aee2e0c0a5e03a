"""What gateways have told clients, from files that outlive a Postgres, beside what is known now.

Three kinds of files are read: a gateway's ``tracking.json`` (B0s), what
``kafka-consumer-groups.sh --describe --all-groups`` prints (positions of consumers), and lines of
JSON ``{"topic": …, "partition": …, "acknowledged": …}`` from a producer's own log.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tideline.domain.ids import TopicPartition
from tideline.domain.rebuild_plan import LogPlan
from tideline.domain.snapshot_lines import topics_of
from tideline.errors import UsageError
from tideline.rebuild.survey import Survey


@dataclass(frozen=True, slots=True)
class Told:
    """Somebody was told that the log goes up to ``end`` (exclusive), or what its B0 is; -1: not
    told."""

    log: TopicPartition
    source: str
    end: int = -1
    boundary: int = -1


def read_told(path: Path) -> list[Told]:
    """Raises :class:`UsageError` for a file that is none of the three kinds."""
    try:
        text = path.read_text(encoding="utf-8")
        lines = [line for line in text.splitlines() if line.strip()]
        if any(line.split()[:2] == ["GROUP", "TOPIC"] for line in lines):
            return list(_of_groups(lines))
        if lines and "format" in json.loads(lines[0]):
            # A last line without an end was being written when the gateway died.
            ended = lines if text.endswith("\n") else lines[:-1]
            return list(_of_snapshot(list(map(json.loads, ended)), str(path)))
        return [_of_producer(json.loads(line), str(path)) for line in lines]
    except (OSError, ValueError, KeyError, TypeError, IndexError) as error:
        raise UsageError(
            f"{path} tells nothing that is known here ({error!r}): give a gateway's tracking.json, "
            "what kafka-consumer-groups.sh --describe --all-groups prints, or lines of JSON with "
            "topic, partition and acknowledged"
        ) from error


def differences(told: Iterable[Told], found: Survey) -> list[str]:
    """What somebody was told and is not known: one line each."""
    plans = {
        TopicPartition(found.topic_of(log), log.partition): plan
        for log, plan in found.plans.items()
    }
    return [text for one in told if (text := _difference(one, plans)) is not None]


def _difference(told: Told, plans: Mapping[TopicPartition, LogPlan]) -> str | None:
    plan = plans.get(told.log)
    if plan is None or plan.known is None:
        # Of a classic topic nothing is known here, and nothing need be.
        return f"{told.log}: {told.source} has B0 {told.boundary}" if told.boundary >= 0 else None
    if told.boundary >= 0 and told.boundary != plan.known.boundary:
        return f"{told.log}: {told.source} has B0 {told.boundary}, not {plan.known.boundary}"
    if told.end > plan.end and plan.known.boundary >= 0:
        return (
            f"{told.log}: {told.source} was told of offsets up to {told.end - 1}, and the last one "
            f"that is known is {plan.end - 1}"
        )
    return None


def _of_groups(lines: Iterable[str]) -> Iterator[Told]:
    names: list[str] = []
    for line in lines:
        fields = line.split()
        if fields[:2] == ["GROUP", "TOPIC"]:
            names = fields
            continue
        row = dict(zip(names, fields, strict=False))
        if row.get("CURRENT-OFFSET", "").isdigit():
            log = TopicPartition(row["TOPIC"], int(row["PARTITION"]))
            yield Told(log, f"group {row['GROUP']}", end=int(row["CURRENT-OFFSET"]))


def _of_snapshot(documents: list[dict[str, Any]], source: str) -> Iterator[Told]:
    whole, *changes = documents
    for name, topic in topics_of(whole, changes).items():
        for row in topic["partitions"].values():
            log = TopicPartition(name, row["partition"])
            yield Told(log, source, end=row["high_watermark"], boundary=row["boundary"])


def _of_producer(one: dict[str, Any], source: str) -> Told:
    log = TopicPartition(str(one["topic"]), int(one["partition"]))
    return Told(log, source, end=int(one["acknowledged"]) + 1)
