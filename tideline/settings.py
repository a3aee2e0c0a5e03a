"""Every setting, typed and validated, in one place.

Values come from the environment (``TIDELINE_…``), else from the file that ``TIDELINE_CONFIG``
names (``.toml``: with contexts, :mod:`tideline.settings_files`; else lines ``NAME=value``), else
from the embedded stack's ``client.env`` in ``TIDELINE_HOME`` (default ``.tideline``). A secret may
lie in a file of its own, ``TIDELINE_…_FILE``. Names that nobody knows are refused
(:mod:`tideline.variables`).
The tables in docs/settings.md are made from these classes.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal, Self, SupportsIndex, TypeVar, get_args
from urllib.parse import urlsplit

import psycopg
from psycopg.conninfo import conninfo_to_dict
from pydantic import (
    AfterValidator,
    Field,
    FilePath,
    PrivateAttr,
    SecretStr,
    ValidationError,
    field_validator,
    model_validator,
)
from pydantic_settings import BaseSettings, DotEnvSettingsSource, NoDecode, SettingsConfigDict

from tideline.domain.history import ServerIdentity
from tideline.domain.security import (
    ClientAuth,
    OwnMechanism,
    SecurityProtocol,
    gateway_problem,
    own_connection_problem,
)
from tideline.domain.tiering import DEFAULT_AGE_MS
from tideline.errors import UsageError
from tideline.settings_files import CONTEXT, from_toml, laid_over, with_secrets
from tideline.variables import PREFIX, refuse_unknown

CONFIG = "TIDELINE_CONFIG"
TOML = ".toml"


def _settings_file() -> Path | None:
    if named := os.environ.get(CONFIG):
        return Path(named)
    embedded = Path(os.environ.get("TIDELINE_HOME", ".tideline")) / "client.env"
    return embedded if embedded.is_file() else None


HTTP = ("http", "https")
LOGIN_IN_A_PLACE = (
    "has a user or a password in it, which would be shown wherever the place is named: leave them "
    "out; logins have settings of their own"
)


def _without_login(value: str) -> str:
    """A place is printed, logged and written into reports: a part of it that is secret is refused,
    and is not in the refusal."""
    if "@" in value:
        raise ValueError(LOGIN_IN_A_PLACE)
    return value


def _address(value: str) -> tuple[str, int]:
    host, colon, port = _without_login(value).rpartition(":")
    if not colon or not host or "/" in host or not port.isdigit() or not 0 < int(port) < 65536:
        raise ValueError(
            f"{value!r} is not an address: write host:port, for example 127.0.0.1:9092"
        )
    return host.strip("[]"), int(port)


def _addresses(value: object) -> object:
    """A text as :func:`_address` reads each of its parts."""
    if isinstance(value, str):
        return tuple(_address(part.strip()) for part in value.split(",") if part.strip())
    return value


def _parses(secret: SecretStr) -> SecretStr:
    """libpq's own complaint shows the part that it does not understand, which may be a password."""
    try:
        conninfo_to_dict(secret.get_secret_value())
    except psycopg.ProgrammingError:
        raise ValueError(
            "this is no libpq connection string: write host=... dbname=... user=..., values with "
            "blanks in single quotes, or postgresql://user:password@host/db, where special "
            "characters of a password are percent-encoded (% as %25)"
        ) from None
    return secret


ConnectionString = Annotated[SecretStr, AfterValidator(_parses)]


def _http_url(value: str, shown: str = "") -> str:
    """Of http or https, and its path may have an ``@``. ``shown``: what a refusal calls it, if not
    by its name."""
    try:
        url = urlsplit(value)
        is_one = url.scheme in HTTP and bool(url.hostname) and url.port != 0
    except ValueError:
        is_one = False
    _without_login(url.netloc if is_one else value)
    if not is_one:
        raise ValueError(
            f"{shown or repr(value)} is no URL: write https://host, or http://host:port"
        )
    return value


def _secret_url(secret: SecretStr) -> SecretStr:
    _http_url(secret.get_secret_value(), shown="this")
    return secret


def _fetched_from(value: str) -> str:
    """Of any scheme, comma separated. What stands before an ``@`` may be no login
    (``abfss://container@account``), unless a password goes with it."""
    for part in value.split(","):
        try:
            url = urlsplit(part.strip())
            is_login = url.password is not None or (url.scheme in HTTP and "@" in url.netloc)
            is_odd = url.port == 0
        except ValueError:
            is_login, is_odd = False, True
        if is_login or (is_odd and "@" in part):
            raise ValueError(LOGIN_IN_A_PLACE)
    return value


Url = Annotated[str, AfterValidator(_http_url)]
"""Of http or https."""
SecretUrl = Annotated[SecretStr, AfterValidator(_secret_url)]
"""The same of one whose path lets in whoever knows it."""
Address = Annotated[str, AfterValidator(_without_login)]
"""host:port, as whoever connects there reads it."""
Locations = Annotated[str, AfterValidator(_fetched_from)]
"""Paths and URLs that Spark fetches."""

EventLoop = Literal["uvloop", "asyncio"]
"""Values of ``TIDELINE_GATEWAY_EVENT_LOOP``."""


