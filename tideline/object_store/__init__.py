"""Where WAL objects lie."""

from tideline.object_store.errors import (
    ObjectExists,
    ObjectMissing,
    ObjectStoreRefused,
    ObjectStoreUnavailable,
)
from tideline.object_store.s3 import ObjectStore, S3ObjectStore

__all__ = [
    "ObjectExists",
    "ObjectMissing",
    "ObjectStore",
    "ObjectStoreRefused",
    "ObjectStoreUnavailable",
    "S3ObjectStore",
]
