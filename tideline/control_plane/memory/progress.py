"""What has changed of migrations, by comparing with what was there before: SQL has triggers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime

from tideline.control_plane.model import (
    MigrationChanges,
    MigrationStatusChanges,
    MovedHighWatermark,
    PartitionMigrationStatus,
    summarize,
)
from tideline.control_plane.told_model import Told


class Progress:
    """Each look gives everything that is there; a place is the history and a number of changes."""

    def __init__(self) -> None:
        self._noted = self._forgotten_before = 0
        self._rows: dict[str, tuple[int, list[PartitionMigrationStatus], Told]] = {}
        """By name: after which change it was so, without evidence and high watermarks."""
        self._moved: dict[tuple[str, int], tuple[int, int]] = {}
        """High watermarks in the same way."""

    def forget(self) -> None:
        """Who read before reads everything."""
        self._noted += 1
        self._forgotten_before = self._noted

    def changes(
        self,
        history: str,
        statuses: Sequence[PartitionMigrationStatus],
        told: Mapping[str, Told],
        since: str | None,
    ) -> MigrationChanges:
        upto, number = self._look(history, statuses, told, since)
        names = self._names(number)
        there = [one for one in statuses if names is None or one.topic in names]
        return MigrationChanges(
            upto, names is None, frozenset(names or ()), tuple(summarize(there))
        )

    def status_changes(
        self,
        history: str,
        statuses: Sequence[PartitionMigrationStatus],
        told: Mapping[str, Told],
        since: str | None,
    ) -> MigrationStatusChanges:
        upto, number = self._look(history, statuses, told, since)
        names = self._names(number)
        there = [one for one in statuses if names is None or one.topic in names]
        moved = [
            MovedHighWatermark(one.topic, one.log.partition, one.high_watermark)
            for one in statuses
            if number is not None
            and names is not None
            and one.topic not in names
            and self._moved[one.topic, one.log.partition][0] > number
        ]
        return MigrationStatusChanges(
            upto,
            names is None,
            frozenset(names or ()),
            tuple(map(without_evidence, there)),
            tuple(moved),
        )

    def _look(
        self,
        history: str,
        statuses: Sequence[PartitionMigrationStatus],
        told: Mapping[str, Told],
        since: str | None,
    ) -> tuple[str, int | None]:
        """From where the next look goes on, and from which change this one does."""
        self._note(statuses, told)
        number = number_since(since, history, self._forgotten_before, self._noted)
        return f"{history}:{self._noted}", number

    def _names(self, number: int | None) -> set[str] | None:
        """That have changed since; ``None``: that is not known."""
        if number is None:
            return None
        return {name for name, (at, *_) in self._rows.items() if at > number}

    def _note(self, statuses: Sequence[PartitionMigrationStatus], told: Mapping[str, Told]) -> None:
        now: dict[str, list[PartitionMigrationStatus]] = {}
        for one in statuses:
            shown = replace(without_evidence(one), high_watermark=-1)
            now.setdefault(one.topic, []).append(shown)
        for name in now.keys() | told.keys() | self._rows.keys():
            there = now.get(name, []), _whenever_seen(told.get(name, Told()))
            if self._rows.get(name, (0, [], Told()))[1:] != there:
                self._noted += 1
                self._rows[name] = self._noted, *there
        for one in statuses:
            at = one.topic, one.log.partition
            if self._moved.get(at, (0, None))[1] != one.high_watermark:
                self._noted += 1
                self._moved[at] = self._noted, one.high_watermark


def without_evidence(status: PartitionMigrationStatus) -> PartitionMigrationStatus:
    return replace(status, phases=tuple(replace(phase, evidence={}) for phase in status.phases))


def _whenever_seen(told: Told) -> Told:
    ever = datetime.fromtimestamp(0, UTC)
    return replace(told, findings=tuple(replace(f, last_seen_at=ever) for f in told.findings))


def number_since(place: str | None, history: str, first: int, last: int) -> int | None:
    """Of the change up to which ``place`` was read, if it is of this history and within both,
    inclusive; ``None``: everything has to be read."""
    there, _, number = (place or "").partition(":")
    return int(number) if there == history and first <= int(number) <= last else None
