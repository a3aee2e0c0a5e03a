"""What a producer's retry is answered after B0, by both control planes."""

from __future__ import annotations

import pytest

from tests.contract.scenes import GatewayProcess, Scene, batch
from tideline.control_plane.model import CommittedBatch
from tideline.domain.ids import TopicIdPartition
from tideline.domain.pipelining import MAX_SEQUENCE
from tideline.domain.producer_tail import ProducerSeed

B0 = 100


def located(base_sequence: int, base_offset: int, *, epoch: int = 0) -> ProducerSeed:
    """A batch of one record of producer 7."""
    return ProducerSeed(7, epoch, base_sequence, base_sequence, base_offset, base_offset, 1_000)


def unlocated(last_sequence: int, *, epoch: int = 0) -> ProducerSeed:
    """Of producer 7: it appended up to here, nobody knows where."""
    return ProducerSeed(7, epoch, last_sequence, last_sequence, -1, -1, 1_000)


async def sends(
    scene: Scene, gateway: GatewayProcess, log: TopicIdPartition, *sequences: int, epoch: int = 0
) -> list[tuple[str, int]]:
    """What producer 7 is answered to batches of one record, each sent when the one before it was
    answered: outcome and base offset."""
    found: list[CommittedBatch] = []
    for sequence in sequences:
        found += await scene.commit(gateway, batch(log, producer=(7, epoch, sequence)))
    return [(one.error.value, one.base_offset) for one in found]


STORED_SOMEWHERE = ("DUPLICATE_SEQUENCE_NUMBER", -1)
OUT_OF_ORDER = ("OUT_OF_ORDER_SEQUENCE", -1)


async def test_a_retry_of_a_batch_whose_offset_is_known_is_told_it(scene: Scene) -> None:
    gateway = await scene.gateway()
    log = await scene.hybrid_log(gateway, B0, [located(n, 10 * n) for n in range(3, 8)])
    told = await sends(scene, gateway, log, 3, 4, 5, 6, 7)
    assert told == [("DUPLICATE", 10 * n) for n in range(3, 8)]
    assert await sends(scene, gateway, log, 2) == [OUT_OF_ORDER]


async def test_a_retry_of_a_batch_that_was_not_found_is_told_no_offset(scene: Scene) -> None:
    gateway = await scene.gateway()
    log = await scene.hybrid_log(gateway, B0, [unlocated(41)])
    assert await sends(scene, gateway, log, 41, 40, 0) == [STORED_SOMEWHERE] * 3
    assert await sends(scene, gateway, log, 43) == [OUT_OF_ORDER]
    assert await sends(scene, gateway, log, 42) == [("NONE", B0)]
    assert await sends(scene, gateway, log, 41, 42) == [STORED_SOMEWHERE, ("DUPLICATE", B0)]


async def test_what_lies_before_the_found_batches_is_told_no_offset(scene: Scene) -> None:
    gateway = await scene.gateway()
    log = await scene.hybrid_log(gateway, B0, [unlocated(39), located(40, 90), located(41, 95)])
    assert await sends(scene, gateway, log, 38, 39) == [STORED_SOMEWHERE] * 2
    assert await sends(scene, gateway, log, 40, 41) == [("DUPLICATE", 90), ("DUPLICATE", 95)]
    assert await sends(scene, gateway, log, 42, 43) == [("NONE", B0), ("NONE", B0 + 1)]
    assert await sends(scene, gateway, log, 39) == [STORED_SOMEWHERE]
    # With five known ones the older are forgotten, as Kafka does.
    assert await sends(scene, gateway, log, 44) == [("NONE", B0 + 2)]
    assert await sends(scene, gateway, log, 39) == [OUT_OF_ORDER]


