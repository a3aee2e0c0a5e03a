"""The APIs of which neither requests nor answers are looked into, and up to which version.

A closed list: an API, or a version, that is not here and has no handler is not offered to clients
and does not reach the broker. What a future one carries nobody has read, and it might name brokers.
Whoever adds a row has read the schema of the answer in all its versions; the versions are those of
Kafka 4.2 that are stable.
"""

from __future__ import annotations

from collections.abc import Mapping

PASSED: Mapping[int, int] = {
    8: 10,  # OffsetCommit
    9: 10,  # OffsetFetch
    11: 9,  # JoinGroup
    12: 4,  # Heartbeat
    13: 5,  # LeaveGroup
    14: 5,  # SyncGroup
    15: 6,  # DescribeGroups
    16: 5,  # ListGroups
    17: 1,  # SaslHandshake
    22: 5,  # InitProducerId; version 6 is not stable
    25: 4,  # AddOffsetsToTxn
    28: 5,  # TxnOffsetCommit
    29: 3,  # DescribeAcls
    30: 3,  # CreateAcls
    31: 3,  # DeleteAcls
    34: 2,  # AlterReplicaLogDirs
    35: 4,  # DescribeLogDirs
    36: 2,  # SaslAuthenticate
    38: 3,  # CreateDelegationToken
    39: 2,  # RenewDelegationToken
    40: 2,  # ExpireDelegationToken
    41: 3,  # DescribeDelegationToken
    42: 2,  # DeleteGroups
    43: 2,  # ElectLeaders
    45: 1,  # AlterPartitionReassignments
    46: 0,  # ListPartitionReassignments
    47: 0,  # OffsetDelete
    48: 1,  # DescribeClientQuotas
    49: 1,  # AlterClientQuotas
    50: 0,  # DescribeUserScramCredentials
    51: 0,  # AlterUserScramCredentials
    55: 2,  # DescribeQuorum: controllers' own listeners, which no client uses
    57: 2,  # UpdateFeatures
    64: 0,  # UnregisterBroker
    65: 0,  # DescribeTransactions
    66: 2,  # ListTransactions
    68: 1,  # ConsumerGroupHeartbeat
    69: 1,  # ConsumerGroupDescribe
    71: 0,  # GetTelemetrySubscriptions
    72: 0,  # PushTelemetry
    74: 1,  # ListConfigResources
    76: 1,  # ShareGroupHeartbeat
    77: 1,  # ShareGroupDescribe
    80: 1,  # AddRaftVoter
    81: 0,  # RemoveRaftVoter
    88: 0,  # StreamsGroupHeartbeat: addresses of applications, told by themselves
    89: 0,  # StreamsGroupDescribe: the same
    90: 1,  # DescribeShareGroupOffsets
    91: 0,  # AlterShareGroupOffsets
    92: 0,  # DeleteShareGroupOffsets
}
"""Highest version by API key. Of what a broker of Kafka 4.2 offers, this leaves out the state of
share groups (83 to 87), which brokers ask each other for, at their own addresses."""
