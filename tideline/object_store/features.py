"""What a store was seen to do with an object of our own. S3 does all of it; stores that speak S3
may leave some out, and say so when it is needed first, if at all (docs/object-stores.md)."""

from __future__ import annotations

import uuid
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass

from tideline.errors import TidelineError
from tideline.object_store.client import (
    CallBounds,
    ObjectExists,
    ObjectStoreClient,
    ObjectStoreRefused,
)
from tideline.settings import ObjectStoreSettings

BOUNDS = CallBounds(read_timeout_s=3, attempts=1, connect_timeout_s=2)
PREFIX = "doctor/"
"""Of the keys of probes; each is used once and deleted."""
LEAST_PART_BYTES = 5 * 1024 * 1024
"""Of a part that is not the last one (S3, "Amazon S3 multipart upload limits")."""
BODY = b"0123456789"


@dataclass(frozen=True, slots=True)
class Features:
    """Of each whether it was seen; ``None``: the store refused, ``refusals`` say why."""

    conditional_puts: bool
    """``If-None-Match: *`` kept an object from being put over another one."""
    parts: bool | None
    """An object in parts appeared whole."""
    batch_deletion: bool | None
    """DeleteObjects; without it objects are deleted one after the other."""
    versions: bool | None
    """The bucket keeps what is deleted or put over, as one with Object Lock does."""
    direct: bool
    """Objects are put and got without boto3, at less than a tenth of its CPU."""
    refusals: tuple[str, ...]
    left: str | None
    """The key of a probe that could not be deleted."""


def probe_features(settings: ObjectStoreSettings, bucket: str, prefix: str) -> Features:
    """Put, get and delete one object below ``prefix``. Within about ten seconds of a store that
    answers. Raises what the client raises when an object cannot be put, or a range of it got."""
    store = ObjectStoreClient(settings, bounds=BOUNDS, connections=2)
    key = f"{prefix}{PREFIX}{uuid.uuid4().hex}"
    refusals: list[str] = []

    def seen(look: Callable[[], bool]) -> bool | None:
        try:
            return look()
        except ObjectStoreRefused as error:
            refusals.append(str(error))
            return None

    try:
        store.put(bucket, key, BODY, new=True)
        conditional_puts = _refused_over(store, bucket, key)
        if (found := store.get(bucket, key, 3, 4)) != BODY[3:7]:
            raise ObjectStoreRefused(f"bucket {bucket}: bytes 3 to 6 of {BODY!r} are {found!r}")
        versions = seen(lambda: store.keeps_versions(bucket, key))
        parts = seen(lambda: _in_parts(store, bucket, key))
        batch_deletion = seen(lambda: _deletes_together(store, bucket, key))
        direct = store.direct_calls is not None and store.direct_calls.reached(bucket) is not None
        left = None if batch_deletion is not None else key
    except BaseException:
        with suppress(TidelineError):
            store.delete(bucket, [key])
        raise
    finally:
        store.close()
    return Features(
        conditional_puts, parts, batch_deletion, versions, direct, tuple(refusals), left
    )


def _refused_over(store: ObjectStoreClient, bucket: str, key: str) -> bool:
    try:
        store.put(bucket, key, BODY, new=True)
    except ObjectExists:
        return True
    return False


def _in_parts(store: ObjectStoreClient, bucket: str, key: str) -> bool:
    upload = store.begin_parts(bucket, key)
    try:
        tags = [
            store.put_part(bucket, key, upload, number, body)
            for number, body in enumerate((bytes(LEAST_PART_BYTES), BODY), 1)
        ]
        store.complete_parts(bucket, key, upload, tags)
    except TidelineError:
        with suppress(TidelineError):
            store.abort_parts(bucket, key, upload)
        raise
    return store.size(bucket, key) == LEAST_PART_BYTES + len(BODY)


def _deletes_together(store: ObjectStoreClient, bucket: str, key: str) -> bool:
    store.delete(bucket, [key])
    return not store.deletes_singly
