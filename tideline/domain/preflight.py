"""Whether a topic may migrate: named checks over one observation, each with a verdict and remedy.

The checks are pure, so that the same list judges a dry run, the Admin API trigger and the
workflow's own validation (seed 000, "Prerequisites and validation"; docs/phases.md).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from tideline.domain.broker_offers import Offer
from tideline.domain.estimate import TopicScale
from tideline.domain.foreign_text import some_of
from tideline.domain.kafka_release import EXPIRES_BY_SIZE_RIGHT, UPGRADE, described, is_too_old
from tideline.domain.tiering import (
    AS_RETENTION,
    DEFAULT_AGE_MS,
    KAFKA_DEFAULTS,
    LOCAL_RETENTION_MS,
    LONG_AGE_MS,
    RETENTION_MS,
    UNLIMITED,
    tiering_age,
)
from tideline.domain.topic_configs import AT_ONCE

INTERNAL_TOPICS = frozenset(
    {
        "__consumer_offsets",
        "__transaction_state",
        "__share_group_state",
        "__cluster_metadata",
        "__remote_log_metadata",
    }
)
MOST_PARTITIONS = 5_000
"""One workflow carries them all in one message, of which Temporal allows 2 MB. That of 10,000 would
have half of it left; this is how many were tried."""
TIERING_SWITCH = "remote.log.storage.system.enable"
"""A broker's own config: whether it has tiered storage at all."""
WAIT_FOR_STANDBYS = (
    "let commits wait for every standby that may be promoted, and promote no other: "
    "synchronous_standby_names = 'FIRST 1 (a)' for one, 'FIRST 2 (a, b)' for two; 'ANY 1' waits "
    "for whichever answers first, and the one that is promoted may be another"
)
MANY_STUCK_COPIES = 10
"""More unfinished old copies than this mean that tiering fails again and again."""


@dataclass(frozen=True, slots=True)
class PartitionHealth:
    """One partition, as its leader and the controller see it. Offsets: end is exclusive."""

    partition: int
    leader: int
    """Node id, -1 when there is none."""
    replicas: tuple[int, ...]
    in_sync: tuple[int, ...]
    log_start: int
    log_end: int
    reassigning: bool = False

    @property
    def empty(self) -> bool:
        return self.log_start == self.log_end


@dataclass(frozen=True, slots=True)
class GatewayHealth:
    gateway_id: int
    status: str
    version: str
    silent_ms: float
    """How long its lease was not renewed while this observation watched it."""
    lease_ms: int
    address: str


@dataclass(frozen=True, slots=True)
class GroupMember:
    """A member of a consumer group that reads the topic."""

    group: str
    client_id: str
    host: str


@dataclass(frozen=True, slots=True)
class RemoteObjects:
    """The finished remote segments of a topic, compared with what the bucket has of them."""

    segments: int
    """How many were compared."""
    bad: tuple[str, ...] = ()
    """Partition, segment and what is wrong, for each whose objects are not as they must be."""


@dataclass(frozen=True, slots=True)
class TopicAcls:
    """What the cluster's authorizer holds for a topic."""

    authorizer: bool
    """``False``: the brokers have none (``SECURITY_DISABLED``)."""
    rules: tuple[str, ...] = ()
    """ACLs whose pattern matches the topic's name, in words."""


