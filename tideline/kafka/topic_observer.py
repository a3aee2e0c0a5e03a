"""What the cluster says about a topic: configs, reassignments, groups and transactions.

Coordinators are spread over the brokers and each knows only its own groups and transactions, so
every broker is asked; one that does not answer makes the whole answer unknown, never shorter.
"""

from __future__ import annotations

import asyncio
import struct
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Protocol

from kio.schema.consumer_group_describe.v0.request import ConsumerGroupDescribeRequest
from kio.schema.consumer_group_describe.v0.response import ConsumerGroupDescribeResponse
from kio.schema.describe_acls.v2.request import DescribeAclsRequest
from kio.schema.describe_acls.v2.response import AclDescription, DescribeAclsResponse
from kio.schema.describe_configs.v4 import request as dc
from kio.schema.describe_configs.v4.response import DescribeConfigsResponse
from kio.schema.describe_groups.v5.request import DescribeGroupsRequest
from kio.schema.describe_groups.v5.response import DescribeGroupsResponse
from kio.schema.describe_producers.v0 import request as dp
from kio.schema.describe_producers.v0.response import DescribeProducersResponse
from kio.schema.describe_transactions.v0.request import DescribeTransactionsRequest
from kio.schema.describe_transactions.v0.response import DescribeTransactionsResponse
from kio.schema.errors import ErrorCode
from kio.schema.list_groups.v5.request import ListGroupsRequest
from kio.schema.list_groups.v5.response import ListGroupsResponse
from kio.schema.list_partition_reassignments.v0 import request as lr
from kio.schema.list_partition_reassignments.v0.response import ListPartitionReassignmentsResponse
from kio.schema.list_transactions.v0.request import ListTransactionsRequest
from kio.schema.list_transactions.v0.response import ListTransactionsResponse
from kio.schema.share_group_describe.v1.request import ShareGroupDescribeRequest
from kio.schema.share_group_describe.v1.response import ShareGroupDescribeResponse
from kio.schema.types import GroupId, TopicName, TransactionalId
from kio.static.primitive import i8, i32, i32Timedelta

from tideline.domain.broker_defaults import BrokerDefaults
from tideline.domain.broker_offers import BrokerConfigs
from tideline.domain.config_changes import CLEANUP_POLICY, COMPRESSION_TYPE
from tideline.domain.ids import TopicPartition
from tideline.domain.preflight import GroupMember, TopicAcls
from tideline.domain.topic_configs import (
    LOCAL_RETENTION_MS,
    MAX_MESSAGE_BYTES,
    RETENTION_BYTES,
    TIMESTAMP_AFTER_MAX_MS,
    TIMESTAMP_BEFORE_MAX_MS,
    TIMESTAMP_TYPE,
)
from tideline.domain.transactions import OPEN_STATES, CoordinatorTransaction, OpenProducer
from tideline.domain.watched import HostAcl
from tideline.kafka.client import KafkaCluster, KafkaConnection
from tideline.kafka.errors import KafkaError
from tideline.kafka.observer import milliseconds

