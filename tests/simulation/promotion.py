"""A standby of Postgres takes over, which lacks nothing or what was committed last.

What is modelled: connections end, and new ones are compared with what was seen and committed in
those before; calls under way have no outcome, the timeline grows by one, and nothing is committed
until everybody who was active has been heard of on the new one. Not modelled: the worker's beats.

Where commits are missing, or nobody can say whether some are, an operator compares: the primary
comes back, or what is missing is accepted. Either way a new history begins, and everybody starts
again.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from datetime import UTC, datetime
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

from tests.history.operations import Truncated
from tideline import ownership
from tideline.control_plane import ControlPlane
from tideline.control_plane.memory.suffix import Suffix
from tideline.control_plane.memory.topics import Topics
from tideline.domain.history import HistoryWatch
from tideline.domain.ids import TopicIdPartition
from tideline.domain.wal_footer import Footer, decode_tail
from tideline.errors import TidelineError
from tideline.kafka.client import KafkaCluster
from tideline.object_store.client import ObjectMissing
from tideline.object_store.listing import ObjectEntry
from tideline.worker import promotion

if TYPE_CHECKING:
    from tests.simulation.run import World

LOOK_S = 0.3
HEARD_S = 1.0
"""From an alert until an operator has done what it asks for."""
CLUSTER = "simulated"
PLACES: Any = SimpleNamespace(
    s3_bucket="", diskless_prefix="", s3_tiered_bucket="tiered", tiered_prefix=""
)
EVERY_S, GONE_AFTER_S = 1.0, 4.5
"""Between two looks, and from when on a gateway is looked for in the bucket: shorter, as runs
are."""


class Bucket:
    """What the check asks of the bucket. Everything in it is new."""

    bucket = prefix = ""

    def __init__(self, objects: Mapping[str, bytes]) -> None:
        self.store, self._objects = self, objects

    def list_objects(self, bucket: str, prefix: str) -> Iterator[ObjectEntry]:
        now = datetime.fromtimestamp(time.time(), UTC)
        for key, body in list(self._objects.items()):
            yield ObjectEntry(key, len(body), now)

    def endings(self, entries: Iterable[ObjectEntry]) -> Iterator[tuple[ObjectEntry, Footer]]:
        for entry in entries:
            yield entry, decode_tail(self._objects[entry.key], entry.size)


class Promotions(promotion.PromotionCheck):
    """The worker's look for gateways that stay away, over the bucket of the run."""

    def __init__(self, plane: ControlPlane, objects: Mapping[str, bytes]) -> None:
        self._plane, self._clock = plane, time.monotonic
        self._reader, self._waits_since = Bucket(objects), {}  # type: ignore[assignment]

    async def keep(self) -> None:
        while True:
            with suppress(TidelineError):  # a history that is halted shows in what comes of it
                await self.look()
            await asyncio.sleep(EVERY_S)


class Owners:
    """Whose the buckets are (:mod:`tideline.ownership`), and in which history: nothing says so
    until an operator begins another one, and gateways that start ask from then on."""

    def __init__(self) -> None:
        self._objects: dict[tuple[str, str], bytes] = {}

    def get(self, bucket: str, key: str) -> bytes:
        if (bucket, key) not in self._objects:
            raise ObjectMissing(key)
        return self._objects[bucket, key]

    def put(self, bucket: str, key: str, body: bytes, *, new: bool = False) -> None:
        self._objects[bucket, key] = body

    def establish(
        self, plane: ControlPlane, cluster: KafkaCluster, history: HistoryWatch
    ) -> Callable[[], Awaitable[None]] | None:
        """What a gateway that starts does before it registers."""
        store: Any = self

        async def establish() -> None:
            await ownership.establish(plane, store, PLACES, cluster.cluster_id, history)

        return establish if self._objects else None


async def compare(world: World) -> None:
    """What an operator does who hears that the history is halted (docs/failures.md), when nothing
    goes on any more that ends by itself."""
    while not world.is_halted or world.is_disturbed:  # noqa: ASYNC110
        await asyncio.sleep(LOOK_S)
    around = world.around
    world.history.note(f"the history is halted: {around.plane.history.halted}")
    for client in world.clients:  # nobody serves them, which is not judged
        world.history.leaves(client)
    await asyncio.sleep(HEARD_S)
    running = [gateway for gateway in world.gateways.values() if gateway.process.alive]
    for gateway in running:
        gateway.kill()
    for twin in world.doubles.values():
        twin.kill(lose_disk=True)
    world.left.clear()
    world.worker.process.kill()
    assert around.primary is not None
    old, new = _suffixes(around.primary["topics"]), _suffixes(around.plane.topics)
    # One that is not settled has taken no commit: the primary has everything.
    may_go_back = (
        not around.plane.is_settled and random.Random(f"operator {world.seed}").random() < 0.5
    )
    if old.keys() - new.keys() or may_go_back:
        done, kept, left = "goes back to the primary", old, new
        around.demote()
    else:
        done, kept, left = "accepts what the standby lacks", new, old
    lost = {log: around.forked.get(log, one.boundary) for log, one in left.items()}
    lost = {log: start for log, start in lost.items() if left[log].high_watermark > start}
    world.history.note(f"an operator {done}: lost is {lost}")
    for log, start in lost.items():
        partition = world.partition(log.topic_id, log.partition)
        world.history.add(Truncated(partition, start, world.loop.time()))
    world.bucket.given_up = _objects(left) - _objects(kept)
    around.primary = None
    store: Any = around.owners
    await ownership.adopt(
        around.plane, store, PLACES, CLUSTER, begun_by="an operator", reason="compared"
    )
    for gateway in running:
        gateway.start()
    world.worker.start()
    for client in world.clients:
        world.history.comes_back(client)


def _suffixes(topics: Topics) -> dict[TopicIdPartition, Suffix]:
    """Of the logs that have B0."""
    return {row.log: row.suffix for row in topics.partitions() if row.suffix is not None}


def _objects(suffixes: Mapping[TopicIdPartition, Suffix]) -> set[str]:
    """That are read."""
    return {batch.object_key for suffix in suffixes.values() for batch in suffix.batches}
