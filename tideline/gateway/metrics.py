"""What the gateway tells Prometheus: its connections, then tracked topics (names of seed 002 §4.8.1
where it has one)."""

from __future__ import annotations

from functools import cache

from prometheus_client import Counter, Gauge, Histogram

from tideline.domain.api_answers import API_RULES
from tideline.settings import GatewaySettings
from tideline.variables import PREFIX

CONNECTIONS = Gauge("inkless_gateway_connections", "open client connections")
CONNECTIONS_REFUSED = Counter(
    "inkless_gateway_connections_refused", "connections beyond the bound, closed at once"
)
CERTIFICATE_RELOADS = Counter(
    "inkless_gateway_certificate_reloads",
    "changed certificates of the listener that were taken, or refused: the old one stays",
    ["outcome"],
)
CONNECTIONS_YOUNG = Gauge(
    "inkless_gateway_connections_young", "client connections that have not shown themselves yet"
)
HANDSHAKES = Gauge("inkless_gateway_handshakes", "TLS handshakes of clients under way")
AUTHENTICATIONS = Counter(
    "inkless_gateway_authentications",
    "logins of clients and renewals, as the broker decided, or refused before it was asked",
    ["outcome"],
)
BROKER_UP = Gauge("inkless_gateway_broker_up", "1 while the paired broker answers")
LISTENING = Gauge(
    "inkless_gateway_listening", "1 while connections are accepted; 0: the broker is away"
)
STANDING_IN = Gauge(
    "inkless_gateway_standing_in",
    "1 while connections are accepted for the gateway of another node, which is away",
    ["node"],
)
LOST_PLACES = Gauge(
    "inkless_gateway_stand_in_address_taken",
    "1 while nobody is stood in for because the address cannot be had",
    ["node"],
)
STAND_IN_CONNECTIONS = Gauge(
    "inkless_gateway_stand_in_connections",
    "client connections that are carried for the gateway of another node",
    ["node"],
)
HANDED_BACK = Counter(
    "inkless_gateway_handed_back",
    "client connections that were handed over to the gateway of another node that is back",
    ["node"],
)
LOOP_LATENESS = Gauge(
    "inkless_gateway_loop_lateness_seconds",
    "how late the event loop came to a task that was due; every request waits as long",
)
UPSTREAM_DROPPED = Counter(
    "inkless_gateway_upstream_dropped",
    "connections to the broker that ended while nothing was owed, their clients' kept",
)
HEAP_BYTES = Gauge(
    "inkless_gateway_heap_bytes",
    "the C library's memory in this process: used, and free, which it keeps for large frames",
    ["state"],
)
OBJECTS = Gauge("inkless_gateway_python_blocks", "memory blocks of Python objects that live")
HELD_BYTES = Gauge("inkless_gateway_held_bytes", "bytes that count into the memory bound", ["kind"])

_REQUESTS = Counter("inkless_gateway_requests", "requests of clients", ["path", "api"])


@cache
def requests_passed(api_key: int) -> Counter:
    """Forwarded as they came."""
    return _REQUESTS.labels("passed", API_RULES[api_key].name)


@cache
def requests_handled(api_key: int) -> Counter:
    """Looked into by a handler."""
    return _REQUESTS.labels("handled", API_RULES[api_key].name)


_SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 25)

_HANDLING_SECONDS = Histogram(
    "inkless_gateway_handling_seconds",
    "from when a request that is looked into begins until its answer is made, waiting included",
    ["api", "outcome"],
    buckets=_SECONDS,
)


@cache
def handling_seconds(api_key: int, outcome: str) -> Histogram:
    """``outcome``: ``answered``, whatever the answer says; ``broker_away``, ``refused`` (it cannot
    be understood), ``failed`` (a defect), each of which ends the connection; ``given_up``: its
    client has left."""
    return _HANDLING_SECONDS.labels(API_RULES[api_key].name, outcome)


TIERED_READS = Counter(
    "inkless_hybrid_tiered_reads",
    "partition reads below B0, from Kafka, and from B0 on, from merged segments",
)
LOCAL_READS = Counter("inkless_hybrid_local_reads", "partition reads while B0 is unset, from Kafka")
DISKLESS_READS = Counter("inkless_hybrid_diskless_reads", "partition reads of WAL objects")
BOUND_REACHED = Counter(
    "inkless_gateway_bound_reached", "times a bound held something back, or refused it", ["bound"]
)

