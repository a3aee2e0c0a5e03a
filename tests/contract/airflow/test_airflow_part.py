"""Airflow as a part of the stack: on request, on loopback, its secrets to itself."""

from __future__ import annotations

import configparser
import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.waiting import HANGS_S
from tideline.airflow import wiring
from tideline.errors import UsageError
from tideline.stack.credentials import load_or_create
from tideline.stack.home import Home
from tideline.stack.parts import ALL_PARTS, parts_of
from tideline.stack.parts.airflow import Airflow, dags_folder, pools_file
from tideline.stack.parts.base import StackPlan
from tideline.stack.parts.kafka import new_cluster_id
from tideline.stack.ports import preferred
from tideline.stack.stack import Stack


@pytest.fixture
def plan(tmp_path: Path) -> StackPlan:
    home = Home.locate(tmp_path / "home")
    home.create()
    state = home.new_state(brokers=1, parts=["airflow"], cluster_id=new_cluster_id())
    state.ports = preferred(1)
    return StackPlan(home, state, load_or_create(home))


def airflow_parts(plan: StackPlan) -> list[Airflow]:
    return [part for part in parts_of(plan, ["airflow"]) if isinstance(part, Airflow)]


def test_airflow_is_not_started_unless_it_is_asked_for(tmp_path: Path) -> None:
    assert "airflow" not in ALL_PARTS
    with pytest.raises(UsageError, match=r"Choose among: .*airflow"):
        Stack.up(tmp_path, parts=("airflaw",))


def test_every_component_runs_by_itself_and_opens_nothing_beyond_loopback(plan: StackPlan) -> None:
    commands = {part.name: part.program().command for part in airflow_parts(plan)}
    assert set(commands) == {
        "airflow-api",
        "airflow-scheduler",
        "airflow-processor",
        "airflow-triggerer",
    }
    assert commands["airflow-api"][-4:] == ("--host", "127.0.0.1", "--port", "18080")
    for name in ("airflow-scheduler", "airflow-triggerer"):
        assert "--skip-serve-logs" in commands[name]


def test_only_the_owner_reads_passwords_and_keys_which_stay_the_same(plan: StackPlan) -> None:
    api = airflow_parts(plan)[0]
    api.write_files()
    for name in ("secrets.json", "passwords.json", "airflow.cfg", "jobs.env"):
        assert (api.home / name).stat().st_mode & 0o077 == 0, name
    assert api.secrets["password"] in api.where
    assert airflow_parts(plan)[0].secrets == api.secrets
    given = api.program()
    for secret in api.secrets.values():
        assert secret not in " ".join([*given.command, *given.environment.values()])


def test_the_jobs_get_the_role_of_the_jobs_and_a_wave_that_of_the_worker(plan: StackPlan) -> None:
    api = airflow_parts(plan)[0]
    api.write_files()
    environment = api.program().environment
    jobs = Path(environment["TIDELINE_AIRFLOW_JOBS_CONFIG"]).read_text()
    assert "tideline_jobs:" in jobs
    assert environment["TIDELINE_CONFIG"] == str(plan.home.client_env)


def test_schedules_of_the_shell_that_starts_the_stack_are_passed_on(
    plan: StackPlan, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TIDELINE_AIRFLOW_GC_SCHEDULE", "* * * * *")
    monkeypatch.setenv("TIDELINE_POSTGRES_DSN", "of another stack")
    monkeypatch.setenv("TIDELINE_JOBS_POSTGRES_DSN", "of another stack")
    environment = airflow_parts(plan)[0].program().environment
    assert environment["TIDELINE_AIRFLOW_GC_SCHEDULE"] == "* * * * *"
    assert "of another stack" not in environment.values()
    assert "-Dspark.driver.bindAddress=127.0.0.1" in environment["SPARK_SUBMIT_OPTS"].split()


def test_the_configuration_names_the_dags_and_the_pools_are_those_of_the_dags(
    plan: StackPlan,
) -> None:
    parsed = configparser.RawConfigParser()
    parsed.read_string(airflow_parts(plan)[0].configuration())
    assert parsed["core"]["dags_folder"] != str(dags_folder()), "it is its owner's"
    assert parsed["database"]["sql_alchemy_conn"].startswith("sqlite:////")
    assert {*wiring.JOB_POOLS, wiring.MIGRATIONS_POOL} == set(
        json.loads((dags_folder() / "pools.json").read_text())
    )


def test_the_stack_is_configured_as_the_page_for_an_existing_airflow_says(plan: StackPlan) -> None:
    """So that the tests which run every DAG rehearse the page's own words."""
    page = Path("docs/airflow.md").read_text()
    (command,) = re.findall(r'`python -c "([^"]+)"`', page)
    said = subprocess.run(
        [sys.executable, "-c", command], capture_output=True, text=True, check=True, timeout=HANGS_S
    )
    directory = said.stdout.strip()
    (bundles,) = re.findall(
        r'^ +\[\{"name": "dags-folder".*?\}\}\]$', page, re.MULTILINE | re.DOTALL
    )
    parsed = configparser.ConfigParser()
    airflow = airflow_parts(plan)[0]
    airflow.write_files()
    parsed.read_string((airflow.home / "airflow.cfg").read_text())
    assert json.loads(parsed["dag_processor"]["dag_bundle_config_list"]) == json.loads(
        bundles.replace("<that directory>", directory)
    )
    assert "`airflow pools import` of its `pools.json`" in page
    assert (Path(directory) / "pools.json") == pools_file()
    assert "AIRFLOW_CONN_SPARK_DEFAULT" in airflow.program().environment
