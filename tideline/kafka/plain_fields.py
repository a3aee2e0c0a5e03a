"""What answers that are written in one pass have in common: lengths, and how topics are named."""

from __future__ import annotations

import struct
from uuid import UUID

from tideline.kafka.varints import uvarint

_I16 = struct.Struct(">h").pack
_NO_ID = bytes(16)


def compact(length: int) -> bytes:
    """A compact array's, string's or bytes' length, as it is packed."""
    return uvarint(length + 1)


def named(key: str | UUID | None, *, by_id: bool, flexible: bool) -> bytes:
    """A topic by its name or by its id; ``None``: the id that is no id."""
    if by_id:
        return key.bytes if isinstance(key, UUID) else _NO_ID
    name = str(key).encode()
    return (compact(len(name)) if flexible else _I16(len(name))) + name
