"""Which test shows on real brokers what docs/apis.md says of an API, as data.

Whoever runs a test that is named here learns whether it is true: it fails unless a gateway counted
a request of each API while it ran (``tests/conftest.py``).
"""

from __future__ import annotations

from collections.abc import Mapping

_PASSED = "integration/test_passed_apis.py"
_OWN = "integration/test_own_answers.py"
_SHARE = "integration/test_share_groups.py"
_ADMIN = "integration/test_gateway_admin.py"

SHOWN: Mapping[str, tuple[str, ...]] = {
    "integration/test_answers.py::test_gateways_answer_as_the_table_says_beside_every_role": (
        "Produce", "Fetch", "ListOffsets", "DeleteRecords", "OffsetForLeaderEpoch",
    ),
    "integration/test_api_answers.py::test_what_is_offered_is_what_the_page_says": (
        "ApiVersions",
    ),
    f"{_OWN}::test_addresses_are_the_gateways_and_the_rest_is_as_brokers_say": (
        "Metadata", "FindCoordinator", "DescribeCluster", "DescribeTopicPartitions",
    ),
    f"{_OWN}::test_the_producers_of_a_partition_are_the_brokers_before_the_boundary_and_the_"
    "suffixs_then": ("DescribeProducers",),
    f"{_OWN}::test_an_administrators_marker_reaches_a_log_before_the_pause_only": (
        "WriteTxnMarkers",
    ),
    f"{_OWN}::test_to_replace_all_configs_of_a_diskless_topic_leaves_what_is_held": (
        "AlterConfigs",
    ),
    f"{_ADMIN}::test_a_config_change_requests_the_migration": ("IncrementalAlterConfigs",),
    f"{_ADMIN}::test_a_held_config_is_changed_for_the_user_and_not_in_kafka": (
        "DescribeConfigs",
    ),
    f"{_ADMIN}::test_new_partitions_of_a_diskless_topic_are_diskless": ("CreatePartitions",),
    f"{_ADMIN}::test_a_name_can_be_used_again_after_deletion": ("CreateTopics", "DeleteTopics"),
    f"{_ADMIN}::test_librdkafka_can_abort_a_refused_transaction_and_go_on": (
        "AddPartitionsToTxn", "EndTxn",
    ),
    f"{_PASSED}::test_a_classic_group_is_its_coordinators_and_keeps_offsets_past_the_boundary": (
        "OffsetCommit", "OffsetFetch", "OffsetDelete", "JoinGroup", "SyncGroup", "Heartbeat",
        "LeaveGroup", "DescribeGroups", "ListGroups", "DeleteGroups",
    ),
    f"{_PASSED}::test_a_group_is_assigned_partitions_in_every_state_by_its_coordinator": (
        "ConsumerGroupHeartbeat", "ConsumerGroupDescribe",
    ),
    f"{_PASSED}::test_a_streams_group_has_a_task_for_each_partition_and_its_own_addresses": (
        "StreamsGroupHeartbeat", "StreamsGroupDescribe",
    ),
    f"{_PASSED}::test_a_transaction_of_offsets_alone_is_its_coordinators": (
        "InitProducerId", "AddOffsetsToTxn", "TxnOffsetCommit",
    ),
    "integration/test_api_answers.py::test_a_transaction_that_names_a_migrating_topic_is_told_"
    "beside_one_that_does_not": ("DescribeTransactions", "ListTransactions"),
    f"{_PASSED}::test_where_replicas_lie_and_who_leads_is_the_brokers": (
        "DescribeLogDirs", "AlterReplicaLogDirs",
    ),
    "integration/test_moved_replicas.py::test_replicas_and_leaders_move_in_the_write_pause_and_the_"
    "migration_ends": (
        "AlterPartitionReassignments", "ListPartitionReassignments", "ElectLeaders",
    ),
    f"{_PASSED}::test_users_rights_tokens_and_quotas_are_the_brokers": (
        "SaslHandshake", "SaslAuthenticate", "DescribeAcls", "CreateAcls", "DeleteAcls",
        "CreateDelegationToken", "RenewDelegationToken", "ExpireDelegationToken",
        "DescribeDelegationToken", "DescribeUserScramCredentials", "AlterUserScramCredentials",
        "DescribeClientQuotas", "AlterClientQuotas",
    ),
    f"{_PASSED}::test_brokers_and_controllers_are_the_brokers_to_tell_and_nobody_leaves_for_a_"
    "wrong_name": (
        "DescribeQuorum", "UpdateFeatures", "AddRaftVoter", "RemoveRaftVoter",
        "UnregisterBroker", "ListConfigResources",
    ),
    f"{_SHARE}::test_a_share_group_is_assigned_partitions_in_every_state_by_its_coordinator": (
        "ShareGroupHeartbeat", "ShareGroupDescribe",
    ),
    f"{_SHARE}::test_the_offsets_of_a_share_group_are_its_coordinators_and_a_lag_is_of_kafkas_"
    "log": (
        "DescribeShareGroupOffsets", "AlterShareGroupOffsets", "DeleteShareGroupOffsets",
    ),
    f"{_SHARE}::test_a_share_group_reads_nothing_of_a_tracked_topic": ("ShareFetch",),
    f"{_SHARE}::test_a_share_session_ends_when_its_topic_is_tracked_and_what_it_had_may_be_"
    "acknowledged": ("ShareAcknowledge",),
}  # fmt: skip
"""Names of APIs, by test (its path is below tests/)."""

_NO_PLUGIN = "no broker of the embedded stack has a plugin for clients' metrics, so none offers it"
NOT_SHOWN: Mapping[str, str] = {
    "GetTelemetrySubscriptions": _NO_PLUGIN,
    "PushTelemetry": _NO_PLUGIN,
}
"""Why no test does, by name of the API."""

ONLY_REFUSED: Mapping[str, str] = {
    **dict.fromkeys(
        ("SaslHandshake", "SaslAuthenticate", "DescribeAcls", "CreateAcls", "DeleteAcls",
         "CreateDelegationToken", "RenewDelegationToken", "ExpireDelegationToken",
         "DescribeDelegationToken"),
        "the embedded brokers have neither SASL nor an authorizer nor tokens",
    ),
    **dict.fromkeys(
        ("AlterReplicaLogDirs", "UpdateFeatures", "AddRaftVoter", "RemoveRaftVoter",
         "UnregisterBroker"),
        "it is asked for what is not there, so that nothing is changed",
    ),
}  # fmt: skip
"""Why the test of an API shows only the broker's refusal, by name."""
