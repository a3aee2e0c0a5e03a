"""``tideline export``: what Postgres knows, in Kafka's own formats."""

from __future__ import annotations

import base64
import json
import os
import sys
from collections.abc import Iterator
from contextlib import suppress
from enum import StrEnum
from pathlib import Path
from typing import Annotated, BinaryIO

import typer

from tideline.cli.output import echo, topic_name
from tideline.control_plane.cataloged_jobs import connect_jobs
from tideline.control_plane.jobs import JobsControlPlane
from tideline.control_plane.tiering_model import MergedSegmentRow
from tideline.domain.ids import topic_id_to_base64
from tideline.domain.remote_log import EpochStart, RemoteSegment, SegmentState
from tideline.errors import RefusedError, UsageError
from tideline.kafka.remote_log_metadata import MetadataRecord, metadata_records, write_log
from tideline.settings import JobsSettings, load

app = typer.Typer(
    help="Write what Postgres knows in Kafka's own formats.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
)


class ExportFormat(StrEnum):
    """How the records are written."""

    LOG = "log"
    """A Kafka log file, as ``kafka-dump-log`` reads it."""
    JSON = "json"
    """One object per line, the record's value in base64."""


@app.callback()
def root() -> None:
    """Keeps the subcommand's name on the command line."""


@app.command("remote-log-metadata")
def remote_log_metadata(
    topic: Annotated[str, typer.Argument(help="A topic with merged segments.")],
    output: Annotated[
        Path | None,
        typer.Option("-o", "--output", dir_okay=False, help="A file instead of stdout."),
    ] = None,
    output_format: Annotated[
        ExportFormat | None,
        typer.Option("--format", help="log (default with -o) or json (default without)."),
    ] = None,
) -> None:
    """The merged segments of TOPIC as records of Kafka's remote log metadata.

    For inspection and for another remote log metadata manager. Never put them into a broker's
    own __remote_log_metadata: it would expire the segments as foreign to its log.
    """
    name = topic_name(topic)
    chosen = output_format or (ExportFormat.JSON if output is None else ExportFormat.LOG)
    if chosen is ExportFormat.LOG and output is None:
        raise UsageError("--format log is binary: name a file with -o FILE")
    with connect_jobs(load(JobsSettings), application_name="tideline-cli") as plane:
        records = topic_records(plane, name)
        if output is None:
            _write_json(sys.stdout.buffer, records)
            return
        count = _to_file(output, chosen, records)
    echo(f"{count} records of {name} in {output}", err=True)


def topic_records(plane: JobsControlPlane, topic: str) -> Iterator[MetadataRecord]:
    """The records of every merged segment of ``topic``, by partition and offset.

    Raises :class:`RefusedError` when no partition of it has a suffix.
    """
    logs = sorted((row.partition, row.log_id) for row in plane.tiering_status(topic))
    if not logs:
        raise RefusedError(
            f"topic {topic!r} has no diskless partition, so no merged segments; "
            "`tideline status` lists the topics that are known"
        )
    for _, log_id in logs:
        for row in plane.merged_segments(log_id, log_id + 1):
            yield from metadata_records(remote_segment(row), started_at=row.created_at)


def remote_segment(row: MergedSegmentRow) -> RemoteSegment:
    """A merged segment in the terms of Kafka's remote log. No broker wrote it: broker id -1."""
    return RemoteSegment(
        log=row.log,
        topic=row.topic,
        segment_id=row.segment_id,
        start_offset=row.base_offset,
        end_offset=row.last_offset,
        size_bytes=row.size_bytes,
        leader_epochs=(EpochStart(row.leader_epoch, row.base_offset),),
        state=SegmentState[row.state.value],
        max_timestamp=row.max_timestamp,
        event_timestamp=row.created_at if row.finished_at is None else row.finished_at,
        txn_index_empty=True,
    )


def _to_file(path: Path, chosen: ExportFormat, records: Iterator[MetadataRecord]) -> int:
    """Whole or not at all: what a reader finds under ``path`` is complete."""
    unfinished = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        with unfinished.open("wb") as file:
            write = write_log if chosen is ExportFormat.LOG else _write_json
            count = write(file, records)
        unfinished.replace(path)
    except OSError as error:
        raise UsageError(f"cannot write {path}: {error.strerror or error}") from error
    finally:
        with suppress(OSError):
            unfinished.unlink(missing_ok=True)
    return count


def _write_json(file: BinaryIO, records: Iterator[MetadataRecord]) -> int:
    count = 0
    for record in records:
        file.write(json.dumps(_shown(record)).encode() + b"\n")
        count += 1
    return count


def _shown(record: MetadataRecord) -> dict[str, object]:
    segment = record.segment
    return {
        "topic": segment.topic,
        "topic_id": topic_id_to_base64(segment.log.topic_id),
        "partition": segment.log.partition,
        "segment_id": topic_id_to_base64(segment.segment_id),
        "state": record.state.name,
        "start_offset": segment.start_offset,
        "end_offset": segment.end_offset,
        "size_bytes": segment.size_bytes,
        "max_timestamp": segment.max_timestamp,
        "leader_epochs": {entry.epoch: entry.start_offset for entry in segment.leader_epochs},
        "event_timestamp": record.event_timestamp,
        "value": base64.b64encode(record.value).decode(),
    }
