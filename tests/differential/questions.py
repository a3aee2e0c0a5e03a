"""Odd requests: fields of Kafka's schemas by their names, each with what clients usually write in
it and with values at and past each limit."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from datetime import timedelta
from functools import partial
from typing import Any
from uuid import UUID

from kio.serial._introspect import (
    EntityField,
    EntityTupleField,
    PrimitiveTupleField,
    classify_field,
    get_schema_field_type,
    is_optional,
)

from tests.raw import KEYS
from tideline.domain.api_answers import BROKER_HIGHEST
from tideline.kafka.protocol import decodable_versions, request_class

I16, I32, I64 = 2**15 - 1, 2**31 - 1, 2**63 - 1
ODD = 0.12
"""How many of the fields have another value than a usual one."""
TWICE = 0.05
"""How many of the arrays name one thing twice."""


@dataclass(frozen=True)
class Topic:
    """In the place of its name: each side has its own, with the same records."""

    which: str


@dataclass(frozen=True)
class TopicId:
    """In the place of its id."""

    which: str


@dataclass(frozen=True)
class Batch:
    """In the place of its bytes: the kind of a batch, and what makes it another than the last."""

    kind: str
    number: int


Values = Sequence[Any]


@dataclass(frozen=True)
class Field:
    usual: Values
    odd: Values = ()

    def value(self, chance: random.Random) -> Any:
        return chance.choice(self.odd if self.odd and chance.random() < ODD else self.usual)


ODD_NAMES = ("", ".", "..", "no-such-topic", "a" * 249, "a" * 250, "with space", "ж", "__x")
ODD_IDS = (UUID(int=0), UUID(int=1), UUID(int=7), UUID(int=2**128 - 1))
ODD_PARTITIONS = (5, 99, -1, I32, -I32 - 1)
EPOCH = Field((-1, -1, 0), (1, 2, -2, I32, -I32 - 1))
BYTES = Field((1 << 20,), (0, 1, 60, 200, -1, I32, -I32 - 1))
FLAG = Field((False,), (True,))
WAIT = Field((timedelta(seconds=20),))
"""Never short: which side's wait is over first is chance."""


@dataclass(frozen=True)
class Edges:
    """Offsets and times at which the logs of the topic change."""

    offsets: Values
    times: Values


def _fields(edges: Edges) -> dict[str, Field]:
    """By name, where it means the same in each request."""
    offsets = (-2, -1, *edges.offsets, I32, I64, -I64 - 1)
    return {
        "replica_id": Field((-1,), (-2, -3)),
        "isolation_level": Field((0, 1), (2, -1, 127)),
        "timeout": WAIT,
        "max_wait": Field((timedelta(0),)),
        "min_bytes": Field((0, 1), (-1, I32)),
        "max_bytes": BYTES,
        "partition_max_bytes": BYTES,
        "session_id": Field((0,), (1, 7, 1_000_000)),
        "session_epoch": Field((-1, -1, 0), (1, -2, I32)),
        "current_leader_epoch": EPOCH,
        "last_fetched_epoch": EPOCH,
        "leader_epoch": Field((0, 1), (-1, -2, 2, I32, -I32 - 1)),
        "fetch_offset": Field(edges.offsets, (-1, -2, -3, I32, I64, -I64 - 1)),
        "log_start_offset": Field((-1,), (0, -2, I64)),
        "rack_id": Field(("",), ("nobody", "a" * 300)),
        "timestamp": Field(
            (-1, -2, -3, 0, *edges.times), (-4, -5, -6, -7, -100, I64, -I64 - 1)
        ),
        "offset": Field((0,), tuple(o for o in offsets if o not in edges.offsets and o != -1)),
        "allow_auto_topic_creation": FLAG,
        "validate_only": Field((True,)),
        "replica_epoch": Field((-1,), (0,)),
        "acks": Field((-1, 1), (2, -2, I16)),
        "transactional_id": Field((None,), ("", "nobody", "a" * 300)),
        "producer_id": Field((5_000_000,), (-1, 0, I64, -I64 - 1)),
        "producer_epoch": Field((0,), (-1, 1, I16)),
        "key_type": Field((0, 1), (2, 3, -1, 127)),
        "coordinator_keys": Field(("group-a", "group-b"), ("", "a" * 300, "a:b:0")),
        "key": Field(("group-a",), ("",)),
        "endpoint_type": Field((1,), (0, 2, 3, -1)),
        "response_partition_limit": Field((2_000,), (0, 1, 2, -1, I32)),
        "resource_type": Field((2, 2, 2), (0, 1, 3, 4, 8, 16, 32, -1, 127)),
        "configuration_keys": Field(
            ("retention.ms", "cleanup.policy", "max.message.bytes"),
            ("", "no.such.config", "segment.bytes"),
        ),
        "config_operation": Field((0,), (1, 2, 3, 4, -1)),
        "num_partitions": Field((1, 2), (0, -1, -2, 10_001)),
        "replication_factor": Field((1, 2), (0, -1, -2, 4, I16)),
        "count": Field((8,), (0, 1, 5, -1, 6)),
        "broker_ids": Field((1, 2, 3), (0, 99, -1)),
        "client_software_name": Field(("differential",), ("", "with space", "a" * 300)),
        "client_software_version": Field(("1.0",), ("", "a b")),
        "verify_only": FLAG,
        "committed": FLAG,
        "cluster_id": Field((None,)),
        "replica_directory_id": Field((None,)),
        "high_watermark": Field((I64,), (0, -1)),
    }  # fmt: skip


