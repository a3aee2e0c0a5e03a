"""Where the parts of a stack answer, and the environment that tells a process so."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from tideline.errors import UsageError
from tideline.stack.credentials import Credentials, login_role
from tideline.stack.home import Home, StackState
from tideline.stack.ports import LOOPBACK, stand_in
from tideline.stack.probes import Address, show
from tideline.stack.secured import Secured

DATABASE = "tideline"
S3_REGION = "us-east-1"
DISKLESS_BUCKET = "tideline-diskless"
TIERED_BUCKET = "tideline-tiered"
TIERED_PREFIX = "segments"
TEMPORAL_NAMESPACE = "default"


@dataclass(frozen=True)
class S3Endpoint:
    """The object store, with the keys of Tideline's own processes."""

    url: str
    region: str
    access_key: str
    secret_key: str = field(repr=False)
    bucket: str
    """WAL objects, the catalog, reports."""
    tiered_bucket: str
    """The brokers' segments, and merged ones."""
    tiered_prefix: str
    """Before each key of a segment, a slash between; without one itself."""


@dataclass(frozen=True)
class Endpoints:
    """Addresses are ``host:port``. Node ids start at 1."""

    s3: S3Endpoint
    temporal: str
    temporal_ui: str
    """URL."""
    brokers: Mapping[int, str]
    """Node id: the broker's own listener, not for clients."""
    gateways: Mapping[int, str]
    """Node id: what clients bootstrap to."""
    airflow: str
    """URL of Airflow's UI and API; answers when the part runs."""
    metrics: Mapping[str, str]
    """Program name: where ``/metrics`` is served."""
    _ports: Mapping[str, int] = field(repr=False)
    _credentials: Credentials = field(repr=False)

    def postgres_dsn(self, role: str = "worker") -> str:
        """Connection string of ``gateway-<node id>``, ``worker``, ``jobs`` or the superuser
        ``postgres``.

        Raises :class:`UsageError` for another role.
        """
        user = login_role(role)
        password = self._credentials.postgres(role)
        port = self._ports["postgres"]
        return f"postgresql://{user}:{password}@{LOOPBACK}:{port}/{DATABASE}"

    @property
    def kafka_bootstrap(self) -> str:
        return ",".join(self.brokers.values())

    @property
    def gateway_bootstrap(self) -> str:
        return ",".join(self.gateways.values())


def endpoints_of(state: StackState, credentials: Credentials) -> Endpoints:
    ports = state.ports
    nodes = range(1, state.brokers + 1)

    def at(name: str) -> str:
        return show(address(state, name))

    return Endpoints(
        s3=S3Endpoint(
            url=f"http://{at('s3')}",
            region=S3_REGION,
            access_key=credentials.s3_access_key,
            secret_key=credentials.s3_secret_key,
            bucket=DISKLESS_BUCKET,
            tiered_bucket=TIERED_BUCKET,
            tiered_prefix=TIERED_PREFIX,
        ),
        temporal=at("temporal"),
        temporal_ui=f"http://{at('temporal-ui')}",
        brokers={node: at(f"kafka-{node}") for node in nodes},
        gateways={node: at(f"gateway-{node}") for node in nodes},
        airflow=f"http://{LOOPBACK}:{ports.get('airflow', 0)}",
        metrics={f"gateway-{node}": at(f"metrics-gateway-{node}") for node in nodes}
        | {"worker": at("metrics-worker"), "temporal": at("metrics-temporal")},
        _ports=ports,
        _credentials=credentials,
    )


def address(state: StackState, name: str) -> Address:
    """Where the listener ``name`` of a stack is."""
    return LOOPBACK, state.ports[name]


def environment_of(
    home: Home, state: StackState, credentials: Credentials, role: str
) -> dict[str, str]:
    """The ``TIDELINE_*`` variables of ``worker``, ``jobs`` or ``gateway-<node id>``."""
    endpoints = endpoints_of(state, credentials)
    s3 = endpoints.s3
    kind, _, node = role.partition("-")
    environment = state.settings | {
        "TIDELINE_POSTGRES_DSN": endpoints.postgres_dsn(role),
        "TIDELINE_S3_ENDPOINT": s3.url,
        "TIDELINE_S3_REGION": s3.region,
        "TIDELINE_S3_ACCESS_KEY": s3.access_key,
        "TIDELINE_S3_SECRET_KEY": s3.secret_key,
        "TIDELINE_S3_BUCKET": s3.bucket,
        "TIDELINE_S3_TIERED_BUCKET": s3.tiered_bucket,
        "TIDELINE_S3_TIERED_PREFIX": s3.tiered_prefix,
        "TIDELINE_KAFKA_BOOTSTRAP": endpoints.kafka_bootstrap,
        "TIDELINE_TEMPORAL_ADDRESS": endpoints.temporal,
        "TIDELINE_TEMPORAL_NAMESPACE": TEMPORAL_NAMESPACE,
        "TIDELINE_TEMPORAL_UI": endpoints.temporal_ui,
    }
    if state.secure:
        environment |= Secured(home).environment(kind)
        access, secret = credentials.s3_pair(kind)
        environment |= {"TIDELINE_S3_ACCESS_KEY": access, "TIDELINE_S3_SECRET_KEY": secret}
    if kind == "gateway":
        if not node.isdigit() or int(node) not in endpoints.gateways:
            raise UsageError(f"{role!r} is no gateway of this stack: gateway-1 to -{state.brokers}")
        own = endpoints.gateways[int(node)]
        environment |= {
            "TIDELINE_GATEWAY_ID": node,
            "TIDELINE_GATEWAY_BROKER_ID": node,
            "TIDELINE_GATEWAY_LISTEN": own,
            "TIDELINE_GATEWAY_ADVERTISED": own,
            "TIDELINE_GATEWAY_BROKER": endpoints.brokers[int(node)],
            "TIDELINE_GATEWAY_PEERS": ",".join(
                f"{peer}={where}" for peer, where in endpoints.gateways.items()
            ),
            "TIDELINE_GATEWAY_STAND_IN": ",".join(
                f"{peer}={show(address(state, stand_in(int(node), peer)))}"
                for peer in endpoints.gateways
                if peer != int(node)
            ),
            "TIDELINE_GATEWAY_STATE_DIR": str(home.data / role),
            "TIDELINE_METRICS_ADDRESS": endpoints.metrics[role],
        }
    elif role == "worker":
        environment["TIDELINE_METRICS_ADDRESS"] = endpoints.metrics["worker"]
    elif role == "jobs":
        # A job must not take the connection of another stack's settings file.
        environment["TIDELINE_JOBS_POSTGRES_DSN"] = environment["TIDELINE_POSTGRES_DSN"]
    return environment
