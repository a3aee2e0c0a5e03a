"""Who holds a gateway id, what a closing waits for, and what may be told while B0 is unset."""

from __future__ import annotations

import asyncio
from functools import partial
from typing import Any
from uuid import uuid4

import psycopg
import pytest
from psycopg.rows import tuple_row

from tests.contract.scenes import GatewayProcess, PostgresScene, Scene
from tests.support.waiting import WITHIN_S, bounded, eventually
from tideline.control_plane.errors import (
    GatewayFenced,
    GatewayIdHeld,
    RoundOver,
    TrackingIncomplete,
)
from tideline.control_plane.model import TrackingKind
from tideline.domain.ack_gate import Standing
from tideline.domain.ids import TopicIdPartition
from tideline.domain.quiescence import LeaseReading


async def register(
    scene: Scene, process: GatewayProcess, watched: LeaseReading | None = None
) -> None:
    await scene.plane.register_gateway(
        process.gateway_id, process.gateway_id, process.incarnation, "127.0.0.1:9", "1", 3_000,
        watched,
    )  # fmt: skip


async def standing(scene: Scene, process: GatewayProcess, log: TopicIdPartition) -> Standing:
    found = await scene.plane.confirm_partitions(process.gateway_id, process.incarnation, [log])
    return found[log]


async def test_an_id_that_is_held_is_not_taken_over_unwatched(scene: Scene) -> None:
    """Schedule 24."""
    holder = await scene.gateway()
    with pytest.raises(GatewayIdHeld, match="renewal 0"):
        await register(scene, GatewayProcess(holder.gateway_id))
    await scene.plane.renew_lease(holder.gateway_id, holder.incarnation)


async def test_a_holder_that_renews_while_it_is_watched_keeps_its_id(scene: Scene) -> None:
    holder = await scene.gateway()
    seen = await scene.reading(holder.gateway_id)
    await scene.plane.renew_lease(holder.gateway_id, holder.incarnation)
    with pytest.raises(GatewayIdHeld, match="renewal 1"):
        await register(scene, GatewayProcess(holder.gateway_id), seen)
    await scene.plane.renew_lease(holder.gateway_id, holder.incarnation)


async def test_a_holder_that_stood_still_is_over_once_it_is_replaced(scene: Scene) -> None:
    holder = await scene.gateway()
    successor = GatewayProcess(holder.gateway_id)
    await register(scene, successor, await scene.reading(holder.gateway_id))
    with pytest.raises(GatewayFenced):
        await scene.plane.renew_lease(holder.gateway_id, holder.incarnation)
    await register(scene, successor)


async def test_a_gateway_that_renewed_after_it_was_looked_at_is_not_fenced(scene: Scene) -> None:
    """Schedule 25: its lease is valid again, and it may be telling producers right now."""
    gateway = await scene.gateway()
    seen = await scene.reading(gateway.gateway_id)
    assert seen is not None
    await scene.plane.renew_lease(gateway.gateway_id, gateway.incarnation)
    assert not await scene.plane.fence_gateway(
        gateway.gateway_id, gateway.incarnation, seen.renewals, "lapsed"
    )
    await scene.plane.renew_lease(gateway.gateway_id, gateway.incarnation)
    assert await scene.fence(gateway)


async def test_who_stopped_cleanly_is_over_and_its_id_is_free_at_once(scene: Scene) -> None:
    gateway = await scene.gateway()
    for _ in range(2):
        await scene.plane.release_gateway(gateway.gateway_id, gateway.incarnation)
    with pytest.raises(GatewayFenced, match=r"released \(stopped\)"):
        await scene.plane.renew_lease(gateway.gateway_id, gateway.incarnation)
    with pytest.raises(GatewayFenced, match="for ever"):
        await register(scene, gateway)
    successor = GatewayProcess(gateway.gateway_id)
    await register(scene, successor)
    await scene.plane.release_gateway(gateway.gateway_id, gateway.incarnation)
    await scene.plane.renew_lease(successor.gateway_id, successor.incarnation)


async def test_who_stopped_holds_back_a_new_topic_and_no_quiesce(scene: Scene) -> None:
    """It may start from its snapshot, without Postgres: there it finds what it acknowledged."""
    stays, stops = await scene.gateway(), await scene.gateway()
    _, (log,) = await scene.migrating_topic([stays, stops])
    await scene.plane.release_gateway(stops.gateway_id, stops.incarnation)
    generation = await scene.quiesce(log, [stays])
    await scene.persist(log, 10, generation)
    later, _ = await scene.tracking_topic()
    await scene.plane.acknowledge_tracking(stays.gateway_id, stays.incarnation, later)
    with pytest.raises(TrackingIncomplete, match="released"):
        await scene.plane.activate_topic(later)


