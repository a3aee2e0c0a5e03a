"""How much one run of the collection may delete without being asked for.

What a run takes is in proportion to what lies in the buckets: a run that would take most of it is
more likely to look at the wrong Postgres, or at a mistaken retention, than at that much garbage.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Amount:
    objects: int = 0
    size: int = 0
    """Bytes."""

    def __add__(self, other: Amount) -> Amount:
        return Amount(self.objects + other.objects, self.size + other.size)


@dataclass(frozen=True, slots=True)
class Bounds:
    """Shares of what was listed, in percent. Up to ``free`` no share is looked at."""

    dead_percent: int
    """Of everything that is due: by its objects, and by its bytes."""
    orphan_percent: int
    """Of the orphans among it, which no row vouches for."""
    free: Amount


def held_because(
    due: Amount, orphans: Amount, listed: Amount | None, bounds: Bounds, allowed: Amount | None
) -> str | None:
    """Why a run that found ``due``, ``orphans`` among it, deletes nothing; ``None``: it may.

    ``listed``: what lies under Tideline's own prefixes; ``None``: nobody has listed, so that no
    share can be told and only ``bounds.free`` may go. ``allowed``: what an operator lets this run
    delete.
    """
    if allowed is not None and due.objects <= allowed.objects and due.size <= allowed.size:
        return None
    return _over("objects that are due", due, listed, bounds.dead_percent, bounds.free) or _over(
        "orphans that are due", orphans, listed, bounds.orphan_percent, bounds.free
    )


def _over(
    what: str, found: Amount, listed: Amount | None, percent: int, free: Amount
) -> str | None:
    for unit, amount, least, whole in (
        ("objects", found.objects, free.objects, listed.objects if listed else None),
        ("bytes", found.size, free.size, listed.size if listed else None),
    ):
        if amount <= least or (whole is not None and amount * 100 <= whole * percent):
            continue
        share = (
            "of an unknown whole: no run has listed the buckets"
            if whole is None
            else f"of {whole} listed, more than {percent} %"
        )
        return f"{what}: {amount} {unit} {share} and more than the {least} that are always free"
    return None
