"""What passes, of one topic with a partition in every state: at the gateways what brokers say.

Each conversation is had twice in raw frames, through the gateways and with the brokers themselves,
by somebody with a name of his own; what both are told is the same, and true.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from datetime import timedelta
from functools import partial
from typing import Any, TypeVar
from uuid import uuid4

import pytest
from kio.schema.errors import ErrorCode

from tests.integration.test_answers import RECORDS, STATES, Held, held_topic
from tests.raw import TRANSACTION, Doors, doors
from tests.support.waiting import until
from tideline.domain.answers import Role
from tideline.stack import Stack

R = TypeVar("R")
EVERY = list(range(len(STATES)))
"""Partitions."""
PAST = RECORDS + 1_000
"""An offset that no log of the topic has."""
NOBODY = 4_711
"""A broker that is not there."""
PATIENCE = timedelta(seconds=30)


@pytest.fixture(scope="module")
def held(stack: Stack) -> Iterator[Held]:
    with held_topic(stack) as made:
        yield made


def by_both(stack: Stack, talk: Callable[[Doors, str], R]) -> R:
    """What clients of gateways and of brokers are told alike. A name of his own for each."""
    told = []
    for who, addresses in (
        ("gateways", stack.endpoints.gateways),
        ("brokers", stack.endpoints.brokers),
    ):
        with doors(addresses) as asked:
            told.append(talk(asked, f"of-{who}-{uuid4()}"))
    of_gateways, of_brokers = told
    assert of_gateways == of_brokers
    return of_gateways


# -- Groups

OK = ErrorCode.none
REBALANCE = timedelta(seconds=60)


def subscription(topic: str) -> bytes:
    """Of the consumers' protocol, version 0."""
    name = topic.encode()
    return b"\0\0" + (1).to_bytes(4, "big") + len(name).to_bytes(2, "big") + name + b"\xff" * 4


def classic_group(held: Held, asked: Doors, group: str) -> dict[str, object]:
    at = asked.coordinator(group)
    own = {"group_id": group, "group_instance_id": None}

    def join(member: str) -> Any:
        return asked.ask(
            "JoinGroup", at, **own, session_timeout=REBALANCE, rebalance_timeout=REBALANCE,
            member_id=member, protocol_type="consumer", reason=None,
            protocols=[{"name": "range", "metadata": subscription(held.name)}],
        )  # fmt: skip

    first = join("")
    joined = join(first.member_id)
    member = {**own, "generation_id": joined.generation_id, "member_id": joined.member_id}
    synced = asked.ask(
        "SyncGroup", at, **member, protocol_type="consumer", protocol_name="range",
        assignments=[{"member_id": joined.member_id, "assignment": b"all of it"}],
    )  # fmt: skip
    beat = asked.ask("Heartbeat", at, **member)
    committed = asked.ask(
        "OffsetCommit", at, group_id=group, group_instance_id=None, member_id=joined.member_id,
        generation_id_or_member_epoch=joined.generation_id,
        topics=[{"topic_id": held.topic_id, "partitions": [
            {"partition_index": p, "committed_offset": PAST + p, "committed_leader_epoch": 0,
             "committed_metadata": None}
            for p in EVERY
        ]}],
    )  # fmt: skip
    (described,) = asked.ask(
        "DescribeGroups", at, groups=[group], include_authorized_operations=False
    ).groups
    listed = asked.ask("ListGroups", at, states_filter=["Stable"], types_filter=["classic"])
    while_a_member_reads = offsets_deleted(held, asked, at, group)
    left = asked.ask(
        "LeaveGroup", at, group_id=group,
        members=[{"member_id": joined.member_id, "group_instance_id": None, "reason": None}],
    )  # fmt: skip
    kept = offsets_of(held, asked, at, group)
    then = offsets_deleted(held, asked, at, group)
    (deleted,) = asked.ask("DeleteGroups", at, groups_names=[group]).results
    return {
        "join": (first.error_code, joined.error_code, joined.leader == joined.member_id),
        "sync": (synced.error_code, synced.assignment),
        "heartbeat": beat.error_code,
        "commit": [p.error_code for t in committed.topics for p in t.partitions],
        "describe": (described.group_state, [m.member_metadata for m in described.members]),
        "list": [g.group_type for g in listed.groups if g.group_id == group],
        "delete offsets": (while_a_member_reads, then),
        "leave": left.error_code,
        "fetch": (kept, offsets_of(held, asked, at, group)),
        "delete": deleted.error_code,
    }


