"""What a gateway answers otherwise than a stock broker, by design: each rule by the name under
which docs/differential.md gives its reason."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from uuid import UUID

from tests.differential.answers import MISSING, Path
from tests.differential.places import Place
from tests.differential.questions import Question, Topic, TopicId
from tideline.domain.api_answers import NOT_OFFERED
from tideline.gateway.fetch.from_suffix import OBJECTS_PER_ANSWER
from tideline.gateway.per_partition import CONSUMER
from tideline.gateway.transport.addresses import NO_NODE

DEBUGGING = -2
"""Replica id that every replica answers by its log end (``FetchRequest.DEBUGGING_CONSUMER_ID``)."""
NOT_LEADER, UNKNOWN = "not_leader_or_follower", "unknown_topic_or_partition"
UNREADABLE = ("unsupported_compression_type", "invalid_record")
OTHER_EPOCHS = ("unknown_leader_epoch", "fenced_leader_epoch")
NAMED = (
    "topic", "name", "topic_id", "resource_type", "resource_name", "transactional_id",
    "partition", "partitions", "partition_index", "partition_indexes", "index",
)  # fmt: skip
OWN_CONFIGS = ("diskless.enable", "diskless.migration.state")


@dataclass(frozen=True)
class Seen:
    """One value that two answers do not have in common."""

    question: Question
    places: Mapping[str, Sequence[Place]]
    path: Path
    gateway: Any
    broker: Any
    pairs: Mapping[Path, tuple[Any, Any]]
    """Everything in which they differ."""

    @property
    def name(self) -> str:
        return self.path[-1] if self.path else ""

    @property
    def which(self) -> str:
        """The topic that the value is about, as both sides call it; "" of none."""
        words = {word for part in self.path for word in part.split(" ")}
        return next((which for which in self.places if which in words), "")

    @property
    def number(self) -> int | None:
        """Of the partition that the value is about."""
        return next((n for part in self.path if (n := _number(part)) is not None), None)

    @property
    def place(self) -> Place | None:
        """The partition, where it is one."""
        rows, number = self.places.get(self.which, ()), self.number
        return rows[number] if number is not None and 0 <= number < len(rows) else None

    def error(self) -> tuple[Any, Any]:
        """Of the row, as the gateway and as the broker have it."""
        at = next((n for n, part in enumerate(self.path) if _number(part) is not None), -1)
        row = self.path[: at + 1] if at >= 0 else self.path[:-1]
        path = (*row, "error_code")
        return self.pairs.get(path, ("none", "none"))


def _number(part: str) -> int | None:
    head = part.split(" ")[0]
    return int(head) if head.lstrip("-").isdigit() else None


@dataclass(frozen=True)
class Rule:
    name: str
    apis: frozenset[str]
    applies: Callable[[Seen], bool]


def named_twice(question: Question) -> set[str]:
    """What a request names more than once."""
    named = Counter(_rows(question.values))
    return {row[-1] for row, count in named.items() if count > 1}


def _is_named_twice(seen: Seen) -> bool:
    """Whether the request names twice what the value is about, a topic or a config."""
    twice = named_twice(seen.question)
    words = {
        word for part in seen.path for word in (part, part.partition(" #")[0], *part.split(" "))
    }
    return bool(twice) and (seen.name == "rows" or bool(twice & words))


def _rows(value: Any, at: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    """What a request asks of, outer names first."""
    if isinstance(value, dict):
        about = tuple(
            _word(value[name])
            for name in NAMED
            if name in value and not isinstance(value[name], list)
        )
        if about:
            yield (*at, *about)
        for inner in value.values():
            yield from _rows(inner, (*at, *about))
    elif isinstance(value, list):
        for inner in value:
            if isinstance(inner, dict):
                yield from _rows(inner, at)
            else:
                yield (*at, _word(inner))


def _word(value: Any) -> str:
    return value.which if isinstance(value, Topic | TopicId) else str(value)


def _of_unknown_partition(seen: Seen) -> bool:
    """Of a tracked topic."""
    place = seen.places.get(seen.which, [None])[0]
    return place is not None and place.is_tracked and seen.number is not None and seen.place is None


def _served_elsewhere(seen: Seen) -> bool:
    if seen.question.beside == "leader":
        return False
    if "node_endpoints" in seen.path:  # beside the broker's refusal
        return True
    place = seen.place
    hint = "current_leader" in seen.path
    return place is not None and place.has_suffix and (hint or seen.error()[1] == NOT_LEADER)


def _transaction(seen: Seen) -> bool:
    """Of a tracked topic."""
    gateway, broker = seen.error()
    refused = broker == "transactional_id_authorization_failed" or gateway == "policy_violation"
    return seen.name == "partition_error_code" or (seen.name == "error_code" and refused)


def _unbelieved(seen: Seen) -> bool:
    place = seen.place
    has_prefix = place is not None and place.state in ("prefix not ready", "prefix ready")
    return has_prefix and seen.error() == (NOT_LEADER, "offset_out_of_range")


def _has(value: Any, name: str, is_odd: Callable[[Any], bool]) -> bool:
    """Whether a request has a field of that name with an odd value."""
    if isinstance(value, dict):
        return any((n == name and is_odd(v)) or _has(v, name, is_odd) for n, v in value.items())
    return isinstance(value, list) and any(_has(one, name, is_odd) for one in value)


def _last_fetched(seen: Seen) -> bool:
    place = seen.place
    refused = set(seen.error()) == {"none", "offset_out_of_range"}
    told = _has(seen.question.values, "last_fetched_epoch", lambda epoch: epoch != -1)
    return place is not None and place.has_suffix and refused and told


def _asked_for_debugging(seen: Seen) -> bool:
    """By any replica id that is not the consumers' a leader is asked for its log end."""
    place = seen.place
    pending = place is not None and place.state == "pending"
    debugging = seen.question.values.get("replica_id") != CONSUMER
    return pending and debugging and seen.error() == (NOT_LEADER, "none")


