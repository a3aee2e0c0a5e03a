"""A Postgres that is rebuilt out of a bucket, as tests look at it and write it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from tests.contract.tiering import PREFIX
from tests.unit.rebuild.buckets import HISTORY, Bucket
from tideline.rebuild.postgres import RebuildPostgres
from tideline.rebuild.reader import BucketReader
from tideline.rebuild.segments import SegmentReader
from tideline.rebuild.survey import Choices, Survey, survey
from tideline.rebuild.write import watch

BY = ("an operator", "the disk is gone")


def look(bucket: Bucket, postgres: RebuildPostgres | None, **choices: object) -> Survey:
    chosen = replace(Choices(current=HISTORY), **choices)  # type: ignore[arg-type]
    segments = SegmentReader(bucket, "tiered", PREFIX)
    return survey(BucketReader(bucket, "wal", ""), postgres, chosen, segments=segments)


def stop(postgres: RebuildPostgres, meanwhile: Callable[[], object] = lambda: None) -> None:
    still = watch(postgres, lambda: None, 30.0, lambda _: meanwhile() and None)
    postgres.begin(*BY, still.holders, still.beat)
