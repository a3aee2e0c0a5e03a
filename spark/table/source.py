"""The format ``tideline``: a Python Data Source, in batches and as a stream.

Settings are read where the driver runs, and travel in the class to whoever reads: Spark shows the
options of a plan to everybody, and they hold no secret.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    DataSourceStreamReader,
    Filter,
    InputPartition,
)
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxRows,
    SupportsTriggerAvailableNow,
)

from spark.table.options import Options, bounds_of, parse
from spark.table.pieces import Piece
from spark.table.plan import Plan, look
from spark.table.prefix import APPLICATION
from spark.table.rows import SCHEMA, arrow_rows
from spark.table.scan import Scanner
from spark.table.times import offset_at
from tideline.control_plane.cataloged_jobs import connect_jobs
from tideline.domain.coverage import OffsetRange
from tideline.domain.table import Bounds, TableRefused, parse_offsets, resolve
from tideline.errors import UsageError
from tideline.settings import JobsSettings, load

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.types import StructType

NAME = "tideline"
PUSHDOWN = "spark.sql.python.filterPushdown.enabled"


def register(spark: SparkSession, settings: JobsSettings | None = None) -> None:
    """Make the format known to ``spark``, with ``settings`` or those of this process, and let its
    filters be pushed down. Raises :class:`tideline.errors.UsageError` for wrong settings, and where
    Spark could not plan a query."""
    _can_plan(spark.sparkContext.pythonExec)
    spark.conf.set(PUSHDOWN, "true")
    spark.dataSource.register(_source(settings or load(JobsSettings)))


def _can_plan(python: str) -> None:
    """Spark plans a Python Data Source on the driver's machine, with the executors' Python."""
    if shutil.which(python) is None:
        raise UsageError(
            f"spark.pyspark.python is {python}, which the driver's machine does not have: Spark "
            f"plans the format {NAME} there with it. Unpack the environment on every machine in "
            "one place, and name that (docs/table.md)"
        )


def _source(settings: JobsSettings) -> type[TopicSource]:
    class Source(TopicSource):
        _settings = settings

    return Source


class TopicSource(DataSource):
    """A hybrid or diskless topic. Options: docs/table.md."""

    _settings: JobsSettings | None = None

    @classmethod
    def name(cls) -> str:
        return NAME

    def schema(self) -> StructType:
        from pyspark.sql.pandas.types import from_arrow_schema

        return from_arrow_schema(SCHEMA)

    def reader(self, schema: object) -> TopicReader:
        options = parse(dict(self.options), stream=False)
        return TopicReader(options.settings(self._given()), options)

    def streamReader(self, schema: object) -> TopicStreamReader:
        options = parse(dict(self.options), stream=True)
        return TopicStreamReader(options.settings(self._given()), options)

    def _given(self) -> JobsSettings:
        return self._settings or load(JobsSettings)


class TopicReader(DataSourceReader):
    """Reads a topic as it is when the query is planned."""

    def __init__(self, settings: JobsSettings, options: Options) -> None:
        self._settings, self._options, self._bounds = settings, options, Bounds()

    def pushFilters(self, filters: list[Filter]) -> Iterable[Filter]:
        """They limit what is read; Spark still applies them to each row."""
        self._bounds = bounds_of(filters)
        return filters

    def partitions(self) -> Sequence[InputPartition]:
        plan = look(self._settings, self._options.topic)
        starts, ends = edges(plan, self._options)
        wanted = {p: OffsetRange(starts[p], max(starts[p], ends[p])) for p in plan.rows}
        return plan.pieces(wanted, self._bounds, self._options.isolation)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        assert isinstance(partition, Piece)
        yield from read_piece(self._settings, self._options, self._bounds, partition)


class TopicStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Follows a topic. An offset of the stream is ``{"topicId": …, "offsets": {"0": 23}}``, the
    next one of each partition."""

    def __init__(self, settings: JobsSettings, options: Options) -> None:
        self._settings, self._options = settings, options
        self._planned: list[Plan] = []
        self._target: dict[str, Any] | None = None

    def initialOffset(self) -> dict[str, Any]:
        plan = self._looked()
        starts, _ = edges(plan, self._options)
        return _stream_offset(plan, starts)

    def getDefaultReadLimit(self) -> ReadLimit:
        most = self._options.max_offsets
        return ReadAllAvailable() if most is None else ReadMaxRows(most)

    def prepareForTriggerAvailableNow(self) -> None:
        plan = self._looked()
        self._target = _stream_offset(plan, {p: row.high_watermark for p, row in plan.rows.items()})

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:
        plan = self._looked()
        begun = self._begun(plan, start)
        ends = {p: max(begun[p], row.high_watermark) for p, row in plan.rows.items()}
        if self._target is not None:
            target = _offsets(plan, self._target)
            ends = {p: max(begun[p], min(end, target.get(p, begun[p]))) for p, end in ends.items()}
        if isinstance(limit, ReadMaxRows):
            ends = shared_out(begun, ends, limit.max_rows)
        return _stream_offset(plan, ends)

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        plan = look(self._settings, self._options.topic)
        self._planned.append(plan)
        begun, ends = self._begun(plan, start), _offsets(plan, end)
        wanted = {}
        for partition, upto in ends.items():
            first = begun[partition]
            if first < upto:
                first = self._not_lost(plan, partition, first, upto)
                wanted[partition] = OffsetRange(first, upto)
        return plan.pieces(wanted, Bounds(), self._options.isolation)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        assert isinstance(partition, Piece)
        yield from read_piece(self._settings, self._options, Bounds(), partition)

    def commit(self, end: dict[str, Any]) -> None:
        with connect_jobs(self._settings, application_name=APPLICATION) as plane:
            while self._planned:
                if (pin := self._planned.pop().pin) is not None:
                    plane.unpin_reads(pin)

    def _looked(self) -> Plan:
        return look(self._settings, self._options.topic, pinned=False)

    def _begun(self, plan: Plan, start: Mapping[str, Any]) -> dict[int, int]:
        """A partition that is newer than ``start`` is read from its first offset on."""
        known = _offsets(plan, start)
        return {p: known[p] if p in known else plan.whole[p].start for p in plan.rows}

    def _not_lost(self, plan: Plan, partition: int, first: int, upto: int) -> int:
        row = plan.rows[partition]
        if first >= max(row.boundary, row.suffix_start):
            return first  # so that brokers are not asked for each batch of the stream
        begins = plan.whole[partition].start
        if first < begins and self._options.fail_on_data_loss:
            raise TableRefused(
                f"{plan.topic}-{partition}: the stream stands at offset {first}, the log begins at "
                f"{begins}: retention was faster. With failOnDataLoss=false it goes on there"
            )
        return min(max(first, begins), upto)