BOUND = Gauge(
    "inkless_gateway_bound",
    "what is configured: bytes of memory, parked, wal, cache, frame, answer; connections, those of "
    "one address and young ones; requests in flight of one connection",
    ["bound"],
)

SWITCHES = (
    "diskless_managed_rf_enabled",
    "diskless_transformer_enabled",
    "gateway_trigger",
    "hybrid_read_enabled",
)
"""Settings that clients meet: what one hears must not depend on the gateway that it has asked."""
SWITCH = Gauge(
    "inkless_gateway_switch",
    "1 where a setting that has to be the same at all gateways is on here, by its name",
    ["setting"],
)

FETCH_SESSIONS = Gauge(
    "inkless_gateway_fetch_sessions", "incremental fetch sessions that name tracked topics"
)
FETCH_SESSION_PARTITIONS = Gauge("inkless_gateway_fetch_session_partitions", "their partitions")
FETCH_SESSIONS_EVICTED = Counter(
    "inkless_gateway_fetch_sessions_evicted", "of them, those that gave way to others"
)

SUFFIX_UNREADABLE = Counter(
    "inkless_gateway_suffix_unreadable",
    "partition reads of offsets that the suffix has and that cannot be read",
    ["why"],
)

PRODUCE = Counter("inkless_gateway_produce", "produces to tracked partitions", ["path", "error"])
EXAMINATION_SECONDS = Histogram(
    "inkless_gateway_examination_seconds",
    "looking into the records of one batch before it is appended to the suffix, or natively into "
    "those of all batches of a request",
    buckets=(0.0001, 0.0005, *_SECONDS),
)
ACKS_WITHHELD = Counter(
    "inkless_gateway_acks_withheld", "acknowledgements of Kafka at or past B0 that were not told"
)
PARKED = Gauge("inkless_gateway_parked_produces", "produces that wait for B0, a lease or room")
PARKED_OLDEST = Gauge(
    "inkless_gateway_parked_oldest_seconds", "how long the oldest of them has waited; 0: none does"
)
PARKED_BYTES = Gauge("inkless_gateway_parked_bytes", "their bytes")
PARK_SECONDS = Histogram("inkless_gateway_park_seconds", "how long they waited", buckets=_SECONDS)
PARK_REFUSED = Counter(
    "inkless_gateway_park_refused", "parked produces answered REQUEST_TIMED_OUT", ["bound"]
)
QUIESCE_ACK_SECONDS = Histogram(
    "inkless_gateway_quiesce_ack_seconds",
    "closed generation seen until this gateway acknowledged it",
    buckets=_SECONDS,
)

LEASE_VALID = Gauge("inkless_gateway_lease_valid", "1 while the lease on tracked topics is valid")
LEASE_LEFT = Gauge(
    "inkless_gateway_lease_left_seconds", "how long the lease is valid if it is not renewed"
)
LEASE_RENEWALS = Counter("inkless_gateway_lease_renewals", "registrations and renewals")
LEASE_FENCED = Counter("inkless_gateway_lease_fenced", "incarnations of this process fenced")

ID_HELD = Gauge(
    "inkless_gateway_id_held", "1 while another process that lives holds this gateway's id"
)
CONFIRM_SECONDS = Histogram(
    "inkless_gateway_confirm_seconds",
    "one question to Postgres whether what Kafka answered may be told",
    buckets=_SECONDS,
)
CONFIRMATIONS = Counter(
    "inkless_gateway_confirmations",
    "answers of Kafka for partitions without B0, by what Postgres said of telling them",
    ["outcome"],
)

