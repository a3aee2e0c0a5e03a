"""Starts a job's DAG when there is work: a trigger that looks for it, behind an asset's watcher."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from airflow.sdk import Asset, AssetOrTimeSchedule, AssetWatcher, DeltaTriggerTimetable
from airflow.triggers.base import BaseEventTrigger, TriggerEvent

from tideline.errors import TidelineError
from tideline.settings import AirflowSettings

if TYPE_CHECKING:
    from tideline.airflow.work import Work

AT_LEAST_EVERY = timedelta(hours=1)
"""A run without work ends in seconds and is a success that the alert of jobs which do not run sees
(six hours); it also finds what a watcher that does not run would not."""


class News:
    """Which work has started a run already. The same is told again after ``again_s``, for a run
    that has failed."""

    def __init__(self, again_s: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._again_s, self._clock = again_s, clock
        self._told: frozenset[str] = frozenset()
        self._told_at = 0.0

    def is_news(self, work: Work) -> bool:
        """Whether ``work`` shall start a run; then it has."""
        if work.at_work:
            return False
        self._told &= work.items
        late = self._clock() - self._told_at >= self._again_s
        if not work.items - self._told and not (late and work.items):
            return False
        self._told, self._told_at = work.items, self._clock()
        return True


class WorkTrigger(BaseEventTrigger):
    """Fires when ``split`` or ``merge`` has work, with how much it is.

    Never ends by itself: while Postgres or Kafka is away it says so once and looks on. Only one
    look is under way at a time, in a thread; what it may take is bounded by the settings of
    Postgres and Kafka. One that is begun by another triggerer may fire once for work that has
    started a run already; that run finds nothing.
    """

    def __init__(self, job: str, every_ms: int, again_ms: int) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.job = job
        self.every_ms = every_ms
        self.again_ms = again_ms

    def serialize(self) -> tuple[str, dict[str, Any]]:
        return (
            f"{type(self).__module__}.{type(self).__qualname__}",
            {"job": self.job, "every_ms": self.every_ms, "again_ms": self.again_ms},
        )

    async def run(self) -> AsyncIterator[TriggerEvent]:
        # DAG files import this module; only the triggerer needs the clients.
        from tideline.airflow.work import looking

        look, news, trouble = looking(self.job), News(self.again_ms / 1000), ""
        while True:
            try:
                work = await asyncio.to_thread(look)
                if trouble:
                    self.log.info("%s: work is looked for again", self.job)
                trouble = ""
                if news.is_news(work):
                    yield TriggerEvent({"job": self.job, **work.told})  # type: ignore[no-untyped-call]
            except Exception as error:
                trouble = self._tell(error, trouble)
            await asyncio.sleep(self.every_ms / 1000)

    def _tell(self, error: Exception, before: str) -> str:
        """What is wrong, logged when it is something else than ``before``. A trigger that raises
        would be gone for good."""
        if (said := f"{type(error).__name__}: {error}") != before:
            known = isinstance(error, TidelineError)
            self.log.warning(
                "%s: no look for work: %s", self.job, said, exc_info=None if known else error
            )
        return said


def start_of(job: str, given: AirflowSettings, every_ms: int) -> Any:
    """The schedule of a job of tiering, as ``TIDELINE_AIRFLOW_TIERING_STARTS`` says."""
    if given.airflow_tiering_starts == "schedule":
        return DeltaTriggerTimetable(timedelta(milliseconds=every_ms))
    trigger = WorkTrigger(job, every_ms, given.airflow_work_again_ms)
    work = Asset(
        f"tideline_{job}_work",
        uri=f"tideline://{job}-work",
        group="tideline",
        watchers=[AssetWatcher(name=f"tideline_{job}_work", trigger=trigger)],
    )
    return AssetOrTimeSchedule(timetable=DeltaTriggerTimetable(AT_LEAST_EVERY), assets=work)
