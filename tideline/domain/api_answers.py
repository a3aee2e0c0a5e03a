"""What each API answers for a tracked topic in every state of a partition, and why, as data.

Every API that a broker of Kafka 4.2 has for its clients (``ApiKeys.apisForListener(BROKER)``) has
one row here, or is named in :data:`NOT_OFFERED`. The answers of the requests that move or find
records are :data:`tideline.domain.request_handling.ANSWERS`; the rows here only name them. From B0
on Kafka's log is the prefix and never grows again: an answer about that log stays true of it, and
is wrong only where it is taken for the whole log.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum

from tideline.domain.request_handling import KafkaErrorCode, PartitionRoute, RouteKind


class Whose(StrEnum):
    """Who answers."""

    KAFKA = "the broker"
    CONFIRMED = "the broker, confirmed"
    """Kafka's answer, if Postgres says once it is there that every B0 that may yet be set lies past
    it (schedule 8); else NOT_LEADER_OR_FOLLOWER. While producers are parked it never says so."""
    SUFFIX = "the suffix"
    """Kafka is asked too, for what the client may not do."""
    REFUSED = "refused"
    GATEWAY = "the gateway"
    """By rules of its own; the row says where they are."""


@dataclass(frozen=True, slots=True)
class ApiAnswer:
    """The answer for one partition."""

    whose: Whose
    error: KafkaErrorCode = KafkaErrorCode.NONE
    """Of a refusal."""


_KAFKA = ApiAnswer(Whose.KAFKA)
_CONFIRMED = ApiAnswer(Whose.CONFIRMED)
_SUFFIX = ApiAnswer(Whose.SUFFIX)
_GATEWAY = ApiAnswer(Whose.GATEWAY)
_LATER = ApiAnswer(Whose.REFUSED, KafkaErrorCode.NOT_LEADER_OR_FOLLOWER)
_NEVER = ApiAnswer(Whose.REFUSED, KafkaErrorCode.INVALID_TXN_STATE)
_GONE = ApiAnswer(Whose.REFUSED, KafkaErrorCode.UNKNOWN_TOPIC_OR_PARTITION)


@dataclass(frozen=True, slots=True)
class ApiRule:
    """One API."""

    name: str
    """Kafka's."""
    pending: ApiAnswer
    """B0 unset, appends go on."""
    quiescing: ApiAnswer
    """B0 unset, the write pause."""
    suffix: ApiAnswer
    """B0 set: hybrid, or diskless only."""
    unknown: ApiAnswer
    """Of the topic too little is known."""
    why: str

    def answer(self, kind: RouteKind) -> ApiAnswer:
        """For a partition of this kind. Total."""
        return {
            RouteKind.CLASSIC: _KAFKA,
            RouteKind.PENDING: self.pending,
            RouteKind.QUIESCING: self.quiescing,
            RouteKind.SUFFIX: self.suffix,
            RouteKind.DELETED: _GONE,
            RouteKind.UNKNOWN: self.unknown,
        }[kind]

    @property
    def passes(self) -> bool:
        """Whether the broker answers whatever the state."""
        return {self.pending, self.quiescing, self.suffix, self.unknown} == {_KAFKA}


def _passes(name: str, why: str) -> ApiRule:
    return ApiRule(name, _KAFKA, _KAFKA, _KAFKA, _KAFKA, why)


def _looked_into(name: str, why: str) -> ApiRule:
    return ApiRule(name, _GATEWAY, _GATEWAY, _GATEWAY, _GATEWAY, why)


_RECORDS = "by region and state: [requests](requests.md)"
_GROUP = "about members of a group and names of topics; no record, no offset of a log"
_OFFSETS = (
    "a group's offsets are numbers that the coordinator keeps and never compares with a log: those "
    "past B0 are kept and given back as they are"
)
_TRANSACTION = "about the producer's transaction at its coordinator, not about a log"
_USERS = "about users, rights, tokens or quotas; topics are names there"
_CLUSTER = "about brokers, controllers or features"
_TELEMETRY = "a client's own metrics"
_SHARED = (
    "the state that the coordinator keeps for a share group; none reads a tracked topic "
    "(ShareFetch refuses it), so nothing is done by it, and a lag in it is Kafka's log's"
)
_ADDRESSES = "brokers' addresses become gateways'"