class _Base(BaseSettings):
    model_config = SettingsConfigDict(
        env_prefix="TIDELINE_", extra="ignore", env_ignore_empty=True, frozen=True
    )

    @classmethod
    def of(cls, environment: Mapping[str, str]) -> Self:
        """From ``TIDELINE_…`` variables that are given instead of the process's own."""
        values = {
            key.removeprefix("TIDELINE_").lower(): value
            for key, value in environment.items()
            if key.startswith("TIDELINE_")
        }
        return cls(**values)


class ObjectStoreSettings(_Base):
    """The object store that holds WAL objects (any S3)."""

    s3_endpoint: Url | None = Field(None, description="URL of the S3 server; unset: AWS")
    s3_region: str = Field("us-east-1", description="region that requests are signed for")
    s3_bucket: str = Field("tideline-diskless", description="bucket of WAL objects")
    s3_prefix: str = Field(
        "",
        description="key prefix of this installation in that bucket; objects keep the one that "
        "they were written under",
    )
    s3_ca_file: FilePath | None = Field(
        None,
        description="PEM: who may have signed the certificate of an S3 server of https; unset: "
        "botocore's own, or what AWS_CA_BUNDLE names",
    )
    s3_access_key: SecretStr | None = Field(None, description="unset: the AWS default chain")
    s3_secret_key: SecretStr | None = Field(None, description="unset: the AWS default chain")
    s3_tiered_bucket: str = Field("tideline-tiered", description="bucket of the brokers' segments")
    s3_tiered_prefix: str = Field("", description="key prefix of the brokers' segments")

    @property
    def diskless_prefix(self) -> str:
        """What every key of the diskless bucket begins with: empty, or with a slash at its end."""
        return _directory(self.s3_prefix)

    @property
    def tiered_prefix(self) -> str:
        """The same for the bucket of the segments."""
        return _directory(self.s3_tiered_prefix)


def _directory(prefix: str) -> str:
    return f"{prefix.rstrip('/')}/" if prefix else ""


class ControlPlaneSettings(_Base):
    """Postgres, the only authority on B0."""

    postgres_dsn: ConnectionString = Field(
        description="libpq connection string of the process's role"
    )
    postgres_connect_timeout_ms: int = Field(
        3_000, ge=100, description="opening one connection, in ms"
    )
    postgres_statement_timeout_ms: int = Field(
        5_000, ge=100, description="one SQL call, in ms; then Postgres cancels it"
    )
    postgres_pool_size: int = Field(
        8,
        ge=2,
        le=100,
        description="connections of a worker or command; a gateway has its own, docs/operating.md",
    )
    postgres_workers: int = Field(
        2, ge=1, description="workers that are reckoned with when connections are added up at start"
    )
    postgres_tasks: int = Field(
        16,
        ge=0,
        description="the same, of Spark's drivers and tasks that run at once, and of commands: one "
        "connection each",
    )

    _seen: ServerIdentity | None = PrivateAttr(None)

    @property
    def seen(self) -> ServerIdentity | None:
        """What a job has seen of Postgres at its start: its executors demand the same."""
        return self._seen

    def having_seen(self, identity: ServerIdentity) -> Self:
        """These settings, for whoever must meet the same Postgres."""
        copy = self.model_copy()
        copy._seen = identity
        return copy


class KafkaSecuritySettings(_Base):
    """How Tideline's own connections to brokers are protected, and what it logs in with there."""

    kafka_security_protocol: SecurityProtocol = Field(
        SecurityProtocol.PLAINTEXT,
        description="of the brokers' listeners that Tideline connects to: PLAINTEXT, SSL, "
        "SASL_PLAINTEXT or SASL_SSL; of a gateway: also for its clients' connections to the broker",
    )
    kafka_sasl_mechanism: OwnMechanism | None = Field(
        None, description="PLAIN, SCRAM-SHA-256 or SCRAM-SHA-512"
    )
    kafka_sasl_username: str | None = Field(None, description="who Tideline is there")
    kafka_sasl_password: SecretStr | None = Field(None, description="its password")
    kafka_ssl_ca_file: FilePath | None = Field(
        None, description="PEM: who may have signed the brokers' certificates; unset: the system's"
    )
    kafka_ssl_certificate_file: FilePath | None = Field(
        None, description="PEM: an own certificate, with its chain, for brokers that ask for one"
    )
    kafka_ssl_key_file: FilePath | None = Field(None, description="PEM: its key, not encrypted")

    @model_validator(mode="after")
    def _check_own_connections(self) -> Self:
        problem = own_connection_problem(
            self.kafka_security_protocol,
            mechanism=self.kafka_sasl_mechanism,
            has_username=bool(self.kafka_sasl_username),
            has_password=self.kafka_sasl_password is not None,
            has_ca=self.kafka_ssl_ca_file is not None,
            has_certificate=self.kafka_ssl_certificate_file is not None,
            has_key=self.kafka_ssl_key_file is not None,
        )
        if problem is not None:
            raise ValueError(problem)
        return self


