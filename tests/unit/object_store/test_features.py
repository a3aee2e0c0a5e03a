"""What a store is seen to do, and what the doctor makes of it."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.unit.object_store.odd_store import OddStore, odd_store
from tests.unit.object_store.test_get_and_put import settings
from tideline.migration.doctor import FEATURES, Verdict, features
from tideline.object_store.client import ObjectStoreRefused
from tideline.object_store.features import Features, probe_features

ALL = Features(
    conditional_puts=True,
    parts=True,
    batch_deletion=True,
    versions=False,
    direct=True,
    refusals=(),
    left=None,
)


def probed(store: OddStore) -> Features:
    with odd_store(store):
        return probe_features(settings(store.address), "wal", "orders/")


@pytest.mark.parametrize(
    ("store", "seen", "verdict", "said"),
    [
        (OddStore(), ALL, Verdict.OK, "put and got directly, and deleted together"),
        (
            OddStore(batch_deletion=False),
            replace(ALL, batch_deletion=False),
            Verdict.OK,
            "deleted one after the other",
        ),
        (
            OddStore(knows_conditions=False),
            replace(ALL, conditional_puts=False),
            Verdict.FAILED,
            "If-None-Match",
        ),
        (OddStore(parts_kept=1), replace(ALL, parts=False), Verdict.FAILED, "in parts"),
        (OddStore(versions=True), replace(ALL, versions=True), Verdict.WARNING, "keeps versions"),
    ],
    ids=["all", "deletions", "conditions", "parts", "versions"],
)
def test_what_a_store_leaves_out_is_seen_and_said_and_nothing_is_left(
    store: OddStore, seen: Features, verdict: Verdict, said: str
) -> None:
    found = probed(store)
    assert found == seen
    (told,) = features(found)
    assert (told.check, told.verdict) == (FEATURES, verdict)
    assert said in told.found
    assert store.objects == {}


def test_a_store_without_ranges_cannot_be_read() -> None:
    """Its answer is the whole object, which the client takes for none of the range."""
    store = OddStore(knows_ranges=False)
    with pytest.raises(Exception, match="bytes came"):
        probed(store)
    assert store.objects == {}


def test_what_may_not_be_tried_is_said_and_what_is_left_is_named() -> None:
    store = OddStore(refuses={"POST", "DELETE"})
    found = probed(store)
    assert (found.conditional_puts, found.batch_deletion) == (True, None)
    assert list(store.objects) == [f"wal/{found.left}"]
    refused, left = features(found)
    assert "delete 1 objects" in refused.found
    assert "could not be deleted" in left.found


def test_where_nothing_may_be_put_that_is_what_is_said() -> None:
    with pytest.raises(ObjectStoreRefused, match="403"):
        probed(OddStore(refuses={"PUT"}))


def test_a_client_that_is_left_to_boto3_is_said_to_be() -> None:
    (told,) = features(replace(ALL, direct=False))
    assert "by boto3, which costs ten times the CPU" in told.found