CONFIGS = {
    "retention.ms": ("7200000", "-1", "-2", "x", "", None),
    "cleanup.policy": ("delete", "compact", "compact,delete", "none", None),
    "max.message.bytes": ("500000", "0", "-1", "2147483648", None),
    "segment.bytes": ("1048576", "1", None),
    "no.such.config": ("1", None),
    "": ("1",),
}
APIS = (
    "Fetch", "ListOffsets", "OffsetForLeaderEpoch", "Metadata", "DescribeTopicPartitions",
    "FindCoordinator", "DescribeCluster", "DescribeProducers", "DescribeConfigs",
    "ApiVersions", "Produce", "DeleteRecords", "CreateTopics", "CreatePartitions",
    "DeleteTopics", "AlterConfigs", "IncrementalAlterConfigs", "AddPartitionsToTxn", "EndTxn",
)  # fmt: skip
OFTEN = {"Fetch": 8, "ListOffsets": 4, "Produce": 4, "OffsetForLeaderEpoch": 2}
"""How much more often than others, since most of their answer is the gateway's own."""
BATCHES = Field(
    ("plain", "idempotent"),
    (
        "empty", "noise", "cut", "wrong checksum", "two", "magic 0", "magic 1",
        "magic 3", "count too high", "count of none", "length too long", "control",
        "transactional", "wild sequence", "epoch without producer", "before 1970", "far ahead",
        "gzip of noise", "unknown codec", "too large", "offset of its own",
    ),
)  # fmt: skip


@dataclass(frozen=True)
class Question:
    """One request, with topics and batches by what they stand for."""

    number: int
    api: str
    version: int
    beside: str
    """The replica of the partition that is asked: its leader, its follower, or a broker without
    one."""
    partition: int
    which: str
    """The topic that is asked of."""
    values: Mapping[str, Any]

    def text(self) -> str:
        return (
            f"question {self.number}: {self.api} {self.version} to the {self.beside} of "
            f"{self.which}-{self.partition}: {dict(self.values)}"
        )


def _well_made_or_alike(rows: list[Any]) -> list[Any]:
    """Of a partition that a Produce names twice Kafka appends the last batch; but of one that it
    refuses before it looks at the log it says so, and appends the other."""
    odd = any(batch.kind not in BATCHES.usual for batch in batches_of(rows))
    return rows[:1] * len(rows) if odd else rows


def batches_of(value: Any) -> Iterator[Batch]:
    """Those that a request carries."""
    if isinstance(value, Batch):
        yield value
    elif isinstance(value, dict | list):
        for inner in value.values() if isinstance(value, dict) else value:
            yield from batches_of(inner)


