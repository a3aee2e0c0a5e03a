"""The least that Tideline's own processes have to be allowed, in Kafka and in S3, with the reason.

One table each. From them are made docs/rights.md, the commands in infra/kafka/acls and the policies
in infra/s3; tests compare the tables with what the code can send. What a client asks goes to Kafka
over the client's own connection, under the client's own rights, and is not here.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum


class Process(StrEnum):
    GATEWAY = "gateway"
    WORKER = "worker"
    JOBS = "jobs"


class Resource(StrEnum):
    """Of Kafka's authorizer, as ``kafka-acls.sh`` has its options."""

    NOTHING = "none"
    CLUSTER = "cluster"
    TOPIC = "topic"
    GROUP = "group"
    TRANSACTIONAL_ID = "transactional-id"


METADATA_TOPIC = "__remote_log_metadata"
JOBS_GROUP = "tideline-jobs"
EVERY = "*"

_GATEWAY, _WORKER, _JOBS = Process.GATEWAY, Process.WORKER, Process.JOBS


@dataclass(frozen=True, slots=True)
class KafkaRight:
    """One API that is sent over a process's own connection."""

    api: str
    """Kafka's name."""
    resource: Resource
    operation: str
    """As ``kafka-acls.sh`` has it; empty where Kafka asks for none."""
    reasons: Mapping[Process, str]
    """Who sends it, and what for."""
    name: str = EVERY
    """Of the resource."""


KAFKA_RIGHTS = (
    KafkaRight(
        "SaslHandshake",
        Resource.NOTHING,
        "",
        dict.fromkeys(Process, "to log in, where the listener has SASL"),
    ),
    KafkaRight(
        "SaslAuthenticate",
        Resource.NOTHING,
        "",
        dict.fromkeys(Process, "to log in, where the listener has SASL"),
    ),
    KafkaRight(
        "ApiVersions",
        Resource.NOTHING,
        "",
        {
            _GATEWAY: "versions, and whether the broker lives",
            _WORKER: "versions, and the cluster's metadata.version",
            _JOBS: "versions",
        },
    ),
    KafkaRight(
        "Metadata",
        Resource.TOPIC,
        "Describe",
        {
            _GATEWAY: "leaders, replicas and ids of tracked topics",
            _WORKER: "leaders, replicas and ids of topics that migrate",
            _JOBS: "leaders of partitions",
        },
    ),
    KafkaRight(
        "DescribeTopicPartitions",
        Resource.TOPIC,
        "Describe",
        {_WORKER: "leader and replicas of one partition, however many its topic has"},
    ),
    KafkaRight(
        "DescribeCluster",
        Resource.NOTHING,
        "",
        {
            _GATEWAY: "racks and load, before replicas are placed",
            _WORKER: "the same, for tideline replicas",
        },
    ),
    KafkaRight(
        "DescribeQuorum",
        Resource.CLUSTER,
        "Describe",
        {
            _GATEWAY: "whether a topic that is not found is gone, or the broker lags",
            _WORKER: "the same, for the watch on topics",
        },
    ),
    KafkaRight(
        "ListOffsets",
        Resource.TOPIC,
        "Describe",
        {
            _GATEWAY: "high watermarks; what only the leader of a prefix can say",
            _WORKER: "log ends, high watermarks, tiered offsets",
            _JOBS: "log starts, log ends and tiered offsets",
        },
    ),
    KafkaRight(
        "OffsetForLeaderEpoch",
        Resource.TOPIC,
        "Describe",
        {
            _GATEWAY: "what only the leader of a prefix can say",
            _WORKER: "where the epochs of a prefix end",
            _JOBS: "the same, for coverage",
        },
    ),
    KafkaRight(
        "Fetch",
        Resource.TOPIC,
        "Read",
        {
            _WORKER: "the tail of a log: producers' state, divergent tails; remote log metadata",
            _JOBS: "verification: what gateways serve of a topic",
        },
    ),
    KafkaRight(
        "Fetch",
        Resource.TOPIC,
        "Read",
        {_JOBS: "which segments remote storage has"},
        METADATA_TOPIC,
    ),
    KafkaRight(
        "FindCoordinator",
        Resource.GROUP,
        "Describe",
        {_JOBS: "asked by the client library; nothing is committed"},
        JOBS_GROUP,
    ),
    KafkaRight(
        "DeleteRecords",
        Resource.TOPIC,
        "Delete",
        {
            _GATEWAY: "of a prefix, at its leader, after the client's own was refused for no "
            "other reason than the broker's role",
            _WORKER: "of a prefix whose tiered storage is switched off",
            _JOBS: "retention of a prefix",
        },
    ),
    KafkaRight(
        "DescribeConfigs",
        Resource.TOPIC,
        "DescribeConfigs",
        {
            _GATEWAY: "preflight of a trigger; configs that Tideline holds",
            _WORKER: "preflight; that a change has reached every broker",
            _JOBS: "retention and tiering that the user wants",
        },
    ),
    KafkaRight(
        "DescribeConfigs",
        Resource.CLUSTER,
        "DescribeConfigs",
        {
            _GATEWAY: "whether tiered storage is on at every broker; defaults of new topics; "
            "whether the broker beside it has the id that it was given",
            _WORKER: "whether tiered storage is on at every broker; defaults of limits of batches",
            _JOBS: "defaults of retention and tiering; file.delete.delay.ms",
        },
    ),
    KafkaRight(
        "DescribeClientQuotas",
        Resource.CLUSTER,
        "DescribeConfigs",
        {_GATEWAY: "quotas of clients, which hold for what gateways serve themselves"},
    ),
    KafkaRight(
        "IncrementalAlterConfigs",
        Resource.TOPIC,
        "AlterConfigs",
        {
            _GATEWAY: "a config that came to be held while a client changed it",
            _WORKER: "the configs of the stages of a migration, the seal among them",
        },
    ),
    KafkaRight(
        "ListPartitionReassignments",
        Resource.CLUSTER,
        "Describe",
        {
            _GATEWAY: "preflight of a trigger",
            _WORKER: "preflight; before replicas are put in another order",
        },
    ),
    KafkaRight(
        "AlterPartitionReassignments",
        Resource.CLUSTER,
        "Alter",
        {_WORKER: "another preferred leader where the log has a gap; tideline replicas"},
    ),
    KafkaRight(
        "ElectLeaders",
        Resource.CLUSTER,
        "Alter",
        {_WORKER: "the same"},
    ),
    KafkaRight(
        "DescribeProducers",
        Resource.TOPIC,
        "Read",
        {
            _GATEWAY: "whether a batch belongs to a transaction that was open before",
            _WORKER: "open transactions and producers' state before B0",
        },
    ),
    KafkaRight(
        "ListTransactions",
        Resource.TRANSACTIONAL_ID,
        "Describe",
        {_WORKER: "whose the open transactions are"},
    ),
    KafkaRight(
        "DescribeTransactions",
        Resource.TRANSACTIONAL_ID,
        "Describe",
        {_WORKER: "the same"},
    ),
    KafkaRight(
        "FindCoordinator",
        Resource.TRANSACTIONAL_ID,
        "Describe",
        {_WORKER: "where a transaction that outlasts the patience is ended"},
    ),
    KafkaRight(
        "InitProducerId",
        Resource.TRANSACTIONAL_ID,
        "Write",
        {_WORKER: "ends it, by fencing its producer"},
    ),
    KafkaRight(
        "WriteTxnMarkers",
        Resource.CLUSTER,
        "Alter",
        {_WORKER: "ends one that its coordinator has forgotten"},
    ),
    KafkaRight(
        "DescribeAcls",
        Resource.CLUSTER,
        "Describe",
        {
            _GATEWAY: "preflight of a trigger",
            _WORKER: "preflight and watch: ACLs that name a host",
        },
    ),
    KafkaRight(
        "ListGroups",
        Resource.CLUSTER,
        "Describe",
        {
            _GATEWAY: "preflight of a trigger: share groups of the topic",
            _WORKER: "preflight and watch: share groups of the topic",
        },
    ),
    KafkaRight(
        "DescribeGroups",
        Resource.GROUP,
        "Describe",
        {_GATEWAY: "the same", _WORKER: "preflight"},
    ),
    KafkaRight(
        "ConsumerGroupDescribe",
        Resource.GROUP,
        "Describe",
        {_GATEWAY: "the same", _WORKER: "preflight"},
    ),
    KafkaRight(
        "ShareGroupDescribe",
        Resource.GROUP,
        "Describe",
        {_GATEWAY: "the same", _WORKER: "preflight and watch"},
    ),
)

