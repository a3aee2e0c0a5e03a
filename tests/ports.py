"""Ports for what a test starts."""

from __future__ import annotations

import random

from tideline.stack.ports import is_free

FIRST, END = 22_000, 32_768
"""Above the ports of stacks, below those that the kernel gives to connections: one of these may be
anybody's before a process that is being started has taken it."""
_left: list[int] = []


def free_ports(count: int) -> list[int]:
    """So many, none of them given before by this process."""
    if not _left:
        _left.extend(random.SystemRandom().sample(range(FIRST, END), END - FIRST))
    found: list[int] = []
    while len(found) < count:
        if is_free(port := _left.pop()):
            found.append(port)
    return found


def free_port() -> int:
    return free_ports(1)[0]