@dataclass(frozen=True, slots=True)
class PreflightObservation:
    """Everything that the checks judge, observed once. ``None``: could not be observed."""

    topic: str
    topic_id: str | None
    """``None``: there is no such topic."""
    internal: bool = False
    configs: Mapping[str, str] = field(default_factory=dict)
    """Effective topic configs."""
    partitions: tuple[PartitionHealth, ...] = ()
    share_groups: tuple[str, ...] | None = ()
    tiering_enabled_on_brokers: bool | None = True
    """``remote.log.storage.system.enable`` on every broker."""
    remote_metadata_error: str | None = None
    stuck_copies: int = 0
    bucket_error: str | None = None
    remote_objects: RemoteObjects | None = RemoteObjects(0)
    claimed_not_there: tuple[str, ...] | None = ()
    """Partitions of which Kafka takes more for tiered than is in remote storage, and why."""
    transactional_ids: tuple[str, ...] | None = ()
    """Transactional ids whose producers the topic's leaders remember."""
    acls: TopicAcls | None = TopicAcls(authorizer=False)
    brokers: tuple[int, ...] = ()
    metadata_version: int | None = None
    """Highest ``metadata.version`` level that every broker supports: tells their release."""
    offers: tuple[Offer, ...] | None = ()
    """Plugin, logins and listeners of the brokers, each that differs once."""
    synchronous_commit: str | None = None
    """Postgres' setting for the roles that write boundaries."""
    standbys_not_waited_for: tuple[str, ...] = ()
    """Servers that stream from Postgres, and that a commit is acknowledged without."""
    gateways: tuple[GatewayHealth, ...] | None = None
    unaccounted: tuple[str, ...] = ()
    """Incarnations of gateways that were replaced and may still run: why, and what to do."""
    outside_members: tuple[GroupMember, ...] | None = ()
    """Group members whose host is no gateway's."""
    attested: str | None = ""
    """Who attests that clients reach the cluster's brokers only through gateways, when and why;
    empty: nobody does."""
    cluster_id: str = ""
    tiering_default_age_ms: int = DEFAULT_AGE_MS
    """The setting, for a topic with ``local.retention.ms=-2``."""
    already: str | None = None
    """The topic is tracked already: the status of its migration."""
    tideline_version: str = ""

    @property
    def empty(self) -> bool:
        return all(p.empty for p in self.partitions)


class Verdict(StrEnum):
    PASSED = "passed"
    WARNING = "warning"
    """The migration may start; an operator should know."""
    REFUSED = "refused"
    UNKNOWN = "unknown"
    """It could not be observed; counts as refused where nobody looks again."""


@dataclass(frozen=True, slots=True)
class CheckResult:
    name: str
    verdict: Verdict
    found: str
    remedy: str = ""
    """Says nothing of what was found."""
    told: str = ""
    """What a client may hear of ``found`` over the wire, whatever it may list at a broker: how
    many, and the topic's own configs. Empty: no more than the check's name."""


@dataclass(frozen=True, slots=True)
class PreflightReport:
    topic: str
    topic_id: str
    """UUID in hexadecimal form; empty when there is no such topic."""
    partitions: int
    checks: tuple[CheckResult, ...]
    scale: TopicScale | None = None
    """What an estimate goes by; ``None``: there is no such topic, or it migrates already."""

    @property
    def accepted(self) -> bool:
        return all(c.verdict in (Verdict.PASSED, Verdict.WARNING) for c in self.checks)

    @property
    def refused(self) -> bool:
        """What was seen refuses it, whatever else could not be seen."""
        return any(c.verdict is Verdict.REFUSED for c in self.checks)

    @property
    def undecided(self) -> bool:
        """What was seen refuses nothing, but not everything could be seen: looking again helps."""
        return not self.refused and not self.accepted

    def refusal(self) -> str:
        """Every reason why not, with its remedy, in one line; of what could not be seen only where
        nothing is refused."""
        return "; ".join(f"{c.name}: {c.found} ({c.remedy})" for c in self._against())

    def told(self) -> str:
        """The same for a client, which asks the gateway and not the brokers: principals, hosts,
        groups and gateways are counted, and listed by a command."""
        bad = [f"{': '.join(filter(None, (c.name, c.told)))} ({c.remedy})" for c in self._against()]
        return f"{'; '.join(bad)}. `tideline preflight {self.topic}` lists what was found"

    def _against(self) -> list[CheckResult]:
        why = Verdict.REFUSED if self.refused else Verdict.UNKNOWN
        return [c for c in self.checks if c.verdict is why]


