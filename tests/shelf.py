"""An object store in memory, for what needs no S3; it can be away, or fail at a call."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from datetime import UTC, datetime

from tideline.object_store.client import (
    ObjectEntry,
    ObjectMissing,
    ObjectStoreClient,
    ObjectStoreUnavailable,
)


class Shelf(ObjectStoreClient):
    def __init__(self) -> None:
        self.objects: dict[tuple[str, str], bytes] = {}
        self.written: dict[tuple[str, str], datetime] = {}
        self.away: set[str] = set()
        """Names of calls that are not answered."""
        self.before: dict[str, Callable[[str], None]] = {}
        """Called with the key, by name of call."""

    def _asked(self, call: str, key: str) -> None:
        if call in self.away:
            raise ObjectStoreUnavailable(f"no route to {key}")
        if (then := self.before.get(call)) is not None:
            then(key)

    def put(self, bucket: str, key: str, body: bytes, *, new: bool = False) -> None:
        self._asked("put", key)
        self.objects[bucket, key] = body
        self.written[bucket, key] = datetime.now(UTC)

    def get(
        self, bucket: str, key: str, start: int | None = None, size: int | None = None
    ) -> bytes:
        self._asked("get", key)
        try:
            return self.objects[bucket, key]
        except KeyError:
            raise ObjectMissing(f"bucket {bucket}: get {key}") from None

    def list_objects(
        self, bucket: str, prefix: str, start_after: str | None = None
    ) -> Iterator[ObjectEntry]:
        self._asked("list", prefix)
        for (of, key), body in sorted(self.objects.items()):
            if of == bucket and key.startswith(prefix):
                yield ObjectEntry(key, len(body), self.written[of, key])

    def delete(self, bucket: str, keys: Iterable[str]) -> None:
        for key in list(keys):
            self._asked("delete", key)
            self.objects.pop((bucket, key), None)
