"""What of a topic is read, and by which tasks.

The prefix is covered by Kafka's finished remote segments of the log's own lineage, the suffix by
merged segments and WAL batches as Postgres has them in one snapshot. What the topic has and none of
these holds is refused with its offsets.
"""

from __future__ import annotations

import socket
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cached_property
from uuid import UUID, uuid4

from spark.table.pieces import PIECE_BYTES, Piece, Place, SegmentPart, parts_of
from spark.table.prefix import (
    APPLICATION,
    Prefix,
    aborted_transactions,
    object_key_stem,
    overlapping,
    prefixes,
    remote_segments,
)
from tideline.control_plane.cataloged_jobs import connect_jobs
from tideline.control_plane.jobs import JobsControlPlane
from tideline.control_plane.table_model import SuffixPlace, SuffixRow
from tideline.control_plane.tiering_model import PartitionRow
from tideline.domain.coverage import OffsetRange, txn_indexes_told_from
from tideline.domain.ids import TopicIdPartition
from tideline.domain.prefix import past_gap
from tideline.domain.remote_log import RemoteLogIndex
from tideline.domain.table import (
    Bounds,
    Isolation,
    PrefixPiece,
    TableRefused,
    TableUnreadable,
    prefix_cover,
    uncovered,
)
from tideline.errors import TidelineError
from tideline.kafka.errors import KafkaError, MetadataNotUnderstood, TopicReplaced
from tideline.kafka.txn_index import AbortedTxn
from tideline.settings import JobsSettings

_OF_ONE_TOPIC = (TableRefused, TopicReplaced, KafkaError)
"""What brokers say of one topic when others may be well."""


