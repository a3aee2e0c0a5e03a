"""Any workflow of any Temporal, by an Airflow connection: run, awaited, sent messages to."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from uuid import uuid4

import pytest
from airflow.providers_manager import ProvidersManager
from airflow.sdk import Connection
from airflow.sdk.exceptions import AirflowException, AirflowFailException, TaskDeferred
from airflow.sdk.providers_manager_runtime import ProvidersManagerTaskRuntime
from airflow.triggers.base import BaseTrigger
from temporalio import workflow
from temporalio.exceptions import ApplicationError
from temporalio.service import TLSConfig
from temporalio.testing import WorkflowEnvironment
from temporalio.worker import UnsandboxedWorkflowRunner, Worker

from tests.contract.airflow.relay import NOWHERE, Relay
from tests.support.waiting import lasts_async
from tests.temporal_build import BUILD
from tideline.airflow.temporal.hook import TemporalHook
from tideline.airflow.temporal.link import WORKFLOW_URL, TemporalWorkflowLink
from tideline.airflow.temporal.operators import (
    TemporalQueryOperator,
    TemporalSignalOperator,
    TemporalUpdateOperator,
    TemporalWorkflowOperator,
)
from tideline.airflow.temporal.provider import get_provider_info
from tideline.airflow.temporal.sensor import TemporalWorkflowSensor
from tideline.airflow.temporal.target import Target, target_of
from tideline.airflow.temporal.trigger import TemporalWorkflowTrigger

QUEUE = "another for each test"
PEM = "-----BEGIN CERTIFICATE-----\\nMIIB\\n-----END CERTIFICATE-----"


@workflow.defn(name="Told", sandboxed=False)
class Told:
    """Ends when it is told how."""

    def __init__(self) -> None:
        self.word = ""

    @workflow.run
    async def run(self, word: str = "") -> dict[str, Any]:
        self.word = word
        await workflow.wait_condition(lambda: bool(self.word))
        if self.word == "fail":
            raise ApplicationError("it was told to", non_retryable=True)
        return {"said": self.word}

    @workflow.signal
    def say(self, word: str) -> None:
        self.word = word

    @workflow.update
    async def ask(self, word: str) -> str:
        if not word:
            raise ApplicationError("say something")
        self.word = word
        return word.upper()

    @workflow.query
    def now(self) -> str:
        return self.word


class Task:
    """What a task leaves behind."""

    def __init__(self) -> None:
        self.pushed: dict[str, Any] = {}
        self.dag_id, self.run_id, self.task_id, self.map_index = "d", "r", "t", -1

    def xcom_push(self, key: str, value: Any) -> None:
        self.pushed[key] = value

    @property
    def context(self) -> Any:
        return {"ti": self, "run_id": self.run_id}


@pytest.fixture
def task() -> Task:
    return Task()


@pytest.fixture
async def server(
    temporal: WorkflowEnvironment, monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[str]:
    """``host:port`` of the server that ``temporal_default`` names."""
    address = temporal.client.service_client.config.target_host
    monkeypatch.setenv("AIRFLOW_CONN_TEMPORAL_DEFAULT", connection(address, ui="http://ui:8080/"))
    monkeypatch.setitem(globals(), "QUEUE", f"provider-{uuid4().hex[:8]}")
    async with Worker(
        temporal.client,
        task_queue=QUEUE,
        workflows=[Told],
        workflow_runner=UnsandboxedWorkflowRunner(),
        deployment_config=BUILD,
    ):
        yield address


def connection(address: str, **extra: Any) -> str:
    host, _, port = address.rpartition(":")
    return json.dumps({"conn_type": "temporal", "host": host, "port": int(port), "extra": extra})


def told(word: str = "", **more: Any) -> TemporalWorkflowOperator:
    given = {"workflow": "Told", "task_queue": QUEUE, "workflow_id": f"told-{uuid4().hex}"} | more
    return TemporalWorkflowOperator(task_id="t", arguments=[word], **given)


async def deferred(operator: Any, task: Task) -> BaseTrigger:
    with pytest.raises(TaskDeferred) as left:
        await asyncio.to_thread(operator.execute, task.context)
    assert left.value.method_name == "ended"
    found: BaseTrigger = left.value.trigger
    return found


async def fired(trigger: BaseTrigger) -> dict[str, Any]:
    path, arguments = trigger.serialize()
    assert path == f"{type(trigger).__module__}.{type(trigger).__qualname__}"
    async for event in type(trigger)(**json.loads(json.dumps(arguments))).run():
        return dict(event.payload)
    raise AssertionError("the trigger has not fired")


# What Airflow is told


def test_airflow_lists_the_provider_with_its_connection_type_and_link() -> None:
    manager = ProvidersManager()
    assert manager.providers["tideline"].data["name"] == get_provider_info()["name"]
    found = ProvidersManagerTaskRuntime().hooks["temporal"]
    assert found is not None
    assert found.connection_id_attribute_name == "temporal_conn_id"
    assert "tideline.airflow.temporal.link.TemporalWorkflowLink" in manager.extra_links_class_names


def target(**given: Any) -> Target:
    extra = given.pop("extra", {})
    fields = {"conn_id": "c", "conn_type": "temporal", "host": "temporal"} | given
    return target_of(Connection(**fields, extra=json.dumps(extra)))


@pytest.mark.parametrize(
    ("given", "options"),
    [
        ({}, {"target_host": "temporal:7233", "namespace": "default"}),
        (
            {"port": 443, "extra": {"namespace": "prod", "tls": True}},
            {"target_host": "temporal:443", "namespace": "prod", "tls": True},
        ),
        (
            {"password": "key"},
            {
                "target_host": "temporal:7233",
                "namespace": "default",
                "api_key": "key",
                "tls": True,
            },
        ),
        (
            {"extra": {"client_cert": PEM, "client_key": PEM, "server_name": "t"}},
            {
                "target_host": "temporal:7233",
                "namespace": "default",
                "tls": TLSConfig(
                    client_cert=PEM.replace("\\n", "\n").encode(),
                    client_private_key=PEM.replace("\\n", "\n").encode(),
                    domain="t",
                ),
            },
        ),
    ],
)
def test_a_connection_says_where_and_how(given: dict[str, Any], options: dict[str, Any]) -> None:
    assert target(**given).options == options


def test_a_certificate_may_be_a_file_and_no_secret_is_shown(tmp_path: Path) -> None:
    file = tmp_path / "ca.pem"
    file.write_text("its text")
    made = target(password="hush", extra={"server_ca": str(file), "ui": "http://ui/"})
    assert made.options["tls"].server_root_ca_cert == b"its text"
    assert "hush" not in repr(made)
    assert made.link("a/b", "r") == "http://ui/namespaces/default/workflows/a%2Fb/r/history"
    assert target().link("a/b") is None


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"host": ""}, "connection 'c': no host"),
        ({"extra": {"tsl": True}}, "no field 'tsl' in extra; known are"),
        ({"extra": {"client_cert": PEM}}, "client_cert and client_key go together"),
        ({"extra": {"server_ca": "/no/such"}}, "server_ca: /no/such cannot be read"),
    ],
)
def test_a_wrong_connection_is_refused_with_the_remedy(given: dict[str, Any], said: str) -> None:
    with pytest.raises(AirflowFailException, match=said):
        target(**given)


async def test_the_button_of_a_connection_says_whether_temporal_answers(
    server: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    answers, said = await asyncio.to_thread(TemporalHook().test_connection)
    assert (answers, server in said) == (True, True)
    monkeypatch.setenv("AIRFLOW_CONN_TEMPORAL_DEFAULT", connection(NOWHERE))
    answers, said = await asyncio.to_thread(TemporalHook().test_connection)
    assert (answers, NOWHERE in said) == (False, True)


# Running a workflow


@pytest.mark.parametrize("deferrable", [True, False])
async def test_a_workflow_is_run_and_its_result_is_the_tasks_value(
    server: str, task: Task, deferrable: bool
) -> None:
    operator = told("done", deferrable=deferrable)
    if deferrable:
        event = await fired(await deferred(operator, task))
        value = operator.ended(task.context, event)
    else:
        value = await asyncio.to_thread(operator.execute, task.context)
    assert value == {"said": "done"}
    url = task.pushed[WORKFLOW_URL]
    assert url.startswith(f"http://ui:8080/namespaces/default/workflows/{operator.workflow_id}/")


async def test_the_button_of_a_task_leads_to_the_run(
    task: Task, monkeypatch: pytest.MonkeyPatch
) -> None:
    from tideline.airflow.temporal import link

    values = {WORKFLOW_URL: "http://ui"}
    monkeypatch.setattr(link.XCom, "get_value", lambda *, ti_key, key: values.get(key))
    key: Any = SimpleNamespace()
    assert TemporalWorkflowLink().get_link(told(), ti_key=key) == "http://ui"
    values.clear()
    assert TemporalWorkflowLink().get_link(told(), ti_key=key) == ""


async def test_a_further_try_joins_what_runs_and_takes_the_result_of_what_has_ended(
    server: str, task: Task
) -> None:
    operator = told()
    first, again = await deferred(operator, task), await deferred(operator, Task())
    assert first.serialize() == again.serialize()
    say = TemporalSignalOperator(
        task_id="s", workflow_id=operator.workflow_id, name="say", arguments=["bye"]
    )
    await asyncio.to_thread(say.execute, task.context)
    assert operator.ended(task.context, await fired(again)) == {"said": "bye"}
    last = await deferred(told("other", workflow_id=operator.workflow_id), task)
    assert operator.ended(task.context, await fired(last)) == {"said": "bye"}


async def test_one_that_runs_already_is_refused_where_the_policy_says_so(
    server: str, task: Task
) -> None:
    operator = told(id_conflict_policy="fail", when_killed="terminate")
    trigger = await deferred(operator, task)
    with pytest.raises(AirflowFailException, match="runs already"):
        await asyncio.to_thread(operator.execute, task.context)
    await trigger.on_kill()
    event = await fired(trigger)
    assert event["status"] == "failed"


async def test_a_workflow_that_fails_fails_the_task_for_good_in_its_own_words(
    server: str, task: Task
) -> None:
    operator = told("fail")
    event = await fired(await deferred(operator, task))
    with pytest.raises(AirflowFailException, match="it was told to"):
        operator.ended(task.context, event)


async def test_without_temporal_a_task_is_tried_again(
    task: Task, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AIRFLOW_CONN_TEMPORAL_DEFAULT", connection(NOWHERE))
    with pytest.raises(AirflowException, match=f"Temporal at {NOWHERE} does not answer") as failed:
        await asyncio.to_thread(told().execute, task.context)
    assert not isinstance(failed.value, AirflowFailException)
    event = await fired(TemporalWorkflowTrigger([{"workflow_id": "a"}], patience_s=0.1))
    assert (event["status"], NOWHERE in event["message"]) == ("silent", True)
    with pytest.raises(AirflowException, match="the next try joins it"):
        told().ended(task.context, event)


async def test_a_killed_task_cancels_its_workflow_or_leaves_it(server: str, task: Task) -> None:
    left, cancelled = told(), told(when_killed="cancel")
    goes_on, ends = await deferred(left, task), await deferred(cancelled, task)
    await goes_on.on_kill()
    await ends.on_kill()
    assert (await fired(ends))["status"] == "failed"
    say = TemporalSignalOperator(
        task_id="s", workflow_id=left.workflow_id, name="say", arguments=["still here"]
    )
    await asyncio.to_thread(say.execute, task.context)
    assert left.ended(task.context, await fired(goes_on)) == {"said": "still here"}


# Many


async def test_one_trigger_follows_many_over_one_connection_that_others_share(
    server: str, temporal: WorkflowEnvironment, monkeypatch: pytest.MonkeyPatch
) -> None:
    ids = [f"many-{uuid4().hex}" for _ in range(150)]
    for one in ids:
        await temporal.client.start_workflow("Told", "done", id=one, task_queue=QUEUE)
    async with Relay(server) as relay:
        monkeypatch.setenv("AIRFLOW_CONN_TEMPORAL_DEFAULT", connection(relay.address))
        waits = [fired(TemporalWorkflowTrigger([{"workflow_id": i} for i in ids])) for _ in "ab"]
        for event in await asyncio.gather(*waits):
            assert event["status"] == "ended"
            assert [one["workflow_id"] for one in event["workflows"]] == ids
        assert relay.accepted == 1


async def test_a_sensor_waits_for_all_of_its_workflows(
    server: str, temporal: WorkflowEnvironment, task: Task
) -> None:
    ids = [f"sensed-{uuid4().hex}" for _ in "ab"]
    for one in ids:
        await temporal.client.start_workflow("Told", "", id=one, task_queue=QUEUE)
    sensor = TemporalWorkflowSensor(task_id="s", workflow_ids=ids)
    waiting = asyncio.create_task(fired(await deferred(sensor, task)))
    for one in ids:
        await lasts_async("the sensor waits", lambda: not waiting.done(), 0.05)
        await temporal.client.get_workflow_handle(one).signal("say", one)
    assert sensor.ended(task.context, await waiting) == [{"said": one} for one in ids]
    nobody = TemporalWorkflowSensor(task_id="s", workflow_ids=f"nobody-{uuid4().hex}")
    with pytest.raises(AirflowFailException, match="nobody-"):
        nobody.ended(task.context, await fired(await deferred(nobody, task)))


# Messages


async def test_a_workflow_is_queried_and_updated(server: str, task: Task) -> None:
    operator = told()
    await deferred(operator, task)
    to = {"task_id": "t", "workflow_id": operator.workflow_id}
    update = TemporalUpdateOperator(**to, name="ask", arguments=[""])
    with pytest.raises(AirflowFailException, match="say something"):
        await asyncio.to_thread(update.execute, task.context)
    task.map_index = 1
    update = TemporalUpdateOperator(**to, name="ask", arguments=["well"])
    assert await asyncio.to_thread(update.execute, task.context) == "WELL"
    query = TemporalQueryOperator(**to, name="now")
    assert await asyncio.to_thread(query.execute, task.context) == "well"
    with pytest.raises(AirflowFailException, match="nothing of"):
        await asyncio.to_thread(TemporalQueryOperator(**to, name="nothing").execute, task.context)


async def test_a_signal_to_nobody_is_not_tried_again(server: str, task: Task) -> None:
    lost = TemporalSignalOperator(task_id="s", workflow_id="nobody", name="say", arguments=["?"])
    with pytest.raises(AirflowFailException, match="say of nobody"):
        await asyncio.to_thread(lost.execute, task.context)
