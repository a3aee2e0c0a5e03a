"""What the preflight observes: leases that are renewed while it looks, the bucket's objects, who
wrote in transactions."""

from __future__ import annotations

from dataclasses import replace
from uuid import UUID

import pytest

from activities.validate import validate_topic
from tests.unit.activities.test_pause import failure_of
from tests.unit.activities.world import TOPIC_ID, World, gateway
from tideline.domain import failures
from tideline.domain.coverage import OWN_KINDS, SegmentObjects
from tideline.domain.messages import TopicRef, TopicStep
from tideline.domain.options import MigrationOptions
from tideline.domain.preflight import CheckResult, PreflightReport, Verdict
from tideline.domain.remote_log import RemoteSegment, SegmentState
from tideline.domain.transactions import CoordinatorTransaction
from tideline.kafka.observer import TopicLayout
from tideline.kafka.topic_observer import ActiveProducer
from tideline.migration.preflight import (
    _remote_objects,
    _transactional_ids,
)


async def compared(world: World) -> tuple[int, tuple[str, ...]]:
    """How many segments were compared with the bucket, and what is bad."""
    found = await _remote_objects(
        world.services, layout(world), tuple(world.store.found), lambda: None
    )
    return found.segments, found.bad


def layout(world: World) -> TopicLayout:
    return TopicLayout("orders", TOPIC_ID, False, {0: world.kafka.layout})


async def test_segments_that_lie_in_the_bucket_as_kafka_says_are_recognised(world: World) -> None:
    assert await compared(world) == (1, ())


@pytest.mark.parametrize(
    ("found", "says"),
    [
        ({}, "its log object is not in the bucket"),
        ({UUID(int=9): SegmentObjects(7, OWN_KINDS)}, "7 bytes instead of 10 (compressed or"),
        ({UUID(int=9): SegmentObjects(10, frozenset({"index"}))}, "object is not in the bucket"),
    ],
    ids=["another prefix or layout", "compressed or encrypted", "without its indexes"],
)
async def test_what_readiness_could_never_prove_is_found_before_the_boundary(
    world: World, found: dict[UUID, SegmentObjects], says: str
) -> None:
    world.store.listing = found
    (bad,) = (await compared(world))[1]
    assert bad.startswith("partition 0, 00000000000000000000-")
    assert says in bad


async def test_a_segment_that_retention_takes_meanwhile_is_no_fault(world: World) -> None:
    before = tuple(world.store.found)
    world.store.listing = {}
    world.store.found = [replace(s, state=SegmentState.DELETE_SEGMENT_STARTED) for s in before]
    found = await _remote_objects(world.services, layout(world), before, lambda: None)
    assert (found.segments, found.bad) == (1, ())


async def test_copies_that_are_under_way_are_not_compared(world: World) -> None:
    under_way: list[RemoteSegment] = [
        replace(s, state=SegmentState.COPY_SEGMENT_STARTED) for s in world.store.found
    ]
    world.store.found, world.store.listing = under_way, {}
    assert await compared(world) == (0, ())


async def test_transactional_ids_are_those_whose_producers_the_leaders_remember(
    world: World,
) -> None:
    world.kafka.active = [ActiveProducer(7, 0, 3, 1_000, -1, -1)]
    world.kafka.transactions = [
        CoordinatorTransaction(name, producer_id, 0, "Empty", 0, 60_000, frozenset())
        for name, producer_id in (("pay", 7), ("elsewhere", 8))
    ]
    assert await _transactional_ids(world.services, layout(world), lambda: None) == ("pay",)


async def test_a_gateway_that_renews_while_it_is_watched_is_alive(world: World) -> None:
    read = world.plane.list_gateways

    async def renewing() -> list:  # type: ignore[type-arg]
        for known in await read():
            await world.plane.renew_lease(known.gateway_id, known.incarnation)
        return await read()

    world.plane.register(gateway(1))
    world.plane.list_gateways = renewing  # type: ignore[method-assign]
    (alive,) = world.services.leases.health(await world.services.leases.watched())
    assert alive.silent_ms <= alive.lease_ms


async def test_a_gateway_that_does_not_renew_is_found_out_by_a_process_that_just_started(
    world: World,
) -> None:
    world.plane.register(gateway(1))
    (silent,) = world.services.leases.health(await world.services.leases.watched())
    assert silent.silent_ms > silent.lease_ms


async def test_fenced_and_retired_gateways_are_not_waited_for(world: World) -> None:
    world.plane.register(gateway(1, status="fenced"), gateway(2, status="retired"))
    assert len(await world.services.leases.watched()) == 2


async def test_a_topic_of_which_not_everything_can_be_seen_yet_is_looked_at_again(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A broker that has just started cannot list share groups: that refused a user's request."""
    seen = CheckResult("topic_exists", Verdict.PASSED, "it exists")
    unseen = CheckResult("no_share_group", Verdict.UNKNOWN, "could not be listed", "try again")
    refused = CheckResult("cleanup_policy", Verdict.REFUSED, "it is compacted", "delete")
    checks = [(seen, unseen), (seen, unseen, refused)]

    async def judged(*_: object) -> PreflightReport:
        return PreflightReport("orders", TOPIC_ID.hex, 1, checks.pop(0))

    monkeypatch.setattr("activities.validate.run_preflight", judged)
    step = TopicStep(TopicRef("orders", TOPIC_ID.hex, 1), MigrationOptions())
    waits = await failure_of(validate_topic(world.services, step))
    assert (waits.type, waits.non_retryable) == (failures.WAITING, False)
    assert "could not be listed (try again)" in waits.message
    assert (await failure_of(validate_topic(world.services, step))).non_retryable