async def test_an_epoch_that_is_bumped_forgets_what_was_before(scene: Scene) -> None:
    gateway = await scene.gateway()
    log = await scene.hybrid_log(gateway, B0, [unlocated(41, epoch=2)])
    assert await sends(scene, gateway, log, 41, epoch=1) == [("INVALID_PRODUCER_EPOCH", -1)]
    assert await sends(scene, gateway, log, 0, epoch=3) == [("NONE", B0)]
    assert await sends(scene, gateway, log, 41, epoch=3) == [OUT_OF_ORDER]


@pytest.mark.parametrize("last", [0, 2, MAX_SEQUENCE])
async def test_sequences_wrap_also_where_no_offset_is_known(scene: Scene, last: int) -> None:
    gateway = await scene.gateway()
    log = await scene.hybrid_log(gateway, B0, [unlocated(last)])
    before = [(last - back) % (MAX_SEQUENCE + 1) for back in range(5)]
    assert await sends(scene, gateway, log, *before) == [STORED_SOMEWHERE] * 5
    following = 0 if last == MAX_SEQUENCE else last + 1
    assert await sends(scene, gateway, log, following) == [("NONE", B0)]


async def test_the_newest_epoch_of_a_producer_counts(scene: Scene) -> None:
    gateway = await scene.gateway()
    seeds = [located(8, 50), located(0, 60, epoch=1), located(1, 61, epoch=1)]
    log = await scene.hybrid_log(gateway, B0, seeds)
    assert await sends(scene, gateway, log, 8) == [("INVALID_PRODUCER_EPOCH", -1)]
    assert await sends(scene, gateway, log, 0, 1, epoch=1) == [("DUPLICATE", 60), ("DUPLICATE", 61)]


async def test_a_producer_without_known_batches_is_described_by_its_last_sequence(
    scene: Scene,
) -> None:
    log = await scene.hybrid_log(await scene.gateway(), B0, [unlocated(41)])
    (described,) = (await scene.plane.describe_producers([log], 10))[log]
    assert (described.producer_id, described.last_sequence) == (7, 41)


HOUR_MS = 3_600_000


@pytest.mark.parametrize("idle_ms", [1, 60_000, HOUR_MS, 24 * HOUR_MS, 2**31 - 1])
@pytest.mark.parametrize("minutes", [1, 59, 119, 181, 13 * 60, 26 * 24 * 60])
async def test_a_retry_of_a_moment_ago_is_known_whatever_the_clock_did(
    scene: Scene, idle_ms: int, minutes: int
) -> None:
    """Schedule 21: for every value of ``producer.id.expiration.ms`` that Kafka takes."""
    gateway = await scene.gateway()
    _, (log,) = await scene.diskless_topic()
    assert scene.jobs.expire_producers(idle_ms) == 0
    assert await sends(scene, gateway, log, 0) == [("NONE", 0)]
    scene.set_clock_forward(minutes=minutes)
    for _ in range(2):
        assert scene.jobs.expire_producers(idle_ms) == 0
    assert await sends(scene, gateway, log, 0) == [("DUPLICATE", 0)]


@pytest.mark.parametrize("minutes", [300, 26 * 24 * 60])
async def test_how_the_clock_went_before_the_first_run_of_expiry_nobody_knows(
    scene: Scene, minutes: int
) -> None:
    """As behind a rebuild, too, which gives some producers no time at all."""
    gateway = await scene.gateway()
    _, (log,) = await scene.diskless_topic()
    assert await sends(scene, gateway, log, 0) == [("NONE", 0)]
    scene.set_clock_forward(minutes=minutes)
    assert scene.jobs.expire_producers(60_000) == 0
    assert await sends(scene, gateway, log, 0) == [("DUPLICATE", 0)]


async def test_a_producer_that_was_idle_is_forgotten_in_the_end(scene: Scene) -> None:
    gateway = await scene.gateway()
    _, (log,) = await scene.diskless_topic()
    await sends(scene, gateway, log, 0)
    expired = 0
    for _ in range(5):
        expired += scene.jobs.expire_producers(60_000)
        scene.set_clock_forward(minutes=60)
    assert expired == 1
    assert await sends(scene, gateway, log, 500) == [("NONE", 1)]