def offsets_of(held: Held, asked: Doors, at: int, group: str) -> list[int]:
    (told,) = asked.ask(
        "OffsetFetch", at, require_stable=True,
        groups=[{"group_id": group, "member_id": None, "member_epoch": -1, "topics": [
            {"topic_id": held.topic_id, "partition_indexes": EVERY}
        ]}],
    ).groups  # fmt: skip
    return [int(p.committed_offset) for t in told.topics for p in t.partitions]


def offsets_deleted(held: Held, asked: Doors, at: int, group: str) -> set[ErrorCode]:
    told = asked.ask(
        "OffsetDelete", at, group_id=group,
        topics=[{"name": held.name, "partitions": [{"partition_index": p} for p in EVERY]}],
    )  # fmt: skip
    return {p.error_code for t in told.topics for p in t.partitions}


def test_a_classic_group_is_its_coordinators_and_keeps_offsets_past_the_boundary(
    stack: Stack, held: Held
) -> None:
    assert by_both(stack, partial(classic_group, held)) == {
        "join": (ErrorCode.member_id_required, OK, True),
        "sync": (OK, b"all of it"),
        "heartbeat": OK,
        "commit": [OK for _ in EVERY],
        "describe": ("Stable", [subscription(held.name)]),
        "list": ["classic"],
        "delete offsets": ({ErrorCode.group_subscribed_to_topic}, {OK}),
        "leave": OK,
        "fetch": ([PAST + p for p in EVERY], [-1 for _ in EVERY]),
        "delete": OK,
    }


def member_of_a_group_by_heartbeats(
    held: Held, api: str, describe: str, asked: Doors, group: str, **joins: Any
) -> dict[str, object]:
    """A group whose coordinator assigns (KIP-848, KIP-932)."""
    at, member = asked.coordinator(group), str(uuid4())

    def beat(epoch: int, **more: Any) -> Any:
        told = asked.ask(api, at, group_id=group, member_id=member, member_epoch=epoch, **more)
        assert told.error_code is OK, told
        return told

    epoch = [0]

    def assigned() -> list[int] | None:
        told = beat(epoch[0], **joins)
        epoch[0] = told.member_epoch
        found = told.assignment and [
            p for t in told.assignment.topic_partitions for p in t.partitions
        ]
        return sorted(found) if found and len(found) == len(EVERY) else None

    given = until("all partitions to be assigned", assigned)
    (described,) = asked.ask(
        describe, at, group_ids=[group], include_authorized_operations=False
    ).groups
    (told,) = described.members
    left = beat(-1, **joins)
    return {
        "assigned": given,
        "described": [
            (t.topic_name, sorted(t.partitions)) for t in told.assignment.topic_partitions
        ],
        "left": int(left.member_epoch),
    }


def test_a_group_is_assigned_partitions_in_every_state_by_its_coordinator(
    stack: Stack, held: Held
) -> None:
    joins = {
        "instance_id": None, "rack_id": None, "rebalance_timeout": REBALANCE,
        "subscribed_topic_names": [held.name], "subscribed_topic_regex": None,
        "server_assignor": None, "topic_partitions": [],
    }  # fmt: skip
    talk = partial(
        member_of_a_group_by_heartbeats, held, "ConsumerGroupHeartbeat", "ConsumerGroupDescribe",
        **joins,
    )  # fmt: skip
    told = by_both(stack, talk)
    assert told == {"assigned": EVERY, "described": [(held.name, EVERY)], "left": -1}


def streams_group(held: Held, asked: Doors, group: str) -> dict[str, object]:
    at, member = asked.coordinator(group), str(uuid4())
    reads = {
        "subtopology_id": "0", "source_topics": [held.name], "source_topic_regex": [],
        "state_changelog_topics": [], "repartition_sink_topics": [],
        "repartition_source_topics": [], "copartition_groups": [],
    }  # fmt: skip
    endpoint = {"host": "application.example", "port": 80}

    def beat(epoch: int, joins: bool) -> Any:
        told = asked.ask(
            "StreamsGroupHeartbeat", at, group_id=group, member_id=member, member_epoch=epoch,
            endpoint_information_epoch=0, instance_id=None, rack_id=None,
            rebalance_timeout=REBALANCE,
            topology={"epoch": 0, "subtopologies": [reads]} if joins else None,
            active_tasks=[] if joins else None, standby_tasks=[] if joins else None,
            warmup_tasks=[] if joins else None, process_id="p" if joins else None,
            user_endpoint=endpoint if joins else None, client_tags=[] if joins else None,
            task_offsets=None, task_end_offsets=None, shutdown_application=False,
        )  # fmt: skip
        assert told.error_code is OK, told
        return told

    epoch = [0]

    def assigned() -> Any:
        told = beat(epoch[0], epoch[0] == 0)
        epoch[0] = told.member_epoch
        return told if told.active_tasks else None

    given = until("the tasks", assigned)
    (described,) = asked.ask(
        "StreamsGroupDescribe", at, group_ids=[group], include_authorized_operations=False
    ).groups
    beat(-1, False)
    return {
        "tasks": [sorted(t.partitions) for t in given.active_tasks],
        "reads": [s.source_topics for s in described.topology.subtopologies],
        "endpoints": [(m.user_endpoint.host, m.user_endpoint.port) for m in described.members],
    }


