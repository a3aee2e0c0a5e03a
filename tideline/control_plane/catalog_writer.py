"""Puts records of the catalog into the diskless bucket: announced before Postgres is asked, counted
once it has answered."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Protocol
from uuid import UUID

from tideline.control_plane.errors import ControlPlaneUnavailable
from tideline.domain.catalog import ANNOUNCED, ROOT, VERSION, Entry, Record, encode, object_key
from tideline.object_store.client import (
    CallBounds,
    ObjectEntry,
    ObjectExists,
    ObjectStoreClient,
    ObjectStoreRefused,
    ObjectStoreUnavailable,
)
from tideline.settings import ObjectStoreSettings


class CatalogUnavailable(ControlPlaneUnavailable):
    """The bucket has not taken a record. As of Postgres itself, the outcome is unknown: before it
    was asked nothing has changed, after it only the record's word that it counts is missing. The
    same call again mends both."""


class CatalogStore(Protocol):
    """The part of :class:`tideline.object_store.client.ObjectStoreClient` that is needed."""

    def put(self, bucket: str, key: str, body: bytes, *, new: bool = False) -> None: ...
    def get(self, bucket: str, key: str) -> bytes: ...
    def list_objects(
        self, bucket: str, prefix: str, start_after: str | None = None
    ) -> Iterator[ObjectEntry]: ...


class CatalogWriter:
    """Safe to share between threads. Each method raises :class:`CatalogUnavailable`."""

    def __init__(self, store: CatalogStore, bucket: str, prefix: str) -> None:
        """``prefix``: of the installation in the bucket, empty or with a slash at its end."""
        self._store, self._bucket, self._prefix = store, bucket, prefix

    def announce(self, history_id: UUID, record: Record) -> None:
        """It may count from now on."""
        self._put(Entry(history_id, False, record))

    def count(self, history_id: UUID, record: Record) -> None:
        """It counts."""
        self._put(Entry(history_id, True, record))

    def keys(self, kind: str = "") -> set[str]:
        """Of what counts, of one kind or of all."""
        under = f"{self._prefix}{ROOT}" + (f"v{VERSION}/{kind}/" if kind else "")
        try:
            found = [entry.key for entry in self._store.list_objects(self._bucket, under)]
        except (ObjectStoreUnavailable, ObjectStoreRefused) as error:
            raise CatalogUnavailable(f"the catalog cannot be listed: {error}") from error
        return {key for key in found if not key.endswith(ANNOUNCED)}

    def key_of(self, history_id: UUID, record: Record) -> str:
        return object_key(self._prefix, Entry(history_id, True, record))

    def _put(self, entry: Entry) -> None:
        key, body = object_key(self._prefix, entry), encode(entry)
        try:
            try:
                self._store.put(self._bucket, key, body, new=True)
            except ObjectExists:
                # Said before, or a store has kept the beginning of a put that was cut off.
                if self._store.get(self._bucket, key) != body:
                    self._store.put(self._bucket, key, body)
        except (ObjectStoreUnavailable, ObjectStoreRefused) as error:
            raise CatalogUnavailable(
                f"the catalog does not take the record of {entry.record.kind} of topic id "
                f"{entry.record.topic_id} ({error}); try again when the bucket can be written"
            ) from error


def writer_of(settings: ObjectStoreSettings, bounds: CallBounds, *, at_once: bool) -> CatalogWriter:
    """``at_once``: its client is made now, which takes a moment, and not at the first record."""
    store = ObjectStoreClient(settings, bounds=bounds)
    if at_once:
        store.connect()
    return CatalogWriter(store, settings.s3_bucket, settings.diskless_prefix)