class GatewaySettings(ControlPlaneSettings, ObjectStoreSettings, KafkaSecuritySettings):
    """One gateway beside one broker."""

    gateway_id: int = Field(ge=0, description="stable number of this gateway; the node id")
    gateway_broker_id: int = Field(
        ge=0,
        description="node id of the paired broker; while another one answers nobody is accepted",
    )
    gateway_listen: Annotated[tuple[str, int], NoDecode] = Field(
        description="host:port on which clients are served"
    )
    gateway_advertised: Annotated[tuple[str, int], NoDecode] = Field(
        description="host:port told to clients"
    )
    gateway_broker: Annotated[tuple[str, int], NoDecode] = Field(
        description="host:port of the paired broker"
    )
    gateway_peers: Annotated[dict[int, tuple[str, int]], NoDecode] = Field(
        description="node id=host:port of every gateway, comma separated"
    )
    gateway_security_protocol: SecurityProtocol = Field(
        SecurityProtocol.PLAINTEXT,
        description="of the listener for clients: PLAINTEXT, SSL, SASL_PLAINTEXT or SASL_SSL; with "
        "SASL where the broker's listener has it, and nowhere else: Kafka authenticates clients",
    )
    gateway_ssl_certificate_file: FilePath | None = Field(
        None, description="PEM: what clients are shown, with its chain; read again when it changes"
    )
    gateway_ssl_key_file: FilePath | None = Field(
        None, description="PEM: its key, not encrypted; read again when it changes"
    )
    gateway_ssl_ca_file: FilePath | None = Field(
        None, description="PEM: who may have signed clients' certificates"
    )
    gateway_ssl_client_auth: ClientAuth = Field(
        ClientAuth.NONE,
        description="whether clients must show a certificate, none, requested or required; with "
        "SASL_SSL only: it is no identity",
    )
    gateway_stand_in: Annotated[dict[int, tuple[str, int]] | None, NoDecode] = Field(
        None,
        description="node id=host:port, comma separated: where this gateway stands in for the one "
        "of that node while it is away (its own node id is passed over); unset: for nobody",
    )
    gateway_stand_in_advertised: Annotated[dict[int, tuple[str, int]] | None, NoDecode] = Field(
        None,
        description="the same as clients reach it; unset: host of the advertised address, with "
        "the ports of the former",
    )
    gateway_trigger: bool = Field(
        True,
        description="whether the topic config diskless.enable=true asks for a migration, on or "
        "off; off: it is refused at this gateway, and migrations are begun by `tideline migrate`",
    )
    gateway_state_dir: Path = Field(
        description="fsynced snapshot, and the lock of the process; keep it over restarts"
    )
    metrics_address: Annotated[tuple[str, int] | None, NoDecode] = Field(
        None, description="host:port of the Prometheus endpoint; unset: none"
    )
    gateway_event_loop: EventLoop = Field(
        "uvloop",
        description="what the gateway's sockets are served by; asyncio is Python's own and takes "
        "more CPU",
    )
    gateway_rack: str | None = Field(
        None, description="zone of this gateway; unset: broker.rack of the paired broker"
    )
    diskless_transformer_enabled: bool = Field(
        True,
        description="name another leader than Kafka's for partitions that any gateway serves: one "
        "in the client's zone, one that lives; false: Kafka's always",
    )
    gateway_lease_ms: int = Field(
        3_000, ge=300, description="D: how long a renewal is valid, in ms"
    )
    gateway_max_frame_bytes: int = Field(
        104_857_600, ge=1_048_576, description="one request, in bytes; longer: disconnected"
    )
    gateway_max_answer_bytes: int = Field(
        134_217_728,
        ge=1_048_576,
        description="one answer of the broker, in bytes; fetches are made to ask for three "
        "quarters of it at most; longer: disconnected",
    )
    gateway_max_connections: int = Field(
        2_000, ge=1, description="client connections; beyond: closed at once"
    )
    gateway_max_connections_per_address: int = Field(
        1_000,
        ge=1,
        description="of them, from one address (of IPv6: one network of 64 bits); beyond: closed "
        "at once; Kafka's max.connections.per.ip",
    )
    gateway_max_young_connections: int = Field(
        500,
        ge=1,
        description="of them, without a first complete request; beyond: the oldest of the address "
        "that has most of them is closed",
    )
    gateway_connection_rate_per_address: int = Field(
        250,
        ge=0,
        description="new connections of one address in a second, four seconds' worth at once; "
        "beyond: not read, and closed within a second, as with Kafka's connection_creation_rate; "
        "0: any number",
    )
    gateway_first_request_ms: int = Field(
        15_000, ge=100, description="a connection without a complete request so long, in ms: closed"
    )
    gateway_first_frame_max_bytes: int = Field(
        524_288,
        ge=16_384,
        description="the first request of a connection, in bytes, unless it is a Produce; longer: "
        "disconnected; Kafka's sasl.server.max.receive.size",
    )
    gateway_max_inflight_per_connection: int = Field(
        64, ge=1, description="unanswered requests of one connection; beyond: not read"
    )
    gateway_memory_max_bytes: int = Field(
        1_073_741_824,
        ge=268_435_456,
        description="requests, answers, parked produces, WAL objects and cache together, in bytes; "
        "beyond: the cache gives way, then clients are not read",
    )
    gateway_park_max_bytes: int = Field(
        67_108_864, ge=1_048_576, description="parked produces, in bytes"
    )
    gateway_park_max_ms: int = Field(
        20_000, ge=100, description="parked so long, in ms: REQUEST_TIMED_OUT"
    )
    gateway_rights_ms: int = Field(
        5_000,
        ge=100,
        le=300_000,
        description="how long the broker's word of what a client may do with a tracked topic is "
        "gone by, in ms: a right that was taken away works for so long at most",
    )
    wal_max_bytes: int = Field(
        8_388_608, ge=65_536, description="a WAL object is closed at this, in bytes"
    )
    wal_max_delay_ms: int = Field(
        250,
        ge=1,
        description="or begun so long behind the last one, in ms; at once after a silence",
    )
    wal_buffer_max_bytes: int = Field(
        134_217_728,
        ge=8_388_608,
        description="accepted, not committed, in bytes; then backpressure",
    )
    wal_parallel_uploads: int = Field(4, ge=1, le=64, description="WAL objects put at once")
    produce_timeout_ms: int = Field(
        25_000, ge=100, description="a suffix produce waits this long, in ms"
    )
    cache_max_bytes: int = Field(
        134_217_728, ge=0, description="object cache of the reader, in bytes"
    )
    hybrid_read_enabled: bool = Field(
        True,
        description="false: fetches of tiered offsets, merged segments and prefixes that are ready "
        "(tieringComplete), are refused with KAFKA_STORAGE_ERROR; inkless.hybrid.read.enabled",
    )
    diskless_managed_rf_enabled: bool = Field(
        False,
        description="topics born diskless, and new partitions of diskless topics, get one replica "
        "in each rack; the same for all gateways; diskless.managed.rf.enabled",
    )
    suffix_poll_ms: int = Field(
        50,
        ge=5,
        description="polling of high watermarks of logs that move, in ms; 40,000 in a second at "
        "most",
    )
    suffix_quiet_poll_ms: int = Field(
        5_000,
        ge=5,
        description="the same while nothing moves, in ms: how late a commit elsewhere is found "
        "whose notification is lost",
    )

    @field_validator(
        "gateway_listen", "gateway_advertised", "gateway_broker", "metrics_address", mode="before"
    )
    @classmethod
    def _parse_address(cls, value: object) -> object:
        return _address(value) if isinstance(value, str) else value

    @field_validator(
        "gateway_peers", "gateway_stand_in", "gateway_stand_in_advertised", mode="before"
    )
    @classmethod
    def _parse_peers(cls, value: object) -> object:
        if not isinstance(value, str):
            return value
        peers = {}
        for entry in filter(None, (part.strip() for part in value.split(","))):
            node, equals, address = _without_login(entry).partition("=")
            if not equals or not node.isdigit():
                raise ValueError(f"{entry!r} is not a peer: write node-id=host:port")
            peers[int(node)] = _address(address)
        return peers

    @model_validator(mode="after")
    def _check_listener(self) -> Self:
        problem = gateway_problem(
            self.gateway_security_protocol,
            self.kafka_security_protocol,
            client_auth=self.gateway_ssl_client_auth,
            has_certificate=self.gateway_ssl_certificate_file is not None,
            has_key=self.gateway_ssl_key_file is not None,
            has_ca=self.gateway_ssl_ca_file is not None,
            shows_certificate=self.kafka_ssl_certificate_file is not None,
        )
        if problem is not None:
            raise ValueError(problem)
        return self

    @property
    def stands_in(self) -> dict[int, tuple[str, int]]:
        """By node id: where this gateway listens for clients of another one's broker."""
        others = self.gateway_peers.keys() - {self.gateway_broker_id}
        return {node: at for node, at in (self.gateway_stand_in or {}).items() if node in others}

    @property
    def stands_in_at(self) -> dict[int, tuple[str, int]]:
        """The same as clients are told."""
        host, _ = self.gateway_advertised
        told = self.gateway_stand_in_advertised or {}
        return {node: told.get(node, (host, port)) for node, (_, port) in self.stands_in.items()}