Check = Callable[[PreflightObservation], CheckResult]


def _result(
    name: str, bad: object, found: str, remedy: str, *, told: str = "", warn: bool = False
) -> CheckResult:
    if not bad:
        return CheckResult(name, Verdict.PASSED, found)
    return CheckResult(name, Verdict.WARNING if warn else Verdict.REFUSED, found, remedy, told)


def _exists(o: PreflightObservation) -> CheckResult:
    found = f"topic {o.topic!r} {'does not exist' if o.topic_id is None else 'exists'}"
    return _result(
        "topic_exists",
        o.topic_id is None,
        found,
        "check the spelling; names are case-sensitive",
        told=found,
    )


def _not_internal(o: PreflightObservation) -> CheckResult:
    internal = o.internal or o.topic in INTERNAL_TOPICS
    found = f"{o.topic!r} is {'an internal topic' if internal else 'no internal topic'}"
    return _result("not_internal", internal, found, "Kafka's own topics stay classic", told=found)


def _not_compacted(o: PreflightObservation) -> CheckResult:
    policy = o.configs.get("cleanup.policy", "delete")
    return _result(
        "cleanup_policy",
        policy != "delete",
        f"cleanup.policy={policy}",
        "only cleanup.policy=delete can migrate; compaction of diskless data is not supported",
        told=f"cleanup.policy={policy}",
    )


def _tiered(o: PreflightObservation) -> CheckResult:
    enabled = o.configs.get("remote.storage.enable", "false") == "true"
    found = f"remote.storage.enable={str(enabled).lower()}"
    if o.empty and not enabled:
        found += ", and every partition is empty"
    return _result(
        "tiered_storage",
        not enabled and not o.empty,
        found,
        "set remote.storage.enable=true and wait until the older segments are in remote storage",
        told=found,
    )


def _copying(o: PreflightObservation) -> CheckResult:
    disabled = o.configs.get("remote.log.copy.disable", "false") == "true"
    found = f"remote.log.copy.disable={str(disabled).lower()}"
    return _result(
        "remote_copy",
        disabled and not o.empty and o.already is None,
        found,
        "set remote.log.copy.disable=false: the prefix must reach remote storage",
        told=found,
    )


def _compression(o: PreflightObservation) -> CheckResult:
    kind = o.configs.get("compression.type", "producer")
    return _result(
        "compression_type",
        kind != "producer",
        f"compression.type={kind}",
        "set compression.type=producer: the suffix keeps batches as producers wrote them",
        told=f"compression.type={kind}",
    )


def _partition_count(o: PreflightObservation) -> CheckResult:
    count = len(o.partitions)
    found = f"{count} partitions, of at most {MOST_PARTITIONS}"
    return _result(
        "partition_count",
        count > MOST_PARTITIONS,
        found,
        "a topic of more partitions does not migrate in this version; nothing was changed",
        told=found,
        warn=o.already is not None,
    )


def _in_sync(o: PreflightObservation) -> CheckResult:
    behind = [f"{p.partition} ({', '.join(lacks)})" for p in o.partitions if (lacks := _lacks(p))]
    return _result(
        "replicas_in_sync",
        behind,
        f"partitions not fully in sync: {', '.join(behind[:5])}"
        if behind
        else "every replica is in sync",
        "bring the missing brokers back or finish the replication first",
        told=f"{len(behind)} partitions are not fully in sync",
    )


def _lacks(p: PartitionHealth) -> list[str]:
    lacks = []
    if p.leader < 0:
        lacks.append("no leader answers")
    if set(p.replicas) != set(p.in_sync):
        lacks.append(f"missing {sorted(set(p.replicas) - set(p.in_sync))}")
    return lacks


def _no_reassignment(o: PreflightObservation) -> CheckResult:
    moving = [str(p.partition) for p in o.partitions if p.reassigning]
    return _result(
        "no_reassignment",
        moving,
        f"partitions being reassigned: {', '.join(moving)}" if moving else "no reassignment",
        "wait until it is done, or cancel it",
        told=f"{len(moving)} partitions are being reassigned",
    )


