"""``tideline doctor``: whether everything that a migration needs is there, right and reachable.

It looks, and changes nothing but one object of its own, which it puts and deletes. What it finds of
a topic is the preflight's.
"""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence, Set
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from enum import StrEnum

from tideline import __version__, control_plane, ownership, temporal
from tideline.control_plane import ControlPlane
from tideline.control_plane.connections import RETIRED, missing_connections
from tideline.control_plane.lease_observer import LeaseObserver
from tideline.control_plane.migrate import LOGIN_ROLES
from tideline.control_plane.model import UNACCOUNTED, GatewayRegistration, in_force
from tideline.control_plane.server_probe import probe
from tideline.domain.broker_offers import BrokerConfigs, logins, plugin
from tideline.domain.kafka_release import TRIED, UPGRADE, described, is_too_old, release_of
from tideline.domain.preflight import TIERING_SWITCH, WAIT_FOR_STANDBYS, GatewayHealth
from tideline.errors import TidelineError, UnreachableError
from tideline.kafka.client import KafkaCluster
from tideline.kafka.security import KafkaSecurity
from tideline.kafka.topic_observer import TopicObserver
from tideline.kafka.wire import ABI, LibraryMissing, find_openssl, library
from tideline.migration.connections import monotonic_ms
from tideline.object_store.client import ObjectStoreClient, ObjectStoreUnavailable
from tideline.object_store.features import Features, probe_features
from tideline.object_store.late_put import LatePut, probe_late_put
from tideline.settings import WorkerSettings

APPLICATION = "tideline-doctor"
PATIENCE_S = 20.0
"""Of one check."""
FEATURES = "object store features"
ANOTHER_STORE = "use a store, or a version of it, that does this as S3 (docs/object-stores.md)"
LATE_PUTS = "late uploads"
CLOCK_MS = 2_000.0
"""So far the clocks may lie apart: grace periods are minutes, and people read times."""


class Verdict(StrEnum):
    OK = "ok"
    WARNING = "warning"
    """Nothing is lost by it; something does not work, or not as it should."""
    FAILED = "failed"


@dataclass(frozen=True, slots=True)
class Finding:
    """What one check has found, and what to do."""

    check: str
    verdict: Verdict
    found: str
    remedy: str = ""


@dataclass(frozen=True, slots=True)
class _Parts:
    settings: WorkerSettings
    plane: ControlPlane
    cluster: KafkaCluster
    store: ObjectStoreClient


def ok(check: str, found: str) -> Finding:
    return Finding(check, Verdict.OK, found)


async def examine(settings: WorkerSettings) -> list[Finding]:
    """Every check, in the order in which things depend on each other. One that fails, or does not
    end within :data:`PATIENCE_S`, stops no other."""
    async with _opened(settings) as parts:
        found = await asyncio.gather(
            *(_bounded(name, remedy, look(parts)) for name, remedy, look in _CHECKS)
        )
    return [one for some in found for one in some]


@asynccontextmanager
async def _opened(settings: WorkerSettings) -> AsyncIterator[_Parts]:
    async with AsyncExitStack() as stack:
        plane = await stack.enter_async_context(
            control_plane.connect(settings, application_name=APPLICATION)
        )
        cluster = await stack.enter_async_context(KafkaCluster.of(settings, APPLICATION))
        yield _Parts(settings, plane, cluster, ObjectStoreClient(settings))


async def _bounded(name: str, remedy: str, looks: Awaitable[Sequence[Finding]]) -> list[Finding]:
    try:
        async with asyncio.timeout(PATIENCE_S):
            return list(await looks)
    except TidelineError as error:
        return [Finding(name, Verdict.FAILED, str(error), remedy)]
    except TimeoutError:
        return [Finding(name, Verdict.FAILED, f"no answer within {PATIENCE_S:.0f} s", remedy)]


async def _postgres(parts: _Parts) -> list[Finding]:
    found = await probe(parts.settings, APPLICATION)
    told = [
        ok("postgres", f"{found.version} as {found.user}, {found.round_trip_ms:.1f} ms away"),
        _role(found.user, found.rights),
        ok("postgres schema", "of this version")
        if found.schema_agrees
        else Finding(
            "postgres schema",
            Verdict.FAILED,
            "migrations, functions or rights are of another version",
            "run `tideline db migrate` with this version",
        ),
    ]
    apart = f"{found.clock_ahead_ms:+.0f} ms"
    if abs(found.clock_ahead_ms) <= CLOCK_MS:
        return [*told, ok("clock", f"Postgres' clock is {apart} from this machine's")]
    remedy = "let both keep time by NTP; which of them is wrong a third clock tells"
    return [*told, Finding("clock", Verdict.WARNING, f"Postgres' is {apart} ahead", remedy)]


