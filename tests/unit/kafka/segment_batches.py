"""Record batches and whole segments, generated."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from aiokafka.record.default_records import DefaultRecordBatchBuilder
from hypothesis import strategies as st

from tideline.kafka.batches import iter_batches, patch
from tideline.kafka.segment_lookup import SegmentExtent
from tideline.kafka.segment_writer import WrittenSegment, write_segment

CODECS = {"none": 0, "gzip": 1, "snappy": 2, "lz4": 3, "zstd": 4}
EPOCH = 5


@dataclass(frozen=True)
class Spec:
    """One batch to build: record timestamps, a value size, a codec, a producer."""

    timestamps: tuple[int, ...]
    value_bytes: int = 20
    codec: str = "none"
    producer_id: int = -1
    base_sequence: int = -1
    log_append_time: int | None = None


def build(spec: Spec, base_offset: int, leader_epoch: int = EPOCH) -> bytes:
    builder = DefaultRecordBatchBuilder(
        magic=2,
        compression_type=CODECS[spec.codec],
        is_transactional=0,
        producer_id=spec.producer_id,
        producer_epoch=0 if spec.producer_id >= 0 else -1,
        base_sequence=spec.base_sequence,
        batch_size=1 << 30,
    )
    for n, timestamp in enumerate(spec.timestamps):
        value = (b"%d/%d " % (base_offset + n, timestamp)).ljust(spec.value_bytes, b".")
        builder.append(n, timestamp=timestamp, key=b"k%d" % n, value=value, headers=[])
    built = bytearray(builder.build())
    patch(built, base_offset, leader_epoch, spec.log_append_time)
    return bytes(built)


def build_all(
    specs: Sequence[Spec], base_offset: int = 0, leader_epoch: int = EPOCH
) -> list[bytes]:
    """Consecutive batches from ``base_offset`` on."""
    built = []
    for spec in specs:
        built.append(build(spec, base_offset, leader_epoch))
        base_offset += len(spec.timestamps)
    return built


@dataclass
class Built:
    """A written segment beside the batches that went in."""

    batches: list[bytes]
    written: WrittenSegment
    data: dict[str, bytes] = field(default_factory=dict)

    @property
    def extent(self) -> SegmentExtent:
        return SegmentExtent(
            self.written.base_offset, self.written.last_offset, self.written.log_bytes
        )


def segment(
    directory: Path, specs: Sequence[Spec], *, base_offset: int = 0, interval: int = 4096
) -> Built:
    batches = build_all(specs, base_offset)
    written = write_segment(
        directory,
        batches,
        base_offset=base_offset,
        leader_epoch=EPOCH,
        index_interval_bytes=interval,
    )
    data = {file.value: path.read_bytes() for file, path in written.files.items()}
    return Built(batches, written, data)


def sized(records: int, value_bytes: int, timestamp: int = 1_000) -> Spec:
    return Spec(tuple(timestamp + n for n in range(records)), value_bytes)


@st.composite
def spec_lists(draw: st.DrawFn, max_batches: int = 40) -> list[Spec]:
    """Batches of all codecs and of many producers, whose sequences follow."""
    following: dict[int, int] = {}
    specs = []
    for _ in range(draw(st.integers(1, max_batches))):
        timestamps = draw(st.lists(st.integers(0, 500), min_size=1, max_size=8))
        producer = draw(st.sampled_from([-1, 4_000, 4_001, 2**40]))
        sequence = following.setdefault(producer, draw(st.integers(0, 2**31 - 1)))
        following[producer] = (sequence + len(timestamps)) % 2**31
        specs.append(
            Spec(
                tuple(timestamps),
                draw(st.sampled_from([10, 100, 3_000])),
                draw(st.sampled_from(sorted(CODECS))),
                producer,
                sequence if producer >= 0 else -1,
                draw(st.sampled_from([None, None, None, 250])),
            )
        )
    return specs


def header_list(log: bytes) -> list[tuple[int, int, int, int]]:
    """(base offset, last offset, position, max timestamp) of each batch."""
    return [(h.base_offset, h.last_offset, h.position, h.max_timestamp) for h in iter_batches(log)]
