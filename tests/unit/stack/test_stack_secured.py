"""A secured stack on paper: what its processes are given fits together."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path

import pytest

from tideline.domain.rights import Process, acls_of, policy
from tideline.domain.security import SecurityProtocol
from tideline.errors import UsageError
from tideline.settings import GatewaySettings, JobsSettings, WorkerSettings
from tideline.stack.credentials import load_or_create
from tideline.stack.home import Home
from tideline.stack.parts import ALL_PARTS
from tideline.stack.parts.base import StackPlan
from tideline.stack.parts.kafka import Kafka, new_cluster_id
from tideline.stack.parts.s3 import BUCKETS, PREFIXES, S3
from tideline.stack.ports import preferred
from tideline.stack.secured import CLIENT, RIGHTS, USERS, Secured, _rights
from tideline.stack.stack import Stack


@pytest.fixture
def plan(tmp_path: Path) -> StackPlan:
    home = Home.locate(tmp_path / "home")
    home.create()
    state = home.new_state(
        brokers=1, parts=list(ALL_PARTS), cluster_id=new_cluster_id(), secure=True
    )
    state.ports = preferred(1, secure=True)
    Secured(home).make()
    return StackPlan(home, state, load_or_create(home))


def test_gateway_worker_and_jobs_log_in_as_users_of_their_own(plan: StackPlan) -> None:
    gateway = GatewaySettings.of(plan.environment("gateway-1"))
    worker = WorkerSettings.of(plan.environment("worker"))
    jobs = JobsSettings.of(plan.environment("jobs"))
    assert gateway.gateway_security_protocol is SecurityProtocol.SASL_SSL
    for settings, user in ((gateway, "gateway"), (worker, "worker"), (jobs, "jobs")):
        assert settings.kafka_security_protocol is SecurityProtocol.SASL_SSL
        assert settings.kafka_sasl_username == user
        assert settings.kafka_ssl_ca_file == plan.home.tls / "ca.pem"


def test_a_brokers_listeners_are_all_encrypted(plan: StackPlan) -> None:
    part = Kafka(plan, 1)
    part.write_properties()
    lines = dict(
        line.split("=", 1) for line in part.properties.read_text().splitlines() if "=" in line
    )
    assert lines["listener.security.protocol.map"] == (
        "CLIENTS:SASL_SSL,INTERNAL:SSL,CONTROLLER:SSL"
    )
    assert "PLAINTEXT" not in lines["listeners"] + lines["advertised.listeners"]
    assert lines["allow.everyone.if.no.acl.found"] == "false"
    assert part.properties.stat().st_mode & 0o077 == 0


def test_files_with_secrets_are_their_owners(plan: StackPlan) -> None:
    plan.environment("gateway-1")
    secured = plan.secured
    assert secured is not None
    secured.broker_properties("INTERNAL", "CLIENTS")
    secret = [*plan.home.tls.glob("*.key"), *plan.home.tls.glob("*.keystore.pem")]
    assert len(secret) == 8
    for file in (*secret, plan.home.kafka_users_file):
        assert file.stat().st_mode & 0o077 == 0


def test_the_processes_are_given_the_table_of_least_rights_and_nothing_else() -> None:
    """As the commands of infra/kafka/acls give it: one ACL for each row, to its own user."""
    given = Counter((row.principal, row.operation) for row in _rights().creations)
    for process in Process:
        assert RIGHTS[process] == acls_of(process)
        principal = f"User:{process}"
        assert sum(n for (who, _), n in given.items() if who == principal) == len(acls_of(process))
    assert set(RIGHTS) == set(USERS) == {*Process, CLIENT}


def test_each_process_has_the_policy_of_least_rights_in_the_store(plan: StackPlan) -> None:
    part = S3(plan)
    (plan.home.data / "s3").mkdir()
    part.prepare()
    written = json.loads((plan.home.run / "s3.json").read_text())
    policies = {one["name"]: json.loads(one["content"]) for one in written["policies"]}
    assert policies == {process: policy(process, BUCKETS, PREFIXES) for process in Process}
    theirs = {one["name"]: one for one in written["identities"] if "policyNames" in one}
    for process in Process:
        assert theirs[process]["policyNames"] == [process]
        assert theirs[process]["actions"] == [], "beside the policy"
        role = "gateway-1" if process is Process.GATEWAY else process
        (keys,) = theirs[process]["credentials"]
        environment = plan.environment(role)
        assert environment["TIDELINE_S3_ACCESS_KEY"] == keys["accessKey"]
        assert environment["TIDELINE_S3_SECRET_KEY"] == keys["secretKey"]
    secrets = {one["credentials"][0]["secretKey"] for one in written["identities"]}
    assert len(secrets) == len(written["identities"])


def test_nobody_has_every_right_and_clients_none_on_the_cluster() -> None:
    rows = _rights().creations
    every_operation, the_cluster = 2, 4
    assert not [row for row in rows if row.operation == every_operation]
    assert not [
        row
        for row in rows
        if row.principal == f"User:{CLIENT}" and row.resource_type == the_cluster
    ]
    assert {row.resource_name for row in rows if row.resource_type == the_cluster} == {
        "kafka-cluster"
    }


def test_whether_a_stack_is_secured_is_fixed_at_its_first_start(plan: StackPlan) -> None:
    plan.home.remember(plan.state)
    with pytest.raises(UsageError, match=r"secured stack.*first start"):
        Stack.up(plan.home.path, secure=False)
