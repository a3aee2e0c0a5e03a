"""Each check of the preflight has a name, a verdict and a remedy."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from tideline.domain.broker_offers import Offer
from tideline.domain.estimate import TopicScale
from tideline.domain.preflight import (
    MOST_PARTITIONS,
    GatewayHealth,
    GroupMember,
    PartitionHealth,
    PreflightObservation,
    RemoteObjects,
    TopicAcls,
    Verdict,
    judge,
)

PARTITION = PartitionHealth(0, 1, (1, 2, 3), (1, 2, 3), log_start=0, log_end=10)
GATEWAY = GatewayHealth(1, "active", "0.1.0", silent_ms=0, lease_ms=3_000, address="h:1")
GOOD = PreflightObservation(
    topic="orders",
    topic_id="00000000000000000000000000000001",
    configs={"remote.storage.enable": "true", "min.insync.replicas": "2"},
    partitions=(PARTITION,),
    brokers=(1, 2, 3),
    synchronous_commit="on",
    gateways=(GATEWAY,),
    attested="attested by ann at 2026-01-01 00:00 UTC: listeners are firewalled",
    tideline_version="0.1.0",
    metadata_version=29,
)


def test_a_topic_larger_than_one_workflow_can_carry_is_refused_before_anything_is_tracked() -> None:
    def of(count: int) -> tuple[PartitionHealth, ...]:
        return tuple(replace(PARTITION, partition=n) for n in range(count))

    assert verdict("partition_count", partitions=of(MOST_PARTITIONS)) is Verdict.PASSED
    large = of(MOST_PARTITIONS + 1)
    assert verdict("partition_count", partitions=large) is Verdict.REFUSED
    assert verdict("partition_count", partitions=large, already="active") is Verdict.WARNING


def verdict(name: str, **changes: Any) -> Verdict:
    report = judge(replace(GOOD, **changes))
    return next(c.verdict for c in report.checks if c.name == name)


def test_a_healthy_tiered_topic_is_accepted() -> None:
    report = judge(GOOD)
    assert report.accepted, report.refusal()
    assert {c.verdict for c in report.checks} == {Verdict.PASSED}


def test_of_an_unknown_topic_only_that_is_said() -> None:
    report = judge(replace(GOOD, topic_id=None))
    assert [c.name for c in report.checks] == ["topic_exists"]
    assert not report.accepted
    assert "'orders' does not exist" in report.refusal()


BREAKS = [
    ("not_internal", {"topic": "__consumer_offsets"}),
    ("kafka_release", {"metadata_version": 21}),
    ("cleanup_policy", {"configs": {"cleanup.policy": "compact"}}),
    ("cleanup_policy", {"configs": {"cleanup.policy": "compact,delete"}}),
    ("tiered_storage", {"configs": {}}),
    ("remote_copy", {"configs": {"remote.log.copy.disable": "true"}}),
    ("compression_type", {"configs": {"compression.type": "zstd"}}),
    ("replicas_in_sync", {"partitions": (replace(PARTITION, in_sync=(1, 2)),)}),
    ("replicas_in_sync", {"partitions": (replace(PARTITION, leader=-1),)}),
    ("no_reassignment", {"partitions": (replace(PARTITION, reassigning=True),)}),
    ("no_share_group", {"share_groups": ("sg",)}),
    ("tiered_storage_healthy", {"tiering_enabled_on_brokers": False}),
    ("tiered_storage_healthy", {"remote_metadata_error": "timed out"}),
    ("tiered_storage_healthy", {"bucket_error": "403"}),
    ("tiered_storage_healthy", {"stuck_copies": 1_000}),
    ("remote_objects_recognised", {"remote_objects": RemoteObjects(9, ("no log object",))}),
    ("tiered_offsets_proven", {"claimed_not_there": ("partition 0: offsets up to 99",)}),
    ("acls", {"acls": TopicAcls(True, ("ALLOW READ to User:a from 10.0.0.1",))}),
    ("postgres_synchronous_commit", {"synchronous_commit": "off"}),
    ("gateways_alive", {"gateways": ()}),
    ("gateways_alive", {"gateways": (replace(GATEWAY, silent_ms=9_000),)}),
    ("gateways_alive", {"unaccounted": ("incarnation 7 of gateway 1 may still run",)}),
    ("gateway_versions", {"gateways": (replace(GATEWAY, version="0.0.9"),)}),
    ("closed_to_bypass", {"attested": "", "cluster_id": "c1"}),
]
"""By check: what it refuses."""


@pytest.mark.parametrize(("check", "changes"), BREAKS)
def test_what_breaks_a_rule_is_refused_with_a_remedy(check: str, changes: dict[str, Any]) -> None:
    report = judge(replace(GOOD, **changes))
    found = next(c for c in report.checks if c.name == check)
    assert found.verdict is Verdict.REFUSED
    assert found.remedy
    assert not report.accepted
    assert found.remedy in report.refusal()


HIDDEN = "hidden"
SEEN: dict[str, Any] = {
    "share_groups": (HIDDEN, HIDDEN),
    "remote_metadata_error": f"broker {HIDDEN}: timed out",
    "bucket_error": f"http://user:{HIDDEN}@store",
    "stuck_copies": 1_000,
    "remote_objects": RemoteObjects(9, (f"orders-0 {HIDDEN}",)),
    "claimed_not_there": (HIDDEN,),
    "transactional_ids": (HIDDEN,),
    "acls": TopicAcls(True, (f"ALLOW READ to User:{HIDDEN} from 10.0.0.1",) * 2),
    "gateways": (replace(GATEWAY, silent_ms=9_000, address=HIDDEN, version=HIDDEN),),
    "unaccounted": (f"incarnation of gateway 1 at {HIDDEN} may still run",),
    "outside_members": (GroupMember(HIDDEN, HIDDEN, HIDDEN),),
    "synchronous_commit": "off",
}
"""What only an operator may list, all of it wrong."""


def test_over_the_wire_what_others_are_called_and_where_they_are_is_counted_and_not_told() -> None:
    told = judge(replace(GOOD, **SEEN)).told()
    assert HIDDEN not in told
    assert "10.0.0.1" not in told
    assert "acls: 2 ACLs of the topic name a host (" in told
    assert "no_share_group: 2 share groups read the topic (" in told
    assert "no sign of life from 1 gateways; 1 replaced gateway processes" in told
    assert told.endswith(". `tideline preflight orders` lists what was found")


@pytest.mark.parametrize(("check", "changes"), BREAKS)
def test_over_the_wire_each_check_that_refuses_is_named_with_its_remedy(
    check: str, changes: dict[str, Any]
) -> None:
    """Whatever an operator may list beside it."""
    seen = {} if check in ("topic_exists", "not_internal") else SEEN
    told = judge(replace(GOOD, **{**seen, **changes})).told()
    refused = [c for c in judge(replace(GOOD, **changes)).checks if c.verdict is Verdict.REFUSED]
    assert check in {c.name for c in refused}
    for found in refused:
        assert f"{found.name}: " in told or f"{found.name} (" in told
        assert found.remedy.split(";")[0] in told
    assert HIDDEN not in told


def test_every_check_that_can_refuse_is_among_those_that_are_tried() -> None:
    """So that a new one is told over the wire only as far as it says itself."""
    only_warn = {"min_insync_replicas", "transactional_producers"}
    only_warn |= {"size_retention_race", "tiering_age", "partition_count", "topic_exists"}
    only_warn |= {"remote_copy_lag", "brokers_offer"}
    known = {c.name for c in judge(GOOD).checks}
    assert known - only_warn == {check for check, _ in BREAKS}


def test_names_that_clients_have_chosen_are_one_line_of_bounded_length() -> None:
    """They reach a terminal, a workflow's history and Postgres, which keeps no NUL."""
    wild = "\x1b[2J\0\r\n" + "x" * 30_000
    member = GroupMember(wild, wild, wild)
    report = judge(
        replace(
            GOOD, share_groups=(wild,) * 9, transactional_ids=(wild,), outside_members=(member,)
        )
    )
    for found in report.checks:
        assert found.found.isprintable(), found.name
        assert len(found.found) < 2_000, found.name