def test_a_streams_group_has_a_task_for_each_partition_and_its_own_addresses(
    stack: Stack, held: Held
) -> None:
    told = by_both(stack, partial(streams_group, held))
    assert told == {
        "tasks": [EVERY], "reads": [(held.name,)], "endpoints": [("application.example", 80)],
    }  # fmt: skip


# -- Transactions


def offsets_in_a_transaction(held: Held, asked: Doors, name: str) -> dict[str, object]:
    """A transaction that commits offsets of the topic, and no record."""
    keeper, at = asked.coordinator(name, TRANSACTION), asked.coordinator(name)
    begun = asked.ask(
        "InitProducerId", keeper, transactional_id=name, transaction_timeout=REBALANCE,
        producer_id=-1, producer_epoch=-1,
    )  # fmt: skip
    own = {
        "transactional_id": name, "producer_id": begun.producer_id,
        "producer_epoch": begun.producer_epoch,
    }  # fmt: skip
    added = asked.ask("AddOffsetsToTxn", keeper, **own, group_id=name)
    committed = asked.ask(
        "TxnOffsetCommit", at, **own, group_id=name, generation_id=-1, member_id="",
        group_instance_id=None,
        topics=[{"name": held.name, "partitions": [
            {"partition_index": p, "committed_offset": PAST, "committed_leader_epoch": -1,
             "committed_metadata": None}
            for p in EVERY
        ]}],
    )  # fmt: skip
    (described,) = asked.ask(
        "DescribeTransactions", keeper, transactional_ids=[name]
    ).transaction_states
    listed = asked.ask(
        "ListTransactions", keeper, state_filters=["Ongoing"], duration_filter=-1,
        producer_id_filters=[begun.producer_id], transactional_id_pattern=None,
    )  # fmt: skip
    ended = asked.ask("EndTxn", keeper, **own, committed=True)

    def kept() -> list[int] | None:
        """Once the marker is written."""
        offsets = offsets_of(held, asked, at, name)
        return offsets if set(offsets) == {PAST} else None

    until("the offsets of the transaction", kept)
    return {
        "init": begun.error_code,
        "add": added.error_code,
        "commit": [p.error_code for t in committed.topics for p in t.partitions],
        "describe": (described.transaction_state, [t.topic for t in described.topics]),
        "list": [t.transactional_id == name for t in listed.transaction_states],
        "end": ended.error_code,
    }


def test_a_transaction_of_offsets_alone_is_its_coordinators(stack: Stack, held: Held) -> None:
    assert by_both(stack, partial(offsets_in_a_transaction, held)) == {
        "init": OK,
        "add": OK,
        "commit": [OK for _ in EVERY],
        "describe": ("Ongoing", ["__consumer_offsets"]),
        "list": [True],
        "end": OK,
    }


# -- Replicas


