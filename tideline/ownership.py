"""Which installation the key prefixes of the buckets belong to, and how far its history has come.

An *owner object* under the prefix of each bucket names Kafka cluster, installation and history. It
is written once, with ``If-None-Match``, by the first process of an installation, where nothing of
anybody else lies under the prefix; whoever finds another one's refuses to start. A *position*
beside the one of the diskless bucket tells what the fleet has seen of Postgres, so that a process
without a disk of its own notices a database that was rolled back (docs/decisions/0017).
"""

from __future__ import annotations

import asyncio
import itertools
import json
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass

from tideline.control_plane import ControlPlane
from tideline.control_plane.jobs import JobsControlPlane
from tideline.domain.history import (
    HistoryWatch,
    ServerIdentity,
    WrongHistory,
    disagreement,
    from_document,
    newest,
    to_document,
)
from tideline.object_store.client import ObjectExists, ObjectMissing, ObjectStoreClient
from tideline.settings import JobsSettings, ObjectStoreSettings

FORMAT = 1
OWNER = "tideline-owner.json"
POSITION = "tideline-history.json"
LOOKED_AT = 1_000
"""Keys under a prefix without an owner object that must all be known before it is taken."""
UNCONDITIONAL = (
    "the store puts an object over one that is there, though it was asked to do so only if there "
    "is none (If-None-Match: *), so two installations could take one prefix: use a store, or a "
    f"version of it, that knows conditional writes, and delete {OWNER}"
)
"""What stands in an owner object that was refused."""
REMEDY = (
    '`tideline installation show` names all that must agree; docs/failures.md, "I have two '
    'Postgres", says what to do.'
)


@dataclass(frozen=True, slots=True)
class Place:
    """A prefix of a bucket: empty, or with a slash at its end."""

    bucket: str
    prefix: str

    def __str__(self) -> str:
        return f"s3://{self.bucket}/{self.prefix}"


def places(settings: ObjectStoreSettings) -> list[Place]:
    """The diskless one first."""
    return [
        Place(settings.s3_bucket, settings.diskless_prefix),
        Place(settings.s3_tiered_bucket, settings.tiered_prefix),
    ]


def must_own(
    store: ObjectStoreClient,
    settings: ObjectStoreSettings,
    identity: ServerIdentity,
    cluster_id: str,
) -> None:
    """Return when Kafka, Postgres and both owner objects name one installation and history, and
    Postgres is not behind what the fleet has seen. ``identity`` was asked about
    :func:`fleet_position`.

    Raises :class:`WrongHistory`, and what the object store raises. Changes nothing.
    """
    if missing := unowned(store, settings, identity, cluster_id):
        raise WrongHistory(
            f"{missing[0]} has no owner object {OWNER}, so nobody knows whose objects lie there: "
            "start a gateway or the worker, which write it, or run `tideline installation adopt`"
        )


def unowned(
    store: ObjectStoreClient,
    settings: ObjectStoreSettings,
    identity: ServerIdentity,
    cluster_id: str,
) -> list[Place]:
    """As :func:`must_own`; the places that have no owner object yet."""
    if identity.halted:
        raise WrongHistory(f"this history is halted: {identity.halted}. {REMEDY}")
    if identity.cluster_id != cluster_id:
        raise WrongHistory(
            f"Postgres belongs to Kafka cluster {identity.cluster_id or '(none yet)'}, the brokers "
            f"are of cluster {cluster_id}. {REMEDY}"
        )
    missing = []
    for place in places(settings):
        found = _read(store, place, OWNER)
        if found is None:
            missing.append(place)
        elif unlike := _unlike(found, _owner(place, identity)):
            raise WrongHistory(f"{place} belongs to another: {unlike}. {REMEDY}")
    return missing


def fleet_position(
    store: ObjectStoreClient, settings: ObjectStoreSettings
) -> ServerIdentity | None:
    """What the fleet has seen of Postgres; ``None``: nothing was ever written."""
    found = _read(store, places(settings)[0], POSITION)
    if found is None:
        return None
    try:
        return from_document(found)
    except (KeyError, TypeError, ValueError) as error:
        raise WrongHistory(
            f"{places(settings)[0]}{POSITION} is not what this version writes ({error!r}): use a "
            "Tideline that knows it"
        ) from error


def write_position(
    store: ObjectStoreClient, settings: ObjectStoreSettings, seen: ServerIdentity
) -> None:
    """The writer has compared ``seen`` with :func:`fleet_position` just before."""
    place = places(settings)[0]
    store.put(place.bucket, place.prefix + POSITION, _bytes(to_document(seen)))


async def establish(
    plane: ControlPlane,
    store: ObjectStoreClient,
    settings: ObjectStoreSettings,
    cluster_id: Callable[[], Awaitable[str]],
    history: HistoryWatch,
) -> str:
    """What a gateway or the worker does before it acts: everything must agree, and a prefix that
    is nobody's becomes this installation's. ``history`` compares connections from now on. Returns
    the Kafka cluster's id.

    Raises :class:`WrongHistory`, or an :class:`tideline.errors.UnreachableError`.
    """
    cluster = await cluster_id()
    position = await asyncio.to_thread(fleet_position, store, settings)
    if position and history.seen and position.history_id != history.seen.history_id:
        # An operator has begun another one: the fleet's word outweighs that of one disk.
        history.seen = None
    before = newest(history.seen, position)
    await _assert_follows(plane, position)
    identity = await plane.identity(before)
    await plane.bind_cluster(cluster)
    identity = await plane.identity(before) if identity.cluster_id is None else identity
    for place in await asyncio.to_thread(unowned, store, settings, identity, cluster):
        await _claim(plane, store, place, identity)
    if (why := history.judge(before, identity)) is not None:
        raise WrongHistory(f"Postgres is not the one that was seen: {why}. {REMEDY}")
    return cluster


