"""Nobody calls a prefix tiered by metadata that this Tideline does not understand."""

from __future__ import annotations

from collections.abc import Awaitable
from typing import Any, cast

import pytest
from temporalio.exceptions import ApplicationError

from activities.configs import offsets_proven_for_roll
from activities.readiness import readiness
from activities.topic_readiness import await_readiness
from tests.unit.activities.test_around_the_pause import crossed
from tests.unit.activities.world import TOPIC, World
from tests.unit.kafka.metadata_topic import MetadataTopic
from tideline.domain import failures
from tideline.domain.messages import ReadinessRequest
from tideline.domain.migration import Phase, PhaseStatus
from tideline.domain.options import MigrationOptions
from tideline.kafka.remote_log_metadata import encode_segment

NEWER = b"\1\x09\0whatever a newer broker has to say"


@pytest.fixture
def metadata(world: World) -> MetadataTopic:
    """The world's own segments, as brokers write of them."""
    metadata = MetadataTopic()
    for segment in world.store.found:
        metadata.add(1, encode_segment(segment))
    world.services.remote_log = cast(Any, metadata.follower())
    return metadata


async def waits(activity: Awaitable[object]) -> str:
    with pytest.raises(ApplicationError) as raised:
        await activity
    assert raised.value.type == failures.WAITING
    return raised.value.message


async def test_with_a_record_of_an_unknown_kind_readiness_waits_and_names_it_and_no_roll_is_proven(
    world: World, metadata: MetadataTopic
) -> None:
    """As coverage judges nothing then (``unit/spark/test_metadata_columns.py``)."""
    metadata.add(1, NEWER)
    world.kafka.local_starts = dict.fromkeys((1, 2, 3), 0)
    told = [await waits(offsets_proven_for_roll(world.services, TOPIC))]
    world.kafka.local_starts = dict.fromkeys((1, 2, 3), 100)
    told.append(await waits(readiness(world.services, crossed(world))))
    assert (await world.recorded(Phase.READINESS))[::2] == (PhaseStatus.WAITING, told[-1])
    for why in told:
        assert "partition 1 at offset 1 (api key 9" in why
        assert "Run a Tideline that knows this Kafka" in why
    assert world.plane.tiering is None


async def test_a_look_at_a_whole_topic_waits_and_names_it(
    world: World, metadata: MetadataTopic
) -> None:
    given = crossed(world)
    metadata.add(0, NEWER)
    request = ReadinessRequest(TOPIC, MigrationOptions(), [0])
    found = await await_readiness(world.services, request)
    assert (found.ready, found.own_look) == ([], [])
    assert "partition 0 at offset 0 (api key 9" in found.reasons["0"]
    assert not world.plane.row.ready
    metadata.batches[0].clear()
    world.services.remote_log = cast(Any, metadata.follower())
    assert (await await_readiness(world.services, request)).ready == [given.ref.partition]