def replicas(held: Held, asked: Doors, name: str) -> dict[str, object]:
    whole = [{"name": held.name, "partitions": EVERY}]

    def moved(replicas: list[int] | None) -> set[ErrorCode]:
        told = asked.ask(
            "AlterPartitionReassignments", timeout=PATIENCE, allow_replication_factor_change=True,
            topics=[{"name": held.name, "partitions": [
                {"partition_index": p, "replicas": replicas} for p in EVERY
            ]}],
        )  # fmt: skip
        return {p.error_code for t in told.responses for p in t.partitions}

    def elected(kind: int) -> set[ErrorCode]:
        told = asked.ask(
            "ElectLeaders", election_type=kind, timeout=PATIENCE,
            topic_partitions=[{"topic": held.name, "partitions": EVERY}],
        )  # fmt: skip
        return {p.error_code for r in told.replica_election_results for p in r.partition_result}

    def copies(node: int) -> list[tuple[int, int, int]]:
        told = asked.ask(
            "DescribeLogDirs", node, topics=[{"topic": held.name, "partitions": EVERY}]
        )
        return sorted(
            (p.partition_index, p.partition_size, p.offset_lag)
            for r in told.results
            for t in r.topics
            for p in t.partitions
        )

    def to_another_disk(node: int) -> dict[int, ErrorCode]:
        told = asked.ask("AlterReplicaLogDirs", node, dirs=[{"path": "/nowhere", "topics": whole}])
        return {p.partition_index: p.error_code for t in told.results for p in t.partitions}

    ongoing = asked.ask(
        "ListPartitionReassignments", timeout=PATIENCE,
        topics=[{"name": held.name, "partition_indexes": EVERY}],
    )  # fmt: skip
    return {
        "to a broker that is not there": moved([NOBODY]),
        "none is under way to be given up": moved(None),
        "under way": (ongoing.error_code, ongoing.topics),
        "preferred": elected(0),
        "unclean": elected(1),
        "copies": {node: copies(node) for node in asked.addresses},
        "to another disk": {node: to_another_disk(node) for node in asked.addresses},
    }


def test_where_replicas_lie_and_who_leads_is_the_brokers(stack: Stack, held: Held) -> None:
    told = by_both(stack, partial(replicas, held))
    copies: Any = told.pop("copies")
    here = {
        node: [
            p for p in EVERY if node in (held.nodes[p][Role.LEADER], held.nodes[p][Role.FOLLOWER])
        ]
        for node in stack.endpoints.brokers
    }
    assert {node: [p for p, _, _ in found] for node, found in copies.items()} == here
    for found in copies.values():
        assert all(size > 0 and lag == 0 for _, size, lag in found), found
    assert told == {
        "to a broker that is not there": {ErrorCode.invalid_replica_assignment},
        "none is under way to be given up": {ErrorCode.no_reassignment_in_progress},
        "under way": (OK, ()),
        "preferred": {ErrorCode.election_not_needed},
        "unclean": {ErrorCode.election_not_needed},
        "to another disk": {
            node: dict.fromkeys(EVERY, ErrorCode.log_dir_not_found) for node in here
        },
    }


# -- Users, rights, tokens and quotas


def users(held: Held, asked: Doors, user: str) -> dict[str, object]:
    """Of a cluster without an authorizer, SASL and tokens."""
    about = {
        "resource_type_filter": 2, "resource_name_filter": held.name, "pattern_type_filter": 3,
        "principal_filter": None, "host_filter": None, "operation": 1, "permission_type": 1,
    }  # fmt: skip
    right = {
        "resource_type": 2, "resource_name": held.name, "resource_pattern_type": 3,
        "principal": f"User:{user}", "host": "*", "operation": 3, "permission_type": 3,
    }  # fmt: skip
    hour = timedelta(hours=1)
    token = asked.ask(
        "CreateDelegationToken", owner_principal_type=None, owner_principal_name=None,
        renewers=[], max_lifetime=hour,
    )  # fmt: skip
    return {
        "sasl": (
            asked.ask("SaslHandshake", mechanism="PLAIN").error_code,
            asked.ask("SaslAuthenticate", auth_bytes=b"").error_code,
        ),
        "acls": (
            asked.ask("DescribeAcls", **about).error_code,
            [r.error_code for r in asked.ask("CreateAcls", creations=[right]).results],
            [r.error_code for r in asked.ask("DeleteAcls", filters=[about]).filter_results],
        ),
        "tokens": (
            token.error_code,
            asked.ask("RenewDelegationToken", hmac=b"x", renew_period=hour).error_code,
            asked.ask("ExpireDelegationToken", hmac=b"x", expiry_time_period=hour).error_code,
            asked.ask("DescribeDelegationToken", owners=None).error_code,
        ),
        "passwords": passwords(asked, user),
        "quotas": quotas(asked, user),
    }


def passwords(asked: Doors, user: str) -> list[object]:
    def change(**what: Any) -> list[ErrorCode]:
        told = asked.ask("AlterUserScramCredentials", **{"deletions": [], "upsertions": [], **what})
        return [r.error_code for r in told.results]

    def told() -> object:
        found = asked.ask("DescribeUserScramCredentials", users=[{"name": user}])
        return [
            (r.error_code, [(c.mechanism, c.iterations) for c in r.credential_infos])
            for r in found.results
        ]

    new = {
        "name": user, "mechanism": 1, "iterations": 4096, "salt": b"s", "salted_password": b"p",
    }  # fmt: skip
    made = change(upsertions=[new])
    until("the password", lambda: told() == [(OK, [(1, 4096)])])
    gone = change(deletions=[{"name": user, "mechanism": 1}])
    until("no password", lambda: told() == [(ErrorCode.resource_not_found, [])])
    return [made, gone]


