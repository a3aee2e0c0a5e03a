"""A store is asked whether the end of an earlier, partial PUT takes the place of a whole object."""

from __future__ import annotations

import pytest
from pydantic import SecretStr

from tests.unit.object_store.odd_store import OddStore, odd_store
from tideline.object_store import late_put
from tideline.object_store.client import ObjectStoreRefused
from tideline.object_store.late_put import BODY_BYTES, LatePut, probe_late_put
from tideline.settings import ObjectStoreSettings


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(late_put, "SETTLES_S", 0.5)
    monkeypatch.setattr(late_put, "LOOK_EVERY_S", 0.02)


def probed(store: OddStore) -> LatePut:
    settings = ObjectStoreSettings(
        s3_endpoint=store.address,
        s3_access_key=SecretStr("access"),
        s3_secret_key=SecretStr("secret"),
        s3_bucket="diskless",
    )
    return probe_late_put(settings, "diskless", "in/")


def test_a_store_that_keeps_what_came_late_is_found_out_and_nothing_is_left() -> None:
    with odd_store(OddStore(late_wins=True)) as store:
        found = probed(store)
        assert store.objects == {}
    assert (found.won, found.left, found.deleted) == (True, 0, True)
    assert found.key.startswith("in/doctor/")


def test_a_store_that_keeps_whole_objects_alone_passes_and_nothing_is_left() -> None:
    with odd_store(OddStore(late_wins=False)) as store:
        found = probed(store)
        assert store.objects == {}
        assert store.puts == [f"diskless/{found.key}"]
    assert (found.won, found.left, found.deleted) == (False, BODY_BYTES, True)


def test_where_the_store_refuses_nothing_is_known() -> None:
    with odd_store(OddStore(late_wins=True)) as store:
        store.refuses = {"PUT"}
        with pytest.raises(ObjectStoreRefused):
            probed(store)
        assert store.objects == {}


def test_a_probe_that_may_not_be_deleted_is_named() -> None:
    with odd_store(OddStore(late_wins=False)) as store:
        store.refuses = {"POST"}
        found = probed(store)
        assert list(store.objects) == [f"diskless/{found.key}"]
    assert not found.deleted


def test_a_store_that_is_not_there_is_not_waited_for() -> None:
    gone = OddStore(late_wins=False)
    gone.address = "http://127.0.0.1:1"
    with pytest.raises(OSError, match="refused"):
        probed(gone)
