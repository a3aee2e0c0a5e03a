"""What every step of the demo works with: its size, the stack's endpoints, the ledger."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from confluent_kafka.admin import AdminClient

from tideline.control_plane import ControlPlane
from tideline.control_plane.model import PartitionMigrationStatus
from tideline.demo.ledger import Ledger
from tideline.object_store.client import ObjectEntry, ObjectStoreClient
from tideline.settings import ObjectStoreSettings

if TYPE_CHECKING:
    from tideline.stack import Stack


@dataclass(frozen=True, slots=True)
class DemoOptions:
    """How large the demo is. Defaults suit two cores."""

    topic: str = "orders"
    partitions: int = 12
    history_segments: int = 3
    """Segments (1 MiB each) of history in S3 per partition before the migration."""
    librdkafka_rate: float = 600.0
    """Records per second over all partitions."""
    java_rate: int = 100
    before_s: float = 5.0
    """How long clients run before the trigger."""
    after_s: float = 8.0
    """How long they go on after the last partition is hybrid."""
    timeout_s: float = 300.0
    aging: bool = True
    """Go on past readiness: coverage, tiering, reading back."""
    collect: bool = True
    """Of an aged topic collect objects too, and read it as a table and beside the gateways."""
    rehearse: bool = False
    """Then lose Postgres, and rebuild it out of the bucket."""
    migrate: tuple[str, ...] = ()
    """Options of ``tideline migrate``, which then starts the migration instead of a config."""


@dataclass(slots=True)
class DemoOutput:
    """Where the demo says what it does. Replaced by a silent one in tests and benchmarks."""

    step: Callable[[str], None] = field(default=lambda _: None)
    progress: Callable[[list[PartitionMigrationStatus]], None] = field(default=lambda _: None)


class DemoContext:
    """One run against a stack that is up."""

    def __init__(
        self, stack: Stack, control_plane: ControlPlane, options: DemoOptions, output: DemoOutput
    ) -> None:
        self.stack, self.control_plane = stack, control_plane
        self.options, self.output = options, output
        self.environment = stack.environment("worker")
        self.bootstrap = stack.endpoints.gateway_bootstrap
        self.login = stack.kafka_login().librdkafka
        """How clients of librdkafka log in; Java's: :meth:`Stack.client_properties`."""
        self.admin = AdminClient({"bootstrap.servers": self.bootstrap, **self.login})
        self.s3 = ObjectStoreSettings.of(self.environment)
        self.store = ObjectStoreClient(self.s3)
        self.ledger = Ledger()

    def diskless_objects(self, prefix: str = "") -> list[ObjectEntry]:
        """Those of the diskless bucket."""
        return list(self.store.list_objects(self.s3.s3_bucket, prefix))