def _role(user: str, rights: Sequence[str]) -> Finding:
    """What a worker calls fails one by one under another role, days later."""
    wanted = LOGIN_ROLES["tideline_worker"]
    if wanted in rights:
        return ok("postgres role", f"{user} is a member of {wanted}")
    found = f"{user} is no member of {wanted}, but of {', '.join(rights) or 'none'}"
    remedy = "TIDELINE_POSTGRES_DSN of a worker names the role tideline_worker"
    return Finding("postgres role", Verdict.FAILED, found, remedy)


async def _commits(parts: _Parts) -> list[Finding]:
    found = await parts.plane.check_synchronous_commit()
    if not found.durable:
        remedy = "docs/operating.md says how Postgres has to be set up"
        return [Finding("postgres commits", Verdict.FAILED, found.explanation, remedy)]
    if found.not_waited_for:
        return [
            Finding(
                "postgres commits",
                Verdict.WARNING,
                f"commits do not wait for standby {', '.join(found.not_waited_for)}: the promotion "
                "of one may lose acknowledged records, and stops tracked traffic then",
                WAIT_FOR_STANDBYS,
            )
        ]
    return [ok("postgres commits", found.explanation)]


async def _connections(parts: _Parts) -> list[Finding]:
    room = await parts.plane.connection_room()
    refused, short = await missing_connections(parts.plane, parts.settings, room, is_gateway=False)
    remedy = "raise max_connections, or the role's limit (docs/operating.md)"
    if refused is not None:
        return [Finding("postgres connections", Verdict.FAILED, refused, remedy)]
    if short:
        return [Finding("postgres connections", Verdict.WARNING, why, remedy) for why in short]
    return [ok("postgres connections", f"{room.given} for everybody")]


async def _buckets(parts: _Parts) -> list[Finding]:
    def look(place: ownership.Place) -> Finding:
        parts.store.check(place.bucket)
        some = next(iter(parts.store.list_objects(place.bucket, place.prefix)), None)
        return ok("object store", f"{place} can be listed{'' if some else ', and is empty'}")

    return [await asyncio.to_thread(look, place) for place in ownership.places(parts.settings)]


async def _features(parts: _Parts) -> list[Finding]:
    settings = parts.settings
    try:
        found = await asyncio.to_thread(
            probe_features, settings, settings.s3_bucket, settings.diskless_prefix
        )
    except ObjectStoreUnavailable as error:
        return [ok(FEATURES, f"not looked at: {error}")]
    return features(found)


def features(found: Features) -> list[Finding]:
    """What the store of WAL objects does of what is needed, and what follows where it does not."""
    told = [
        Finding(FEATURES, verdict, what, remedy)
        for lacks, what, verdict, remedy in (
            (
                not found.conditional_puts,
                "it puts an object over another one though it was asked not to (If-None-Match: *), "
                "so two installations could take one prefix",
                Verdict.FAILED,
                ANOTHER_STORE,
            ),
            (
                found.parts is False,
                "an object in parts is not their sum: no segment can be merged",
                Verdict.FAILED,
                ANOTHER_STORE,
            ),
            (
                found.versions is True,
                "the bucket keeps versions of what is deleted: what gc deletes goes on costing",
                Verdict.WARNING,
                "end noncurrent versions by a lifecycle rule, or take a bucket without versioning "
                "and Object Lock",
            ),
            (
                bool(found.refusals),
                f"not all could be tried: {'; '.join(found.refusals)}",
                Verdict.WARNING,
                "the rights of a worker are in infra/s3/worker.json",
            ),
        )
        if lacks
    ]
    if found.left is not None:
        told.append(_left_behind(FEATURES, found.left))
    if not told:
        deletes = "together" if found.batch_deletion else "one after the other"
        by = "directly" if found.direct else "by boto3, which costs ten times the CPU"
        what = f"conditional writes and parts work; objects are put and got {by}, and "
        told.append(ok(FEATURES, f"{what}deleted {deletes}"))
    return told


async def _late_puts(parts: _Parts) -> list[Finding]:
    settings = parts.settings
    try:
        found = await asyncio.to_thread(
            probe_late_put, settings, settings.s3_bucket, settings.diskless_prefix
        )
    except (TidelineError, OSError) as error:
        return [ok(LATE_PUTS, f"not looked at: {error}")]
    return late_puts(found)


def late_puts(found: LatePut) -> list[Finding]:
    """Whether the store lets an earlier, partial attempt win; and what is left of the probe."""
    told = [ok(LATE_PUTS, "an attempt of which only a part came leaves a whole object alone")]
    if found.won:
        left = "nothing" if found.left is None else f"{found.left} bytes"
        told = [
            Finding(
                LATE_PUTS,
                Verdict.WARNING,
                f"a PUT of which only the head had come ended behind a whole one of {found.sent} "
                f"bytes, and {left} were left of the object",
                "merged segments are looked at before their sources go, and a loss is told of; a "
                "store, or a version of it, that keeps whole bodies alone does not lose them "
                "(docs/stack.md)",
            )
        ]
    if not found.deleted:
        told.append(_left_behind(LATE_PUTS, found.key))
    return told


