"""Whether a store lets a PUT that ended late, of which only the head arrived, take the place of a
whole one under the same key.

All attempts at one PUT go to one key: a client that gives up waiting tries again, and the store may
see the end of the first attempt after the second one was answered. Amazon S3 keeps nothing of a
body that did not come; a store that keeps what came answers 200 for an object that is gone a moment
later (docs/stack.md).
"""

from __future__ import annotations

import http.client
import ssl
import time
import uuid
from contextlib import suppress
from dataclasses import dataclass
from urllib.parse import urlsplit

from tideline.errors import TidelineError
from tideline.object_store.client import ObjectMissing, ObjectStoreClient
from tideline.object_store.features import BOUNDS, PREFIX
from tideline.settings import ObjectStoreSettings

BODY_BYTES = 300_000
SETTLES_S = 2.0
"""So long the object is looked at after the late attempt has ended."""
LOOK_EVERY_S = 0.2


@dataclass(frozen=True, slots=True)
class LatePut:
    """What the object was when both attempts had ended. Bytes; ``None``: it was not there."""

    sent: int
    left: int | None
    deleted: bool
    key: str

    @property
    def won(self) -> bool:
        """The late attempt took the place of the whole object."""
        return self.left != self.sent


def probe_late_put(settings: ObjectStoreSettings, bucket: str, prefix: str) -> LatePut:
    """Lay a PUT of which only the head arrives beside a whole one under a key of our own below
    ``prefix``, end it last, look, and delete the key. Within about ten seconds.

    Raises what the store's client raises when the whole PUT cannot be made or looked at, or
    :class:`OSError` when the head cannot be sent: then nothing is known.
    """
    store = ObjectStoreClient(settings, bounds=BOUNDS, connections=2)
    key = f"{prefix}{PREFIX}{uuid.uuid4().hex}"
    body = bytes(BODY_BYTES)
    deleted = False
    try:
        late = _begun(settings, store.presigned_put(bucket, key))
        try:
            store.put(bucket, key, body)
        finally:
            late.close()
        left = _left(store, bucket, key)
    finally:
        with suppress(TidelineError):
            store.delete(bucket, [key])
            deleted = True
        store.close()
    return LatePut(BODY_BYTES, left, deleted, key)


def _begun(settings: ObjectStoreSettings, url: str) -> http.client.HTTPConnection:
    """A PUT whose head is sent, and nothing of the body that it promises."""
    where = urlsplit(url)
    connection: http.client.HTTPConnection
    if where.scheme == "https":
        trusted = str(settings.s3_ca_file) if settings.s3_ca_file else None
        connection = http.client.HTTPSConnection(
            where.netloc,
            timeout=BOUNDS.read_timeout_s,
            context=ssl.create_default_context(cafile=trusted),
        )
    else:
        connection = http.client.HTTPConnection(where.netloc, timeout=BOUNDS.read_timeout_s)
    try:
        connection.putrequest("PUT", f"{where.path}?{where.query}", skip_accept_encoding=True)
        connection.putheader("Content-Length", str(BODY_BYTES))
        connection.endheaders()
    except BaseException:
        connection.close()
        raise
    return connection


def _left(store: ObjectStoreClient, bucket: str, key: str) -> int | None:
    ends = time.monotonic() + SETTLES_S
    while True:
        try:
            left: int | None = store.size(bucket, key)
        except ObjectMissing:
            left = None
        if left != BODY_BYTES or time.monotonic() >= ends:
            return left
        time.sleep(LOOK_EVERY_S)
