"""Record batches that a produce may carry: well made ones, and each rule of Kafka's broken by one
(``LogValidator``, ``DefaultRecordBatch``). Null is not among them: a broker of 4.2 raises while it
writes down that it refuses that, and answers nothing."""

from __future__ import annotations

import gzip
import random
import struct
from collections.abc import Callable

import crc32c

from tests.differential.questions import Batch
from tests.unit.gateway.fakes import record_batch
from tests.unit.kafka.test_legacy_batches import legacy
from tideline.kafka.batches import HEADER_BYTES

CRC_AT, CHECKED_FROM = 17, 21
ATTRIBUTES, LAST_DELTA, BASE_TIMESTAMP, COUNT = 21, 23, 27, 57
LENGTH_AT, MAGIC_AT = 8, 16
GZIP, NO_CODEC, TRANSACTIONAL, CONTROL = 1, 7, 16, 32
YEAR_MS = 365 * 86_400_000
WRITER = 6_000_000
"""Producer ids of idempotent batches: each writes one."""


def _changed(batch: bytes, at: int, form: str, value: int) -> bytes:
    """With another field, and the checksum of that."""
    made = bytearray(batch)
    struct.pack_into(form, made, at, value)
    struct.pack_into(">I", made, CRC_AT, crc32c.crc32c(bytes(made[CHECKED_FROM:])))
    return bytes(made)


def _with_body(batch: bytes, body: bytes) -> bytes:
    made = bytearray(batch[:HEADER_BYTES] + body)
    struct.pack_into(">i", made, LENGTH_AT, len(made) - 12)
    return bytes(made)


def bytes_of(batch: Batch, now_ms: int) -> bytes:
    """What stands for ``batch`` in a request of now; the same for the same batch and time."""
    chance = random.Random(f"batch {batch.number}")
    plain = record_batch(chance.randint(1, 3), max_timestamp=now_ms, payload=chance.randbytes(20))
    writer = WRITER + batch.number
    sent = record_batch(2, producer_id=writer, epoch=0, sequence=0, max_timestamp=now_ms)
    noise = chance.randbytes(40)
    squeezed = _changed(
        _with_body(plain, gzip.compress(plain[HEADER_BYTES:], mtime=0)), ATTRIBUTES, ">h", GZIP
    )
    kinds: dict[str, Callable[[], bytes]] = {
        "empty": lambda: b"",
        "plain": lambda: plain,
        "idempotent": lambda: sent,
        "gzip": lambda: squeezed,
        "noise": lambda: noise,
        "cut": lambda: plain[: chance.randrange(1, len(plain))],
        "wrong checksum": lambda: plain[:CRC_AT] + b"\0\0\0\0" + plain[CHECKED_FROM:],
        "two": lambda: plain + plain,
        "magic 0": lambda: legacy(0, magic=0),
        "magic 1": lambda: legacy(0, magic=1),
        "magic 3": lambda: plain[:MAGIC_AT] + b"\3" + plain[MAGIC_AT + 1 :],
        "count too high": lambda: _changed(plain, COUNT, ">i", 9),
        "count of none": lambda: _changed(plain, COUNT, ">i", 0),
        "length too long": lambda: plain[:LENGTH_AT] + b"\0\0\x7f\0" + plain[LENGTH_AT + 4 :],
        "control": lambda: _changed(plain, ATTRIBUTES, ">h", CONTROL),
        "transactional": lambda: _changed(sent, ATTRIBUTES, ">h", TRANSACTIONAL),
        "wild sequence": lambda: record_batch(
            2, producer_id=WRITER, epoch=0, sequence=7, max_timestamp=now_ms
        ),
        "epoch without producer": lambda: record_batch(
            2, epoch=0, sequence=0, max_timestamp=now_ms
        ),
        "before 1970": lambda: _changed(plain, BASE_TIMESTAMP, ">q", -5_000),
        "far ahead": lambda: record_batch(1, max_timestamp=now_ms + 10 * YEAR_MS),
        "gzip of noise": lambda: _changed(_with_body(plain, noise), ATTRIBUTES, ">h", GZIP),
        "unknown codec": lambda: _changed(plain, ATTRIBUTES, ">h", NO_CODEC),
        "too large": lambda: record_batch(1, max_timestamp=now_ms, payload=bytes(1_100_000)),
        "offset of its own": lambda: struct.pack(">q", 77) + plain[8:],
    }
    return kinds[batch.kind]()