def _replication(o: PreflightObservation) -> CheckResult:
    factors = {len(p.replicas) for p in o.partitions} or {0}
    # Above the factor it refuses nothing: Kafka asks for as many as there are (tried on 4.2.1).
    wanted = min(int(o.configs.get("min.insync.replicas", "1")), min(factors))
    return _result(
        "min_insync_replicas",
        wanted < 2 and len(o.brokers) > 1,
        f"replication factor {min(factors)}, acknowledged by {wanted} replicas",
        "acknowledged records may stand on one broker only; consider min.insync.replicas=2",
        warn=True,
    )


def _no_share_group(o: PreflightObservation) -> CheckResult:
    if o.share_groups is None:
        return CheckResult(
            "no_share_group",
            Verdict.UNKNOWN,
            "the share groups could not be listed",
            "look at the brokers' logs, then try again",
        )
    return _result(
        "no_share_group",
        o.share_groups,
        f"share groups on the topic: {some_of(o.share_groups)}"
        if o.share_groups
        else "no share group",
        "end them: share groups cannot read across the boundary",
        told=f"{len(o.share_groups)} share groups read the topic",
    )


def _healthy_tiering(o: PreflightObservation) -> CheckResult:
    name = "tiered_storage_healthy"
    if o.empty and o.configs.get("remote.storage.enable", "false") != "true":
        return CheckResult(name, Verdict.PASSED, "not needed: every partition is empty")
    problems = []
    if o.tiering_enabled_on_brokers is False:
        problems.append("remote.log.storage.system.enable is false on a broker")
    if o.remote_metadata_error:
        problems.append(f"__remote_log_metadata cannot be read: {o.remote_metadata_error}")
    if o.bucket_error:
        problems.append(f"the bucket of the segments cannot be read: {o.bucket_error}")
    if o.stuck_copies > MANY_STUCK_COPIES:
        problems.append(f"{o.stuck_copies} copies began long ago and never finished")
    if problems:
        told = f"{len(problems)} problems of tiered storage"
        return _result(name, True, "; ".join(problems), "repair tiered storage first", told=told)
    return _result(
        name,
        o.stuck_copies,
        f"{o.stuck_copies} old copies never finished" if o.stuck_copies else "healthy",
        "left by a failed upload; they go when retention passes them",
        warn=True,
    )


def _recognised_objects(o: PreflightObservation) -> CheckResult:
    name = "remote_objects_recognised"
    if o.empty and o.configs.get("remote.storage.enable", "false") != "true":
        return CheckResult(name, Verdict.PASSED, "not needed: every partition is empty")
    if o.remote_objects is None:
        return CheckResult(
            name,
            Verdict.UNKNOWN,
            "the segments' objects could not be compared with Kafka's metadata",
            "make the bucket and __remote_log_metadata readable, then try again",
        )
    bad, compared = o.remote_objects.bad, o.remote_objects.segments
    return _result(
        name,
        bad,
        f"{len(bad)} of {compared} finished segments are not in the bucket as Kafka describes them:"
        f" {'; '.join(bad[:3])}"
        if bad
        else f"{compared} finished segments are in the bucket as Kafka describes them",
        "readiness could never be proven: check TIDELINE_S3_TIERED_BUCKET and "
        "TIDELINE_S3_TIERED_PREFIX; segments that the storage plugin compresses or encrypts are "
        "not supported (docs/coverage.md)",
        told=f"{len(bad)} of {compared} finished segments are not as Kafka describes them",
    )


