"""A segment as files in a directory, named as a broker names them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path

from tideline.domain.remote_log import EpochStart
from tideline.kafka.batches import Buffer
from tideline.kafka.segment_files import ProducerSnapshotEntry, SegmentFile, offset_name
from tideline.kafka.segment_writer import (
    DEFAULT_INDEX_INTERVAL_BYTES,
    SegmentWriter,
    WrittenSegment,
)


@dataclass(frozen=True)
class SegmentOnDisk(WrittenSegment):
    """Sizes in bytes."""

    files: Mapping[SegmentFile, Path]
    sizes: Mapping[SegmentFile, int]


def write_segment(
    directory: Path,
    batches: Iterable[Buffer],
    *,
    base_offset: int,
    leader_epoch: int,
    index_interval_bytes: int = DEFAULT_INDEX_INTERVAL_BYTES,
    producers: Iterable[ProducerSnapshotEntry] = (),
    lineage: Sequence[EpochStart] | None = None,
    producers_since: int | None = None,
) -> SegmentOnDisk:
    """Build a segment from buffers of whole batches. Raises as :class:`SegmentWriter` does."""
    name = offset_name(base_offset)
    files = {file: directory / f"{name}{file}" for file in SegmentFile}
    with files[SegmentFile.LOG].open("wb") as log:
        writer = SegmentWriter(
            log,
            base_offset=base_offset,
            leader_epoch=leader_epoch,
            index_interval_bytes=index_interval_bytes,
            lineage=lineage,
        )
        for buffer in batches:
            writer.append(buffer)
        written = writer.finish(producers=producers, producers_since=producers_since)
    for file, body in written.beside.items():
        files[file].write_bytes(body)
    return SegmentOnDisk(
        **{field.name: getattr(written, field.name) for field in fields(written)},
        files=files,
        sizes={file: path.stat().st_size for file, path in files.items()},
    )