def test_where_kafka_has_mended_it_nobody_is_warned_of_the_race_of_size_retention() -> None:
    limited = {"configs": {"retention.bytes": "1000"}}
    assert verdict("size_retention_race", **limited, metadata_version=30) is Verdict.WARNING
    assert verdict("size_retention_race", **limited, metadata_version=31) is Verdict.PASSED
    assert verdict("size_retention_race", **limited, metadata_version=None) is Verdict.WARNING


def test_a_plugin_or_login_that_is_not_supported_is_a_warning_with_its_remedy() -> None:
    doubtful = (Offer("fine"), Offer("GSSAPI", "another login"))
    assert verdict("brokers_offer", offers=doubtful) is Verdict.WARNING
    assert verdict("brokers_offer", offers=doubtful[:1]) is Verdict.PASSED
    assert verdict("brokers_offer", offers=None) is Verdict.WARNING


def test_brokers_that_do_not_say_their_release_are_unknown_and_not_refused() -> None:
    assert verdict("kafka_release", metadata_version=None) is Verdict.UNKNOWN


def test_acls_of_users_hold_at_gateways_and_refuse_no_migration() -> None:
    for acls in (TopicAcls(True, ("ALLOW READ to User:a from *",)), TopicAcls(authorizer=True)):
        assert verdict("acls", acls=acls) is Verdict.PASSED


