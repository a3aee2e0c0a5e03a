"""Migrations on a Temporal server with a Postgres of its own, as in production: what its index is
told fits, whatever is waited for and however long the topic's name is."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from urllib.request import urlopen

import pytest
from confluent_kafka.admin import AdminClient
from temporalio.client import Client, WorkflowExecution
from temporalio.common import SearchAttributePair, TypedSearchAttributes

from tests.conftest import HOMES_VARIABLE
from tests.harness import Case, command, create_tiered, migration_case, ports_of
from tests.nightly.faults.test_transactions import in_a_transaction
from tests.support.waiting import HANGS_S, WITHIN_S, eventually, until
from tests.temporal_on_postgres import TemporalOnPostgres, temporal_on_postgres
from tideline import temporal
from tideline.demo.ledger import Ledger
from tideline.domain.messages import MOST_OF_ID, SEARCH_ATTRIBUTES, WAITING_MEMO, TopicRef
from tideline.domain.waits import Waits
from tideline.settings import TemporalSettings
from tideline.stack import Stack
from tideline.stack.startup import tail
from workflows.reporting import WAITS

BEFORE_TEMPORAL = ("postgres", "s3", "kafka", "gateway")
LONGEST = "n" * 249
"""As long as Kafka allows."""
PARTITIONS = 11
"""With numbers of one digit and of two."""


@dataclass(frozen=True)
class Site:
    stack: Stack
    server: TemporalOnPostgres

    def metric(self, name: str, topic: str) -> bool:
        """Whether the worker has a series of it for this topic."""
        address = self.stack.endpoints.metrics["worker"]
        page = urlopen(f"http://{address}/metrics", timeout=HANGS_S).read().decode()
        return any(
            line.startswith(f"{name}{{") and f'topic="{topic}"' in line
            for line in page.splitlines()
        )

    def last_words(self) -> str:
        """The end of the server's log."""
        return "\n".join(tail(self.server.log, 20))


@pytest.fixture(scope="module")
def site(request: pytest.FixtureRequest) -> Iterator[Site]:
    """A stack of one broker whose worker came to a namespace that somebody else prepared."""
    process = os.environ.get("PYTEST_XDIST_WORKER", "one")
    home = Path(os.environ[HOMES_VARIABLE]) / f"{process}-temporal"
    home.mkdir(mode=0o755)
    stack = Stack.up(home, brokers=1, parts=BEFORE_TEMPORAL)
    try:
        with temporal_on_postgres(home / "logs", ports_of(stack)["temporal"]) as server:
            added = command(stack, "temporal", "prepare", wait=True)
            assert all(name in added.answer() for name in SEARCH_ATTRIBUTES), added.output()
            stack = Stack.up(home, parts=("worker",))
            yield Site(stack, server)
            stack.stop("worker")
    finally:
        (Stack.take_down if request.session.testsfailed else Stack.purge)(home)


@pytest.fixture
async def client(site: Site) -> Client:
    return await temporal.connect(TemporalSettings.of(site.stack.environment("worker")))


async def listed(client: Client, query: str) -> list[WorkflowExecution]:
    """What the index has."""
    return [execution async for execution in client.list_workflows(query)]


async def until_listed(
    site: Site, client: Client, query: str, count: int = 1
) -> list[WorkflowExecution]:
    """Once so many are; no row has failed until then."""

    async def so_many() -> list[WorkflowExecution] | None:
        found = await listed(client, query)
        assert not site.server.failed_tasks()
        return found if len(found) == count else None

    return await eventually(f"{count} × {query}", so_many, WITHIN_S)


async def test_a_migration_that_waits_is_found_by_its_kind_and_is_gone_when_it_is_terminated(
    site: Site, client: Client
) -> None:
    with migration_case(site.stack, name="waits", history=0) as case:
        topics = f"WorkflowType = 'TopicMigration' AND TidelineTopic = '{case.topic}'"
        application = in_a_transaction(case, f"holder-{case.topic}", b"inside")
        case.trigger()
        waiting = f"ExecutionStatus = 'Running' AND TidelineWaits = '{Waits.TRANSACTION}'"
        (execution,) = await until_listed(site, client, f"{topics} AND {waiting}")
        why = (await execution.memo())[WAITING_MEMO]
        assert f"holder-{case.topic}" in why, why
        name = "inkless_migration_topic_waiting"
        until("the gauge of what waits", lambda: site.metric(name, case.topic))

        await client.get_workflow_handle(execution.id).terminate("a test")
        await until_listed(site, client, f"{topics} AND ExecutionStatus = 'Terminated'")
        assert not await listed(client, f"{topics} AND ExecutionStatus = 'Running'")
        name = "inkless_migration_unattended"
        until("the gauge of what nobody drives", lambda: site.metric(name, case.topic))

        application.commit_transaction(HANGS_S)
        command(site.stack, "migrate", case.topic, "--wait", wait=True)
        assert min(case.boundaries()) > 0
        await until_listed(site, client, f"{topics} AND ExecutionStatus = 'Completed'")


async def test_every_partition_of_a_topic_with_the_longest_name_crosses(
    site: Site, client: Client
) -> None:
    bootstrap = site.stack.endpoints.gateway_bootstrap
    admin = AdminClient({"bootstrap.servers": bootstrap})
    topic_id = create_tiered(admin, LONGEST, PARTITIONS, replicas=1)
    case = Case(site.stack, LONGEST, PARTITIONS, topic_id, Ledger(), admin, bootstrap)
    try:
        case.write(2 * PARTITIONS)
        case.trigger()
        case.until_ready()
        assert min(case.boundaries()) >= 0
    finally:
        case.stop()
    about = f"TidelineTopic = '{LONGEST}'"
    done = await until_listed(
        site, client, f"{about} AND ExecutionStatus = 'Completed'", 1 + PARTITIONS
    )
    ref = TopicRef(LONGEST, topic_id.hex, PARTITIONS)
    own = {ref.workflow_id, *map(ref.partition_workflow_id, range(PARTITIONS))}
    assert {execution.id for execution in done} == own
    assert {len(each) for each in own} == {MOST_OF_ID}
    assert not await listed(client, f"{about} AND ExecutionStatus != 'Completed'")


async def test_the_servers_log_tells_of_a_row_that_its_index_refuses(
    site: Site, client: Client
) -> None:
    """So the other tests would have seen it."""
    too_long = TypedSearchAttributes([SearchAttributePair(WAITS, "x" * 256)])
    handle = await client.start_workflow(
        "nobody runs it", id="too-long", task_queue="of nobody", search_attributes=too_long
    )
    try:
        await eventually("its complaint", site.server.failed_tasks, WITHIN_S)
    finally:
        await handle.terminate()
