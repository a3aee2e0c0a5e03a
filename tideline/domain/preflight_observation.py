"""What the preflight's checks judge, as observed once. Offsets at an end are exclusive."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field


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
    brokers: tuple[int, ...] = ()
    metadata_version: int | None = None
    """Highest ``metadata.version`` level that every broker supports: tells their release."""
    synchronous_commit: str | None = None
    """Postgres' setting for the roles that write boundaries."""
    gateways: tuple[GatewayHealth, ...] | None = None
    outside_members: tuple[GroupMember, ...] | None = ()
    """Group members whose host is no gateway's."""
    attested_closed_to_bypass: bool = False
    already: str | None = None
    """The topic is tracked already: the status of its migration."""
    tideline_version: str = ""

    @property
    def empty(self) -> bool:
        return all(p.empty for p in self.partitions)