async def _assert_follows(plane: ControlPlane, position: ServerIdentity | None) -> None:
    """The fleet's word counts, whatever this process has seen itself."""
    if position is not None:
        why = disagreement(position, await plane.identity(position))
        if why is not None:
            raise WrongHistory(f"Postgres is not the one that the fleet has seen: {why}. {REMEDY}")


async def _claim(
    plane: ControlPlane, store: ObjectStoreClient, place: Place, identity: ServerIdentity
) -> None:
    keys = await asyncio.to_thread(_keys_of_tideline, store, place)
    if keys and (unknown := len(await plane.unknown_keys(keys))):
        raise WrongHistory(
            f"{place} has no owner object, and of the first {len(keys)} objects there {unknown} "
            "are unknown to this Postgres: they may be another installation's. Give this one a "
            "TIDELINE_S3_PREFIX of its own; if they are its own after all, run "
            "`tideline installation adopt`"
        )
    await asyncio.to_thread(claim, store, place, identity)


def _keys_of_tideline(store: ObjectStoreClient, place: Place) -> list[str]:
    """Of the diskless bucket; that of the segments holds the brokers' own."""
    listed = store.list_objects(place.bucket, f"{place.prefix}wal/")
    return [entry.key for entry in itertools.islice(listed, LOOKED_AT)]


def claim(
    store: ObjectStoreClient, place: Place, identity: ServerIdentity, *, over: bool = False
) -> None:
    """Write the owner object. Raises :class:`WrongHistory` when another one was first; ``over``:
    in place of what is there, by an operator's word."""
    ours = _owner(place, identity)
    try:
        store.put(place.bucket, place.prefix + OWNER, _bytes(ours), new=not over)
        if not over:
            # The same bytes again: who is told that they are stored could overwrite another's.
            store.put(place.bucket, place.prefix + OWNER, _bytes(ours), new=True)
            # Else the next start would find itself the owner, and ask no more.
            store.put(place.bucket, place.prefix + OWNER, _bytes({"refused": UNCONDITIONAL}))
            raise WrongHistory(f"{place}: {UNCONDITIONAL}")
    except ObjectExists:
        found = _read(store, place, OWNER) or {}
        if unlike := _unlike(found, ours):
            raise WrongHistory(f"{place} belongs to another: {unlike}. {REMEDY}") from None


def owner_of(store: ObjectStoreClient, place: Place) -> Mapping[str, object] | None:
    """What the owner object says; ``None``: there is none."""
    return _read(store, place, OWNER)


async def adopt(
    plane: ControlPlane,
    store: ObjectStoreClient,
    settings: ObjectStoreSettings,
    cluster_id: str,
    *,
    begun_by: str,
    reason: str,
) -> ServerIdentity:
    """An operator goes on with this Postgres, these buckets and this cluster as they are: a new
    history begins, which everybody who knew the old one refuses until it is started anew."""
    await plane.bind_cluster(cluster_id)
    await plane.begin_history(begun_by, reason)
    identity = await plane.identity()
    for place in places(settings):
        await asyncio.to_thread(claim, store, place, identity, over=True)
    await asyncio.to_thread(write_position, store, settings, identity)
    return identity


async def command_must_own(
    plane: ControlPlane, settings: ObjectStoreSettings, cluster_id: str
) -> None:
    """:func:`must_own` for a command that changes something. Raises as that one."""
    store = ObjectStoreClient(settings)
    position = await asyncio.to_thread(fleet_position, store, settings)
    await _assert_follows(plane, position)
    identity = await plane.identity(position)
    await asyncio.to_thread(must_own, store, settings, identity, cluster_id)


def job_must_own(
    plane: JobsControlPlane, settings: JobsSettings, cluster_id: str
) -> ServerIdentity:
    """:func:`must_own` for a job; what it has seen, for its executors and for a second look before
    it deletes. Raises as :func:`must_own`."""
    store = ObjectStoreClient(settings)
    position = fleet_position(store, settings)
    identity = plane.identity(position)
    if position is not None and (why := disagreement(position, identity)) is not None:
        raise WrongHistory(f"Postgres is not the one that the fleet has seen: {why}. {REMEDY}")
    must_own(store, settings, identity, cluster_id)
    return identity


def _owner(place: Place, identity: ServerIdentity) -> dict[str, object]:
    return {
        "format": FORMAT,
        "cluster_id": identity.cluster_id,
        "installation_id": str(identity.installation_id),
        "history_id": str(identity.history_id),
        "prefix": place.prefix,
    }


def _unlike(found: Mapping[str, object], ours: Mapping[str, object]) -> str:
    """The first difference in words; empty: there is none."""
    if (refused := found.get("refused")) is not None:
        return f"its {OWNER} says that {refused}"
    for name, value in ours.items():
        if found.get(name) != value:
            return f"its {OWNER} says {name} {found.get(name)!r}, here it is {value!r}"
    return ""


def _read(store: ObjectStoreClient, place: Place, name: str) -> Mapping[str, object] | None:
    try:
        body = store.get(place.bucket, place.prefix + name)
    except ObjectMissing:
        return None
    try:
        found = json.loads(body)
    except ValueError:
        found = None
    if not isinstance(found, dict):
        raise WrongHistory(f"{place}{name} is no JSON object: find out who wrote it there")
    return found


def _bytes(document: Mapping[str, object]) -> bytes:
    return json.dumps(document, indent=2, sort_keys=True).encode()