@dataclass(frozen=True)
class Plan:
    """A topic at one moment."""

    settings: JobsSettings
    topic: str
    rows: Mapping[int, PartitionRow]
    pin: UUID | None

    @property
    def topic_id(self) -> UUID:
        return next(iter(self.rows.values())).topic_id

    @cached_property
    def prefixes(self) -> Mapping[TopicIdPartition, Prefix]:
        """Of this topic's partitions, and perhaps of others (:func:`together`)."""
        return prefixes(self.settings, self.rows.values())

    @cached_property
    def remote_segments(self) -> RemoteLogIndex:
        """Of :attr:`prefixes`, asked for behind them."""
        return remote_segments(self.settings, self.prefixes)

    @cached_property
    def whole(self) -> dict[int, OffsetRange]:
        """The readable offsets of each partition, as consumers are told them."""
        return {partition: self._whole(row) for partition, row in self.rows.items()}

    def _whole(self, row: PartitionRow) -> OffsetRange:
        start = max(row.boundary, row.suffix_start)
        prefix = self.prefixes.get(row.log)
        if prefix is not None and prefix.log_start < row.prefix_end:
            start = past_gap(prefix.log_start, row.prefix_end, row.boundary)
        return OffsetRange(start, row.high_watermark)

    def is_removed(self, partition: int, offset: int) -> bool:
        """Whether Kafka's retention or DeleteRecords has passed it since this plan was made, or
        nobody tells. What is from B0 on was read in one snapshot."""
        row = self.rows[partition]
        if offset >= row.prefix_end:
            return False
        with suppress(*_OF_ONE_TOPIC):
            return prefixes(self.settings, [row])[row.log].log_start > offset
        return True

    def pieces(
        self,
        wanted: Mapping[int, OffsetRange],
        bounds: Bounds,
        isolation: Isolation,
        *,
        split: bool = True,
    ) -> list[Piece]:
        """What holds ``wanted``, by partition and offset. ``split``: large segments are read by
        several tasks; all parts of one then name the same offsets.

        Raises :class:`TableRefused`, :class:`TableUnreadable`, and as the stores do.
        """
        found: list[Piece] = []
        with connect_jobs(self.settings, application_name=APPLICATION) as plane:
            for partition in sorted(wanted):
                range = bounds.clip(wanted[partition])
                if range is None or not (
                    bounds.partitions is None or partition in bounds.partitions
                ):
                    continue
                row = self.rows[partition]
                for piece in self._of_partition(plane, row, range, bounds, isolation):
                    found += _parts(piece) if split else [piece]
        return found

    def _of_partition(
        self,
        plane: JobsControlPlane,
        row: PartitionRow,
        range: OffsetRange,
        bounds: Bounds,
        isolation: Isolation,
    ) -> Iterator[Piece]:
        below = range.clip(OffsetRange(0, max(0, row.prefix_end)))
        if below is not None:
            yield from self._of_prefix(row, below, bounds, isolation)
        above = range.clip(OffsetRange(row.boundary, 2**63 - 1))
        if above is not None:
            yield from self._of_suffix(plane, row, above, bounds)

    def _of_prefix(
        self, row: PartitionRow, wanted: OffsetRange, bounds: Bounds, isolation: Isolation
    ) -> Iterator[Piece]:
        prefix = self.prefixes.get(row.log, Prefix(row.boundary))
        to_end = OffsetRange(wanted.start, row.prefix_end)
        segments = self.remote_segments.of(row.log)
        cover, gaps = prefix_cover(to_end, segments, prefix.lineage)
        if missing := [gap for one in gaps if (gap := one.clip(wanted))]:
            raise TableRefused(
                f"{row.topic}-{row.partition}: offsets {', '.join(map(str, missing[:3]))} of the "
                "prefix are in no finished remote segment of the log's lineage: before readiness "
                "wait for it, after retention has moved read again; "
                f"`tideline coverage {row.topic}` tells why and what to do"
            )
        aborted: tuple[AbortedTxn, ...] = ()
        if isolation is Isolation.READ_COMMITTED:
            told_from = txn_indexes_told_from(segments)
            aborted = aborted_transactions(self.settings, cover, told_from)
        for one in cover:
            clipped = one.range.clip(wanted)
            if clipped is not None and _may_hold(one.segment.max_timestamp, bounds):
                yield self._prefix_piece(row, one, clipped, overlapping(aborted, clipped))

    def _prefix_piece(self, row: PartitionRow, one: PrefixPiece, range: OffsetRange,
                      aborted: tuple[AbortedTxn, ...]) -> Piece:  # fmt: skip
        segment = one.segment
        part = SegmentPart(
            object_key_stem(self.settings, segment),
            segment.start_offset,
            segment.end_offset,
            segment.size_bytes,
        )
        return Piece(
            row.topic, row.topic_id, row.partition, Place.PREFIX, range.start, range.end,
            segment.size_bytes, part, aborted=aborted, pin=self.pin,
        )  # fmt: skip

    def _of_suffix(
        self, plane: JobsControlPlane, row: PartitionRow, wanted: OffsetRange, bounds: Bounds
    ) -> Iterator[Piece]:
        found = plane.table_suffix(row.log_id, wanted.start, wanted.end, PIECE_BYTES)
        holders = [one for one in found if one.place is not SuffixPlace.LOG]
        held = [OffsetRange(one.base_offset, one.last_offset + 1) for one in holders]
        if gaps := uncovered(wanted, held):
            self._refuse_gap(row, gaps[0], [o for o in found if o.place is SuffixPlace.LOG])
        for one, range in zip(holders, held, strict=True):
            clipped = range.clip(wanted)
            if clipped is not None and _may_hold(one.max_timestamp, bounds):
                yield self._suffix_piece(row, one, clipped)

    def _suffix_piece(self, row: PartitionRow, one: SuffixRow, range: OffsetRange) -> Piece:
        part = None
        if one.object_key_stem is not None:
            part = SegmentPart(one.object_key_stem, one.base_offset, one.last_offset, one.byte_size)
        return Piece(
            row.topic, row.topic_id, row.partition, Place(one.place), range.start, range.end,
            one.byte_size, part, leader_epoch=row.boundary_epoch, pin=self.pin,
        )  # fmt: skip

    def _refuse_gap(self, row: PartitionRow, gap: OffsetRange, log: list[SuffixRow]) -> None:
        where = f"{row.topic}-{row.partition}"
        if not log:
            raise TableRefused(f"{where}: its topic was deleted while the read was planned")
        if gap.start < log[0].base_offset:
            raise TableRefused(
                f"{where}: the suffix begins at offset {log[0].base_offset} now, retention or "
                f"DeleteRecords has removed {gap}: read again"
            )
        raise TableUnreadable(
            f"{where}: offsets {gap} are in no segment and no batch (a hole: docs/failures.md)",
            gap.start,
        )