class TemporalSettings(_Base):
    """Where the workflows run."""

    temporal_address: Address = Field("127.0.0.1:7233", description="host:port of the frontend")
    temporal_namespace: str = Field("default", description="namespace of the workflows")
    temporal_task_queue: str = Field("tideline", description="task queue of the worker")
    temporal_ui: Url | None = Field(None, description="base URL of the Temporal UI")


class KafkaSettings(KafkaSecuritySettings):
    """The brokers' own listeners, for the worker's observations; not for clients."""

    kafka_bootstrap: Annotated[tuple[tuple[str, int], ...], NoDecode] = Field(
        description="host:port, comma separated"
    )
    kafka_request_timeout_ms: int = Field(
        10_000, ge=100, description="one request to a broker, in ms"
    )

    @field_validator("kafka_bootstrap", mode="before")
    @classmethod
    def _parse_bootstrap(cls, value: object) -> object:
        return _addresses(value)


class PolicySettings(KafkaSettings):
    """What holds for a topic that does not say it itself."""

    tiering_default_age_ms: int = Field(
        DEFAULT_AGE_MS,
        ge=-1,
        description="batches of a topic with local.retention.ms=-2 are tiered when they are this "
        "old, in ms, or as old as retention.ms if that is less; -1: as old as retention.ms. The "
        "same for the worker and the jobs",
    )


class PlacesSettings(_Base):
    """How many topics migrate at once, whoever started them."""

    migration_parallel_topics: int = Field(
        5,
        ge=1,
        description="topics that migrate at once, over all triggers; others wait in the order of "
        "their start; inkless.migration.parallel.topics",
    )