def _enabled_again(o: PreflightObservation) -> CheckResult:
    name = "tiered_offsets_proven"
    if o.claimed_not_there is None:
        return CheckResult(
            name,
            Verdict.UNKNOWN,
            "what Kafka takes for tiered could not be compared with what is",
            "make every replica, the bucket and __remote_log_metadata readable, then try again",
        )
    bad = o.claimed_not_there
    more = f" (and {len(bad) - 3} more)" if bad[3:] else ""
    return _result(
        name,
        bad,
        f"{'; '.join(bad[:3])}{more}" if bad else "what Kafka takes for tiered is, or has expired",
        "it was disabled and enabled again: Kafka may delete these records locally and has them "
        f"nowhere else. Run `tideline tiered-storage enable {o.topic}`, which holds local "
        "retention until they have expired or were deleted; the topic may migrate then",
        told=f"of {len(bad)} partitions Kafka takes records for tiered that are not",
        # One that has begun goes on: it waits before its roll.
        warn=o.already is not None,
    )


def _no_transactions(o: PreflightObservation) -> CheckResult:
    name = "transactional_producers"
    if o.transactional_ids is None:
        return CheckResult(
            name,
            Verdict.WARNING,
            "the topic's transactional producers could not be listed",
            "look yourself: from tracking on a new transaction on the topic is refused",
        )
    ids = o.transactional_ids
    return _result(
        name,
        ids,
        f"{len(ids)} transactional producers wrote to it: {some_of(ids)}"
        if ids
        else "none is remembered by the leaders",
        "from tracking on a new transaction on the topic is refused: change these producers first",
        warn=True,
    )


FROM_ANYWHERE = " from *"
"""What ends an ACL, in words, that names no host."""


def _acls_hold(o: PreflightObservation) -> CheckResult:
    name = "acls"
    if o.acls is None:
        return CheckResult(
            name,
            Verdict.UNKNOWN,
            "the topic's ACLs could not be read",
            "give the worker's principal DESCRIBE on the cluster, then try again",
        )
    rules = o.acls.rules
    of_hosts = [rule for rule in rules if not rule.endswith(FROM_ANYWHERE)]
    if of_hosts:
        told = f"{len(of_hosts)} ACLs of the topic name a host"
        return CheckResult(
            name,
            Verdict.REFUSED,
            f"{told}: {some_of(of_hosts, 3)}",
            "brokers see the gateways' addresses as their clients': let these ACLs name users, "
            "or the gateways' hosts in further ones, and remove them",
            told,
        )
    return CheckResult(
        name,
        Verdict.PASSED,
        f"{len(rules)} ACLs protect the topic, and hold at gateways"
        if rules
        else "no ACL names the topic",
    )


def _postgres(o: PreflightObservation) -> CheckResult:
    name = "postgres_synchronous_commit"
    if o.synchronous_commit is None:
        return CheckResult(
            name, Verdict.UNKNOWN, "Postgres did not answer", "bring Postgres back, then try again"
        )
    if o.synchronous_commit != "off" and o.standbys_not_waited_for:
        return CheckResult(
            name,
            Verdict.WARNING,
            f"commits do not wait for standby {', '.join(o.standbys_not_waited_for)}: the "
            "promotion of one may lose acknowledged records",
            WAIT_FOR_STANDBYS,
        )
    return _result(
        name,
        o.synchronous_commit == "off",
        f"synchronous_commit={o.synchronous_commit}",
        "set synchronous_commit=on (remote_apply with standbys): a boundary must survive a crash",
    )


