"""Whether split or merge would find something to do: a few questions to Postgres, and now and then
to Kafka. No Spark."""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from contextlib import closing
from dataclasses import dataclass, field

from tideline.control_plane.jobs import JobsControlPlane
from tideline.kafka.topic_policies import TieringPolicies, read_tiering_policies, suffix_topics
from tideline.settings import AirflowSettings, JobsSettings, load

POLICIES_KEPT_S = 300.0
"""What topics say of tiering is asked of Kafka anew after this: one request a topic. A topic that
an operator triggers is seen at the next look all the same."""


@dataclass(frozen=True, slots=True)
class Work:
    """What a job would begin with. An item is there until it is done, or given up."""

    items: frozenset[str] = frozenset()
    at_work: bool = False
    """A run of the job is under way. It goes on until nothing is left."""
    told: Mapping[str, int] = field(default_factory=dict)
    """For who reads why a run was started."""


Look = Callable[[], Work]


def looking(job: str) -> Look:
    """A look for work of ``split`` or ``merge``. Each opens a connection of its own and closes it.
    Raises :class:`~tideline.errors.TidelineError` when Postgres or Kafka is away."""
    return {"split": _SplitLook, "merge": _MergeLook}[job]()


def jobs_settings() -> JobsSettings:
    """Those of the jobs: of the file that ``TIDELINE_AIRFLOW_JOBS_CONFIG`` names."""
    return load(JobsSettings, load(AirflowSettings).airflow_jobs_config)


class _Look(ABC):
    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._policies: TieringPolicies | None = None
        self._read_at = 0.0

    def __call__(self) -> Work:
        settings = jobs_settings()
        with closing(JobsControlPlane(settings, "tideline-airflow-work")) as plane:
            return self.work(plane, settings)

    @abstractmethod
    def work(self, plane: JobsControlPlane, settings: JobsSettings) -> Work:
        """By what Postgres knows now."""

    def policies(self, plane: JobsControlPlane, settings: JobsSettings) -> TieringPolicies:
        if self._policies is None or self._clock() - self._read_at >= POLICIES_KEPT_S:
            self._policies = read_tiering_policies(settings, suffix_topics(plane))
            self._read_at = self._clock()
        return self._policies


class _SplitLook(_Look):
    def work(self, plane: JobsControlPlane, settings: JobsSettings) -> Work:
        found = plane.split_work(self.policies(plane, settings).cutoffs(_now_ms()))
        if found.claimed or found.file_id is None:
            return Work(at_work=found.claimed > 0)
        told = {"partitions": found.partitions, "oldest_ms": found.max_timestamp or 0}
        # A run takes everything: the oldest of it is there as long as none has begun.
        return Work(frozenset({f"{found.file_id}:{found.max_timestamp}"}), told=told)


class _MergeLook(_Look):
    def work(self, plane: JobsControlPlane, settings: JobsSettings) -> Work:
        policies = self.policies(plane, settings)
        candidates = plane.merge_candidates()
        if any(candidate.segments_in_progress for candidate in candidates):
            return Work(at_work=True)
        ready = [one for one, _ in policies.ready(candidates, settings, _now_ms())]
        items = frozenset(f"{one.log_id}:{one.base_offset}" for one in ready)
        told = {"partitions": len(ready), "bytes": sum(one.bytes for one in ready)}
        return Work(items, told=told)


def _now_ms() -> int:
    return round(time.time() * 1000)
