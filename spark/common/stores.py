"""The object store, as tasks of one process share it."""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache

from tideline.object_store.client import ObjectStoreClient
from tideline.settings import ObjectStoreSettings

WHEN_MADE: list[Callable[[], object]] = []
"""Called when a client is, which stays: a copy of :mod:`spark.common.daemon` sets it aside."""


@lru_cache(maxsize=4)
def shared_store(settings: ObjectStoreSettings) -> ObjectStoreClient:
    """One client for all tasks that an executor's process runs: making one costs 100 ms. It is made
    at once: several threads must not."""
    store = ObjectStoreClient(settings)
    store.connect()
    for call in WHEN_MADE:
        call()
    return store