async def test_before_the_closing_whoever_is_active_may_tell(scene: Scene) -> None:
    gateway = await scene.gateway()
    _, (log,) = await scene.migrating_topic([gateway])
    generation = await scene.plane.next_generation(log)
    assert await standing(scene, gateway, log) == Standing(
        generation, boundary=-1, active=True, closed=False, awaited=False
    )
    assert (await standing(scene, gateway, log)).confirms
    assert not (await standing(scene, GatewayProcess(99), log)).confirms
    await scene.fence(gateway)
    assert not (await standing(scene, gateway, log)).confirms


async def test_a_witness_of_the_closing_may_tell_until_it_acknowledges(scene: Scene) -> None:
    witness, late = await scene.gateway(), GatewayProcess(77)
    _, (log,) = await scene.migrating_topic([witness])
    generation = await scene.plane.next_generation(log)
    await scene.plane.close_generation(log, generation, 60_000)
    await register(scene, late)
    assert (await standing(scene, witness, log)).confirms
    assert not (await standing(scene, late, log)).confirms
    await scene.plane.acknowledge_quiesce(
        witness.gateway_id, witness.incarnation, log, generation, -1, 0
    )
    assert not (await standing(scene, witness, log)).confirms


async def test_a_closing_that_is_repeated_makes_no_witness(scene: Scene) -> None:
    """The barrier may have been passed before it, without whoever registered in between."""
    early, late = await scene.gateway(), GatewayProcess(77)
    _, (log,) = await scene.migrating_topic([early])
    generation = await scene.quiesce(log, [early])
    await register(scene, late)
    await scene.plane.close_generation(log, generation, 60_000)
    assert not (await standing(scene, late, log)).confirms


async def test_a_closing_that_became_void_lets_everybody_tell_again(scene: Scene) -> None:
    """Schedule 13."""
    gateway = await scene.gateway()
    _, (log,) = await scene.migrating_topic([gateway])
    await scene.quiesce(log, [gateway])
    scene.expire_quiesce(log)
    assert not (await standing(scene, gateway, log)).confirms
    assert await scene.plane.void_expired_quiesce(log)
    assert (await standing(scene, gateway, log)).confirms
    await scene.plane.close_generation(log, await scene.plane.next_generation(log), 60_000)
    assert (await standing(scene, gateway, log)).awaited


async def test_from_the_boundary_on_its_value_is_answered(scene: Scene) -> None:
    gateway = await scene.gateway()
    log = await scene.hybrid_log(gateway, boundary=10)
    found = await standing(scene, gateway, log)
    assert (found.boundary, found.confirms) == (10, False)


async def test_nothing_is_said_of_a_partition_that_is_unknown_or_deleted(scene: Scene) -> None:
    gateway = await scene.gateway()
    _, (kept, gone) = await scene.migrating_topic([gateway], partitions=2)
    _, (deleted,) = await scene.migrating_topic([gateway])
    await scene.plane.delete_topic(deleted.topic_id)
    asked = [kept, gone, deleted, TopicIdPartition(uuid4(), 0)]
    found = await scene.plane.confirm_partitions(gateway.gateway_id, gateway.incarnation, asked)
    assert set(found) == {kept, gone}


async def begin(scene: Scene, name: str, log: TopicIdPartition, run: str | None = None) -> int:
    return await scene.plane.begin_tracking(
        name, log.topic_id, TrackingKind.MIGRATED, 1, "CreateTime", 1_048_588, run
    )


async def test_an_acknowledgement_counts_for_its_round_only(scene: Scene) -> None:
    """Schedule 27: sent again after an abort and a new start, it says nothing of the new round."""
    gateway = await scene.gateway()
    name, (log,) = await scene.migrating_topic([gateway])
    (topic,) = await scene.plane.tracked_topics()
    await scene.plane.abort_migration(log.topic_id)
    assert await begin(scene, name, log) == topic.round + 1
    with pytest.raises(RoundOver, match="round 1"):
        await scene.plane.acknowledge_tracking(
            gateway.gateway_id, gateway.incarnation, name, topic.round
        )
    with pytest.raises(TrackingIncomplete):
        await scene.plane.activate_topic(name)
    with pytest.raises(RoundOver):
        await scene.plane.activate_topic(name, topic.round)
    await scene.plane.acknowledge_tracking(gateway.gateway_id, gateway.incarnation, name, 2)
    await scene.plane.activate_topic(name, 2)


