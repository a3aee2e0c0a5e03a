"""No migration begins before an operator attests that the cluster's brokers are closed."""

from __future__ import annotations

from uuid import UUID, uuid4

import pytest

from tests.contract.scenes import PostgresScene, Scene
from tideline.control_plane.errors import ClusterNotAttested, InvalidInput, UnknownTopic
from tideline.control_plane.model import TopicStatus
from tideline.domain.config_changes import shown_limits


async def begin(scene: Scene, name: str, topic_id: UUID, cluster: str) -> None:
    await scene.plane.begin_migration(name, topic_id, 2, "CreateTime", 1_000, cluster)


def a_cluster() -> str:
    return f"cluster-{uuid4()}"


async def test_no_migration_begins_without_an_attestation_for_its_cluster(scene: Scene) -> None:
    cluster, name = a_cluster(), f"topic-{uuid4()}"
    await scene.plane.attest_cluster(a_cluster(), "ann", "another cluster's firewall")
    with pytest.raises(ClusterNotAttested, match="tideline cluster attest"):
        await begin(scene, name, uuid4(), cluster)
    with pytest.raises(ClusterNotAttested):
        await begin(scene, name, uuid4(), "")
    assert await scene.plane.tracked_topic(name) is None
    await scene.plane.attest_cluster(cluster, "ann", "listeners are firewalled")
    await begin(scene, name, uuid4(), cluster)
    topic = await scene.plane.tracked_topic(name)
    assert topic is not None
    assert topic.status is TopicStatus.TRACKING


async def test_who_attested_and_who_withdrew_it_stays_on_record(scene: Scene) -> None:
    cluster = a_cluster()
    await scene.plane.attest_cluster(cluster, "ann", "listeners are firewalled")
    await scene.plane.attest_cluster(cluster, "bob", "the first word counts")
    await scene.plane.withdraw_attestation(cluster, "eve", "a listener was opened")
    await scene.plane.attest_cluster(cluster, "bob", "closed again")
    newest, oldest = await scene.plane.attestations(cluster)
    assert (newest.attested_by, newest.reason, newest.in_force) == ("bob", "closed again", True)
    assert (oldest.attested_by, oldest.reason) == ("ann", "listeners are firewalled")
    assert (oldest.withdrawn_by, oldest.withdrawn_reason) == ("eve", "a listener was opened")
    assert oldest.withdrawn_at is not None
    assert oldest.attested_at <= oldest.withdrawn_at <= newest.attested_at
    assert newest in await scene.plane.attestations()


async def test_a_withdrawal_stops_the_next_migration_not_the_one_that_has_begun(
    scene: Scene,
) -> None:
    cluster, name, topic_id = a_cluster(), f"topic-{uuid4()}", uuid4()
    await scene.plane.attest_cluster(cluster, "ann", "listeners are firewalled")
    await begin(scene, name, topic_id, cluster)
    await scene.plane.withdraw_attestation(cluster, "eve", "a listener was opened")
    await begin(scene, name, topic_id, cluster)
    await scene.plane.abort_migration(topic_id)
    await scene.plane.stop_tracking(name)
    with pytest.raises(ClusterNotAttested):
        await begin(scene, name, topic_id, cluster)


async def test_nobody_attests_or_withdraws_without_a_name_and_a_reason(scene: Scene) -> None:
    cluster = a_cluster()
    for by, reason in (("", "why"), ("ann", "")):
        with pytest.raises(InvalidInput):
            await scene.plane.attest_cluster(cluster, by, reason)
        with pytest.raises(InvalidInput):
            await scene.plane.withdraw_attestation(cluster, by, reason)
    with pytest.raises(InvalidInput):
        await scene.plane.attest_cluster("", "ann", "why")
    with pytest.raises(ClusterNotAttested):
        await scene.plane.withdraw_attestation(cluster, "ann", "there is none")
    assert await scene.plane.attestations(cluster) == []


async def test_the_tables_refuse_a_withdrawal_without_a_reason(
    postgres_scene: PostgresScene,
) -> None:
    cluster = a_cluster()
    await postgres_scene.plane.attest_cluster(cluster, "ann", "listeners are firewalled")
    with pytest.raises(Exception, match="withdrawn_by_somebody_for_a_reason"):
        postgres_scene.sql(
            "UPDATE cluster_attestations SET withdrawn_at = now() WHERE cluster_id = %s", cluster
        )


async def test_limits_that_are_not_named_stay(scene: Scene) -> None:
    name, (log, *_) = await scene.diskless_topic()
    await scene.plane.update_topic_limits(log.topic_id, max_message_bytes=2_000)
    await scene.plane.update_topic_limits(
        log.topic_id, timestamp_type="LogAppendTime", timestamp_after_max_ms=7
    )
    topic = await scene.plane.tracked_topic(name)
    assert topic is not None
    assert (topic.limits.max_message_bytes, topic.limits.timestamp_type) == (2_000, "LogAppendTime")
    assert topic.limits.timestamp_after_max_ms == 7
    assert topic.limits.timestamp_before_max_ms == 2**63 - 1
    with pytest.raises(UnknownTopic):
        await scene.plane.update_topic_limits(uuid4(), max_message_bytes=1)


@pytest.mark.parametrize(
    ("key", "seen", "default"),
    [
        ("max.message.bytes", "1048588", "2000"),
        ("message.timestamp.type", "CreateTime", "LogAppendTime"),
        ("message.timestamp.before.max.ms", str(2**63 - 1), "5000"),
        ("message.timestamp.after.max.ms", "3600000", "70"),
    ],
)
async def test_a_limit_follows_its_default_while_it_is_what_was_seen(
    scene: Scene, key: str, seen: str, default: str
) -> None:
    name, (log, *_) = await scene.diskless_topic()

    async def enforced() -> dict[str, str]:
        topic = await scene.plane.tracked_topic(name)
        assert topic is not None
        return shown_limits(topic.limits)

    before = await enforced()
    assert before[key] == seen
    assert not await scene.plane.follow_default_limit(log.topic_id, key, "1", default)
    assert await enforced() == before
    assert await scene.plane.follow_default_limit(log.topic_id, key, seen, default)
    assert await enforced() == before | {key: default}
    assert not await scene.plane.follow_default_limit(log.topic_id, key, seen, default)
    assert not await scene.plane.follow_default_limit(uuid4(), key, seen, default)
    await scene.plane.delete_topic(log.topic_id)
    assert not await scene.plane.follow_default_limit(log.topic_id, key, default, seen)


async def test_a_limit_that_the_user_has_set_since_follows_no_default(scene: Scene) -> None:
    """To the value that was enforced: the limit itself does not say that it was set."""
    _, (log, *_) = await scene.diskless_topic()
    about = (log.topic_id, "max.message.bytes")
    await scene.plane.override_config(*about, "78", None)
    await scene.plane.update_user_config(*about, "1048588")
    assert not await scene.plane.follow_default_limit(*about, "1048588", "2000")
    await scene.plane.update_user_config(*about, None)
    assert await scene.plane.follow_default_limit(*about, "1048588", "2000")