def _gateways(o: PreflightObservation) -> CheckResult:
    name = "gateways_alive"
    if o.gateways is None:
        return CheckResult(
            name,
            Verdict.UNKNOWN,
            "the registrations could not be read",
            "bring Postgres back, then try again",
        )
    active = [g for g in o.gateways if g.status == "active"]
    if not active:
        return CheckResult(
            name,
            Verdict.REFUSED,
            "no gateway is registered",
            "start a gateway beside each broker",
            "no gateway is registered",
        )
    silent = [f"{g.gateway_id} at {g.address}" for g in active if g.silent_ms > g.lease_ms]
    fenced = [
        f"{g.gateway_id} at {g.address}" for g in o.gateways if g.status in ("fenced", "released")
    ]
    problems = [f"no sign of life from gateway {', '.join(silent)}"] if silent else []
    told = [f"no sign of life from {len(silent)} gateways"] if silent else []
    remedies = (
        ["bring it back, or retire it with `tideline gateway retire` if it is cut off"]
        if silent
        else []
    )
    if o.unaccounted:
        problems += o.unaccounted
        told.append(f"{len(o.unaccounted)} replaced gateway processes are not accounted for")
        remedies.append(
            "until a replaced process is accounted for it may pass the topic through, cut off from "
            "Postgres, past B0; docs/operating.md says how one knows that it is dead"
        )
    if problems:
        return CheckResult(name, Verdict.REFUSED, *map("; ".join, (problems, remedies, told)))
    return _result(
        name,
        fenced,
        f"fenced or stopped, must register anew: gateway {', '.join(fenced)}"
        if fenced
        else f"{len(active)} gateways renew their leases",
        "it does so by itself when it reaches Postgres; clients use the others meanwhile",
        warn=True,
    )


def _versions(o: PreflightObservation) -> CheckResult:
    versions = sorted({g.version for g in o.gateways or () if g.status == "active"})
    other = [v for v in versions if o.tideline_version and v != o.tideline_version]
    return _result(
        "gateway_versions",
        other,
        f"gateways run {', '.join(versions) or 'nothing'}, who asks runs {o.tideline_version}",
        "let gateways and worker run one version: each phase must mean the same to all",
        told=f"{len(other)} other versions run",
    )


def _release(o: PreflightObservation) -> CheckResult:
    name, level = "kafka_release", o.metadata_version
    if level is None:
        return CheckResult(
            name,
            Verdict.UNKNOWN,
            "no broker says which metadata.version it supports",
            "make every broker answer, then try again",
        )
    return _result(
        name,
        is_too_old(level),
        described(level),
        UPGRADE,
    )


def _offers(o: PreflightObservation) -> CheckResult:
    name = "brokers_offer"
    if o.offers is None:
        found = "not every broker tells its configs"
        return CheckResult(
            name, Verdict.WARNING, found, "allow DESCRIBE_CONFIGS of the cluster (docs/rights.md)"
        )
    doubtful = [offer for offer in o.offers if offer.remedy]
    return _result(
        name,
        doubtful,
        "; ".join(offer.found for offer in doubtful or o.offers),
        "; ".join(offer.remedy for offer in doubtful),
        warn=True,
    )


def _size_retention(o: PreflightObservation) -> CheckResult:
    limit = o.configs.get("retention.bytes", "-1")
    mended = o.metadata_version is not None and o.metadata_version >= EXPIRES_BY_SIZE_RIGHT
    return _result(
        "size_retention_race",
        limit != "-1" and o.already is None and not mended,
        f"retention.bytes={limit}",
        "KAFKA-20732: a new leader may expire live segments by size until tracking begins; from "
        "then on Kafka's own limit is -1 and Tideline keeps yours",
        warn=True,
    )


def _copy_lag(o: PreflightObservation) -> CheckResult:
    """Brokers before 4.4 show neither key."""
    lags = {key: o.configs.get(key, "0") for key in AT_ONCE}
    said = ", ".join(f"{key}={value}" for key, value in lags.items())
    return _result(
        "remote_copy_lag",
        any(value != "0" for value in lags.values()),
        f"{said}: Kafka holds segments back from remote storage",
        "Tideline sets both to 0 from the seal to readiness and keeps yours; what is held back now "
        "is uploaded then, so readiness comes later than elsewhere",
        warn=True,
    )


