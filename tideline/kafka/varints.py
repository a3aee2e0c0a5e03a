"""Kafka's unsigned varints (KIP-482), as they are written."""

from __future__ import annotations


def uvarint(value: int) -> bytes:
    """``value``, not negative, seven bits a byte, the lowest first."""
    packed = bytearray()
    while value > 0x7F:
        packed.append(value & 0x7F | 0x80)
        value >>= 7
    packed.append(value)
    return bytes(packed)
