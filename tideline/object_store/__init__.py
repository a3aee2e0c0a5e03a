"""Where WAL objects lie."""

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
    "ObjectStoreRefused",
    "ObjectStoreUnavailable",
    "ObjectTruncated",
]