class HistorySettings(_Base):
    """How soon a worker that lives is seen to, by whoever looks into the bucket alone."""

    history_position_ms: int = Field(
        30_000,
        ge=1_000,
        le=300_000,
        description="the worker writes the fleet's position into the bucket so often, in ms; "
        "`tideline rebuild` watches for longer than this, so it must not be told less than any "
        "worker of the installation is",
    )


class WorkerSettings(
    ControlPlaneSettings,
    ObjectStoreSettings,
    TemporalSettings,
    PolicySettings,
    PlacesSettings,
    HistorySettings,
):
    """The Temporal worker, and the commands that steer migrations."""

    metrics_address: Annotated[tuple[str, int] | None, NoDecode] = Field(
        None, description="host:port of the Prometheus endpoint; unset: none"
    )
    temporal_metrics_address: Annotated[tuple[str, int], NoDecode] = Field(
        ("127.0.0.1", 0),
        description="host:port at which Temporal's SDK keeps its metrics, a loopback address; the "
        "worker's own endpoint tells them. Port 0: a free one",
    )
    worker_max_concurrent_activities: int = Field(
        50, ge=1, description="activities that run at once in this process"
    )
    worker_graceful_shutdown_ms: int = Field(
        10_000, ge=0, description="time that running activities get at a stop, in ms"
    )
    replicas_moved_at_once: int = Field(
        0,
        ge=0,
        description="the worker gives ready diskless partitions a replica in each rack, until so "
        "many partitions of the cluster are being reassigned; 0: only `tideline replicas "
        "normalise` does",
    )

    @field_validator("metrics_address", "temporal_metrics_address", mode="before")
    @classmethod
    def _parse_address(cls, value: object) -> object:
        return _address(value) if isinstance(value, str) else value


class RebuildSettings(ObjectStoreSettings, HistorySettings):
    """`tideline rebuild`: what it reads, and the Postgres that it compares with and writes."""

    rebuild_postgres_dsn: ConnectionString | None = Field(
        None,
        description="libpq connection string of the role that the schema was applied with, a "
        "member of tideline_owner; unset: nothing is compared, nor written",
    )


class SchemaSettings(_Base):
    """`tideline db`: who applies the schema, and the passwords of the login roles."""

    schema_postgres_dsn: ConnectionString = Field(
        description="libpq connection string of a role that may create roles and a schema"
    )
    schema_gateway_passwords: SecretStr | None = Field(
        None,
        description="id=password for each gateway, separated by commas or white space, which no "
        "password holds: of the roles tideline_gateway_<id>; one that is not named stays as it is",
    )
    schema_worker_password: SecretStr | None = Field(
        None, description="of the role tideline_worker; unset: the role stays as it is"
    )
    schema_jobs_password: SecretStr | None = Field(
        None, description="of the role tideline_jobs; unset: the role stays as it is"
    )
    schema_jobs_connections: int | None = Field(
        None,
        ge=2,
        description="connections that tideline_jobs may have at once, so that jobs on many cores "
        "leave the gateways theirs: a task that finds none waits for its turn. Two for each job "
        "that may run at once, at least; unset: the role stays as it is",
    )

    @field_validator("schema_gateway_passwords")
    @classmethod
    def _check_passwords(cls, value: SecretStr | None) -> SecretStr | None:
        # By place, and not by what stands there, which is a secret.
        for place, entry in enumerate(_entries(value), 1):
            number, _, password = entry.partition("=")
            if not re.fullmatch("0|[1-9][0-9]{0,9}", number) or not password:
                raise ValueError(
                    f"entry {place} is none: write id=password, as 1=...,2=..., with the ids of "
                    "the gateways"
                )
        return value

    def gateway_passwords(self) -> dict[int, SecretStr]:
        """By gateway."""
        pairs = (entry.partition("=") for entry in _entries(self.schema_gateway_passwords))
        return {int(number): SecretStr(password) for number, _, password in pairs}


def _entries(value: SecretStr | None) -> list[str]:
    return re.findall(r"[^,\s]+", value.get_secret_value()) if value else []


class ScheduleSettings(PlacesSettings):
    """How often the periodic jobs run, and how many topics migrate at once."""

    tiering_splitter_interval_ms: int = Field(
        60_000,
        ge=1_000,
        description="between two looks for something to split, which a run then does; with "
        "TIDELINE_AIRFLOW_TIERING_STARTS=schedule between runs; "
        "inkless.tiering.splitter.interval.ms",
    )
    tiering_merger_interval_ms: int = Field(
        300_000,
        ge=1_000,
        description="the same of merge; inkless.tiering.merger.interval.ms",
    )