def test_replaced_processes_are_named_beside_a_gateway_that_is_silent() -> None:
    observed = replace(
        GOOD,
        gateways=(replace(GATEWAY, silent_ms=9_000),),
        unaccounted=("incarnation 7: `tideline gateway account 1 7 --gone`",),
    )
    found = next(c for c in judge(observed).checks if c.name == "gateways_alive")
    assert "no sign of life" in found.found
    assert "tideline gateway account 1 7 --gone" in found.found
    assert "tideline gateway retire" in found.remedy


@pytest.mark.parametrize(
    ("check", "changes"),
    [
        ("size_retention_race", {"configs": {"retention.bytes": "1000"}}),
        ("closed_to_bypass", {"outside_members": (GroupMember("g", "c", "/10.0.0.1"),)}),
        ("gateways_alive", {"gateways": (GATEWAY, replace(GATEWAY, status="fenced"))}),
        ("tiered_storage_healthy", {"stuck_copies": 1}),
        ("min_insync_replicas", {"configs": {"min.insync.replicas": "1"}}),
        ("transactional_producers", {"transactional_ids": ("pay-1",)}),
        ("transactional_producers", {"transactional_ids": None}),
        ("remote_copy_lag", {"configs": {"remote.copy.lag.ms": "3600000"}}),
        ("remote_copy_lag", {"configs": {"remote.copy.lag.bytes": "-1"}}),
        ("tiering_age", {"configs": {"local.retention.ms": "-1"}}),
        ("tiering_age", {"configs": {"local.retention.ms": "86400001"}}),
        ("tiering_age", {"configs": {"retention.ms": "-1"}, "tiering_default_age_ms": -1}),
    ],
)
def test_what_an_operator_should_know_is_a_warning(check: str, changes: dict[str, Any]) -> None:
    assert verdict(check, **changes) is Verdict.WARNING


@pytest.mark.parametrize(
    "configs", [{}, {"local.retention.ms": "-2", "retention.ms": "-1"}, {"retention.ms": "60000"}]
)
def test_a_topic_that_does_not_say_how_old_batches_get_has_the_default_age(
    configs: dict[str, str],
) -> None:
    assert verdict("tiering_age", configs=configs) is Verdict.PASSED


@pytest.mark.parametrize("configs", [{}, {"remote.copy.lag.ms": "0", "remote.copy.lag.bytes": "0"}])
def test_segments_that_are_not_held_back_are_no_warning(configs: dict[str, str]) -> None:
    assert verdict("remote_copy_lag", configs=configs) is Verdict.PASSED


def test_what_cannot_be_observed_is_not_accepted() -> None:
    assert not judge(replace(GOOD, synchronous_commit=None)).accepted
    assert not judge(replace(GOOD, gateways=None)).accepted
    assert not judge(replace(GOOD, attested=None)).accepted
    assert not judge(replace(GOOD, share_groups=None)).accepted
    assert not judge(replace(GOOD, remote_objects=None)).accepted
    assert not judge(replace(GOOD, claimed_not_there=None)).accepted
    assert not judge(replace(GOOD, acls=None)).accepted


def test_what_cannot_be_observed_leaves_it_undecided_unless_something_refuses() -> None:
    unseen = replace(GOOD, share_groups=None)
    assert judge(unseen).undecided
    assert not judge(GOOD).undecided
    assert not judge(replace(unseen, share_groups=("sg",))).undecided
    assert not judge(replace(unseen, synchronous_commit="off")).undecided