async def test_a_run_that_was_aborted_does_not_begin_again(scene: Scene) -> None:
    """Schedule 27: an attempt that slept over the abort, or a Temporal from before it."""
    gateway = await scene.gateway()
    name, (log,) = await scene.migrating_topic([gateway])
    assert await begin(scene, name, log, "first") == 1
    assert await begin(scene, name, log, "first") == 1
    await scene.plane.abort_migration(log.topic_id)
    await scene.plane.stop_tracking(name, 1)
    with pytest.raises(RoundOver, match="first"):
        await begin(scene, name, log, "first")
    assert await scene.plane.tracked_topics() == []
    assert await begin(scene, name, log, "second") == 2
    with pytest.raises(RoundOver):
        await begin(scene, name, log, "first")


async def test_a_run_that_was_aborted_before_it_began_does_not_begin(scene: Scene) -> None:
    await scene.plane.end_tracking_run("aborted")
    with pytest.raises(RoundOver, match="aborted"):
        await begin(scene, "orders", TopicIdPartition(uuid4(), 0), "aborted")
    assert await scene.plane.tracked_topics() == []


async def test_who_lets_go_of_an_old_round_does_not_let_go_of_the_new_one(scene: Scene) -> None:
    name, (log,) = await scene.tracking_topic()
    await scene.plane.abort_migration(log.topic_id)
    await begin(scene, name, log)
    await scene.plane.abort_migration(log.topic_id)
    with pytest.raises(RoundOver, match="round 1"):
        await scene.plane.stop_tracking(name, 1)
    await scene.plane.stop_tracking(name, 2)
    assert await scene.plane.tracked_topics() == []


async def test_registering_again_moves_the_counter_that_waiters_watch(scene: Scene) -> None:
    """The process counts its lease from there; who saw the counter before must not fence it."""
    process = await scene.gateway()
    (seen,) = await scene.plane.list_gateways()
    await scene.plane.register_gateway(
        process.gateway_id, 1, process.incarnation, "127.0.0.1:9", "1", 3_000
    )
    assert not await scene.plane.fence_gateway(
        process.gateway_id, process.incarnation, seen.renewals, "it stood still"
    )


async def test_an_abort_ends_the_closing_that_an_incarnation_was_a_witness_of(
    scene: Scene,
) -> None:
    process = await scene.gateway()
    _, (log,) = await scene.migrating_topic([process])
    generation = await scene.plane.next_generation(log)
    await scene.plane.close_generation(log, generation, 10_000)
    asked = process.gateway_id, process.incarnation, [log]
    assert (await scene.plane.confirm_partitions(*asked))[log].awaited
    await scene.plane.abort_migration(log.topic_id)
    standing = (await scene.plane.confirm_partitions(*asked))[log]
    assert (standing.closed, standing.awaited) == (False, False)


async def test_an_attempt_to_begin_and_an_abort_do_not_wait_for_each_other(
    postgres_scene: PostgresScene,
) -> None:
    """The abort locks the topic and ends its runs; an attempt that is repeated locked its run
    first, and Postgres ended one of the two as a deadlock."""
    topic_id = uuid4()
    begin_and_abort = (
        "SELECT tideline.begin_tracking('t', %s, 'migrated', 1, 'CreateTime', 1000, 'run')",
        "SELECT tideline.abort_migration(%s)",
    )
    connect = partial(
        psycopg.AsyncConnection.connect,
        postgres_scene.dsn,
        autocommit=True,
        row_factory=tuple_row,
    )
    blocker, *others = [await connect() for _ in range(3)]
    try:
        async with bounded("an attempt and an abort", WITHIN_S):
            await blocker.execute(begin_and_abort[0], [topic_id])
            calls: list[asyncio.Task[Any]] = []
            async with blocker.transaction():
                await blocker.execute("SELECT FROM tideline.topics FOR UPDATE")
                for connection, call in zip(others, reversed(begin_and_abort), strict=True):
                    work = connection.execute(call, [topic_id])
                    calls.append(asyncio.ensure_future(work))
                    await eventually("the call to wait", partial(_wait, blocker, len(calls)))
            aborted, begun = await asyncio.gather(*calls, return_exceptions=True)
    finally:
        for connection in (blocker, *others):
            await connection.close()
    assert not isinstance(aborted, BaseException), aborted
    assert isinstance(begun, psycopg.Error)
    assert begun.sqlstate == "TL028"


async def _wait(connection: psycopg.AsyncConnection[Any], calls: int) -> bool:
    cursor = await connection.execute("SELECT count(DISTINCT pid) FROM pg_locks WHERE NOT granted")
    row = await cursor.fetchone()
    assert row is not None
    return int(row[0]) >= calls
