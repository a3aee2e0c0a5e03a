"""Record batches as producers write them, and as nobody does."""

from __future__ import annotations

import random
import struct

import crc32c

from tests.unit.gateway.fakes import varint

BASE = 1_700_000_000_000
_TIMESTAMPS = (0, 0, 1, 5_000, -3, 2**31, -BASE, -BASE - 1, 2**63 - 1, 2**63 - 1 - BASE, -(2**63))
_HEADER = ">hiqqqhii"
_CRC_AT, _CHECKED_FROM, _LENGTH_AT = 17, 21, 8
_BYTES = (0, 1, 2, 3, 0x7E, 0x7F, 0x80, 0x81, 0xFE, 0xFF)


def random_batch(rng: random.Random) -> bytes:
    """Uncompressed and right, but for what a number may say that is no right one; with its CRC."""
    count = rng.choice((1, 1, 2, 3, 20, 70, 200))
    base = rng.choice((BASE, BASE, BASE, 0, -1, 2**63 - 1))
    odd = rng.random() < 0.2
    deltas = [rng.choice(_TIMESTAMPS) if odd else rng.randrange(100) for _ in range(count)]
    body = b"".join(_record(rng, delta, number) for number, delta in enumerate(deltas))
    latest = max(-1, *(base + delta for delta in deltas))
    latest = latest if rng.random() < 0.9 else rng.choice((BASE, -1, -2))
    numbered = rng.random() < 0.5
    producer = (rng.randrange(2**40), rng.randrange(2**15), rng.randrange(2**31))
    return sealed(
        struct.pack(
            _HEADER,
            rng.choice((0,) * 20 + (1, 8, 16, 32, 64, 256, -1)),
            count - 1,
            base,
            min(latest, 2**63 - 1),
            *(producer if numbered else (-1, -1, -1)),
            count,
        )
        + body
    )


def sealed(inside: bytes) -> bytes:
    """A batch with a right length and CRC around what both are of."""
    head = struct.pack(">qiibI", 0, 9 + len(inside), -1, 2, crc32c.crc32c(inside))
    return head + inside


def _record(rng: random.Random, delta: int, number: int) -> bytes:
    def some() -> bytes:
        if rng.random() < 0.2:
            return varint(-1)
        value = rng.randbytes(rng.choice((0, 1, 5, 63, 64, 200)))
        return varint(len(value)) + value

    headers = [
        varint(len(key)) + key + some()
        for key in (rng.randbytes(rng.randrange(3)) for _ in range(rng.choice((0, 0, 0, 1, 3))))
    ]
    rest = b"\0" + varint(delta) + varint(number) + some() + some()
    rest += varint(len(headers)) + b"".join(headers)
    return varint(len(rest)) + rest


def damaged_batch(whole: bytes, rng: random.Random) -> bytes:
    """The same with bytes changed, put in, left out or cut off; nearly always with a CRC that is
    right again, and mostly with a right length, so that what is behind them is read."""
    batch = bytearray(whole)
    for _ in range(rng.choice((1, 1, 1, 2, 4))):
        # Half of them where the numbers of the first records are.
        at = rng.randrange(len(batch) if rng.random() < 0.5 else min(len(batch), 90))
        how = rng.random()
        if how < 0.6:
            batch[at] = rng.choice((*_BYTES, batch[at] ^ 1 << rng.randrange(8)))
        elif how < 0.75:
            batch[at:at] = rng.randbytes(rng.randrange(1, 4))
        elif how < 0.9:
            del batch[at + 1 : at + rng.randrange(2, 5)]
        else:
            del batch[max(at, 1) :]
    if len(batch) > _CHECKED_FROM and rng.random() < 0.95:
        if rng.random() < 0.9:
            struct.pack_into(">i", batch, _LENGTH_AT, len(batch) - 12)
        struct.pack_into(">I", batch, _CRC_AT, crc32c.crc32c(bytes(batch[_CHECKED_FROM:])))
    return bytes(batch)
