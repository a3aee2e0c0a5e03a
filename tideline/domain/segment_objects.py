"""Whether the objects of a merged segment are as they were sent.

All attempts at one put, and their retries, go to one key. On a store that lets the end of an
earlier attempt, of which only a part arrived, win over a whole one behind it, an answer of 200 says
nothing for good: what counts is the size that the object has when all attempts have ended.
"""

from __future__ import annotations

from collections.abc import Mapping


def what_is_not_whole(wanted: Mapping[str, int | None], found: Mapping[str, int]) -> str:
    """Which objects are missing or of another size, empty when none is. Sizes in bytes by the
    object's suffix; ``None``: none was recorded, any will do."""
    wrong = []
    for suffix, size in wanted.items():
        there = found.get(suffix)
        if there is None:
            wrong.append(f"{suffix} is missing")
        elif size is not None and there != size:
            wrong.append(f"{suffix} has {there} bytes, not {size}")
    return ", ".join(wrong)