CHANGING = {
    "IncrementalAlterConfigs": {"alter_configs", "write_held"},
    "AlterPartitionReassignments": {"reorder_replicas"},
    "ElectLeaders": {"elect_preferred"},
    "InitProducerId": {"fence_transaction"},
    "WriteTxnMarkers": {"write_abort_marker"},
}
"""APIs that change something, and the functions that send each: who calls one of them has to be
allowed it."""


@dataclass(frozen=True, slots=True, order=True)
class Acl:
    """One that a principal is given."""

    resource: Resource
    name: str
    operation: str


def acls_of(process: Process) -> list[Acl]:
    """What ``process`` needs, each once."""
    return sorted(
        {
            Acl(right.resource, right.name, right.operation)
            for right in KAFKA_RIGHTS
            if process in right.reasons and right.resource is not Resource.NOTHING
        }
    )


class Bucket(StrEnum):
    DISKLESS = "diskless"
    TIERED = "tiered"


GET, PUT, DELETE, LIST = "s3:GetObject", "s3:PutObject", "s3:DeleteObject", "s3:ListBucket"
ABORT = "s3:AbortMultipartUpload"
"""Of an upload in parts that did not end."""

METHODS: Mapping[str, frozenset[str]] = {
    "get_object": frozenset({GET}),
    "put_object": frozenset({PUT}),
    "generate_presigned_url": frozenset({PUT}),
    "head_object": frozenset({GET}),
    "create_multipart_upload": frozenset({PUT}),
    "upload_part": frozenset({PUT}),
    "complete_multipart_upload": frozenset({PUT}),
    "abort_multipart_upload": frozenset({ABORT}),
    "copy": frozenset({GET, PUT, ABORT}),
    "delete_object": frozenset({DELETE}),
    "delete_objects": frozenset({DELETE}),
    "list_objects_v2": frozenset({LIST}),
    "head_bucket": frozenset({LIST}),
}
"""Methods of boto3's client that are called, and the actions that each needs."""

