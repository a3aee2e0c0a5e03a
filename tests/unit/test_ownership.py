"""Who may act on a prefix of a bucket, with which Postgres and which Kafka cluster."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from typing import Any
from uuid import UUID

import pytest

from tideline import ownership
from tideline.control_plane.errors import WrongCluster
from tideline.control_plane.memory import MemoryControlPlane
from tideline.domain.history import HistoryWatch, WrongHistory, disagreement
from tideline.errors import ExitCode
from tideline.object_store.client import ObjectEntry, ObjectExists, ObjectMissing
from tideline.settings import ObjectStoreSettings


@dataclass
class Buckets:
    """Of :class:`tideline.object_store.client.ObjectStoreClient` what is needed."""

    objects: dict[tuple[str, str], bytes] = field(default_factory=dict)
    knows_conditions: bool = True

    def get(self, bucket: str, key: str) -> bytes:
        if (bucket, key) not in self.objects:
            raise ObjectMissing(key)
        return self.objects[bucket, key]

    def put(self, bucket: str, key: str, body: bytes, *, new: bool = False) -> None:
        if new and self.knows_conditions and (bucket, key) in self.objects:
            raise ObjectExists(key)
        self.objects[bucket, key] = body

    def list_objects(self, bucket: str, prefix: str) -> Iterator[ObjectEntry]:
        for where, key in sorted(self.objects):
            if where == bucket and key.startswith(prefix):
                yield ObjectEntry(key, 1, datetime.now(UTC))


@dataclass
class Installation:
    """Postgres, the Kafka cluster and the settings of one."""

    buckets: Any
    cluster: str = "kafka-1"
    prefix: str = ""
    plane: MemoryControlPlane = field(default_factory=lambda: MemoryControlPlane(lambda: 0))

    @property
    def settings(self) -> ObjectStoreSettings:
        return ObjectStoreSettings(
            s3_bucket="wal", s3_tiered_bucket="tiered", s3_prefix=self.prefix,
            s3_tiered_prefix=self.prefix,
        )  # fmt: skip

    async def start(self, history: HistoryWatch | None = None) -> HistoryWatch:
        async def cluster_id() -> str:
            return self.cluster

        history = history or HistoryWatch()
        await ownership.establish(self.plane, self.buckets, self.settings, cluster_id, history)
        return history

    async def tell(self) -> None:
        """What the worker does every half minute."""
        await self.plane.beat_history()
        seen = await self.plane.identity()
        await asyncio.to_thread(ownership.write_position, self.buckets, self.settings, seen)


@pytest.fixture
def buckets() -> Buckets:
    return Buckets()


@pytest.fixture
def first(buckets: Buckets) -> Installation:
    return Installation(buckets)


def another(buckets: Buckets, **values: Any) -> Installation:
    made = Installation(buckets, **values)
    made.plane.history.installation_id = UUID(int=99)
    return made


async def test_an_empty_prefix_becomes_the_first_ones(
    first: Installation, buckets: Buckets
) -> None:
    history = await first.start()
    assert history.seen is not None
    owner = json.loads(buckets.objects["wal", "tideline-owner.json"])
    assert (owner["cluster_id"], owner["prefix"], owner["format"]) == ("kafka-1", "", 1)
    assert ("tiered", "tideline-owner.json") in buckets.objects
    await first.start()


async def test_a_store_that_does_not_know_conditional_writes_is_refused_by_the_first(
    first: Installation, buckets: Buckets
) -> None:
    buckets.knows_conditions = False
    for _ in range(3):  # whoever supervises a process starts it again; there are two places
        with pytest.raises(WrongHistory, match="If-None-Match"):
            await first.start()
    buckets.knows_conditions = True
    buckets.objects.clear()
    await first.start()


@pytest.mark.parametrize("cluster", ["kafka-1", "kafka-2"])
async def test_a_second_installation_on_the_bucket_is_refused_by_name(
    first: Installation, buckets: Buckets, cluster: str
) -> None:
    await first.start()
    second = another(buckets, cluster=cluster)
    with pytest.raises(WrongHistory, match="s3://wal/ belongs to another") as refused:
        await second.start()
    assert refused.value.exit_code is ExitCode.REFUSED
    apart = another(buckets, cluster=cluster, prefix="second")
    await apart.start()
    assert ("wal", "second/tideline-owner.json") in buckets.objects


async def test_a_second_kafka_cluster_is_refused(first: Installation) -> None:
    await first.start()
    first.cluster = "kafka-2"
    with pytest.raises(WrongCluster, match="cluster kafka-1, the brokers are of cluster kafka-2"):
        await first.start()


async def test_a_bucket_with_objects_of_nobody_known_is_not_taken(
    first: Installation, buckets: Buckets
) -> None:
    buckets.objects["wal", "wal/" + "0" * 32] = b"someone's"
    with pytest.raises(WrongHistory, match="1 are unknown to this Postgres"):
        await first.start()
    assert ("wal", "tideline-owner.json") not in buckets.objects


async def test_an_installation_from_before_the_owner_object_takes_what_it_made(
    first: Installation, buckets: Buckets
) -> None:
    process = UUID(int=7)
    await first.plane.register_gateway(1, 1, process, "here:1", "0", 3_000)
    await first.plane.register_object_keys(1, process, ["wal/mine"])
    buckets.objects["wal", "wal/mine"] = b"ours"
    await first.start()
    assert ("wal", "tideline-owner.json") in buckets.objects


async def test_a_process_without_a_disk_notices_that_postgres_was_rolled_back(
    first: Installation,
) -> None:
    """System identifier and timeline are the same, and new commits came since."""
    await first.start()
    kept = dict(first.plane.history.beats)
    await first.tell()
    first.plane.history.beats = kept
    for _ in range(5):
        await first.plane.beat_history()
    with pytest.raises(WrongHistory, match="rolled back"):
        await first.start()


async def test_a_promotion_is_followed_and_the_old_primary_is_not(first: Installation) -> None:
    await first.start()
    await first.tell()
    first.plane.server = ("memory", 2)
    history = await first.start()
    assert history.seen is not None
    assert history.seen.timeline == 2
    await first.tell()
    first.plane.server = ("memory", 1)
    with pytest.raises(WrongHistory, match="timeline 2 was seen already"):
        await first.start()


async def test_a_promotion_may_have_lost_what_waited_for_no_standby(first: Installation) -> None:
    first.plane.history.waits_for_standby = False
    await first.start()
    await first.tell()
    first.plane.server = ("memory", 2)
    with pytest.raises(WrongHistory, match="synchronous_standby_names was empty"):
        await first.start()


async def test_a_job_or_command_needs_the_owner_object_and_takes_nothing(
    first: Installation, buckets: Buckets
) -> None:
    await first.plane.bind_cluster("kafka-1")
    identity = await first.plane.identity()
    with pytest.raises(WrongHistory, match="has no owner object"):
        ownership.must_own(buckets, first.settings, identity, "kafka-1")  # type: ignore[arg-type]
    assert not buckets.objects
    await first.start()
    ownership.must_own(buckets, first.settings, identity, "kafka-1")  # type: ignore[arg-type]
    halted = replace(identity, halted="a renewal is gone")
    with pytest.raises(WrongHistory, match="a renewal is gone"):
        ownership.must_own(buckets, first.settings, halted, "kafka-1")  # type: ignore[arg-type]


async def test_who_goes_on_with_a_restored_postgres_begins_a_history(
    first: Installation, buckets: Buckets
) -> None:
    stale = await first.start()
    await first.tell()
    first.plane.server = ("restored", 1)
    with pytest.raises(WrongHistory, match="a copy of the rows of system memory"):
        await first.start()
    begun = await ownership.adopt(
        first.plane,
        buckets,
        first.settings,
        "kafka-1",
        begun_by="ada",
        reason="compared",  # type: ignore[arg-type]
    )
    assert (await first.start()).seen == begun
    running = await first.plane.identity(stale.seen)
    assert stale.seen is not None
    assert "history" in str(disagreement(stale.seen, running)), "who runs on has to be restarted"
    assert (await first.start(stale)).seen == begun, "a restart forgets what its disk had seen"
