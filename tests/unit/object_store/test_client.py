"""What a client of S3 keeps to, whoever uses it."""

from __future__ import annotations

import asyncio
import threading
from datetime import UTC, datetime
from types import SimpleNamespace
from typing import Any
from uuid import UUID

import pytest

from tideline.domain.ids import TopicIdPartition
from tideline.object_store.client import ObjectEntry, ObjectStoreClient
from tideline.object_store.inventory import SegmentInventory
from tideline.settings import ObjectStoreSettings

SETTINGS = ObjectStoreSettings.of({"TIDELINE_S3_BUCKET": "wal", "TIDELINE_S3_TIERED_BUCKET": "t"})
MODIFIED = datetime(2026, 1, 1, tzinfo=UTC)


class FakeS3:
    """Lists one object that has no ETag, and notes which threads make a client."""

    def __init__(self) -> None:
        self.made_in: list[threading.Thread] = []
        self.meta = SimpleNamespace(events=SimpleNamespace(register=lambda *_: None))

    def client(self, *_: object, **__: object) -> FakeS3:
        self.made_in.append(threading.current_thread())
        threading.Event().wait(0.01)  # others come meanwhile
        return self

    def list_objects_v2(self, **_: object) -> dict[str, Any]:
        return {"Contents": [{"Key": "k", "Size": 3, "LastModified": MODIFIED}]}


@pytest.fixture
def s3(monkeypatch: pytest.MonkeyPatch) -> FakeS3:
    fake = FakeS3()
    monkeypatch.setattr("boto3.client", fake.client)
    monkeypatch.setattr("boto3.DEFAULT_SESSION", None)
    return fake


def test_a_store_that_gives_no_etags_can_be_listed(s3: FakeS3) -> None:
    found = list(ObjectStoreClient(SETTINGS).list_objects("t", ""))
    assert found == [ObjectEntry("k", 3, MODIFIED)]


async def test_activities_at_once_share_one_client_that_none_of_their_threads_made(
    s3: FakeS3,
) -> None:
    inventory = SegmentInventory(SETTINGS)
    log = TopicIdPartition(UUID(int=1), 0)
    await asyncio.gather(*(inventory.objects("orders", log) for _ in range(4)))
    assert s3.made_in == [threading.main_thread()]