def edges(plan: Plan, options: Options) -> tuple[dict[int, int], dict[int, int]]:
    """By partition, the first offset that is read and the end. Raises
    :class:`tideline.errors.UsageError`, :class:`TableRefused`."""
    starts = parse_offsets("startingOffsets", options.starting_offsets, plan.topic, plan.rows)
    ends = parse_offsets("endingOffsets", options.ending_offsets, plan.topic, plan.rows)
    first = resolve(starts, plan.whole, plan.topic, "startingOffsets")
    last = resolve(ends, plan.whole, plan.topic, "endingOffsets")
    if (since := options.starting_timestamp) is not None:
        first = {p: offset_at(plan, p, since) for p in plan.rows}
    if (until := options.ending_timestamp) is not None:
        last = {p: offset_at(plan, p, until) for p in plan.rows}
    return first, last


def read_piece(
    settings: JobsSettings, options: Options, bounds: Bounds, piece: Piece
) -> Iterator[pa.RecordBatch]:
    """The rows of one piece, held from the collection while they are read."""
    with Scanner(settings, not_before=bounds.not_before) as scanner:
        if piece.pin is not None:
            scanner.hold(piece.pin, settings.table_pin_ms)
        yield from arrow_rows(scanner, piece, options.isolation)


def shared_out(begun: Mapping[int, int], ends: Mapping[int, int], most: int) -> dict[int, int]:
    """``ends``, nearer, so that at most ``most`` offsets are read: each partition has a share of
    what it has to read, and one offset at least while there are enough."""
    waiting = {p: end - begun[p] for p, end in ends.items()}
    whole = sum(waiting.values())
    if whole <= most:
        return dict(ends)
    found, left = {}, most
    for partition, count in sorted(waiting.items(), key=lambda item: item[1]):
        share = min(count, left, max(1 if count else 0, count * most // whole))
        found[partition] = begun[partition] + share
        left -= share
    return found


def _stream_offset(plan: Plan, offsets: Mapping[int, int]) -> dict[str, Any]:
    topic_id = next(iter(plan.rows.values())).topic_id
    return {"topicId": str(topic_id), "offsets": {str(p): o for p, o in sorted(offsets.items())}}


def _offsets(plan: Plan, told: Mapping[str, Any]) -> dict[int, int]:
    topic_id = str(next(iter(plan.rows.values())).topic_id)
    if told.get("topicId") != topic_id:
        raise TableRefused(
            f"topic {plan.topic} was deleted and created again: the stream stands in topic id "
            f"{told.get('topicId')}, the topic has {topic_id}. Begin with a new checkpoint"
        )
    return {int(p): int(offset) for p, offset in told["offsets"].items() if int(p) in plan.rows}