class JobsSettings(
    ScheduleSettings, ControlPlaneSettings, ObjectStoreSettings, TemporalSettings, PolicySettings
):
    """The periodic jobs (Spark) and the commands that look at their results.

    Each description names the key of seed 002 (4.7.11, 6.2) that the setting stands for.
    """

    jobs_postgres_dsn: ConnectionString | None = Field(
        None,
        description="libpq connection string of the jobs' role, where one file serves commands of "
        "several roles; unset: TIDELINE_POSTGRES_DSN",
    )
    tiering_splitter_max_files_per_run: int = Field(
        100,
        ge=1,
        le=250,
        description="WAL files of one claim; inkless.tiering.splitter.max.files.per.run",
    )
    tiering_splitter_claim_duration_ms: int = Field(
        300_000,
        ge=1_000,
        description="how long a claim is held; inkless.tiering.splitter.claim.duration.ms",
    )
    tiering_claim_holder: str = Field(
        "",
        description="who claims for split and merge: a run takes over what an earlier one of the "
        "same name left claimed, so of one name one run may be active at a time; Airflow's are "
        "named after DAG and task; empty: nobody else",
    )
    tiering_min_segment_bytes: int = Field(
        1_048_576,
        ge=1,
        description="a segment is made from this many bytes on, or once its oldest batch is older "
        "than the topic's segment.ms; inkless.tiering.min.segment.bytes",
    )
    tiering_max_segment_bytes: int = Field(
        1_073_741_824,
        ge=1_024,
        le=2_147_483_647,
        description="no segment is larger; the topic's segment.bytes if that is smaller; "
        "inkless.tiering.max.segment.bytes",
    )
    tiering_max_batches_per_run: int = Field(
        10_000,
        ge=1,
        description="batches split out of one claim; inkless.tiering.max.batches.per.run",
    )
    tiering_failures_before_parking: int = Field(
        5, ge=1, description="a partition that fails so often in a row is parked, and shown"
    )
    gc_grace_ms: int = Field(
        600_000,
        ge=0,
        description="an object that nothing refers to is kept this long, in ms: longer than any "
        "upload or read may last, than the 60 s for which gateways keep keys, and than the 5 "
        "minutes within which a rebuild places what nobody tells of",
    )
    gc_orphan_grace_ms: int = Field(
        604_800_000,
        ge=0,
        description="an orphan, or what nobody finished, is kept this long after it was first "
        "reported, in ms: longer than it takes to mend a Postgres that was restored",
    )
    gc_max_percent: int = Field(
        75,
        ge=0,
        le=100,
        description="of the objects, and of the bytes, that were listed one run deletes at most so "
        "many percent; beyond: nothing, until an operator allows it",
    )
    gc_max_orphan_percent: int = Field(10, ge=0, le=100, description="the same, of orphans alone")
    gc_free_objects: int = Field(
        10_000, ge=0, description="up to so many objects a run deletes whatever their share"
    )
    gc_free_bytes: int = Field(
        1_073_741_824, ge=0, description="up to so many bytes a run deletes whatever their share"
    )
    gc_reports_kept_days: int = Field(
        90, ge=1, description="lists of what was deleted are kept this long, in days"
    )
    table_pin_ms: int = Field(
        3_600_000,
        ge=60_000,
        le=86_400_000,
        description="what a table of a topic reads is kept from the collection for so long after "
        "it was planned, and after each task has begun, in ms",
    )
    verify_bootstrap: Annotated[tuple[tuple[str, int], ...], NoDecode] = Field(
        (),
        description="host:port of gateways, comma separated, that verify reads from; unset: those "
        "that have registered",
    )
    coverage_audit_ms: int = Field(
        86_400_000,
        ge=0,
        description="the objects of a partition whose segments have not changed are listed again, "
        "a partition of the metadata topic is read from its start again, and then every partition "
        "judged again, when that was this long ago, in ms; 0: always",
    )
    jobs_parallelism: int = Field(
        0, ge=0, description="partitions of a job's frames; 0: what Spark has cores for"
    )
    jobs_executors_config: str | None = Field(
        None,
        description="a settings file that executors have themselves, such as a mounted secret: "
        "tasks carry its name, and passwords and keys are read there; unset: they travel in tasks",
    )
    jobs_results_kept_days: int = Field(
        30,
        ge=1,
        description="results of jobs whose driver was elsewhere, runs/ in the diskless bucket, are "
        "kept this long, in days",
    )
    records_catalog: str = Field(
        "embedded",
        description="the catalog of the Iceberg tables that runs of the jobs tell: embedded, of "
        "Tideline's own in Postgres and the diskless bucket; off: nothing is told; any other name: "
        "of a catalog of pyiceberg",
    )
    records_properties: SecretStr = Field(
        SecretStr(""),
        description="properties of that catalog as pyiceberg has them, key=value, comma separated; "
        "beside those of pyiceberg's own configuration",
    )
    records_namespace: str = Field(
        "tideline",
        pattern=r"^[A-Za-z_][A-Za-z0-9_]*$",
        description="namespace of the tables; each installation in one catalog has its own",
    )
    records_every_ms: int = Field(
        3_600_000,
        ge=0,
        description="rows wait at most so long, in ms, until the run that ends next appends them "
        "to the tables; 0: each run appends its own",
    )
    records_kept_days: int = Field(
        400, ge=1, description="rows of the embedded tables are kept this long, in days"
    )

    @property
    def records_options(self) -> dict[str, str]:
        """The properties of the tables' catalog."""
        text = self.records_properties.get_secret_value()
        pairs = [entry.strip().partition("=") for entry in text.split(",") if entry.strip()]
        return {key: value for key, _, value in pairs}

    @field_validator("records_properties")
    @classmethod
    def _key_value(cls, secret: SecretStr) -> SecretStr:
        entries = filter(None, (e.strip() for e in secret.get_secret_value().split(",")))
        for number, entry in enumerate(entries, 1):
            key, equals, _ = entry.partition("=")
            if not key or not equals:
                # Not the entry itself: it may be a part of a password.
                raise ValueError(f"property {number} is not key=value")
        return secret

    @field_validator("verify_bootstrap", mode="before")
    @classmethod
    def _parse_gateways(cls, value: object) -> object:
        return _addresses(value)

    @model_validator(mode="before")
    @classmethod
    def _own_role(cls, values: dict[str, object]) -> dict[str, object]:
        if own := values.get("jobs_postgres_dsn"):
            return {**values, "postgres_dsn": own}
        return values

    def __reduce_ex__(self, protocol: SupportsIndex) -> str | tuple[Any, ...]:
        """What travels to an executor: no secret, where it has them itself."""
        if self.jobs_executors_config is None:
            return super().__reduce_ex__(protocol)
        secrets = _secrets(type(self))
        public = {
            name: getattr(self, name) for name in type(self).model_fields if name not in secrets
        }
        return _arrived, (type(self), public, os.environ.get(CONTEXT), self.seen)