TRACKED_TOPICS = Gauge("inkless_gateway_tracked_topics", "topics that are not passed through")
TRACKED_PARTITIONS = Gauge(
    "inkless_gateway_tracked_partitions", "tracked partitions by route", ["route"]
)
TOMBSTONES = Gauge("inkless_gateway_tombstones", "deleted topics whose ids this gateway remembers")
DISPLACED = Gauge(
    "inkless_gateway_displaced_topics",
    "tracked topics refused because Kafka has another topic, or none, under their names",
)
TELLINGS_PENDING = Gauge(
    "inkless_gateway_tellings_pending",
    "deletions and creations that the control plane has not heard of yet",
)
TELLINGS_LOST = Counter(
    "inkless_gateway_tellings_lost", "those without room to be told by this process"
)
LIVE_GATEWAYS = Gauge(
    "inkless_gateway_live_gateways",
    "gateways that clients may be led to: their lease is renewed and Kafka names their broker",
)
TRANSFORMER_FALLBACK = Counter(
    "kafka_server_diskless_transformer_fallback",
    "partitions named to a client with a leader by hash, since no replica lives",
)
TRANSFORMER_ROUTED_AROUND = Counter(
    "kafka_server_diskless_transformer_offline_replicas_routed_around",
    "partitions named to a client with another replica than Kafka's leader, which does not live",
)
TRANSFORMER_NEARER = Counter(
    "kafka_server_diskless_transformer_zone",
    "partitions named to a client with a replica in its zone in the place of Kafka's leader",
)
SUFFIX_BYTES = Counter(
    "inkless_gateway_suffix_bytes",
    "bytes of batches between clients and the suffix, by whether the client said that it is in "
    "this gateway's zone",
    ["direction", "zone"],
)
THROTTLED = Counter(
    "inkless_gateway_throttled",
    "requests after which a client was not read for a while, by the quota that it exceeded",
    ["quota"],
)
RIGHTS_ASKED = Counter(
    "inkless_gateway_rights_asked",
    "questions to brokers for what a client may do with tracked topics, on its own connection",
)
RIGHTS_DENIED = Counter(
    "inkless_gateway_rights_denied",
    "tracked topics that a client was refused, by the operation that it lacks",
    ["operation"],
)
STOPPED = Gauge(
    "inkless_gateway_tracked_traffic_stopped", "1: Postgres is another one than was pinned"
)

WAL_OBJECTS = Counter("inkless_wal_objects", "WAL objects by outcome", ["outcome"])
WAL_OBJECT_BYTES = Histogram(
    "inkless_wal_object_bytes",
    "of one WAL object that was committed with batches",
    buckets=(1_000, 4_000, 16_000, 64_000, 125_000, 250_000, 1_000_000, 4_000_000, 9_000_000),
)
WAL_BYTES = Counter("inkless_wal_bytes", "bytes put into WAL objects")
WAL_BUFFERED = Gauge("inkless_wal_buffered_bytes", "bytes accepted and not committed yet")
WAL_OLDEST = Gauge(
    "inkless_wal_oldest_seconds", "since the oldest batch of them was accepted; 0: there is none"
)
WAL_UPLOAD_SECONDS = Histogram("inkless_wal_upload_seconds", "put of one object", buckets=_SECONDS)
WAL_COMMIT_SECONDS = Histogram("inkless_wal_commit_seconds", "commit of one", buckets=_SECONDS)
WAL_APPEND_SECONDS = Histogram(
    "inkless_wal_append_seconds", "accepted until committed, per batch", buckets=_SECONDS
)

STORE_DIRECT = Gauge(
    "inkless_object_store_direct",
    "1: objects are put and got directly; 0: by boto3, at ten times the CPU",
)

CACHE_BYTES = Gauge("inkless_cache_bytes", "bytes of WAL objects and segments held in memory")
CACHE_HITS = Counter("inkless_cache_hits", "reads of a batch by source", ["source"])


def note_settings(settings: GatewaySettings) -> None:
    """Show what is configured, for alerts that compare it with what is used, and with what other
    gateways have."""
    for switch in SWITCHES:
        SWITCH.labels(f"{PREFIX}{switch.upper()}").set(getattr(settings, switch))
    for name, bound in (
        ("memory", settings.gateway_memory_max_bytes),
        ("parked", settings.gateway_park_max_bytes),
        ("wal", settings.wal_buffer_max_bytes),
        ("cache", settings.cache_max_bytes),
        ("frame", settings.gateway_max_frame_bytes),
        ("answer", settings.gateway_max_answer_bytes),
        ("connections", settings.gateway_max_connections),
        ("address", settings.gateway_max_connections_per_address),
        ("young", settings.gateway_max_young_connections),
        ("in_flight", settings.gateway_max_inflight_per_connection),
    ):
        BOUND.labels(name).set(bound)