def _ended_at_a_follower(seen: Seen) -> bool:
    """Of a search by time: of a record without an epoch, before version 4, nobody can tell whether
    it is one of the prefix."""
    place, question = seen.place, seen.question
    if place is None or place.state != "prefix not ready" or question.beside != "follower":
        return False
    debugging = question.values.get("replica_id") == DEBUGGING
    by_time = _has(question.values, "timestamp", lambda timestamp: timestamp >= 0)
    found = seen.pairs.get((*seen.path[:-1], "offset"), (-1, -1))[1]
    unsure = question.version < 4 or not 0 <= found < place.boundary
    return debugging and by_time and unsure and seen.error() == (NOT_LEADER, "none")


def _as_many_at_once(seen: Seen) -> bool:
    if seen.name != "records" or seen.place is None or not seen.place.has_suffix:
        return False
    many = len(seen.gateway)
    return many >= OBJECTS_PER_ANSWER and seen.broker[:many] == seen.gateway


def _leader_epoch(seen: Seen) -> bool:
    place = seen.place
    return place is not None and place.has_suffix and seen.error()[1] in OTHER_EPOCHS


AGAIN = " #2"
"""Behind the name of a row that comes a second time (``answers.leaves``)."""


def _told_together(seen: Seen) -> bool:
    """What the broker has in a second row of the topic, the gateway has in its only one."""
    again = {path[1] for path in seen.pairs if path[0] == "responses" and AGAIN in path[1]}
    if not again or seen.path[0] != "responses":
        return False
    if seen.path == ("responses", "rows"):
        return int(seen.broker) - int(seen.gateway) == len(again)
    topic = seen.path[1].removesuffix(AGAIN)
    if topic + AGAIN not in again:
        return False
    inside = seen.path[2:]
    once, _ = seen.pairs.get(("responses", topic, *inside), (MISSING, MISSING))
    _, twice = seen.pairs.get(("responses", topic + AGAIN, *inside), (MISSING, MISSING))
    if inside == ("partitions", "rows"):
        before = seen.pairs["responses", topic, *inside][1]
        return int(once) == int(before) + int(twice)
    if seen.number is None:
        return seen.name in ("topic", "topic_id") and seen.gateway == MISSING
    return once != MISSING and (once or None) == (twice or None)


def _ends_at_boundary(seen: Seen) -> bool:
    if seen.name != "records" or seen.place is None:
        return False
    if not seen.gateway or seen.gateway == MISSING:
        return False
    ends = int(seen.gateway[-1][1]) + 1
    whole = seen.broker[: len(seen.gateway)] == seen.gateway
    return whole and ends == seen.place.boundary


def _refused_in_the_pause(seen: Seen) -> bool:
    place = seen.place
    return place is not None and place.state == "quiescing" and seen.error()[0] == NOT_LEADER


def _epochs_of_the_suffix(seen: Seen) -> bool:
    place = seen.place
    return place is not None and place.has_suffix and seen.name in ("leader_epoch", "end_offset")


def _own_configs(seen: Seen) -> bool:
    if seen.name == "rows":
        return 0 < int(seen.gateway) - int(seen.broker) <= len(OWN_CONFIGS)
    return any(part in OWN_CONFIGS for part in seen.path) and seen.broker == MISSING


def _said(words: str) -> Callable[[Seen], bool]:
    """Whether the gateway refuses what the value is about in these words."""

    def said(seen: Seen) -> bool:
        return words in str(seen.pairs.get((*seen.path[:-1], "error_message"), ("",))[0])

    return said


def _not_offered(seen: Seen) -> bool:
    if seen.path[0] != "api_keys":
        return False
    if seen.name == "rows":
        return True
    key = int(seen.path[1])
    return seen.gateway == MISSING and key in NOT_OFFERED