class Questions:
    """Those of a seed, in order. ``topics``: each with the numbers of its partitions, of which one
    that is never written to is named with a minus. ``edges``: by topic."""

    def __init__(
        self, seed: int, topics: Mapping[str, Sequence[int]], edges: Mapping[str, Edges]
    ) -> None:
        self._chance = random.Random(f"differential {seed}")
        self._topics, self._number = topics, 0
        self._fields = {which: _fields(edges[which]) for which in topics}
        self._which, self._partition = "", 0

    def next(self, writable: Callable[[str, int], bool]) -> Question:
        """``writable``: whether a partition takes writes now."""
        chance, self._number = self._chance, self._number + 1
        self._which = chance.choice(sorted(self._topics))
        self._partition = chance.choice(self._topics[self._which])
        weights = [OFTEN.get(api, 1) for api in APIS]
        (api,) = chance.choices(APIS, weights)
        if api in ("Produce", "DeleteRecords") and not writable(self._which, self._partition):
            api = "Fetch"
        key = KEYS[api]
        version = chance.choice([v for v in decodable_versions(key) if v <= BROKER_HIGHEST[key]])
        kind = request_class(key, version)
        assert kind is not None
        beside = chance.choice(("leader",) * 6 + ("follower", "none"))
        if api == "Produce":  # any gateway appends to a suffix, and its twin would not follow
            beside = "leader"
        values = self._message(api, kind)
        return Question(self._number, api, version, beside, self._partition, self._which, values)

    def _message(self, api: str, kind: Any) -> dict[str, Any]:
        values: dict[str, Any] = {}
        named = {field.name for field in fields(kind)}
        for field in fields(kind):
            values[field.name] = self._value(api, field, values, named)
        return values

    def _value(self, api: str, field: Any, beside: Mapping[str, Any], named: set[str]) -> Any:
        chance, found = self._chance, classify_field(field)
        name, optional = field.name, is_optional(field)
        if isinstance(found, EntityField):
            if optional and chance.random() < 0.8:
                return None
            return self._message(api, found.type_)
        if isinstance(found, EntityTupleField):
            if optional and chance.random() < ODD:
                return None
            few, some = name in ("assignments", "configs"), api == "DescribeTopicPartitions"
            # A broker of 4.2 answers nothing where AlterConfigs names a resource twice.
            once = api == "AlterConfigs" and name == "resources"
            one = partial(self._message, api, found.type_)
            made = self._array(one, few=few, some=some, once=once)
            return made if api != "Produce" else _well_made_or_alike(made)
        if isinstance(found, PrimitiveTupleField):
            if optional and chance.random() < 0.5:
                return None
            return self._array(lambda: self._primitive(api, field, beside, named))
        return self._primitive(api, field, beside, named)

    def _array(
        self,
        one: Callable[[], Any],
        few: bool = False,
        some: bool = False,
        once: bool = False,
    ) -> list[Any]:
        """``some``: not empty, where that stands for all topics in the order of their names.
        ``once``: nothing is named twice."""
        chance = self._chance
        count = chance.choice((0, 0, 1) if few else (1, 1, 1, 1, 1, 1, 2, 1 if some else 0))
        made = [one() for _ in range(min(count, 1) if once else count)]
        if made and not once and chance.random() < TWICE:
            made.append(made[0])
        return made

    def _primitive(self, api: str, field: Any, beside: Mapping[str, Any], named: set[str]) -> Any:
        chance, name = self._chance, field.name.removeprefix("v3_and_below_")
        kind = get_schema_field_type(field)
        is_odd = chance.random() < ODD
        known = self._fields[self._which]
        if kind == "records":
            return Batch(BATCHES.value(chance), self._number)
        if name == "topic_id":
            if api == "Metadata" and chance.random() < 0.7:
                return None
            if api == "DeleteTopics":
                return chance.choice(ODD_IDS)
            return chance.choice(ODD_IDS) if is_odd else TopicId(self._which)
        if name == "name" and "value" in named:
            return chance.choice(tuple(CONFIGS))
        if name in ("topic", "name", "resource_name", "topic_name", "topic_names"):
            return self._name(api, name, beside, is_odd)
        if name in ("partition", "partitions", "partition_index", "partition_indexes", "index"):
            return chance.choice(ODD_PARTITIONS) if is_odd else self._partition
        if name == "value":
            values = CONFIGS.get(beside.get("name", ""), ("1", None))
            return chance.choice(values)
        if kind == "bool":
            found = known.get(name)
            return found.value(chance) if found is not None else chance.random() < 0.5
        assert name in known, f"{api}: a field that is new to the questions: {name} ({kind})"
        value = known[name].value(chance)
        if value is None and not is_optional(field):
            value = "nobody"
        return value

    def _name(self, api: str, name: str, beside: Mapping[str, Any], is_odd: bool) -> Any:
        chance = self._chance
        if api == "DeleteTopics":
            return None if beside.get("topic_id") else chance.choice(ODD_NAMES)
        if api == "Metadata" and beside.get("topic_id") is not None:
            return None
        if api == "CreateTopics":
            there = (Topic(self._which), *ODD_NAMES)
            return chance.choice(there if is_odd else ("new-a", "new-b"))
        if name == "resource_name" and beside.get("resource_type", 2) != 2:
            return chance.choice(("", "1", "99", "x"))
        return chance.choice(ODD_NAMES) if is_odd else Topic(self._which)
