"""The activities of a migration: every side effect that its workflows have."""

from activities.migration import MigrationActivities
from activities.preflight import run_preflight
from activities.services import WorkerServices, open_services

__all__ = ["MigrationActivities", "WorkerServices", "open_services", "run_preflight"]
