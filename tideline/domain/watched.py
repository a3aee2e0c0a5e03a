"""What must hold in Kafka of a tracked topic from B0 on, for ever, compared with what is seen.

Gateways let nothing past B0 into the classic log and no forbidden config through. Whoever reaches a
broker directly can do both; the watches of the worker find out.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from tideline.domain.broker_defaults import BrokerDefaults
from tideline.domain.config_changes import (
    JUDGED,
    problem_with_value,
    shown_limits,
    situation_of,
)
from tideline.domain.foreign_text import some_of
from tideline.domain.grown import NewLog, first_in_the_way
from tideline.domain.migration import UNDEFINED_OFFSET
from tideline.domain.topic_configs import TopicLimits


class FindingKind(StrEnum):
    TAIL = "tail"
    """A replica's log goes on past B0: a broker took, and perhaps acknowledged, what nobody
    serves."""
    SHORT = "short"
    """A replica's log ends below what Kafka must hold of the prefix; a log gap (``gap`` in the
    detail) if all do that answer."""
    CONFIG = "config"
    """A config that was changed at a broker, past the gateways, or of which brokers have different
    defaults."""
    GROWN = "grown"
    """A partition that Kafka has and Postgres has no row of: nobody serves it."""
    ACL = "acl"
    """ACLs that name a host: they match no client, since brokers see the gateways' hosts."""
    SHARE_GROUP = "share_group"
    """Share groups on the topic: gateways refuse their fetches."""


OF_PARTITIONS = frozenset({FindingKind.TAIL, FindingKind.SHORT, FindingKind.GROWN})
"""What is found of one partition, and not of the topic."""


@dataclass(frozen=True, slots=True)
class Finding:
    kind: FindingKind
    subject: str
    """The partition's number, the config's key, or the kind itself where a topic has one."""
    detail: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class HostAcl:
    """An ACL of topics that names a host."""

    pattern: str
    prefixed: bool
    """``PatternType.PREFIXED``; else literal, of which ``*`` is every topic."""
    words: str


class HostAcls:
    """Those of a cluster, by the pattern: it may have 100,000, and many topics are looked at."""

    def __init__(self, acls: Iterable[HostAcl] = ()) -> None:
        self._by_pattern: dict[tuple[str, bool], list[str]] = {}
        for acl in acls:
            self._by_pattern.setdefault((acl.pattern, acl.prefixed), []).append(acl.words)

    def of(self, topic: str) -> list[str]:
        """Those that apply to the topic, in words and sorted, as ``StandardAuthorizer`` matches
        them."""
        prefixes = ((topic[:length], True) for length in range(len(topic) + 1))
        patterns = dict.fromkeys(((topic, False), ("*", False), *prefixes))
        return sorted(words for at in patterns for words in self._by_pattern.get(at, ()))


@dataclass(frozen=True, slots=True)
class WatchedPartition:
    partition: int
    partly_in_kafka: bool
    """Records below B0 are Kafka's, or all while B0 is unset."""
    boundary: int
    prefix_end: int
    """Where what Kafka must hold ends (exclusive): B0, or an accepted gap below it."""


def log_end_findings(row: WatchedPartition, ends: Mapping[int, int]) -> list[Finding]:
    """What ``ends`` (log end, exclusive, by replica) says of a partition whose B0 is set."""
    if row.boundary == UNDEFINED_OFFSET:
        return []
    found = []
    past = {str(node): end for node, end in sorted(ends.items()) if end > row.boundary}
    short = {str(node): end for node, end in sorted(ends.items()) if end < row.prefix_end}
    if past:
        detail = {
            "boundary": row.boundary,
            "log_ends": past,
            "offsets": max(past.values()) - row.boundary,
        }
        found.append(Finding(FindingKind.TAIL, str(row.partition), detail))
    if short and row.partly_in_kafka:
        detail = {
            "boundary": row.boundary,
            "log_ends": short,
            "offsets": row.prefix_end - min(short.values()),
        }
        if len(short) == len(ends):
            # No replica that answers reaches it: a log gap.
            detail["gap"] = {"first": max(short.values()), "end": row.prefix_end}
        found.append(Finding(FindingKind.SHORT, str(row.partition), detail))
    return found


