"""Record batches and whole segments, generated."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from pathlib import Path

from aiokafka.record.default_records import DefaultRecordBatchBuilder
from hypothesis import strategies as st

from tests.segment_on_disk import SegmentOnDisk, write_segment
from tideline.kafka.batches import empty_batch, iter_batches, patch
from tideline.kafka.segment_lookup import SegmentExtent

CODECS = {"none": 0, "gzip": 1, "snappy": 2, "lz4": 3, "zstd": 4}
EPOCH = 5


@dataclass(frozen=True)
class Spec:
    """One batch to build: record timestamps, a value size, a codec, a producer; or an empty one,
    without any."""

    timestamps: tuple[int, ...]
    value_bytes: int = 20
    codec: str = "none"
    producer_id: int = -1
    base_sequence: int = -1
    log_append_time: int | None = None
    empty: int = 0
    """So many offsets without a record."""

    @property
    def offsets(self) -> int:
        return self.empty or len(self.timestamps)

    @property
    def max_timestamp(self) -> int:
        if self.log_append_time is not None:
            return self.log_append_time
        return max(self.timestamps, default=-1)


def empty(offsets: int) -> Spec:
    return Spec((), empty=offsets)


@lru_cache(maxsize=1_000)
def _encoded(spec: Spec, base_offset: int) -> bytes:
    """The same bytes each time: gzip writes into its header which second it is."""
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
    return bytes(builder.build())


def build(spec: Spec, base_offset: int, leader_epoch: int = EPOCH) -> bytes:
    if spec.empty:
        given_up = bytearray(empty_batch(spec.empty))
        patch(given_up, base_offset, leader_epoch)
        return bytes(given_up)
    built = bytearray(_encoded(replace(spec, log_append_time=None), base_offset))
    patch(built, base_offset, leader_epoch, spec.log_append_time)
    return bytes(built)


def build_all(
    specs: Sequence[Spec], base_offset: int = 0, leader_epoch: int = EPOCH
) -> list[bytes]:
    """Consecutive batches from ``base_offset`` on."""
    built = []
    for spec in specs:
        built.append(build(spec, base_offset, leader_epoch))
        base_offset += spec.offsets
    return built


@dataclass
class Built:
    """A written segment beside the batches that went in."""

    batches: list[bytes]
    written: SegmentOnDisk
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
    """Batches of all codecs and of many producers, whose sequences follow, and empty ones."""
    following: dict[int, int] = {}
    specs = []
    for _ in range(draw(st.integers(1, max_batches))):
        if draw(st.integers(0, 7)) == 7:
            specs.append(empty(draw(st.sampled_from([1, 2, 30]))))
            continue
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
