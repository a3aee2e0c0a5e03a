"""Puts into the bucket what fills the holes that an operator gives up: one object for each log.

It comes before anything of the log is written into Postgres, and what was put is taken from there
on as if it had been read: whoever is ended in between finds it in the bucket.
"""

from __future__ import annotations

from collections.abc import Callable

from tideline.domain.rebuild_filling import filling_of
from tideline.domain.wal_footer import encode
from tideline.kafka.batches import empty_batch
from tideline.rebuild.survey import Survey, take_filling


def fill(found: Survey, prefix: str, put: Callable[[str, bytes], object]) -> int:
    """Give up what was acknowledged to nobody, and if its choices say so all that nobody knows, of
    each log of ``found``, which tells of it from then on. Answers how many logs it was. ``prefix``:
    of the installation, which the keys that ``put`` takes have."""
    for log, plan in list(found.plans.items()):
        filling = filling_of(plan, found.rebuilt, found.history, asked=found.choices.fill_holes)
        if filling is None:
            continue
        key = filling.key(prefix)
        batches = [empty_batch(filled.offsets) for filled in filling.filled]
        body = b"".join(batches) + encode(filling.footer(key))
        put(key, body)
        take_filling(found, log, filling, filling.told(key, len(body)), filling.rows(key))
    return len(found.filled)