def access_finding(kind: FindingKind, names: Sequence[str]) -> list[Finding]:
    """What the preflight refuses a topic for, and may come when it is tracked. ``names``: sorted,
    of the ACLs or of the share groups."""
    detail = {"count": len(names), "names": some_of(names, 3)}
    return [Finding(kind, kind.value, detail)] if names else []


def grown_findings(logs: Sequence[NewLog]) -> list[Finding]:
    """Partitions that came past the gateways and were not taken in."""
    in_the_way = first_in_the_way(logs)
    found = []
    for log in logs:
        detail: dict[str, Any] = {
            "log_ends": {str(node): end for node, end in sorted(log.ends.items())},
            "not_known_of": [node for node in log.replicas if node not in log.ends],
            "offsets": log.offsets,
        }
        if in_the_way is not None and log.is_empty and log.partition > in_the_way.partition:
            detail["behind"] = in_the_way.partition
        found.append(Finding(FindingKind.GROWN, str(log.partition), detail))
    return found


HELD = "Tideline holds it"


@dataclass(frozen=True, slots=True)
class ChangedDefault:
    """A limit of batches that the user does not set, and whose default is another one by now."""

    key: str
    enforced: str
    default: str
    """What all brokers have."""


def defaults_compared(
    users: Mapping[str, str | None],
    limits: TopicLimits,
    own: Collection[str],
    defaults: BrokerDefaults,
) -> tuple[list[ChangedDefault], list[Finding]]:
    """The limits that have another default than what is enforced, and those in whose default
    brokers differ. ``users``: the user's values of what Tideline holds, which hide the default from
    the topic's own configs. ``own``: keys that a broker shows as set on the topic."""
    changed, found = [], []
    for key, enforced in shown_limits(limits).items():
        if users[key] is not None if key in users else key in own:
            continue
        if (differ := defaults.difference(key)) is not None:
            detail = {"wanted": enforced, "why": differ}
            found.append(Finding(FindingKind.CONFIG, key, detail))
        elif (default := defaults.of_first.get(key)) is not None and default != enforced:
            changed.append(ChangedDefault(key, enforced, default))
    return changed, found


def config_findings(
    rows: Iterable[WatchedPartition],
    overrides: Mapping[str, str | None],
    limits: TopicLimits,
    own: Mapping[str, str | None],
    effective: Mapping[str, str | None],
) -> list[Finding]:
    """Configs in Kafka that are not as Postgres has them, or that the suffix cannot honour.

    ``overrides`` is what Tideline holds, ``own`` what is set on the topic, ``effective`` what
    counts with the defaults.
    """
    rows = tuple(rows)
    found: dict[str, Mapping[str, Any]] = {}
    for key, held in overrides.items():
        if own.get(key) != held:
            found[key] = {"in_kafka": own.get(key), "wanted": held, "why": HELD}
    in_force = shown_limits(limits)
    if rows and all(row.boundary != UNDEFINED_OFFSET for row in rows):
        for key, value in in_force.items():
            if key not in overrides and key in own and own[key] != value:
                found[key] = {
                    "in_kafka": own[key],
                    "wanted": value,
                    "why": "the suffix enforces what was set through a gateway",
                }
    situation = situation_of(rows, effective)
    for key in JUDGED:
        if key in overrides or key not in effective:
            continue
        why = problem_with_value(key, effective[key], situation)
        if why is not None:
            found[key] = {"in_kafka": effective[key], "wanted": None, "why": why}
    return [Finding(FindingKind.CONFIG, key, detail) for key, detail in sorted(found.items())]
