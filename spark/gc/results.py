"""Results of runs in the object store go some day (:mod:`tideline.object_store.runs`)."""

from __future__ import annotations

from datetime import datetime, timedelta

from spark.gc.reports import ReportStore
from tideline.object_store.runs import PREFIX, RESULT


def forget_old_results(
    store: ReportStore, bucket: str, root: str, now: datetime, kept_days: int
) -> int:
    """Delete results that were written more than ``kept_days`` ago; how many. ``root``: what lies
    before every key of this installation in ``bucket``. What has another name stays."""
    before = now - timedelta(days=kept_days)
    old = [
        entry.key
        for entry in store.list_objects(bucket, f"{root}{PREFIX}")
        if entry.last_modified < before and RESULT.search(entry.key)
    ]
    if old:
        store.delete(bucket, old)
    return len(old)