READS = frozenset({"Fetch", "ListOffsets", "OffsetForLeaderEpoch", "DescribeProducers"})
OF_PARTITIONS = READS | {"Produce", "DeleteRecords"}
ANY = OF_PARTITIONS | {
    "AlterConfigs", "IncrementalAlterConfigs", "DescribeConfigs", "CreateTopics",
    "CreatePartitions", "DeleteTopics", "Metadata", "DescribeTopicPartitions",
    "AddPartitionsToTxn",
}  # fmt: skip
CONFIGS = frozenset({"AlterConfigs", "IncrementalAlterConfigs"})
BY_DESIGN = (
    Rule(
        "controller",
        frozenset({"Metadata", "DescribeCluster"}),
        lambda s: s.name == "controller_id" and s.gateway in (1, 2, 3),
    ),
    Rule(
        "features-epoch", frozenset({"ApiVersions"}), lambda s: s.name == "finalized_features_epoch"
    ),
    Rule("not-offered", frozenset({"ApiVersions"}), _not_offered),
    Rule("own-configs", frozenset({"DescribeConfigs"}), _own_configs),
    Rule("judged-configs", CONFIGS, _said("is tracked by Tideline")),
    Rule(
        "migrating-partitions",
        frozenset({"CreatePartitions"}),
        _said("migrates to diskless storage"),
    ),
    Rule("named-twice", ANY - OF_PARTITIONS, _is_named_twice),
    Rule(
        "unknown-partition",
        OF_PARTITIONS,
        lambda s: _of_unknown_partition(s) and (s.error()[0] == NOT_LEADER or s.broker == UNKNOWN),
    ),
    Rule("any-gateway", OF_PARTITIONS, _served_elsewhere),
    Rule("ends-at-b0", frozenset({"Fetch"}), _ends_at_boundary),
    Rule("in-the-pause", OF_PARTITIONS, _refused_in_the_pause),
    Rule("messages", ANY, lambda s: s.name.endswith("error_message")),
    Rule("unbelieved", frozenset({"Fetch"}), _unbelieved),
    Rule(
        "refused-log-start",
        frozenset({"Produce"}),
        lambda s: s.name == "log_start_offset" and s.gateway == -1,
    ),
    Rule(
        "unreadable-batches",
        frozenset({"Produce"}),
        lambda s: s.error()[0] in UNREADABLE and s.error()[1] == "unknown_server_error",
    ),
    Rule(
        "duplicates-times",
        frozenset({"Produce"}),
        lambda s: s.name == "log_append_time" and s.gateway is None,
    ),
    Rule(
        "no-aborted-ones",
        frozenset({"Fetch"}),
        lambda s: s.name == "aborted_transactions" and not s.gateway and not s.broker,
    ),
    Rule(
        "negative-limits",
        frozenset({"Fetch"}),
        lambda s: any(
            _has(s.question.values, limit, lambda most: most < 0)
            for limit in ("max_bytes", "partition_max_bytes")
        ),
    ),
    Rule(
        "empty-sessions",
        frozenset({"Fetch"}),
        lambda s: s.name == "session_id" and s.gateway == "none",
    ),
    Rule("leader-epochs", READS, _leader_epoch),
    Rule(
        "producer-times",
        frozenset({"DescribeProducers"}),
        lambda s: s.name == "last_timestamp" and s.place is not None and s.place.has_suffix,
    ),
    Rule("new-transactions", frozenset({"AddPartitionsToTxn", "Produce"}), _transaction),
    Rule(
        "no-gateway",
        frozenset({"FindCoordinator"}),
        lambda s: s.name == "node_id" and isinstance(s.gateway, int) and s.gateway >= NO_NODE,
    ),
    Rule("suffix-epochs", frozenset({"OffsetForLeaderEpoch"}), _epochs_of_the_suffix),
    Rule(
        "isolation-levels",
        frozenset({"Fetch", "ListOffsets"}),
        lambda s: s.question.values.get("isolation_level") not in (None, 0, 1),
    ),
    Rule(
        "odd-acks",
        frozenset({"Produce"}),
        lambda s: s.question.values["acks"] not in (-1, 0, 1) and s.name == "error_code",
    ),
    Rule(
        "no-topic-id",
        frozenset({"Fetch"}),
        lambda s: _has(s.question.values, "topic_id", lambda topic: topic == UUID(int=0)),
    ),
    Rule("last-fetched-epochs", frozenset({"Fetch"}), _last_fetched),
    Rule("objects-at-once", frozenset({"Fetch"}), _as_many_at_once),
    Rule("topics-once", frozenset({"Fetch"}), _told_together),
    Rule("debugging-consumers", frozenset({"ListOffsets"}), _asked_for_debugging),
    Rule("followers-searches", frozenset({"ListOffsets"}), _ended_at_a_follower),
    Rule(
        "unknown-operations",
        CONFIGS,
        lambda s: _has(s.question.values, "config_operation", lambda what: not 0 <= what <= 3),
    ),
    Rule(
        "own-addresses",
        frozenset({"DescribeConfigs"}),
        lambda s: s.pairs.get((*s.path[:-1], "is_sensitive")) == (True, False),
    ),
)
