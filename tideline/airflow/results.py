"""The JSON document with which a job ends, as the task that ran it sees it."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tideline.errors import ExitCode

APPLICATION = "spark_application"
"""Of a result: the id of the Spark application that did the work, if one was started."""
KEPT_BYTES = 32_768
"""A larger result is not kept whole in Airflow's database: its long values are left out."""

_HOPELESS = frozenset({ExitCode.USAGE, ExitCode.REFUSED})
"""Trying again changes nothing until somebody does something."""


@dataclass(frozen=True, slots=True)
class JobResult:
    """What the job says of itself."""

    document: dict[str, Any]

    @property
    def error(self) -> str | None:
        """The job's own line about what went wrong; it names the store and its address."""
        error = self.document.get("error")
        return str(error) if error else None

    @property
    def may_be_tried_again(self) -> bool:
        """False when a rule or the settings forbid it, or the job calls its outcome final."""
        return not self.document.get("final") and self.document.get("exit_code") not in _HOPELESS

    def kept(self) -> dict[str, Any]:
        """The document, or only its short values when it is larger than :data:`KEPT_BYTES`."""
        if len(json.dumps(self.document)) <= KEPT_BYTES:
            return self.document
        short = {
            name: value
            for name, value in self.document.items()
            if not isinstance(value, list | dict) and len(str(value)) <= 1_000
        }
        return short | {"left_out": sorted(set(self.document) - set(short))}


def read_result(path: Path) -> JobResult | None:
    """What the job wrote; ``None`` when it ended before it could, or wrote no JSON object."""
    try:
        return result_of(path.read_bytes())
    except OSError:
        return None


def result_of(text: bytes) -> JobResult | None:
    """``None`` when it is no JSON object."""
    try:
        document = json.loads(text)
    except ValueError:
        return None
    return JobResult(document) if isinstance(document, dict) else None


def doubts(coverage: Mapping[str, Any]) -> str:
    """What keeps the result of a coverage run from saying that every prefix is whole; empty if
    nothing does."""
    if coverage.get("ok") is not True or coverage.get("dry_run") is not False:
        return "the run has judged nothing"
    counts = ("not_covered", "unobserved")
    missing = [name for name in counts if not isinstance(coverage.get(name), int)]
    if missing:
        return f"the result does not tell {', '.join(missing)}"
    return ", ".join(f"{name} {coverage[name]}" for name in counts if coverage[name])


def told(document: Mapping[str, Any]) -> dict[str, Any]:
    """What of a job's result goes with an asset's event: which run it was, where its report is, and
    its counts, those of a part (``split``, ``merge``) in a dictionary of their own."""
    facts: dict[str, Any] = {
        name: document[name] for name in ("run_id", "report") if document.get(name)
    }
    for name, value in document.items():
        if _is_count(value) and name != "exit_code":
            facts[name] = value
        elif isinstance(value, Mapping) and (counts := _counts(value)):
            facts[name] = counts
    return facts


def _counts(part: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in part.items() if _is_count(value)}


def _is_count(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)