def _left_behind(check: str, key: str) -> Finding:
    """The object of a probe."""
    remedy = "delete it; a worker may delete below doctor/ (infra/s3/worker.json)"
    return Finding(check, Verdict.WARNING, f"{key} could not be deleted", remedy)


async def _installation(parts: _Parts) -> list[Finding]:
    cluster_id = await parts.cluster.cluster_id()
    await ownership.command_must_own(parts.plane, parts.settings, cluster_id)
    return [ok("installation", "Kafka, Postgres and both buckets are one fleet's")]


async def _brokers(parts: _Parts) -> list[Finding]:
    await parts.cluster.refresh()
    nodes = sorted(await parts.cluster.nodes())
    observer = TopicObserver(parts.cluster, parts.settings.kafka_request_timeout_ms)
    switches = [await observer.broker_config(node, TIERING_SWITCH) for node in nodes]
    cluster_id = await parts.cluster.cluster_id()
    told = [ok("brokers", f"{nodes} of cluster {cluster_id} answer")]
    told.append(release(await observer.metadata_version()))
    without = [node for node, on in zip(nodes, switches, strict=True) if on != "true"]
    if without:
        found = f"{TIERING_SWITCH} is not true on {without}"
        remedy = "topics of such a broker cannot migrate: docs/operating.md"
        told.append(Finding("tiered storage", Verdict.FAILED, found, remedy))
    else:
        told.append(ok("tiered storage", "enabled on every broker"))
    return told + offers(await observer.configs_of_brokers())


def offers(brokers: Sequence[BrokerConfigs]) -> list[Finding]:
    """Plugin, logins and listeners; what several brokers have alike once."""
    found = [("tiered storage plugin", plugin(broker.configs)) for broker in brokers]
    found += [("logins", offer) for broker in brokers for offer in logins(broker)]
    return [
        Finding(check, Verdict.WARNING if offer.remedy else Verdict.OK, offer.found, offer.remedy)
        for check, offer in dict.fromkeys(found)
    ]


def release(level: int | None) -> Finding:
    """Of the oldest broker, by the highest ``metadata.version`` that it supports."""
    check = "kafka release"
    if level is None:
        remedy = "brokers of Kafka say it; look whether something else answers there"
        return Finding(check, Verdict.WARNING, "no broker says its metadata.version", remedy)
    found = described(level)
    if is_too_old(level):
        return Finding(check, Verdict.FAILED, found, UPGRADE)
    if release_of(level) not in TRIED:
        remedy = f"topics have crossed on {', '.join(TRIED)}; try one that nobody needs first"
        return Finding(check, Verdict.WARNING, found, remedy)
    return ok(check, found)


async def _attestation(parts: _Parts) -> list[Finding]:
    said = in_force(await parts.plane.attestations(await parts.cluster.cluster_id()))
    if said:
        return [ok("brokers closed", said)]
    found = "nobody attests that clients reach the brokers only through gateways"
    return [Finding("brokers closed", Verdict.WARNING, found, "`tideline cluster attest`")]


async def _gateways(parts: _Parts) -> list[Finding]:
    leases = LeaseObserver(parts.plane, monotonic_ms)
    registered = [g for g in await leases.watched() if g.status not in (RETIRED, UNACCOUNTED)]
    health = {g.gateway_id: g for g in leases.health(registered)}
    nodes, cluster_id = await parts.cluster.nodes(), await parts.cluster.cluster_id()
    told = await asyncio.gather(
        *(_gateway(parts, g, health[g.gateway_id], cluster_id) for g in registered)
    )
    pairs = beside(nodes.keys(), {g.gateway_id: g.broker_id for g in registered})
    racks = {node.rack for node in nodes.values() if node.rack}
    return [*told, *pairs, *elsewhere(racks, {g.gateway_id: g.rack for g in registered})]


def elsewhere(racks: Set[str], zones: Mapping[int, str | None]) -> list[Finding]:
    """Of the racks of the live brokers, and the zone that each gateway was given by setting: which
    gateway is where no broker is. Where brokers have no racks, settings alone say what a zone is.
    """
    remedy = (
        "clients in a broker's rack do not find it: write TIDELINE_GATEWAY_RACK as broker.rack is "
        "written, or leave it unset"
    )
    return [
        Finding(
            f"gateway {gateway}",
            Verdict.WARNING,
            f"its TIDELINE_GATEWAY_RACK {zone} is no rack of a live broker ({sorted(racks)})",
            remedy,
        )
        for gateway, zone in sorted(zones.items())
        if racks and zone and zone not in racks
    ]