API_RULES: Mapping[int, ApiRule] = {
    0: _looked_into("Produce", _RECORDS),
    1: _looked_into("Fetch", _RECORDS),
    2: _looked_into("ListOffsets", _RECORDS),
    3: _looked_into(
        "Metadata", f"{_ADDRESSES}; the leader: `tideline/domain/leader_choice.py:leader_for`"
    ),
    8: _passes("OffsetCommit", _OFFSETS),
    9: _passes("OffsetFetch", _OFFSETS),
    10: _looked_into("FindCoordinator", _ADDRESSES),
    11: _passes("JoinGroup", _GROUP),
    12: _passes("Heartbeat", _GROUP),
    13: _passes("LeaveGroup", _GROUP),
    14: _passes("SyncGroup", _GROUP),
    15: _passes("DescribeGroups", _GROUP),
    16: _passes("ListGroups", _GROUP),
    17: _passes("SaslHandshake", _USERS),
    18: _looked_into("ApiVersions", "what this page's second table says"),
    19: _looked_into("CreateTopics", "births: gateways track a diskless topic before Kafka has it"),
    20: _looked_into("DeleteTopics", "what Kafka has deleted is then deleted in Postgres"),
    21: _looked_into("DeleteRecords", _RECORDS),
    22: _passes("InitProducerId", "producer ids are the cluster's, in prefix and suffix alike"),
    23: _looked_into("OffsetForLeaderEpoch", _RECORDS),
    24: _looked_into("AddPartitionsToTxn", "a transaction that is new to a tracked topic ends"),
    25: _passes("AddOffsetsToTxn", _TRANSACTION),
    26: _looked_into("EndTxn", "the abort of a transaction to which nothing could be added"),
    27: ApiRule(
        "WriteTxnMarkers",
        _KAFKA,
        _LATER,
        _NEVER,
        _LATER,
        "an administrator's markers. Before the pause they may be what the drain waits for. In the "
        "pause the end of the log is what becomes B0; retried, until it is known. From B0 on a "
        "marker would make Kafka's log grow past B0, where nobody reads it and the watch reports "
        "it: the drain has left no transaction open (seed 004)",
    ),
    28: _passes("TxnOffsetCommit", _OFFSETS),
    29: _passes("DescribeAcls", _USERS),
    30: _passes("CreateAcls", _USERS),
    31: _passes("DeleteAcls", _USERS),
    32: _looked_into("DescribeConfigs", "the user's values of configs that Tideline holds"),
    33: _looked_into("AlterConfigs", "the trigger, and configs that Tideline holds"),
    34: _passes(
        "AlterReplicaLogDirs",
        "moves one broker's copy of Kafka's log to another of its disks: a prefix is complete "
        "before it is used there, the suffix is on no disk",
    ),
    35: _passes(
        "DescribeLogDirs",
        "bytes on the broker's disks, of Kafka's log: of a hybrid partition what of the prefix is "
        "still local, of a diskless one next to nothing. The suffix is on no disk. A lag is a "
        "follower's behind Kafka's log, which ends at B0: 0 once the replica has the prefix",
    ),
    36: _passes("SaslAuthenticate", _USERS),
    37: _looked_into("CreatePartitions", "not while the topic migrates; new ones begin diskless"),
    38: _passes("CreateDelegationToken", _USERS),
    39: _passes("RenewDelegationToken", _USERS),
    40: _passes("ExpireDelegationToken", _USERS),
    41: _passes("DescribeDelegationToken", _USERS),
    42: _passes("DeleteGroups", _GROUP),
    43: _passes(
        "ElectLeaders",
        "preferred: the ISR has all that was acknowledged. Unclean: before B0 it may cut Kafka's "
        "log, as on any topic, and a migration takes B0 from the leader that is there, or stops at "
        "a log gap; from B0 on the suffix does not ask who leads, and a prefix that was ready is "
        "in remote storage",
    ),
    44: _looked_into("IncrementalAlterConfigs", "the trigger, and configs that Tideline holds"),
    45: _passes(
        "AlterPartitionReassignments",
        "replicas of Kafka's log move as ever: a new one has the prefix before it joins the ISR, "
        "and the suffix is on none. A migration does not begin while one is under way, and one "
        "that comes later is to it a change of the leader",
    ),
    46: _passes("ListPartitionReassignments", "replicas that Kafka moves, in every state"),
    47: _passes("OffsetDelete", _OFFSETS),
    48: _passes("DescribeClientQuotas", _USERS),
    49: _passes("AlterClientQuotas", _USERS),
    50: _passes("DescribeUserScramCredentials", _USERS),
    51: _passes("AlterUserScramCredentials", _USERS),
    55: _passes("DescribeQuorum", f"{_CLUSTER}; the controllers' listeners are not for clients"),
    57: _passes("UpdateFeatures", _CLUSTER),
    60: _looked_into("DescribeCluster", _ADDRESSES),
    61: ApiRule(
        "DescribeProducers",
        _CONFIRMED,
        _CONFIRMED,
        _SUFFIX,
        _LATER,
        "from B0 on the state by which a batch is judged is Postgres'; the broker's stands still "
        "at B0. No transaction is open in a suffix. In the pause nothing is confirmed: "
        "`NOT_LEADER_OR_FOLLOWER`, to be asked again, until B0 is known or producers go on",
    ),
    64: _passes("UnregisterBroker", f"{_CLUSTER}; its gateway is left out of every answer then"),
    65: _passes("DescribeTransactions", _TRANSACTION),
    66: _passes("ListTransactions", _TRANSACTION),
    68: _passes("ConsumerGroupHeartbeat", _GROUP),
    69: _passes("ConsumerGroupDescribe", _GROUP),
    71: _passes("GetTelemetrySubscriptions", _TELEMETRY),
    72: _passes("PushTelemetry", _TELEMETRY),
    74: _passes("ListConfigResources", "names of what has configs"),
    75: _looked_into("DescribeTopicPartitions", "as Metadata"),
    76: _passes("ShareGroupHeartbeat", f"{_GROUP}; what it assigns of a tracked topic is refused"),
    77: _passes("ShareGroupDescribe", _GROUP),
    78: _looked_into("ShareFetch", "a tracked topic is refused: it would show Kafka's log alone"),
    79: _looked_into("ShareAcknowledge", "sessions of before the topic was tracked are ended"),
    80: _passes("AddRaftVoter", _CLUSTER),
    81: _passes("RemoveRaftVoter", _CLUSTER),
    88: _passes("StreamsGroupHeartbeat", f"{_GROUP}; addresses are the applications' own"),
    89: _passes("StreamsGroupDescribe", f"{_GROUP}; addresses are the applications' own"),
    90: _passes("DescribeShareGroupOffsets", _SHARED),
    91: _passes("AlterShareGroupOffsets", _SHARED),
    92: _passes("DeleteShareGroupOffsets", _SHARED),
}
"""By API key."""