def test_a_minimum_above_the_number_of_replicas_refuses_no_write_and_no_migration() -> None:
    configs = {"min.insync.replicas": "4"}
    single = (replace(PARTITION, replicas=(1,), in_sync=(1,)),)
    assert verdict("min_insync_replicas", configs=configs) is Verdict.PASSED
    assert verdict("min_insync_replicas", configs=configs, partitions=single) is Verdict.WARNING


def test_an_empty_topic_needs_no_tiered_storage() -> None:
    empty = replace(PARTITION, log_start=5, log_end=5)
    changes: dict[str, Any] = {"configs": {}, "partitions": (empty,), "bucket_error": "away"}
    changes["remote_objects"] = None
    assert verdict("remote_objects_recognised", **changes) is Verdict.PASSED
    assert verdict("tiered_storage", **changes) is Verdict.PASSED
    assert verdict("tiered_storage_healthy", **changes) is Verdict.PASSED


def test_a_migration_that_holds_the_configs_passes_its_own_checks_again() -> None:
    frozen = {"remote.storage.enable": "true", "remote.log.copy.disable": "true"}
    assert verdict("remote_copy", configs=frozen, already="active") is Verdict.PASSED


def test_a_migration_that_has_begun_waits_for_its_roll_instead_of_being_refused() -> None:
    """With a B0 set there is no way back, and the proof is asked for before the roll."""
    claimed = ("partition 0: offsets up to 99",)
    check = "tiered_offsets_proven"
    assert verdict(check, claimed_not_there=claimed, already="active") is Verdict.WARNING


def test_what_could_not_be_seen_is_told_only_where_nothing_is_refused() -> None:
    report = judge(replace(GOOD, gateways=None, synchronous_commit=None))
    assert not report.refused
    assert "gateways_alive" in report.refusal()
    report = judge(replace(GOOD, gateways=None, share_groups=("sg",)))
    assert report.refused
    assert report.refusal().startswith("no_share_group: share groups on the topic: sg (end them")
    assert "gateways_alive" not in report.refusal()


def test_one_of_kafkas_own_names_is_called_internal_even_before_the_topic_exists() -> None:
    unborn = PreflightObservation(topic="__consumer_offsets", topic_id=None)
    report = judge(unborn)
    assert report.refused
    assert "internal topic" in report.refusal()


def test_a_withdrawn_attestation_does_not_stop_a_migration_that_has_begun() -> None:
    assert verdict("closed_to_bypass", attested="", already="active") is Verdict.WARNING


def test_every_trigger_demands_the_attestation_and_shows_who_made_it() -> None:
    report = judge(replace(GOOD, attested="", cluster_id="c1"))
    assert not report.accepted
    assert "cluster c1" in report.refusal()
    assert "tideline cluster attest" in report.refusal()
    (found,) = (c.found for c in judge(GOOD).checks if c.name == "closed_to_bypass")
    assert "by ann" in found


def test_a_standby_that_commits_do_not_wait_for_is_a_warning() -> None:
    report = judge(replace(GOOD, standbys_not_waited_for=("dr",)))
    assert report.accepted
    (check,) = [c for c in report.checks if c.name == "postgres_synchronous_commit"]
    assert check.verdict is Verdict.WARNING
    assert "synchronous_standby_names" in check.remedy


def test_what_an_estimate_goes_by_is_observed_with_the_checks() -> None:
    wide = replace(PARTITION, partition=1, replicas=(1, 2, 3, 4))
    retired = replace(GATEWAY, gateway_id=2, status="retired")
    report = judge(
        replace(
            GOOD,
            partitions=(PARTITION, wide),
            gateways=(GATEWAY, retired),
            remote_objects=RemoteObjects(7),
        )
    )
    assert report.scale == TopicScale(2, replicas=4, brokers=3, gateways=1, segments=7)
    empty = replace(PARTITION, log_end=0)
    of_empty = judge(replace(GOOD, partitions=(empty,))).scale
    assert of_empty is not None
    assert not of_empty.tiered
    assert judge(replace(GOOD, topic_id=None)).scale is None
    assert judge(replace(GOOD, already="active")).scale is None
