"""Where WAL objects lie."""

from tideline.object_store.async_store import ObjectStore, S3ObjectStore
from tideline.object_store.client import (
    ObjectExists,
    ObjectMissing,
    ObjectStoreRefused,
    ObjectStoreUnavailable,
    ObjectTruncated,
)

__all__ = [
    "ObjectExists",
    "ObjectMissing",
    "ObjectStore",
    "ObjectStoreRefused",
    "ObjectStoreUnavailable",
    "ObjectTruncated",
    "S3ObjectStore",
]
