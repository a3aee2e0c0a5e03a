"""What is handed to processes: settings that they can read, and a supervisor's configuration."""

from __future__ import annotations

import configparser
from pathlib import Path

import pytest

from tideline.errors import UsageError
from tideline.settings import GatewaySettings, WorkerSettings, load
from tideline.stack.credentials import load_or_create
from tideline.stack.home import Home
from tideline.stack.parts import ALL_PARTS, parts_of
from tideline.stack.parts.base import StackPlan
from tideline.stack.parts.kafka import Kafka, new_cluster_id
from tideline.stack.ports import preferred
from tideline.stack.processes import MARKER, Program
from tideline.stack.stack import Stack
from tideline.stack.supervision import configuration


@pytest.fixture
def plan(tmp_path: Path) -> StackPlan:
    home = Home.locate(tmp_path / "home")
    home.create()
    state = home.new_state(brokers=3, parts=list(ALL_PARTS), cluster_id=new_cluster_id())
    state.ports = preferred(3)
    return StackPlan(home, state, load_or_create(home))


def test_a_gateway_reads_its_settings_from_its_environment(
    plan: StackPlan, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in plan.environment("gateway-2").items():
        monkeypatch.setenv(name, value)
    settings = load(GatewaySettings)
    assert settings.gateway_id == settings.gateway_broker_id == 2
    assert settings.gateway_broker == ("127.0.0.1", 19092)
    assert settings.gateway_peers == {n: ("127.0.0.1", 19190 + n) for n in (1, 2, 3)}
    assert "tideline_gateway_2:" in settings.postgres_dsn.get_secret_value()


def test_the_worker_reads_its_settings_from_its_environment(
    plan: StackPlan, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in plan.environment("worker").items():
        monkeypatch.setenv(name, value)
    settings = load(WorkerSettings)
    assert [port for _, port in settings.kafka_bootstrap] == [19091, 19092, 19093]
    assert settings.temporal_address == "127.0.0.1:17233"
    assert "tideline_worker:" in settings.postgres_dsn.get_secret_value()


def test_brokers_go_round_the_racks_or_have_one_each(plan: StackPlan) -> None:
    assert [plan.state.rack(n) for n in (1, 2, 3)] == ["rack-1", "rack-2", "rack-3"]
    plan.state.racks = 2
    assert [plan.state.rack(n) for n in (1, 2, 3)] == ["rack-1", "rack-2", "rack-1"]


@pytest.mark.parametrize(
    ("brokers", "racks", "voters"),
    [
        (3, 0, [1, 2, 3]),
        (3, 2, [1, 2, 3]),
        (3, 3, [1, 2, 3]),
        (4, 3, [1, 2, 3]),
        (7, 3, [1, 2, 3]),
        (2, 3, [1, 2]),
    ],
)
def test_from_three_racks_on_each_has_one_controller_so_that_the_quorum_outlives_a_rack(
    tmp_path: Path, brokers: int, racks: int, voters: list[int]
) -> None:
    home = Home.locate(tmp_path / "home")
    state = home.new_state(brokers=brokers, parts=[], cluster_id=new_cluster_id(), racks=racks)
    assert list(state.voters) == voters


def test_a_broker_that_is_no_controller_listens_for_clients_only(tmp_path: Path) -> None:
    home = Home.locate(tmp_path / "home")
    home.create()
    state = home.new_state(brokers=4, parts=[], cluster_id=new_cluster_id(), racks=3)
    state.racks, state.ports = 3, preferred(4)
    written = {}
    for node in (1, 4):
        broker = Kafka(StackPlan(home, state, load_or_create(home)), node)
        broker.write_properties()
        written[node] = broker.properties.read_text().splitlines()
    voters = "controller.quorum.voters=1@127.0.0.1:19291,2@127.0.0.1:19292,3@127.0.0.1:19293"
    assert {voters, "process.roles=broker", "broker.rack=rack-1"} < set(written[4])
    assert "listeners=PLAINTEXT://127.0.0.1:19094" in written[4]
    assert {voters, "process.roles=broker,controller"} < set(written[1])
    assert "listeners=PLAINTEXT://127.0.0.1:19091,CONTROLLER://127.0.0.1:19291" in written[1]


def test_what_a_person_writes_for_the_jvm_of_a_broker_comes_behind_what_the_stack_says(
    plan: StackPlan,
) -> None:
    (plan.home.path / "kafka-2.jvm").write_text("-Xmx2g\n-XX:+AlwaysPreTouch\n")
    command = Kafka(plan, 2).program().command
    assert "-XX:+AlwaysPreTouch" in command
    assert command.index("-Xmx384m") < command.index("-Xmx2g")
    assert "-Xmx2g" not in Kafka(plan, 1).program().command


def test_settings_of_a_stack_reach_its_processes_and_never_hide_its_own(plan: StackPlan) -> None:
    plan.state.settings = {
        "TIDELINE_DISKLESS_MANAGED_RF_ENABLED": "true",
        "TIDELINE_GATEWAY_ID": "9",
    }
    plan.home.remember(plan.state)
    state = plan.home.state()
    assert state is not None
    settings = GatewaySettings.of(
        StackPlan(plan.home, state, plan.credentials).environment("gateway-2")
    )
    assert settings.diskless_managed_rf_enabled
    assert settings.gateway_id == 2


def test_a_number_of_racks_that_cannot_be_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="0 racks: choose 1 to"):
        Stack.up(tmp_path / "home", racks=0)


def test_an_unknown_role_is_refused_by_name(plan: StackPlan) -> None:
    with pytest.raises(UsageError, match="'gateway-4' is no gateway"):
        plan.environment("gateway-4")
    with pytest.raises(UsageError, match="'root' is no role"):
        plan.endpoints.postgres_dsn("root")


def test_no_secret_is_in_what_a_person_might_print(plan: StackPlan) -> None:
    assert plan.credentials.s3_secret_key not in repr(plan.endpoints)
    assert plan.credentials.s3_secret_key not in repr(Program("x", (), Path("x"), {"a": "b"}))


def test_every_program_is_supervised_and_marked(plan: StackPlan) -> None:
    programs = [part.program() for part in parts_of(plan, ("temporal", "s3", "gateway", "worker"))]
    text = configuration(plan.home, plan.state, Path("/x.sock"), "secret", programs)
    parsed = configparser.RawConfigParser()
    parsed.read_string(text)
    for program in programs:
        section = parsed[f"program:{program.name}"]
        assert section["autorestart"] == "true"
        assert section["autostart"] == "false"
        assert f'{MARKER}="{plan.state.id}"' in section["environment"]
        assert int(section["stdout_logfile_maxbytes"]) > 0


def test_a_percent_sign_survives_the_supervisors_interpolation(plan: StackPlan) -> None:
    program = Program("x", ("run", "--format=%m"), Path("/x.log"))
    text = configuration(plan.home, plan.state, Path("/x.sock"), "secret", [program])
    assert "--format=%%m" in text


def test_parts_start_in_the_order_of_their_needs(plan: StackPlan) -> None:
    parts = parts_of(plan, ALL_PARTS)
    names = [part.name for part in parts]
    for part in parts:
        assert all(names.index(need) < names.index(part.name) for need in part.needs)


def test_a_cluster_id_is_22_characters_and_no_option() -> None:
    for _ in range(200):
        made = new_cluster_id()
        assert len(made) == 22
        assert not made.startswith("-")


@pytest.mark.parametrize(
    ("brokers", "parts", "message"),
    [
        (0, ALL_PARTS, "0 brokers: choose 1 to 9"),
        (3, ("postgres", "zookeeper"), "zookeeper is no part"),
        (3, (), "nothing is no part"),
    ],
)
def test_a_wrong_request_is_refused_before_anything_is_made(
    tmp_path: Path, brokers: int, parts: tuple[str, ...], message: str
) -> None:
    with pytest.raises(UsageError, match=message):
        Stack.up(tmp_path / "home", brokers=brokers, parts=parts)
    assert not (tmp_path / "home").exists()