TOPIC_RESOURCE, BROKER_RESOURCE = 2, 4
ANY, MATCH = 1, 2
"""``AclOperation.ANY`` and ``AclPermissionType.ANY``; ``PatternType.MATCH``: literal, prefixed and
wildcard patterns that apply to the name."""
OPERATIONS = {
    2: "ALL", 3: "READ", 4: "WRITE", 5: "CREATE", 6: "DELETE", 7: "ALTER", 8: "DESCRIBE",
    9: "CLUSTER_ACTION", 10: "DESCRIBE_CONFIGS", 11: "ALTER_CONFIGS", 12: "IDEMPOTENT_WRITE",
}  # fmt: skip
"""``AclOperation`` by code."""
PREFIXED = 4
"""``PatternType.PREFIXED``."""
ANY_HOST = "*"
DENY = 2
"""``AclPermissionType.DENY``."""
DYNAMIC_TOPIC_CONFIG = 1
"""``DescribeConfigsResponse.ConfigSource.TOPIC_CONFIG``."""
OF_BROKER = {
    CLEANUP_POLICY: "log.cleanup.policy",
    COMPRESSION_TYPE: "compression.type",
    LOCAL_RETENTION_MS: "log.local.retention.ms",
    MAX_MESSAGE_BYTES: "message.max.bytes",
    RETENTION_BYTES: "log.retention.bytes",
    TIMESTAMP_AFTER_MAX_MS: "log.message.timestamp.after.max.ms",
    TIMESTAMP_BEFORE_MAX_MS: "log.message.timestamp.before.max.ms",
    TIMESTAMP_TYPE: "log.message.timestamp.type",
}
"""By key of a topic: the broker's key of its default (``ServerTopicConfigSynonyms``)."""


@dataclass(frozen=True, slots=True)
class ConfigEntry:
    """One effective config of a topic."""

    value: str | None
    own: bool
    """Set on the topic itself, not inherited."""


@dataclass(frozen=True, slots=True)
class ActiveProducer:
    """One producer of a partition, as DescribeProducers gives it. Times in ms."""

    producer_id: int
    producer_epoch: int
    last_sequence: int
    last_timestamp: int
    coordinator_epoch: int
    transaction_start: int
    """First offset of its open transaction, -1 if none is open."""

    def open(self) -> OpenProducer:
        """As the drain's rule wants it."""
        return OpenProducer(
            self.producer_id,
            self.producer_epoch,
            self.coordinator_epoch,
            self.transaction_start,
            self.last_timestamp,
        )