def _arrived(
    kind: type[JobsSettings],
    public: Mapping[str, object],
    context: str | None,
    seen: ServerIdentity | None,
) -> JobsSettings:
    """The settings on an executor. Secrets are those of its file, else of its environment; of a
    TOML file those of the driver's ``context``. Raises :class:`UsageError`."""
    file = Path(str(public["jobs_executors_config"]))
    chosen = os.environ.get(CONTEXT) or (context if file.suffix == TOML else None)
    said = _from_files(kind, file, chosen)
    own = {name: said[name] for name in said.keys() & _secrets(kind)}
    try:
        made = kind(**{**public, **own})  # type: ignore[arg-type]
    except ValidationError as error:
        raise UsageError(
            f"settings of an executor: {_problems(error)}. Put it into {file} there, which "
            "TIDELINE_JOBS_EXECUTORS_CONFIG names, or into its environment."
        ) from None
    return made if seen is None else made.having_seen(seen)


class AirflowSettings(ScheduleSettings):
    """Airflow: when its DAGs run, and how they try again. Read when the DAG files are parsed."""

    airflow_coverage_schedule: str = Field("0 * * * *", description="cron expression of coverage")
    airflow_retention_schedule: str = Field(
        "*/5 * * * *", description="cron expression of retention; Kafka's own check is as frequent"
    )
    airflow_gc_schedule: str = Field("30 * * * *", description="cron expression of gc")
    airflow_verify_schedule: str = Field("15 3 * * *", description="cron expression of verify")
    airflow_verify_sample: float = Field(
        0.1, gt=0, le=1, description="share of each topic's ranges that the DAG's verify looks at"
    )
    airflow_retries: int = Field(4, ge=0, le=100, description="of a task that fails")
    airflow_retry_delay_ms: int = Field(
        30_000, ge=100, description="before the first retry, in ms; doubled each time"
    )
    airflow_max_retry_delay_ms: int = Field(
        600_000, ge=100, description="no wait before a retry is longer, in ms"
    )
    airflow_deadline_ms: int = Field(
        3_600_000, ge=1_000, description="a run of a job that takes longer raises an alert, in ms"
    )
    airflow_wave_deadline_ms: int | None = Field(
        None,
        ge=1_000,
        description="the same for one batch of a wave, which may wait for a person; unset: none",
    )
    airflow_coverage_timeout_ms: int = Field(
        7_200_000, ge=1_000, description="a try of coverage that takes longer is ended, in ms"
    )
    airflow_retention_timeout_ms: int = Field(
        1_800_000, ge=1_000, description="the same of retention"
    )
    airflow_split_timeout_ms: int = Field(3_600_000, ge=1_000, description="the same of split")
    airflow_merge_timeout_ms: int = Field(
        14_400_000,
        ge=1_000,
        description="the same of merge; segments that are finished stay, the one under way is lost",
    )
    airflow_gc_timeout_ms: int = Field(7_200_000, ge=1_000, description="the same of gc")
    airflow_verify_timeout_ms: int = Field(14_400_000, ge=1_000, description="the same of verify")
    airflow_task_timeout_ms: int = Field(
        600_000,
        ge=1_000,
        description="the same of every task that is no job; what is waited for in the triggerer, "
        "or for a person, does not count",
    )
    airflow_spark_ui: Url | None = Field(
        None, description="base URL of Spark's history server, for the button of a job's task"
    )
    airflow_alert_url: SecretUrl | None = Field(
        None,
        description="URL that alerts are also posted to, as JSON with a line `text`; unset: logged",
    )
    airflow_temporal_patience_ms: int = Field(
        60_000,
        ge=1_000,
        description="a wait for a workflow fails, and is tried again, when Temporal has been "
        "silent for so long, in ms",
    )
    airflow_jobs_config: Path | None = Field(
        None,
        description="settings file of the jobs' role, where the driver runs; given to it as "
        "TIDELINE_CONFIG",
    )
    airflow_spark_archive: Locations | None = Field(
        None,
        description="what `make spark-env` made, as Spark may fetch it: a URL (hdfs:///…, "
        "s3a://…) or a path; executors unpack it and use its Python",
    )
    airflow_spark_environment: str | None = Field(
        None,
        description="where the same lies unpacked on executors, and on the driver of deploy mode "
        "cluster; unset: /opt/tideline on Kubernetes and for a driver of a standalone cluster",
    )
    airflow_spark_application: Locations | None = Field(
        None,
        description="tideline_job.py where the driver runs, or its URL; unset: that of this "
        "installation or, where that is not on the driver's machine, of the environment",
    )
    airflow_spark_files: Locations | None = Field(
        None,
        description="paths or URLs for spark-submit's --files, such as the settings file on YARN",
    )
    airflow_spark_conf: Annotated[dict[str, str], NoDecode] = Field(
        {},
        description="Spark's configuration for every job, a JSON object: executors, memory, "
        "queues, mounted secrets",
    )
    airflow_spark_job_conf: Annotated[dict[str, dict[str, str]], NoDecode] = Field(
        {}, description="the same by job, over the former, a JSON object of such objects"
    )
    airflow_spark_track_driver: bool = Field(
        False,
        description="deploy mode cluster on YARN or Kubernetes: spark-submit ends when the driver "
        "is submitted, its state is asked of the ResourceManager (the connection names it, "
        "yarn_resourcemanager_webapp_address) or of Kubernetes, and a task that is tried again "
        "finds a driver that runs; false: spark-submit waits. Standalone: always so",
    )
    airflow_tiering_starts: Literal["work", "schedule"] = Field(
        "work",
        description="split and merge start when a trigger, which looks as often as the settings of "
        "their intervals say, has found work, and once an hour; or by those intervals, whether "
        "there is work or not",
    )
    airflow_work_again_ms: int = Field(
        600_000,
        ge=1_000,
        description="work that is still there so long after it started a run starts another, in ms",
    )

    @field_validator("airflow_spark_conf", "airflow_spark_job_conf", mode="before")
    @classmethod
    def _parse_object(cls, value: object) -> object:
        if not isinstance(value, str):
            return value
        try:
            return json.loads(value)
        except ValueError:
            raise ValueError(
                f'{value!r} is no JSON object: write {{"spark.executor.memory": "2g"}}'
            ) from None


