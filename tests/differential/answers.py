"""Answers as plain values, in which both sides' own names mean the same, and where two differ."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, fields, is_dataclass
from datetime import datetime, timedelta
from enum import Enum
from typing import Any
from uuid import UUID

from tideline.kafka.batches import iter_batches

NAMED_BY = (
    "topic", "name", "topic_id", "resource_type", "resource_name", "transactional_id",
    "partition", "partition_index", "index", "key", "node_id", "broker_id", "producer_id",
    "api_key", "batch_index",
)  # fmt: skip
"""Fields that say what a row of an array is about."""
CLOSED, SILENT = "the connection was closed", "no answer"
Path = tuple[str, ...]


@dataclass(frozen=True)
class Names:
    """What one side calls things, and what each is called for the comparison."""

    topics: Mapping[str, str]
    """The longest names first: some begin with others."""
    ids: Mapping[UUID, str]
    nodes: Mapping[tuple[str, int], int]
    """By host and port."""


def plain(value: Any, names: Names) -> Any:
    """Of a message of kio's."""
    if is_dataclass(value) and not isinstance(value, type):
        return _entity(value, names)
    if isinstance(value, tuple | list):
        return [plain(one, names) for one in value]
    if isinstance(value, UUID):
        return names.ids.get(value, "one by chance" if value.version == 4 else str(value))
    if isinstance(value, Enum):
        return value.name
    if isinstance(value, timedelta):
        return value // timedelta(milliseconds=1)
    if isinstance(value, datetime):
        return value.isoformat()
    if isinstance(value, str):
        for own, common in names.topics.items():
            value = value.replace(own, common)
        return value
    return value


def _entity(value: Any, names: Names) -> dict[str, Any]:
    made: dict[str, Any] = {}
    for field in fields(value):
        found = getattr(value, field.name)
        if field.name == "records":
            made[field.name] = batches(found)
        elif field.name == "session_id":
            made[field.name] = "none" if found == 0 else "one"
        else:
            made[field.name] = plain(found, names)
    if "host" in made and "port" in made:
        at = (made.pop("host"), made.pop("port"))
        made["at"] = names.nodes.get(at, at if at != ("", -1) else "nowhere")
    return made


def batches(records: bytes | None) -> Any:
    """Whole batches: where each begins and ends, and its bytes behind the leader epoch, which is
    the log's and not the producer's. The rest is cut by the limit of the fetch."""
    if records is None:
        return None
    data = bytes(records)
    return [
        (b.base_offset, b.last_offset, hash(data[b.position + 16 : b.end]))
        for b in iter_batches(data)
    ]


def leaves(value: Any, at: Path = ()) -> Iterator[tuple[Path, Any]]:
    """Each value that is no message and no array of messages, by its path; rows of an array by
    what they are about."""
    if isinstance(value, dict):
        for name, inner in value.items():
            yield from leaves(inner, (*at, name))
    elif isinstance(value, list) and value and isinstance(value[0], dict):
        seen: Counter[str] = Counter()
        for row in value:
            about = " ".join(str(row[name]) for name in NAMED_BY if name in row)
            seen[about] += 1
            again = f" #{seen[about]}" if seen[about] > 1 else ""
            yield from leaves(row, (*at, f"{about}{again}"))
        yield (*at, "rows"), len(value)
    else:
        yield at, value


MISSING = "(no such field)"


def differing(one: Any, other: Any) -> dict[Path, tuple[Any, Any]]:
    """Where two plain answers are not the same."""
    first, second = dict(leaves(one)), dict(leaves(other))
    paths = [*first, *(path for path in second if path not in first)]
    pairs = {path: (first.get(path, MISSING), second.get(path, MISSING)) for path in paths}
    return {path: pair for path, pair in pairs.items() if pair[0] != pair[1]}