class TopicObserver:
    """Reads the brokers directly. Changes nothing."""

    def __init__(self, cluster: KafkaCluster, timeout_ms: int = 10_000) -> None:
        self._cluster = cluster
        self._timeout_ms = timeout_ms

    async def configs(self, topic: str) -> dict[str, ConfigEntry]:
        """The topic's effective configs by key, from any broker that knows the topic."""
        try:
            return _entries(await self._one(TOPIC_RESOURCE, topic, None))
        except KafkaError as error:
            if error.code is not ErrorCode.unknown_topic_or_partition:
                raise
        # A broker that lags behind the controller does not know the newest topics.
        return (await self.configs_by_broker(topic))[0]

    async def configs_by_broker(self, topic: str) -> list[dict[str, ConfigEntry]]:
        """The same, as each broker knows it: they follow the controller one by one. Raises
        :class:`KafkaError` (retriable) while one does not know the topic."""
        nodes = await self._cluster.nodes()
        found = await asyncio.gather(*(self._one(TOPIC_RESOURCE, topic, node) for node in nodes))
        return [_entries(view) for view in found]

    async def configs_of(
        self, topics: Sequence[str], keys: Iterable[str]
    ) -> dict[str, list[dict[str, ConfigEntry]] | KafkaError]:
        """``keys`` of many topics as each broker knows them, with one request per broker; a
        topic that one broker answers with an error has that error.

        Raises ``KafkaUnavailable`` when a broker does not answer.
        """
        wanted = tuple(keys)
        views: dict[str, list[dict[str, ConfigEntry]] | KafkaError] = {t: [] for t in topics}
        by_node = await asyncio.gather(
            *(
                self._describe_configs(TOPIC_RESOURCE, topics, node, wanted)
                for node in await self._cluster.nodes()
            )
        )
        for view in by_node:
            for topic in topics:
                known, found = views[topic], view[topic]
                if isinstance(known, KafkaError):
                    continue
                if isinstance(found, KafkaError):
                    views[topic] = found
                else:
                    known.append(_entries(found))
        return views

    async def broker_config(self, node: int, key: str) -> str | None:
        """One effective config of one broker."""
        found = await self._one(BROKER_RESOURCE, str(node), node, (key,))
        return found[key][0] if key in found else None

    async def configs_of_brokers(self) -> list[BrokerConfigs]:
        """Every config of each broker, and at which port it was asked."""
        nodes = await self._cluster.nodes()
        found = await asyncio.gather(
            *(self._one(BROKER_RESOURCE, str(node), node) for node in nodes)
        )
        return [
            BrokerConfigs({key: value for key, (value, _) in one.items()}, node.port)
            for one, node in zip(found, nodes.values(), strict=True)
        ]

    async def topic_defaults(self, keys: Iterable[str]) -> BrokerDefaults:
        """What a topic has that sets none of ``keys``, as each live broker has it."""
        nodes = list(await self._cluster.nodes())
        names = {key: OF_BROKER[key] for key in keys}
        asked = tuple(names.values())
        views = await asyncio.gather(
            *(self._one(BROKER_RESOURCE, str(node), node, asked) for node in nodes)
        )
        return BrokerDefaults(
            {
                node: {key: view[name][0] for key, name in names.items() if name in view}
                for node, view in zip(nodes, views, strict=True)
            }
        )

    async def _one(
        self, kind: int, name: str, node: int | None, keys: tuple[str, ...] | None = None
    ) -> dict[str, tuple[str | None, int]]:
        found = (await self._describe_configs(kind, (name,), node, keys))[name]
        if isinstance(found, KafkaError):
            raise found
        return found

    async def _describe_configs(
        self,
        kind: int,
        names: Sequence[str],
        node: int | None,
        keys: tuple[str, ...] | None = None,
    ) -> dict[str, dict[str, tuple[str | None, int]] | KafkaError]:
        request = dc.DescribeConfigsRequest(
            resources=tuple(
                dc.DescribeConfigsResource(
                    resource_type=i8(kind), resource_name=name, configuration_keys=keys
                )
                for name in names
            ),
        )
        connection = await (self._cluster.any() if node is None else self._cluster.node(node))
        response = await connection.send(request, timeout_ms=self._timeout_ms)
        assert isinstance(response, DescribeConfigsResponse)
        found: dict[str, dict[str, tuple[str | None, int]] | KafkaError] = {}
        for result in response.results:
            name = result.resource_name
            if result.error_code is ErrorCode.none:
                found[name] = {c.name: (c.value, int(c.config_source)) for c in result.configs}
            else:
                why = f"configs of {name!r}: {result.error_message}"
                found[name] = KafkaError(result.error_code, why)
        return found

    async def metadata_version(self) -> int | None:
        """The highest ``metadata.version`` level that every broker supports; tells their release
        as nearly as a broker does."""
        connections = [await self._cluster.node(n) for n in await self._cluster.nodes()]
        levels = [await one.metadata_level(self._timeout_ms) for one in connections]
        return min((level for level in levels if level is not None), default=None)

    async def reassigning(self, topic: str, partitions: Iterable[int]) -> frozenset[int]:
        """Partitions that are being reassigned."""
        asked = lr.ListPartitionReassignmentsTopics(
            name=TopicName(topic), partition_indexes=tuple(map(i32, partitions))
        )
        found = await self._reassigning((asked,), f"reassignments of topic {topic!r}")
        return frozenset(each.partition for each in found)

    async def all_reassigning(self) -> frozenset[TopicPartition]:
        """Every partition of the cluster that is being reassigned."""
        return await self._reassigning(None, "reassignments")

    async def _reassigning(
        self, topics: tuple[lr.ListPartitionReassignmentsTopics, ...] | None, what: str
    ) -> frozenset[TopicPartition]:
        request = lr.ListPartitionReassignmentsRequest(
            timeout=i32Timedelta.parse(milliseconds(self._timeout_ms)), topics=topics
        )
        connection = await self._cluster.any()
        response = await connection.send(request, timeout_ms=self._timeout_ms)
        assert isinstance(response, ListPartitionReassignmentsResponse)
        if response.error_code is not ErrorCode.none:
            raise KafkaError(response.error_code, what)
        return frozenset(
            TopicPartition(str(found.name), int(p.partition_index))
            for found in response.topics
            for p in found.partitions
            if p.adding_replicas or p.removing_replicas
        )

    async def producers(self, topic: str, partition: int, node: int) -> tuple[ActiveProducer, ...]:
        """Every producer that ``node``'s replica of the partition remembers."""
        request = dp.DescribeProducersRequest(
            topics=(dp.TopicRequest(name=TopicName(topic), partition_indexes=(i32(partition),)),)
        )
        connection = await self._cluster.node(node)
        response = await connection.send(request, timeout_ms=self._timeout_ms)
        assert isinstance(response, DescribeProducersResponse)
        found = response.topics[0].partitions[0]
        if found.error_code is not ErrorCode.none:
            raise KafkaError(found.error_code, f"producers of {topic}-{partition} on {node}")
        return tuple(
            ActiveProducer(
                int(p.producer_id),
                int(p.producer_epoch),
                int(p.last_sequence),
                int(p.last_timestamp),
                int(p.coordinator_epoch),
                int(p.current_txn_start_offset),
            )
            for p in found.active_producers
        )

    async def open_transactions(self) -> tuple[CoordinatorTransaction, ...]:
        """Every transaction that some coordinator has not ended yet."""
        nodes = await self._cluster.nodes()
        found = await asyncio.gather(*(self._open_on(node) for node in nodes))
        return tuple(txn for on_node in found for txn in on_node)

    async def _listed_on(self, node: int, states: tuple[str, ...]) -> list[tuple[str, int]]:
        """Transactional id and producer id of each that coordinator ``node`` has in ``states``."""
        connection = await self._cluster.node(node)
        listed = await connection.send(
            ListTransactionsRequest(state_filters=states, producer_id_filters=()),
            timeout_ms=self._timeout_ms,
        )
        assert isinstance(listed, ListTransactionsResponse)
        if listed.error_code is not ErrorCode.none:
            raise KafkaError(listed.error_code, f"transactions of coordinator {node}")
        return [(str(t.transactional_id), int(t.producer_id)) for t in listed.transaction_states]

    async def _open_on(self, node: int) -> list[CoordinatorTransaction]:
        listed = await self._listed_on(node, tuple(sorted(OPEN_STATES)))
        ids = tuple(TransactionalId(transactional_id) for transactional_id, _ in listed)
        if not ids:
            return []
        connection = await self._cluster.node(node)
        described = await connection.send(
            DescribeTransactionsRequest(transactional_ids=ids), timeout_ms=self._timeout_ms
        )
        assert isinstance(described, DescribeTransactionsResponse)
        result = []
        for txn in described.transaction_states:
            if txn.error_code is ErrorCode.transactional_id_not_found:
                continue
            if txn.error_code is not ErrorCode.none:
                raise KafkaError(txn.error_code, f"transaction {txn.transactional_id!r} on {node}")
            result.append(
                CoordinatorTransaction(
                    transactional_id=str(txn.transactional_id),
                    producer_id=int(txn.producer_id),
                    producer_epoch=int(txn.producer_epoch),
                    state=txn.transaction_state,
                    start_time=int(txn.transaction_start_time.timestamp() * 1000),
                    timeout_ms=int(txn.transaction_timeout.total_seconds() * 1000),
                    partitions=frozenset(
                        TopicPartition(str(t.topic), int(p))
                        for t in txn.topics
                        for p in t.partitions
                    ),
                )
            )
        return result

    async def transactional_ids(self, producers: frozenset[int]) -> tuple[str, ...]:
        """The transactional ids, in every state, that own one of these producer ids."""
        if not producers:
            return ()
        nodes = await self._cluster.nodes()
        found = await asyncio.gather(*(self._listed_on(node, ()) for node in nodes))
        return tuple(sorted({i for on_node in found for i, p in on_node if p in producers}))

    async def acls(self, topic: str) -> TopicAcls:
        """The ACLs whose pattern applies to the topic's name. Raises :class:`KafkaError`."""
        response = await self._acls(topic, MATCH)
        if response.error_code is ErrorCode.security_disabled:
            return TopicAcls(authorizer=False)
        rules = [_in_words(acl) for found in response.resources for acl in found.acls]
        return TopicAcls(authorizer=True, rules=tuple(sorted(rules)))

    async def host_acls(self) -> tuple[HostAcl, ...]:
        """Every ACL of topics that names a host, of any pattern. Raises :class:`KafkaError`."""
        response = await self._acls(None, ANY)
        return tuple(
            HostAcl(found.resource_name, int(found.pattern_type) == PREFIXED, _in_words(acl))
            for found in response.resources
            for acl in found.acls
            if acl.host != ANY_HOST
        )

    async def _acls(self, topic: str | None, pattern: int) -> DescribeAclsResponse:
        """Empty where brokers have no authorizer."""
        request = DescribeAclsRequest(
            resource_type_filter=i8(TOPIC_RESOURCE),
            resource_name_filter=topic,
            pattern_type_filter=i8(pattern),
            principal_filter=None,
            host_filter=None,
            operation=i8(ANY),
            permission_type=i8(ANY),
        )
        connection = await self._cluster.any()
        response = await connection.send(request, timeout_ms=self._timeout_ms)
        assert isinstance(response, DescribeAclsResponse)
        if response.error_code not in (ErrorCode.none, ErrorCode.security_disabled):
            whose = "topics" if topic is None else repr(topic)
            raise KafkaError(response.error_code, f"ACLs of {whose}: {response.error_message}")
        return response

    async def share_groups(self) -> dict[str, tuple[str, ...]]:
        """The share groups that subscribe to each topic. Raises :class:`KafkaError`."""
        nodes = await self._cluster.nodes()
        found: dict[str, set[str]] = defaultdict(set)
        for on_node in await asyncio.gather(*map(self._share_groups_on, nodes)):
            for group, topics in on_node:
                for topic in topics:
                    found[topic].add(group)
        return {topic: tuple(sorted(groups)) for topic, groups in found.items()}

    async def _share_groups_on(self, node: int) -> list[tuple[str, frozenset[str]]]:
        connection, by_type = await self._groups_at(node, "share")
        return await self._subscriptions(connection, by_type.get("share"))

    async def _subscriptions(
        self, connection: KafkaConnection, share_groups: list[GroupId] | None
    ) -> list[tuple[str, frozenset[str]]]:
        """Each of these share groups, and the topics that its members subscribe to."""
        if not share_groups:
            return []
        described = await connection.send(
            ShareGroupDescribeRequest(
                group_ids=tuple(share_groups), include_authorized_operations=False
            ),
            timeout_ms=self._timeout_ms,
        )
        assert isinstance(described, ShareGroupDescribeResponse)
        _refuse_unknown(described.groups)
        return [
            (
                str(g.group_id),
                frozenset(str(t) for m in g.members for t in m.subscribed_topic_names),
            )
            for g in described.groups
        ]

    async def _groups_at(
        self, node: int, *types: str
    ) -> tuple[KafkaConnection, dict[str, list[GroupId]]]:
        """The groups that a broker coordinates, by their type; without ``types`` of each one."""
        connection = await self._cluster.node(node)
        listed = await connection.send(
            ListGroupsRequest(states_filter=(), types_filter=types), timeout_ms=self._timeout_ms
        )
        assert isinstance(listed, ListGroupsResponse)
        if listed.error_code is not ErrorCode.none:
            raise KafkaError(listed.error_code, f"groups of coordinator {node}")
        by_type: dict[str, list[GroupId]] = {}
        for group in listed.groups:
            by_type.setdefault(group.group_type.lower(), []).append(GroupId(group.group_id))
        return connection, by_type

    async def groups_on(self, topic: str) -> tuple[tuple[str, ...], tuple[GroupMember, ...]]:
        """The share groups on the topic, and the members of consumer groups that read it."""
        nodes = await self._cluster.nodes()
        found = await asyncio.gather(*(self._groups_of(node, topic) for node in nodes))
        shares = sorted({group for on_node, _ in found for group in on_node})
        return tuple(shares), tuple(m for _, members in found for m in members)

    async def _groups_of(self, node: int, topic: str) -> tuple[set[str], list[GroupMember]]:
        connection, by_type = await self._groups_at(node)
        members: list[GroupMember] = []
        if ids := by_type.get("classic"):
            classic = await connection.send(
                DescribeGroupsRequest(groups=tuple(ids), include_authorized_operations=False),
                timeout_ms=self._timeout_ms,
            )
            assert isinstance(classic, DescribeGroupsResponse)
            _refuse_unknown(classic.groups)
            members += [
                GroupMember(str(g.group_id), m.client_id, m.client_host.lstrip("/"))
                for g in classic.groups
                for m in g.members
                if g.protocol_type == "consumer" and topic in subscribed_topics(m.member_metadata)
            ]
        if ids := by_type.get("consumer"):
            consumers = await connection.send(
                ConsumerGroupDescribeRequest(
                    group_ids=tuple(ids), include_authorized_operations=False
                ),
                timeout_ms=self._timeout_ms,
            )
            assert isinstance(consumers, ConsumerGroupDescribeResponse)
            _refuse_unknown(consumers.groups)
            members += [
                GroupMember(str(cg.group_id), cm.client_id, cm.client_host.lstrip("/"))
                for cg in consumers.groups
                for cm in cg.members
                if topic in cm.subscribed_topic_names
                or any(topic == t.topic_name for t in cm.assignment.topic_partitions)
            ]
        share_groups = await self._subscriptions(connection, by_type.get("share"))
        return {group for group, topics in share_groups if topic in topics}, members


