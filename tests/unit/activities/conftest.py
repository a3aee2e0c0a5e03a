"""A small world for activities: one topic on three brokers, Postgres and S3 as dictionaries."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast
from uuid import UUID

import pytest

from tests.unit.activities.world import FakeKafka, FakeStore, WorkerPlane, World
from tideline.control_plane.lease_observer import LeaseObserver
from tideline.migration.connections import (
    AckListener,
    EvidenceQueue,
    WorkerServices,
    monotonic_ms,
)


@pytest.fixture
def world() -> World:
    plane = WorkerPlane()
    kafka = FakeKafka()
    store = FakeStore()
    services = WorkerServices(
        settings=cast(Any, SimpleNamespace(temporal_task_queue="tideline")),
        control_plane=cast(Any, plane),
        observer=cast(Any, kafka),
        topics=cast(Any, kafka),
        admin=cast(Any, kafka),
        deletion=cast(Any, kafka),
        reader=cast(Any, kafka),
        tails=cast(Any, kafka.tails),
        remote_log=cast(Any, store),
        inventory=cast(Any, store),
        acks=AckListener(cast(Any, plane)),
        leases=LeaseObserver(cast(Any, plane), monotonic_ms),
        cluster=cast(Any, kafka),
        wait_bound_ms=60,
        evidence=EvidenceQueue(),
    )
    return World(services, plane, kafka, store, UUID(int=1))