def beside(nodes: Set[int], brokers: Mapping[int, int]) -> list[Finding]:
    """Of the live brokers, by id, and the broker of each gateway: who has nobody beside it."""
    found = []
    if alone := sorted(nodes - set(brokers.values())):
        what = f"no gateway has registered beside {alone}"
        remedy = "start one beside each broker: no topic migrates without"
        found.append(Finding("gateways", Verdict.FAILED, what, remedy))
    for gateway, broker in sorted(brokers.items()):
        if broker not in nodes:
            what = f"broker {broker}, beside gateway {gateway}, is not among the brokers that live"
            remedy = f"start it; if it is gone for good: `tideline gateway retire {gateway}`"
            found.append(Finding("brokers", Verdict.FAILED, what, remedy))
    return found


async def _gateway(
    parts: _Parts, gateway: GatewayRegistration, health: GatewayHealth, cluster_id: str
) -> Finding:
    name, where = f"gateway {gateway.gateway_id}", gateway.address
    if health.silent_ms > gateway.lease_ms:
        found = f"at {where} does not renew its lease"
        retire = f"`tideline gateway retire {gateway.gateway_id}`"
        remedy = f"its log says why; if it is gone for good: {retire}"
        return Finding(name, Verdict.FAILED, found, remedy)
    host, _, port = where.rpartition(":")
    try:
        async with KafkaCluster(
            [(host, int(port))],
            client_id=APPLICATION,
            timeout_ms=parts.settings.kafka_request_timeout_ms,
            security=KafkaSecurity.of(parts.settings),
        ) as clients:
            seen = await clients.cluster_id()
    except UnreachableError as error:
        remedy = "clients are told this address (TIDELINE_GATEWAY_ADVERTISED): open the way to it"
        return Finding(name, Verdict.WARNING, f"cannot be reached from here: {error}", remedy)
    if seen != cluster_id:
        remedy = "TIDELINE_GATEWAY_BROKER names a broker of another cluster"
        return Finding(name, Verdict.FAILED, f"at {where} serves cluster {seen}", remedy)
    return ok(name, f"{gateway.version} at {where} beside broker {gateway.broker_id}")


async def _native_library(_: _Parts) -> list[Finding]:
    return [gateways_library()]


def gateways_library() -> Finding:
    """Whether a gateway of this installation would start here, without TLS and with it. None may be
    meant to: what is missing is a warning."""
    check = "native library"
    try:
        library()
    except LibraryMissing as error:
        return Finding(check, Verdict.WARNING, "a gateway would not start here", str(error))
    told = f"{__version__} (border {ABI})"
    try:
        find_openssl()
    except LibraryMissing as error:
        found = f"{told}; a gateway with TLS would not start here"
        return Finding(check, Verdict.WARNING, found, str(error))
    return ok(check, f"{told}, TLS by {ssl.OPENSSL_VERSION}")


async def _temporal(parts: _Parts) -> list[Finding]:
    settings = parts.settings
    client = await temporal.connect(settings)
    queue = settings.temporal_task_queue
    where = f"{client.service_client.config.target_host}, namespace {client.namespace}"
    polling = await temporal.workers_polling(client, queue)
    if polling:
        return [ok("temporal", where), ok("worker", f"{polling} poll task queue {queue}")]
    found, remedy = (
        f"none polls task queue {queue}",
        "`tideline worker run`: no topic migrates without",
    )
    return [ok("temporal", where), Finding("worker", Verdict.FAILED, found, remedy)]


Look = Callable[[_Parts], Awaitable[Sequence[Finding]]]
_CHECKS: tuple[tuple[str, str, Look], ...] = (
    ("postgres", "TIDELINE_POSTGRES_DSN, and its way through the network", _postgres),
    ("postgres commits", "see the check of postgres", _commits),
    ("postgres connections", "see the check of postgres", _connections),
    (
        "object store",
        "TIDELINE_S3_ENDPOINT, the buckets, the keys and their rights",
        _buckets,
    ),
    (FEATURES, "see the check of the object store", _features),
    (LATE_PUTS, "see the check of the object store", _late_puts),
    ("brokers", "TIDELINE_KAFKA_BOOTSTRAP, and the listeners that the brokers name", _brokers),
    ("installation", "`tideline installation show`", _installation),
    ("brokers closed", "see the checks of postgres and brokers", _attestation),
    ("gateways", "see the checks of postgres and brokers", _gateways),
    ("native library", "how Tideline was installed", _native_library),
    ("temporal", "TIDELINE_TEMPORAL_ADDRESS, TIDELINE_TEMPORAL_NAMESPACE", _temporal),
)
"""Name, what to look at when it cannot be made, and how."""