def quotas(asked: Doors, client: str) -> list[object]:
    entity = {"entity_type": "client-id", "entity_name": client}

    def change(remove: bool) -> list[ErrorCode]:
        told = asked.ask(
            "AlterClientQuotas", validate_only=False,
            entries=[{"entity": [entity], "ops": [
                {"key": "producer_byte_rate", "value": 5e6, "remove": remove}
            ]}],
        )  # fmt: skip
        return [e.error_code for e in told.entries]

    def told() -> list[list[tuple[str, float]]]:
        found = asked.ask(
            "DescribeClientQuotas", strict=True,
            components=[{"entity_type": "client-id", "match_type": 0, "match": client}],
        )  # fmt: skip
        assert found.error_code is OK, found
        return [[(v.key, float(v.value)) for v in e.values] for e in found.entries]

    set_ = change(remove=False)
    until("the quota", lambda: told() == [[("producer_byte_rate", 5e6)]])
    taken = change(remove=True)
    until("no quota", lambda: told() == [])
    return [set_, taken]


def test_users_rights_tokens_and_quotas_are_the_brokers(stack: Stack, held: Held) -> None:
    off = ErrorCode.security_disabled
    assert by_both(stack, partial(users, held)) == {
        "sasl": (ErrorCode.illegal_sasl_state, ErrorCode.illegal_sasl_state),
        "acls": (off, [off], [off]),
        "tokens": (
            ErrorCode.delegation_token_request_not_allowed,
            ErrorCode.delegation_token_request_not_allowed,
            ErrorCode.delegation_token_request_not_allowed,
            ErrorCode.delegation_token_request_not_allowed,
        ),
        "passwords": [[OK], [OK]],
        "quotas": [[OK], [OK]],
    }


# -- The cluster


def cluster(held: Held, asked: Doors, name: str) -> dict[str, object]:
    """What would change it names who is not there, or another cluster."""
    quorum = asked.ask(
        "DescribeQuorum",
        topics=[{"topic_name": "__cluster_metadata", "partitions": [{"partition_index": 0}]}],
    )
    features = asked.ask(
        "UpdateFeatures", timeout=PATIENCE, validate_only=True,
        feature_updates=[
            {"feature": "no-such-feature", "max_version_level": 1, "upgrade_type": 1}
        ],
    )  # fmt: skip
    added = asked.ask(
        "AddRaftVoter", cluster_id=name, timeout=PATIENCE, voter_id=NOBODY,
        voter_directory_id=uuid4(), ack_when_committed=True,
        listeners=[{"name": "CONTROLLER", "host": "127.0.0.1", "port": 1}],
    )  # fmt: skip
    removed = asked.ask(
        "RemoveRaftVoter", cluster_id=name, voter_id=NOBODY, voter_directory_id=uuid4()
    )
    unregistered = asked.ask("UnregisterBroker", broker_id=NOBODY)
    topics = asked.ask("ListConfigResources", resource_types=[2])
    (state,) = (p for t in quorum.topics for p in t.partitions)
    return {
        "quorum": (state.error_code, sorted(int(v.replica_id) for v in state.current_voters)),
        "features": features.error_code,
        "voter added": added.error_code,
        "voter removed": removed.error_code,
        "unregistered": unregistered.error_code,
        "resources": [r.resource_name for r in topics.config_resources].count(held.name),
        "brokers": sorted(
            int(b.broker_id)
            for b in asked.ask(
                "DescribeCluster", include_cluster_authorized_operations=False, endpoint_type=1,
                include_fenced_brokers=True,
            ).brokers
        ),
    }  # fmt: skip


def test_brokers_and_controllers_are_the_brokers_to_tell_and_nobody_leaves_for_a_wrong_name(
    stack: Stack, held: Held
) -> None:
    nodes = sorted(stack.endpoints.brokers)
    assert by_both(stack, partial(cluster, held)) == {
        "quorum": (OK, nodes),
        "features": ErrorCode.invalid_update_version,
        "voter added": ErrorCode.inconsistent_cluster_id,
        "voter removed": ErrorCode.inconsistent_cluster_id,
        "unregistered": ErrorCode.broker_id_not_registered,
        "resources": 1,
        "brokers": nodes,
    }