def look(settings: JobsSettings, topic: str, *, pinned: bool = True) -> Plan:
    """Pin what can be read now, and see how far it goes. Not ``pinned``: nothing of it is read.

    Raises :class:`TableRefused` unless every partition has its B0, and
    ``ControlPlaneUnavailable``.
    """
    pin = uuid4() if pinned else None
    with connect_jobs(settings, application_name=APPLICATION) as plane:
        if pin is not None:
            reader = f"table of {topic} on {socket.gethostname()}"
            plane.pin_reads(pin, reader, settings.table_pin_ms)
        try:
            lo, hi = plane.topic_log_ids(topic)
            rows = {
                row.partition: row
                for row in plane.partitions(lo, hi)
                if row.topic == topic and not row.deleted
            }
            _must_be_a_table(topic, rows)
        except BaseException:
            if pin is not None:
                with suppress(TidelineError):
                    plane.unpin_reads(pin)
            raise
    return Plan(settings, topic, rows, pin)


def _must_be_a_table(topic: str, rows: Mapping[int, PartitionRow]) -> None:
    if not rows:
        raise TableRefused(
            f"topic {topic!r} is not known to Tideline: only hybrid and diskless topics are "
            f"tables. `tideline migrate {topic}` makes it one; classic topics: Spark's source for "
            "Kafka"
        )
    if waiting := sorted(p for p, row in rows.items() if row.boundary < 0):
        raise TableRefused(
            f"{len(waiting)} of {len(rows)} partitions of {topic} have no B0 yet, the first is "
            f"{waiting[0]}: wait for the migration (`tideline status {topic}`)"
        )


def together(plans: Sequence[Plan]) -> dict[str, TidelineError]:
    """Ask brokers for the prefixes of all ``plans`` at once: their metadata topic is read once, not
    once for each. Topics of which they tell none, and why: a partition has no leader, Kafka has
    another topic of the name, or a record about it is not understood. Raises ``KafkaUnavailable``,
    and as :func:`spark.table.prefix.remote_segments`."""
    settings = plans[0].settings
    found, untold = _prefixes_of(plans)
    while True:
        try:
            segments = remote_segments(settings, found)
            break
        except MetadataNotUnderstood as error:
            if error.topic_id is None:
                raise
            found = {log: one for log, one in found.items() if log.topic_id != error.topic_id}
            untold |= {plan.topic: error for plan in plans if plan.topic_id == error.topic_id}
    for plan in plans:
        if plan.topic not in untold:
            plan.__dict__.update(prefixes=found, remote_segments=segments)
    return untold


def _prefixes_of(
    plans: Sequence[Plan],
) -> tuple[dict[TopicIdPartition, Prefix], dict[str, TidelineError]]:
    """Of all at once; where one topic stands in the way, of each by itself."""
    settings = plans[0].settings
    with suppress(*_OF_ONE_TOPIC):
        return prefixes(settings, (row for plan in plans for row in plan.rows.values())), {}
    found: dict[TopicIdPartition, Prefix] = {}
    untold: dict[str, TidelineError] = {}
    for plan in plans:
        try:
            found |= prefixes(settings, plan.rows.values())
        except _OF_ONE_TOPIC as error:
            untold[plan.topic] = error
    return found, untold


def _may_hold(max_timestamp: int, bounds: Bounds) -> bool:
    """Whether a record may be young enough. -1: what the largest is is not known."""
    return max_timestamp < 0 or max_timestamp >= bounds.not_before


def _parts(piece: Piece) -> list[Piece]:
    segment = piece.segment
    if segment is None or (parts := parts_of(segment.size_bytes)) == 1:
        return [piece]
    return [
        replace(
            piece,
            segment=replace(segment, part=number, parts=parts),
            size_bytes=segment.size_bytes // parts,
        )
        for number in range(parts)
    ]
