"""Switching tiered storage of a topic: looks, sets configs, proves, and cleans up.

Each may run again at any time. Configs are compared first and written by topic name, so the id is
asked for right before; what is deleted is only of a topic that every broker says is off.
"""

from __future__ import annotations

from collections.abc import Mapping
from uuid import UUID

import structlog
from temporalio.exceptions import ApplicationError

from activities.attempt import failure, heartbeat, refuse_ended_run, typed_failures, waiting
from activities.configs import looks, own_configs, same_topic
from tideline.domain import failures
from tideline.domain.config_changes import REMOTE_STORAGE
from tideline.domain.ids import TopicIdPartition
from tideline.domain.messages import PartitionRef, TopicRef
from tideline.domain.tiered_storage import HELD, local_retention
from tideline.domain.tiered_storage_change import (
    ConfigsToSet,
    DeletionLook,
    Proof,
    Remaining,
    Review,
    ReviewRequest,
)
from tideline.domain.topic_configs import differences
from tideline.kafka.admin import Deletion, NotDeleted
from tideline.kafka.observer import PartitionLayout
from tideline.migration import tiered_storage
from tideline.migration.connections import WorkerServices
from tideline.migration.prefix import claimed_prefix, unreadable_start
from tideline.migration.side_by_side import side_by_side

log = structlog.get_logger()


async def review_tiered_storage(services: WorkerServices, request: ReviewRequest) -> Review:
    """Fails as Refused with Kafka's words, or with what to do instead."""
    with typed_failures():
        await same_topic(services, request.ref)
        return await tiered_storage.review(services, request.ref, request.given)


async def set_tiered_storage(services: WorkerServices, wanted: ConfigsToSet) -> None:
    """Hold ``wanted.configs``, and return when every broker shows them.

    Fails as Refused, in Kafka's words, before anything is sent; as Waiting when brokers do not
    follow.
    """
    ref = wanted.ref
    with typed_failures():
        async for shown in looks(services, ref):
            changes = differences(wanted.configs, shown.own)
            if not changes:
                _forget_proofs(services, ref)
                return
            await tiered_storage.refuse_configs(services, ref.topic, wanted.configs)
            if _lets_go(wanted.configs, shown.own):
                # Also when it was proven a moment ago: a worker may have been away since, and
                # somebody may have turned tiered storage off and on under the hold.
                if not shown.tiered:
                    raise _turned_off(ref)
                await _prove(services, ref)
            await same_topic(services, ref)
            await refuse_ended_run(services)
            await services.admin.alter_configs(ref.topic, changes)
            log.info("tiered_storage_configs", topic=ref.topic, written=wanted.configs)
    raise waiting(f"not every broker shows the configs of {ref.topic!r} that were written yet")


def _lets_go(wanted: Mapping[str, str | None], own: Mapping[str, str | None]) -> bool:
    """Whether local retention was held, and would not be, of a topic that stays tiered."""
    held, stays = not differences(HELD, own), {**own, **wanted}
    return held and REMOTE_STORAGE not in wanted and bool(differences(HELD, stays))


def _forget_proofs(services: WorkerServices, ref: TopicRef) -> None:
    """What was proven before counts no more: segments may have been deleted since."""
    for number in range(ref.partitions):
        services.proofs.forget(TopicIdPartition(UUID(ref.topic_id), number))


async def prove_tiered_again(services: WorkerServices, ref: TopicRef) -> Proof:
    """Everything that Kafka takes for tiered is in remote storage, or has expired.

    What has expired of it leaves the log, too (see :func:`unreadable_start`). Fails as Waiting with
    what is not; as Refused when tiered storage was turned off meanwhile. The
    configs are looked at after the proof, too: it holds only if local retention was held.
    """
    with typed_failures():
        if (changed := await _changed_by_hand(services, ref)) is not None:
            return changed
        await _prove(services, ref)
        return await _changed_by_hand(services, ref) or Proof()


async def _prove(services: WorkerServices, ref: TopicRef) -> None:
    """Fails as Waiting with what is not proven."""
    topic = await services.observer.topic(ref.topic, topic_id=UUID(ref.topic_id))
    assert topic is not None
    layouts = dict(sorted(topic.partitions.items()))

    async def unproven(number: int) -> str:
        partition = PartitionRef(ref.topic, ref.topic_id, number)
        await _begin_at_readable(services, partition, layouts[number])
        found = await claimed_prefix(services, partition, layouts[number])
        heartbeat()
        why = found.problem()
        return f"partition {number}: {why}" if why else ""

    if reasons := [why for why in await side_by_side(unproven, layouts) if why]:
        more = f" (and {len(reasons) - 1} partitions more)" if reasons[1:] else ""
        raise waiting(
            f"{reasons[0]}{more}. Kafka does not upload these offsets again: local retention "
            "is held at the total until they have expired"
        )


async def _begin_at_readable(
    services: WorkerServices, ref: PartitionRef, layout: PartitionLayout
) -> None:
    """Let the log begin where it is readable, as what was never uploaded expires."""
    first = await unreadable_start(services, ref, layout)
    if first is None:
        return
    deletion = Deletion(ref.topic, ref.log.topic_id, ref.partition, first)
    (done,) = (await services.deletion.delete([deletion])).values()
    if isinstance(done, NotDeleted):
        raise waiting(f"{deletion.name}: nothing below {first} is anywhere, but {done.reason}")
    log.info("log_start_raised", partition=str(deletion.name), log_start=done)


def _turned_off(ref: TopicRef) -> ApplicationError:
    why = f"tiered storage of {ref.topic!r} was turned off by hand meanwhile"
    return failure(failures.REFUSED, why)


async def _changed_by_hand(services: WorkerServices, ref: TopicRef) -> Proof | None:
    shown = await own_configs(services, ref)
    if shown is None:
        raise waiting(f"not every broker shows the same configs of {ref.topic!r}")
    if not shown.tiered:
        raise _turned_off(ref)
    if differences(HELD, shown.own):
        return Proof(local_retention(shown.own))
    return None


async def finish_remote_deletion(services: WorkerServices, look: DeletionLook) -> Remaining:
    """What is left in remote storage, after collecting it if ``look`` says so.

    Fails as Refused when a broker says that tiered storage is on.
    """
    ref = look.ref
    with typed_failures():
        await same_topic(services, ref)
        if not await tiered_storage.turned_off(services, ref):
            raise failure(failures.REFUSED, f"tiered storage of {ref.topic!r} is on again")
        left = await tiered_storage.remaining(services, ref)
        if not look.collect or not left.objects:
            return left
        heartbeat()
        collected = await tiered_storage.collect(services, ref)
        log.warning("remote_leftovers_collected", topic=ref.topic, objects=collected)
        after = await tiered_storage.remaining(services, ref)
        return Remaining(after.segments, after.objects, collected)
