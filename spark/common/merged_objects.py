"""The objects of a merged segment, as the bucket has them now."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Protocol

from spark.common.retry import retry
from tideline.domain.segment_objects import what_is_not_whole
from tideline.errors import TidelineError
from tideline.object_store.client import ObjectEntry


class NotWhole(TidelineError):
    """An object of a segment is not what was sent."""


class Lists(Protocol):
    def list_objects(
        self, bucket: str, prefix: str, start_after: str | None = None
    ) -> Iterator[ObjectEntry]: ...


def why_not_whole(store: Lists, bucket: str, stem: str, wanted: Mapping[str, int | None]) -> str:
    """Which of the objects ``stem`` + suffix are missing or of another size; empty: none. One
    listing. ``wanted``: as of :func:`what_is_not_whole`."""

    def sizes() -> dict[str, int]:
        return {o.key.removeprefix(stem): o.size for o in store.list_objects(bucket, stem)}

    return what_is_not_whole(wanted, retry(sizes))
