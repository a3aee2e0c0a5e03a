"""The object store, as tasks of one process share it."""

from __future__ import annotations

import gc
from functools import lru_cache

from tideline.object_store.client import ObjectStoreClient
from tideline.settings import ObjectStoreSettings


@lru_cache(maxsize=4)
def shared_store(settings: ObjectStoreSettings) -> ObjectStoreClient:
    """One client for all tasks that an executor's process runs: making one costs 100 ms. It is made
    at once: several threads must not; and it stays, so that the collection of garbage after each
    task need not look through what boto3 knows of S3."""
    store = ObjectStoreClient(settings)
    store.connect()
    gc.freeze()
    return store