_OWNER = "tideline-owner.json"
_POSITION = "tideline-history.json"


@dataclass(frozen=True, slots=True)
class S3Right:
    """Actions on the keys ``keys`` (``*``: anything) below the prefix of an installation."""

    process: Process
    bucket: Bucket
    keys: str
    actions: frozenset[str]
    why: str
    below_prefix: bool = True


def _s3(process: Process, bucket: Bucket, keys: str, actions: str, why: str) -> S3Right:
    return S3Right(process, bucket, keys, frozenset(actions.split()), why)


_D, _T = Bucket.DISKLESS, Bucket.TIERED
S3_RIGHTS = (
    *(
        _s3(process, bucket, "", LIST, "whether the bucket is there; whose the prefix is; listings")
        for process in Process
        for bucket in Bucket
    ),
    *(
        _s3(process, bucket, _OWNER, f"{GET} {PUT}", "whose the prefix is, written by the first")
        for process in (_GATEWAY, _WORKER)
        for bucket in Bucket
    ),
    *(
        _s3(process, _D, _POSITION, f"{GET} {PUT}", "how far the history has come")
        for process in (_GATEWAY, _WORKER)
    ),
    *(_s3(_JOBS, bucket, _OWNER, GET, "whose the prefix is") for bucket in Bucket),
    _s3(_JOBS, _D, _POSITION, GET, "how far the history has come"),
    *(_s3(process, _D, "meta/*", f"{GET} {PUT}", "the catalog of facts") for process in Process),
    _s3(_GATEWAY, _D, "wal/*", f"{GET} {PUT}", "what producers write and consumers read"),
    _s3(_GATEWAY, _T, "*", GET, "reads of merged segments"),
    _s3(_WORKER, _T, "*", GET, "copies of segments before a prefix is repaired"),
    _s3(_WORKER, _D, "wal/*", GET, "what objects hold: `tideline rebuild`, a promotion"),
    S3Right(
        _WORKER,
        _D,
        "forensics/*",
        frozenset({GET, PUT, ABORT}),
        "divergent tails and copies of segments",
        below_prefix=False,
    ),
    _s3(
        _WORKER, _D, "doctor/*", f"{GET} {PUT} {DELETE}", "what `tideline doctor` puts and deletes"
    ),
    _s3(_JOBS, _D, "wal/*", f"{GET} {DELETE}", "merge; collection"),
    _s3(_JOBS, _D, "gc-reports/*", f"{PUT} {DELETE}", "what the collection found and deleted"),
    _s3(_JOBS, _D, "runs/*", f"{PUT} {DELETE}", "results of jobs whose driver is elsewhere"),
    _s3(_WORKER, _D, "runs/*", GET, "the same, as Airflow reads them"),
    _s3(_JOBS, _D, "records/*", f"{GET} {PUT} {DELETE}", "what runs tell; its Iceberg tables"),
    _s3(
        _JOBS,
        _D,
        "state/*",
        f"{GET} {PUT} {DELETE}",
        "folds of the remote log metadata, verdicts on them",
    ),
    S3Right(
        _JOBS,
        _D,
        "reports/coverage/*",
        frozenset({PUT}),
        "what is covered",
        below_prefix=False,
    ),
    _s3(_JOBS, _T, "*", f"{GET} {PUT} {ABORT} {DELETE}", "merged segments; collection"),
)


def policy(
    process: Process, buckets: Mapping[Bucket, str], prefixes: Mapping[Bucket, str]
) -> dict[str, object]:
    """The S3 rights of ``process`` as an IAM policy. ``buckets``: their names; ``prefixes``: of the
    installation's keys in each, empty or with a slash at the end."""
    listed = [right for right in S3_RIGHTS if right.process is process and LIST in right.actions]
    statements: list[Mapping[str, object]] = [
        {
            "Sid": "List",
            "Effect": "Allow",
            "Action": [LIST],
            "Resource": [f"arn:aws:s3:::{buckets[right.bucket]}" for right in listed],
        }
    ]
    by_actions: dict[tuple[str, ...], list[str]] = {}
    for right in S3_RIGHTS:
        if right.process is process and right not in listed:
            prefix = prefixes[right.bucket] if right.below_prefix else ""
            named = f"arn:aws:s3:::{buckets[right.bucket]}/{prefix}{right.keys}"
            by_actions.setdefault(tuple(sorted(right.actions)), []).append(named)
    for number, (actions, resources) in enumerate(by_actions.items(), 1):
        statements.append(
            {
                "Sid": f"Objects{number}",
                "Effect": "Allow",
                "Action": list(actions),
                "Resource": resources,
            }
        )
    return {"Version": "2012-10-17", "Statement": statements}