S = TypeVar("S", bound=_Base)


def _kinds(kind: type[BaseSettings]) -> set[type[BaseSettings]]:
    return {kind}.union(*(_kinds(one) for one in kind.__subclasses__()))


def _names(kind: type[BaseSettings]) -> frozenset[str]:
    """Of every setting of every process."""
    return frozenset(name for one in _kinds(kind) for name in one.model_fields)


def _secrets(kind: type[BaseSettings]) -> frozenset[str]:
    """Of ``kind`` and of what is derived from it."""
    return frozenset(
        name
        for one in _kinds(kind)
        for name, field in one.model_fields.items()
        if _holds_secret(field.annotation)
    )


def _holds_secret(annotation: object) -> bool:
    return annotation is SecretStr or any(map(_holds_secret, get_args(annotation)))


def _of_environment(variables: Mapping[str, str | None]) -> dict[str, str]:
    return {
        key.removeprefix(PREFIX).lower(): value
        for key, value in variables.items()
        if value and key.startswith(PREFIX)
    }


def _from_files(kind: type[BaseSettings], file: Path | None, context: str | None) -> dict[str, str]:
    """Of a TOML file, and of files of secrets of ``kind``, what the environment does not say
    itself. What else a file of lines says pydantic reads. ``context``: of the TOML file."""
    every = _secrets(_Base)
    own = every & kind.model_fields.keys()
    environment, values = _of_environment(os.environ), dict[str, str]()
    refuse_unknown(os.environ.keys(), _names(_Base), every, "environment")
    if file is not None and file.suffix == TOML:
        values = from_toml(file, context, _names(_Base), every)
    elif context:
        raise UsageError(
            f"context {context!r} cannot be chosen: {CONFIG} names no TOML file, and no other has "
            "contexts"
        )
    elif file is not None:
        said = DotEnvSettingsSource(kind, env_file=file).env_vars
        refuse_unknown(said.keys(), _names(_Base), every, str(file))
        lines = _of_environment({name.upper(): value for name, value in said.items()})
        values = {n: text for n, text in lines.items() if n.removesuffix("_file") in own}
    read = with_secrets(laid_over(values, environment, every), own)
    return {
        name: read[name]
        for name in read.keys() & kind.model_fields.keys()
        if name not in environment
    }


def load(kind: type[S], file: Path | None = None) -> S:
    """Read ``kind`` from the environment and the settings file; ``file``: another one than that of
    the process. Raises :class:`UsageError` that names each wrong, missing or unknown variable."""
    context = os.environ.get(CONTEXT)
    if file is None:
        file = _settings_file()
    elif file.suffix != TOML:
        context = None  # it is of the process's own file
    in_lines = file if file is None or file.suffix != TOML else None
    values = _from_files(kind, file, context)
    try:
        return kind(_env_file=in_lines, **values)  # type: ignore[call-arg]
    except ValidationError as error:
        where = f"the environment or {file}" if file else "the environment (no settings file found)"
        raise UsageError(f"settings: {_problems(error)}. Set them in {where}.") from None


def _problems(error: ValidationError) -> str:
    lines = []
    for problem in error.errors():
        what = "is not set" if problem["type"] == "missing" else problem["msg"]
        named = [f"TIDELINE_{str(name).upper()}" for name in problem["loc"][:1]]
        lines.append(": ".join((*named, what.removeprefix("Value error, "))))
    return "; ".join(lines)
