"""Object keys of the WAL: registered before the upload, committed at most once.

Garbage collection marks a key as deleting; such a key is never committed (schedule 17).
"""

from __future__ import annotations

from collections.abc import Container, Iterator, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from uuid import UUID

from tideline.control_plane.errors import InvalidInput, ObjectKeyRejected
from tideline.control_plane.model import (
    ANYBODY_TELLS_AFTER_MS,
    BatchToCommit,
    CommittedBatch,
    StoredObject,
    StreamPlace,
    UntoldCommit,
)


class FileStatus(StrEnum):
    REGISTERED = "registered"
    COMMITTED = "committed"
    DELETING = "deleting"


@dataclass(slots=True)
class WalFile:
    """One registered key."""

    gateway_id: int
    incarnation: UUID
    registered_ms: int
    status: FileStatus = FileStatus.REGISTERED
    size: int = 0
    outcomes: list[CommittedBatch] = field(default_factory=list)
    """The answer of the commit, so that a retry with an unknown outcome finds its own success."""
    unreferenced_ms: int | None = None
    """Since when no batch is known to lie in it."""
    committed_ms: int = -1
    stream: StreamPlace | None = None
    carried_by: str | None = None


def assert_batches(batches: Sequence[BatchToCommit]) -> None:
    """Raises ``InvalidInput`` for one without a record: it would set the high watermark back."""
    for place, batch in enumerate(batches):
        least = min(batch.byte_offset + 1, batch.byte_size, batch.record_count)
        named = (batch.producer_epoch, batch.base_sequence, batch.last_sequence)
        if least < 1 or (batch.producer_id >= 0 and min(named) < 0):
            raise InvalidInput(f"batch {place} of the object is none")


@dataclass(slots=True)
class WalFiles:
    """Keys in the order of their registration."""

    by_key: dict[str, WalFile] = field(default_factory=dict)

    def register(
        self, gateway_id: int, incarnation: UUID, keys: Sequence[str], now_ms: int
    ) -> None:
        for key in keys:
            known = self.by_key.get(key)
            if known is not None and (known.incarnation, known.status) != (
                incarnation,
                FileStatus.REGISTERED,
            ):
                raise ObjectKeyRejected(f"object key {key} is taken")
        for key in keys:
            self.by_key.setdefault(key, WalFile(gateway_id, incarnation, now_ms))

    def claim(self, gateway_id: int, key: str, size: int, batches: int) -> WalFile:
        """The file to commit, or the one that was committed with exactly this input."""
        known = self.by_key.get(key)
        if known is None:
            raise ObjectKeyRejected(f"object key {key} is not registered")
        if known.status is FileStatus.DELETING:
            raise ObjectKeyRejected(f"object key {key} is being deleted")
        if known.gateway_id != gateway_id:
            raise ObjectKeyRejected(f"object key {key} belongs to gateway {known.gateway_id}")
        is_committed = known.status is FileStatus.COMMITTED
        if is_committed and (known.size, len(known.outcomes)) != (size, batches):
            raise ObjectKeyRejected(
                f"object key {key} was committed with {known.size} bytes and "
                f"{len(known.outcomes)} batches, not {size} and {batches}. Retry a commit with "
                "exactly its first input."
            )
        return known

    def has_committed(self, key: str) -> bool:
        known = self.by_key.get(key)
        return known is not None and known.status is not FileStatus.REGISTERED

    def registered_by(self, incarnation: UUID) -> tuple[str, ...]:
        """Keys that it has not committed."""
        return tuple(
            key
            for key, known in self.by_key.items()
            if known.incarnation == incarnation and known.status is FileStatus.REGISTERED
        )

    def missing(self, stored: Sequence[StoredObject]) -> Iterator[str]:
        """Of objects in the bucket, those behind everything that is committed of their streams."""
        for one in stored:
            told = (
                known.stream.sequence
                for known in self.by_key.values()
                if known.incarnation == one.incarnation
                and known.status is not FileStatus.REGISTERED
                and known.stream is not None
            )
            if not self.has_committed(one.key) and one.sequence > max(told, default=-1):
                yield one.key

    def place(self, key: str, stream: StreamPlace | None) -> None:
        """Note where a committed file stands in its stream."""
        self.by_key[key].stream = stream

    def carry(self, carrier: str, keys: Sequence[str], now_ms: int) -> None:
        """The object of ``carrier`` tells the outcomes of ``keys``, where no other one does and
        its gateway may."""
        teller = self.by_key[carrier].gateway_id
        for known in (self.by_key[key] for key in keys if key in self.by_key):
            is_its = known.gateway_id == teller
            may_tell = is_its or known.committed_ms < now_ms - ANYBODY_TELLS_AFTER_MS
            if may_tell and known.status is FileStatus.COMMITTED and known.carried_by is None:
                known.carried_by = carrier

    def untold(
        self, gateway_id: int, incarnation: UUID, limit: int, now_ms: int
    ) -> list[UntoldCommit]:
        """As the control plane's ``untold_commits``."""
        found = [
            UntoldCommit(
                known.incarnation,
                known.stream.sequence,
                key,
                known.stream.withdrawn,
                tuple(outcome.error for outcome in known.outcomes),
                tuple(outcome.base_offset for outcome in known.outcomes),
                tuple(outcome.append_time for outcome in known.outcomes),
            )
            for key, known in self.by_key.items()
            if known.incarnation != incarnation
            and (
                known.gateway_id == gateway_id
                or known.committed_ms < now_ms - ANYBODY_TELLS_AFTER_MS
            )
            and known.status is FileStatus.COMMITTED
            and known.stream is not None
            and known.carried_by is None
        ]
        return sorted(found, key=lambda commit: (commit.incarnation, commit.sequence))[:limit]

    def forget_uncommitted(self, grace_ms: int, limit: int, now_ms: int) -> int:
        """Forget keys that were never committed; how many."""
        lapsed = [
            key
            for key, known in self.by_key.items()
            if known.status is FileStatus.REGISTERED and known.registered_ms < now_ms - grace_ms
        ][:limit]
        for key in lapsed:
            del self.by_key[key]
        return len(lapsed)

    def collect(self, live: Container[str], grace_ms: int, limit: int, now_ms: int) -> list[str]:
        """Mark and answer keys without a live batch for ``grace_ms``; marked ones come again. Who
        alone tells the outcomes of a live one stays."""
        dead: list[str] = []
        carriers = {
            known.carried_by
            for key, known in self.by_key.items()
            if known.unreferenced_ms is None and key in live
        }
        for key, known in self.by_key.items():
            if known.status is FileStatus.COMMITTED and known.unreferenced_ms is None:
                known.unreferenced_ms = None if key in live or key in carriers else now_ms
            if len(dead) < limit and _is_dead(known, now_ms - grace_ms):
                known.status = FileStatus.DELETING
                dead.append(key)
        return dead

    def forget(self, keys: Sequence[str]) -> int:
        """The objects of marked keys are gone; how many were forgotten."""
        marked = [
            key
            for key in keys
            if key in self.by_key and self.by_key[key].status is FileStatus.DELETING
        ]
        for key in marked:
            del self.by_key[key]
        return len(marked)


def _is_dead(file: WalFile, before_ms: int) -> bool:
    return file.unreferenced_ms is not None and file.unreferenced_ms <= before_ms