WRITE_TXN_MARKERS = API_RULES[27]
DESCRIBE_PRODUCERS = API_RULES[61]


def answer_to(rule: ApiRule, route: PartitionRoute) -> ApiAnswer:
    """What a partition on ``route`` is answered."""
    return rule.answer(route.kind)


_BETWEEN_BROKERS = (
    "brokers ask each other for the state of share groups, at their own addresses; no client does"
)
NOT_OFFERED: Mapping[int, tuple[str, str]] = {
    83: ("InitializeShareGroupState", _BETWEEN_BROKERS),
    84: ("ReadShareGroupState", _BETWEEN_BROKERS),
    85: ("WriteShareGroupState", _BETWEEN_BROKERS),
    86: ("DeleteShareGroupState", _BETWEEN_BROKERS),
    87: ("ReadShareGroupStateSummary", _BETWEEN_BROKERS),
}
"""Name and reason, by API key."""

BROKER_HIGHEST: Mapping[int, int] = {
    0: 13, 1: 18, 2: 11, 3: 13, 8: 10, 9: 10, 10: 6, 11: 9, 12: 4, 13: 5, 14: 5, 15: 6, 16: 5,
    17: 1, 18: 4, 19: 7, 20: 6, 21: 2, 22: 5, 23: 4, 24: 5, 25: 4, 26: 5, 27: 2, 28: 5, 29: 3,
    30: 3, 31: 3, 32: 4, 33: 2, 34: 2, 35: 4, 36: 2, 37: 3, 38: 3, 39: 2, 40: 2, 41: 3, 42: 2,
    43: 2, 44: 1, 45: 1, 46: 0, 47: 0, 48: 1, 49: 1, 50: 0, 51: 0, 55: 2, 57: 2, 60: 2, 61: 0,
    64: 0, 65: 0, 66: 2, 68: 1, 69: 1, 71: 0, 72: 0, 74: 1, 75: 0, 76: 1, 77: 1, 78: 2, 79: 2,
    80: 1, 81: 0, 83: 0, 84: 0, 85: 1, 86: 0, 87: 1, 88: 0, 89: 0, 90: 1, 91: 0, 92: 0,
}  # fmt: skip
"""Highest stable version that a broker of Kafka 4.2 offers, by API key."""

CAPPED: Mapping[int, str] = {}
"""Why an API is offered in fewer versions than the broker has; none is."""
WITH_A_PLUGIN = frozenset({71, 72})
"""Offered by a broker, and so by its gateway, that has a plugin for clients' metrics."""
REMARKS: Mapping[int, str] = {
    22: "version 6 is not stable: not offered, whatever `unstable.api.versions.enable` says",
    **dict.fromkeys(WITH_A_PLUGIN, "only where the broker has a plugin for clients' metrics"),
}
"""What is to be known of the versions of an API."""
