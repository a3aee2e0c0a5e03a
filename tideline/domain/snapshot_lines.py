"""The lines of a gateway's snapshot on disk (``tracking.json``), for whoever reads one.

The first is a whole snapshot, each further one what has changed since of one topic: ``topic`` as it
is now (``None``: it is tracked no more), or ``rows``: partitions that take the place of those that
it has under their numbers.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, TypeAlias

Entry: TypeAlias = dict[str, Any]
"""Of a topic; ``partitions`` by their numbers."""


def topics_of(whole: Mapping[str, Any], changes: Iterable[Mapping[str, Any]]) -> dict[str, Entry]:
    """What all lines together say, by name. Raises ``KeyError`` or ``TypeError`` for what is no
    line of a snapshot."""
    topics = {entry["name"]: _by_number(entry) for entry in whole["topics"]}
    for change in changes:
        name = change["name"]
        if "rows" in change:
            topics[name]["partitions"] |= {row["partition"]: row for row in change["rows"]}
            continue
        topics.pop(name, None)
        if change["topic"] is not None:
            topics[name] = _by_number(change["topic"])
    return topics


def _by_number(entry: Mapping[str, Any]) -> Entry:
    return {**entry, "partitions": {row["partition"]: row for row in entry["partitions"]}}