def _tiering_age(o: PreflightObservation) -> CheckResult:
    """Kafka's defaults are not a user's word: they mean what the setting says."""
    configured = int(o.configs.get(LOCAL_RETENTION_MS) or AS_RETENTION)
    retention = int(o.configs.get(RETENTION_MS) or KAFKA_DEFAULTS[RETENTION_MS])
    age = tiering_age(configured, retention, o.tiering_default_age_ms)
    said = f"{LOCAL_RETENTION_MS}={configured}, {RETENTION_MS}={retention}"
    if age == UNLIMITED:
        found = f"{said}: batches are never tiered by age, each keeps its row in Postgres"
    else:
        found = f"{said}: batches are tiered when they are {age} ms old, till then each has a row"
    return _result(
        "tiering_age",
        age == UNLIMITED or age > LONG_AGE_MS,
        found,
        f"set {LOCAL_RETENTION_MS} to an hour or so, or to -2 for TIDELINE_TIERING_DEFAULT_AGE_MS: "
        "ten batches a second are 864,000 rows a day, 280 MB; records are kept as long all the "
        "same, in segments (docs/tiering.md)",
        warn=True,
    )


def _bypass(o: PreflightObservation) -> CheckResult:
    name = "closed_to_bypass"
    if o.attested is None:
        return CheckResult(
            name, Verdict.UNKNOWN, "Postgres did not answer", "bring Postgres back, then try again"
        )
    if not o.attested:
        found = (
            "nobody attests that clients reach the brokers of cluster "
            f"{o.cluster_id or '(unknown)'} only through gateways"
        )
        return CheckResult(
            name,
            # One that has begun goes on: stopping it half way protects nothing.
            Verdict.REFUSED if o.already is None else Verdict.WARNING,
            found,
            "close the brokers' listeners to clients, then run `tideline cluster attest --reason`",
            found,
        )
    if o.outside_members is None:
        return CheckResult(
            name,
            Verdict.WARNING,
            f"{o.attested}; the groups' members could not be listed",
            "look at the group coordinators",
        )
    outside = [
        f"{some_of([m.group])}: {some_of([m.client_id])} at {some_of([m.host])}"
        for m in o.outside_members
    ]
    return _result(
        name,
        outside,
        f"{o.attested}; but these members come from no gateway's host: {'; '.join(outside[:5])}"
        if outside
        else o.attested,
        "let them bootstrap to the gateways, else they will not see the suffix",
        warn=True,
    )


CHECKS: tuple[Check, ...] = (
    _not_internal,
    _not_compacted,
    _tiered,
    _copying,
    _compression,
    _partition_count,
    _in_sync,
    _no_reassignment,
    _replication,
    _no_share_group,
    _healthy_tiering,
    _recognised_objects,
    _enabled_again,
    _no_transactions,
    _acls_hold,
    _postgres,
    _gateways,
    _versions,
    _release,
    _offers,
    _size_retention,
    _copy_lag,
    _tiering_age,
    _bypass,
)


def judge(observation: PreflightObservation) -> PreflightReport:
    """Run every check. Of a topic that does not exist only that is said, unless its name is one
    of Kafka's own."""
    exists = _exists(observation)
    results = [exists]
    if exists.verdict is Verdict.PASSED:
        results += [check(observation) for check in CHECKS]
    elif observation.topic in INTERNAL_TOPICS:
        results.append(_not_internal(observation))
    return PreflightReport(
        topic=observation.topic,
        topic_id=observation.topic_id or "",
        partitions=len(observation.partitions),
        checks=tuple(results),
        scale=_scale(observation),
    )


def _scale(o: PreflightObservation) -> TopicScale | None:
    if o.topic_id is None or o.already is not None:
        return None
    return TopicScale(
        partitions=len(o.partitions),
        replicas=max((len(p.replicas) for p in o.partitions), default=0),
        brokers=len(o.brokers),
        gateways=sum(gateway.status == "active" for gateway in o.gateways or ()),
        segments=0 if o.remote_objects is None else o.remote_objects.segments,
        tiered=o.configs.get("remote.storage.enable", "false") == "true" and not o.empty,
    )