class _Described(Protocol):
    """A group, as one of the three requests describes it."""

    @property
    def error_code(self) -> ErrorCode: ...

    @property
    def group_id(self) -> GroupId: ...


def _refuse_unknown(groups: Iterable[_Described]) -> None:
    """A group that has gone since it was listed has no members; of one that is not described for
    another reason they are unknown, and not none. Raises :class:`KafkaError`."""
    for group in groups:
        if group.error_code not in (ErrorCode.none, ErrorCode.group_id_not_found):
            raise KafkaError(group.error_code, f"members of group {group.group_id!r}")


def _in_words(acl: AclDescription) -> str:
    kind = "DENY" if int(acl.permission_type) == DENY else "ALLOW"
    operation = OPERATIONS.get(int(acl.operation), str(int(acl.operation)))
    return f"{kind} {operation} to {acl.principal} from {acl.host}"


def _entries(found: dict[str, tuple[str | None, int]]) -> dict[str, ConfigEntry]:
    return {
        name: ConfigEntry(value, source == DYNAMIC_TOPIC_CONFIG)
        for name, (value, source) in found.items()
    }


def subscribed_topics(metadata: bytes) -> tuple[str, ...]:
    """The topics in a classic member's subscription (``ConsumerProtocolSubscription``).

    Empty for metadata that does not parse: it was written by the client.
    """
    topics = []
    try:
        (count,) = struct.unpack_from(">i", metadata, 2)
        position = 6
        for _ in range(count):
            (length,) = struct.unpack_from(">h", metadata, position)
            if length < 0 or position + 2 + length > len(metadata):
                return ()
            topics.append(metadata[position + 2 : position + 2 + length].decode())
            position += 2 + length
    except (struct.error, UnicodeDecodeError):
        return ()
    return tuple(topics)
