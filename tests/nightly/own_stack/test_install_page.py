"""docs/install.md, taken as it stands, on a cluster with TLS, logins and rights: gateways take over
from brokers to which clients are connected, nobody touches the clients, and a topic migrates.

What the test puts in the place of the page's addresses and paths, for broker N:

| the page | here |
| --- | --- |
| ``kafka-N:9092``, ``0.0.0.0:9092`` | where broker N serves clients at first |
| ``kafka-N:9093``, ``0.0.0.0:9093`` | the listener for brokers of the secured stack |
| ``kafka-N:9094``, ``0.0.0.0:9094`` | a port that nothing of the stack uses |
| ``127.0.0.1:19092`` | another one, where the broker's old listener goes |
| ``0.0.0.0:950N`` | where the gateway of the host stands in for that of broker N |
| ``127.0.0.1:9404``, ``127.0.0.1:9405`` | the metrics of gateway N and of the worker |
| ``postgres:5432/tideline`` | the stack's Postgres, an empty database |
| ``temporal:7233``, S3's endpoint, buckets, region, keys | the stack's |
| ``admin.properties`` | of a SCRAM user whom the brokers take for a super user |
| ``/etc/tideline``, ``/etc/systemd/system`` and ``/var/lib/tideline-gateway`` | the host's own |
| ``/opt/tideline/bin/tideline`` | this program |
| broker 1 of the examples | broker N |
| ``listeners=`` | the same, and the ``CONTROLLER`` listener of the stack's combined nodes |

The brokers start with what the first roll adds.
"""

from __future__ import annotations

import os
import re
import secrets
import shutil
import tempfile
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from urllib.request import urlopen

import psycopg
import pytest
from confluent_kafka.admin import (
    AdminClient,
    ScramCredentialInfo,
    ScramMechanism,
    UserScramCredentialUpsertion,
)
from psycopg.conninfo import make_conninfo

from tests.conftest import HOMES_VARIABLE
from tests.harness import Case, create_tiered, ports_of
from tests.ports import free_ports
from tests.rehearsed import blocks
from tests.rehearsed_site import ROOT, Site
from tests.support.waiting import HANGS_S, until
from tests.systemctl import Systemd
from tideline.demo.ledger import Ledger
from tideline.stack import Stack
from tideline.stack.credentials import load_or_create
from tideline.stack.home import Home, write_private
from tideline.stack.ports import stand_in
from tideline.stack.secured import SUPER_USERS, Secured

PAGE = ROOT / "docs" / "install.md"
NOT_RUN = {
    "python3.11 -m pip wheel --no-deps --wheel-dir dist .": "it takes a registry; the wheel is "
    "that of contract/programs/test_installation.py",
    "python3.11 -m venv /opt/tideline": "it takes root, a user of the system and a registry; the "
    "packages are those of contract/programs/test_images.py",
    "inter.broker.listener.name=GATEWAYS": "the stack's brokers have a listener of their own; this "
    "is for a cluster where clients and brokers share one",
}
"""Blocks that are not marked in the page, by their first lines, and why."""

TOPIC, PARTITIONS, HISTORY = "orders", 3, 100
STORES = ("postgres", "s3", "temporal")
OPERATOR = 0
"""The host that is no broker's: its worker's, and where commands are given."""
ADMIN, INSTALLER = "admin", "installer"
DENIED = re.compile(r"Principal = User:(tideline-\w+) is Denied .*")
REQUESTS = re.compile(r"^inkless_gateway_requests_total\{[^}]*\} (\S+)$", re.MULTILINE)


class Installation:
    """The cluster that exists, the hosts, and what they have of the page so far."""

    def __init__(self, stack: Stack, root: Path, systemd: Systemd) -> None:
        self.stack = stack
        self._home = Home.locate(stack.home)
        self.secured = Secured(self._home)
        self.nodes = sorted(stack.endpoints.brokers)
        self._ports = ports_of(stack)
        self._aside = dict(zip(self.nodes, free_ports(len(self.nodes)), strict=True))
        """Where the old listener of each broker goes."""
        self._passwords = {name: secrets.token_hex(20) for name in (ADMIN, INSTALLER)}
        self._admin_properties = root / "admin.properties"
        self.site = Site(blocks(PAGE)[0], root, systemd)
        for node in (OPERATOR, *self.nodes):
            self.site.add(node, self._table(node))

    def _at(self, name: str) -> str:
        return f"127.0.0.1:{self._ports[name]}"

    def _table(self, node: int) -> dict[str, str]:
        """What stands for what in a block of this host."""
        endpoints, s3 = self.stack.endpoints, self.stack.endpoints.s3
        access, secret = load_or_create(self._home).s3_pair("gateway" if node else "worker")
        table = {
            "127.0.0.1:9405": endpoints.metrics["worker"],
            "postgres:5432": self._at("postgres"),
            "temporal:7233": endpoints.temporal,
            "https://s3:443": s3.url,
            "eu-central-1": s3.region,
            "tideline-diskless": s3.bucket,
            "kafka-tiered": s3.tiered_bucket,
            '"segments"': f'"{s3.tiered_prefix}"',
            "the-access-key": access,
            "the-secret-key": secret,
            "admin.properties": str(self._admin_properties),
        }
        for peer in self.nodes:
            table[f"kafka-{peer}:9092"] = endpoints.brokers[peer]
            table[f"kafka-{peer}:9093"] = self._at(f"internal-{peer}")
            table[f"kafka-{peer}:9094"] = endpoints.gateways[peer]
        if node == OPERATOR:
            return table
        others = {peer: self._at(stand_in(node, peer)) for peer in self.nodes if peer != node}
        return table | {
            "0.0.0.0:9092": endpoints.brokers[node],
            "0.0.0.0:9093": self._at(f"internal-{node}"),
            "0.0.0.0:9094": endpoints.gateways[node],
            **{f"0.0.0.0:950{peer}": address for peer, address in others.items()},
            "127.0.0.1:19092": f"127.0.0.1:{self._aside[node]}",
            "127.0.0.1:9404": endpoints.metrics[f"gateway-{node}"],
            "\nlisteners=": f"\nlisteners=CONTROLLER://{self._at(f'controller-{node}')},",
            "GATEWAY_ID=1\n": f"GATEWAY_ID={node}\n",
            "BROKER_ID=1\n": f"BROKER_ID={node}\n",
        }

    def configure_broker(self, node: int, *names: str) -> None:
        """``server.properties`` with what the page adds, in the order of the rolls."""
        text = "".join(self.site.text(name, node) for name in names)
        own = f"super.users={SUPER_USERS};User:{ADMIN}\n"
        write_private(self.stack.home / f"kafka-{node}.properties", own + text)

    def make_admin(self) -> None:
        """A super user as an operator of such a cluster has one."""
        internal = ",".join(self._at(f"internal-{node}") for node in self.nodes)
        setup = AdminClient({"bootstrap.servers": internal, **self.secured.setup().librdkafka})
        password = self._passwords[ADMIN]
        scram = ScramCredentialInfo(ScramMechanism.SCRAM_SHA_512, 4096)
        user = UserScramCredentialUpsertion(ADMIN, scram, password.encode())
        for made in setup.alter_user_scram_credentials([user]).values():
            made.result(HANGS_S)
        module = "org.apache.kafka.common.security.scram.ScramLoginModule"
        write_private(
            self._admin_properties,
            "security.protocol=SASL_SSL\nsasl.mechanism=SCRAM-SHA-512\n"
            f'sasl.jaas.config={module} required username="{ADMIN}" password="{password}";\n'
            f"ssl.truststore.type=PEM\nssl.truststore.location={self.secured.ca}\n",
        )

    def empty_postgres(self) -> None:
        """A server that has seen nothing of Tideline, and who owns the database is no superuser."""
        superuser = self.stack.endpoints.postgres_dsn("postgres")
        server = make_conninfo(superuser, dbname="postgres")
        with psycopg.connect(server, autocommit=True) as connection:
            connection.execute("DROP DATABASE tideline WITH (FORCE)")
            known = connection.execute("SELECT rolname FROM pg_roles WHERE rolname ~ '^tideline'")
            for (role,) in known.fetchall():
                connection.execute(f"DROP ROLE {role}".encode())
            password = self._passwords[INSTALLER]
            connection.execute(
                f"CREATE ROLE {INSTALLER} LOGIN CREATEROLE PASSWORD '{password}'".encode()
            )
            connection.execute(f"CREATE DATABASE tideline OWNER {INSTALLER}".encode())
        at = self._at("postgres")
        dsn = f"postgresql://{INSTALLER}:{password}@{at}/tideline"
        (self.site.etc(OPERATOR) / "secrets/owner-postgres-dsn").write_text(f"{dsn}\n")

    def bring_files(self) -> None:
        """What the page has its reader bring to each host, and write there."""
        site, secret = self.site, self.site.etc(OPERATOR) / "secrets"
        shown = self.secured.authority.issue("gateway")
        for node in (OPERATOR, *self.nodes):
            etc = site.etc(node)
            shutil.copy(self.secured.ca, etc / "tls/kafka-ca.pem")
            site.write("tideline.toml", "tideline.toml", node)
            site.write("s3.env", "secrets/s3.env", node)
            site.run("units", node)
            if node == OPERATOR:
                site.write("worker.env", "worker.env", node)
                continue
            site.write("gateway.env", "gateway.env", node)
            shutil.copy(shown.certificate, etc / "tls/gateway.pem")
            shutil.copy(shown.key, etc / "tls/gateway.key")
            shutil.copy(secret / "gateway-kafka-password", etc / "secrets")
            own = secret / f"gateway-{node}-postgres-dsn"
            shutil.copy(own, etc / "secrets/gateway-postgres-dsn")


@pytest.fixture
def installation(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Installation]:
    """A cluster without Tideline whose brokers have the listener for gateways already, the stores
    beside it, and hosts with nothing on them."""
    process = os.environ.get("PYTEST_XDIST_WORKER", "one")
    home = Path(os.environ[HOMES_VARIABLE]) / f"{process}-install"
    home.mkdir(mode=0o755)
    try:
        stack = Stack.up(home, brokers=3, parts=STORES, secure=True)
        with tempfile.TemporaryDirectory(prefix="systemd-") as directory:
            kafka = {
                "stop": lambda node: made.stack.stop(f"kafka-{node}"),
                "start": lambda node: made.stack.start(f"kafka-{node}", wait=False),
            }
            systemd = Systemd(Path(directory), kafka)
            made = Installation(stack, tmp_path, systemd)
            try:
                for node in made.nodes:
                    made.configure_broker(node, "first-roll")
                made.stack = Stack.up(home, parts=(*STORES, "kafka"))
                made.make_admin()
                made.empty_postgres()
                yield made
            finally:
                made.site.close()
                systemd.close()
    finally:
        if request.session.testsfailed:
            Stack.take_down(home)
        else:
            for properties in home.glob("kafka-*.properties"):
                properties.unlink()
            Stack.purge(home)


@pytest.fixture
def clients(installation: Installation) -> Iterator[Case]:
    """Of the brokers: nobody tells them anything until the end."""
    stack = installation.stack
    bootstrap = stack.endpoints.kafka_bootstrap
    admin = AdminClient({"bootstrap.servers": bootstrap, **stack.kafka_login().librdkafka})
    topic_id = create_tiered(admin, TOPIC, PARTITIONS, 3)
    case = Case(stack, TOPIC, PARTITIONS, topic_id, Ledger(), admin, bootstrap)
    case.write(HISTORY * PARTITIONS, "history")
    case.produce(rate=60)
    case.consume()
    case.until_acknowledged(50)
    try:
        yield case
    finally:
        case.stop()


def in_sync(admin: AdminClient) -> bool:
    """Whether every replica is in sync, and every broker there."""
    seen = admin.list_topics(timeout=HANGS_S)
    partitions = [p for topic in seen.topics.values() for p in topic.partitions.values()]
    return len(seen.brokers) == 3 and all(len(p.isrs) == len(p.replicas) for p in partitions)


def take_over(installation: Installation, clients: Case, node: int) -> None:
    installation.configure_broker(node, "first-roll", "third-roll")
    installation.site.run("takeover", node)
    until(f"broker {node} to be in sync", partial(in_sync, clients.admin))


def give_back(installation: Installation, clients: Case, node: int) -> None:
    installation.site.run("way-back", node)
    installation.configure_broker(node, "first-roll")
    installation.site.run("broker-again", node)
    until(f"broker {node} to be in sync", partial(in_sync, clients.admin))


def asked_of_gateway(installation: Installation, node: int) -> float:
    where = installation.stack.endpoints.metrics[f"gateway-{node}"]
    with urlopen(f"http://{where}/metrics", timeout=HANGS_S) as answer:
        return sum(map(float, REQUESTS.findall(answer.read().decode())))


def refused_by_kafka(installation: Installation) -> set[str]:
    """What gateways, worker and commands have asked without a right to it."""
    logs = (installation.stack.log_path(f"kafka-{node}") for node in installation.nodes)
    return {found[0] for log in logs for found in DENIED.finditer(log.read_text())}


def test_gateways_take_over_a_secured_cluster_in_use_and_a_topic_migrates(
    installation: Installation, clients: Case
) -> None:
    marked, others = blocks(PAGE)
    assert {block.text.partition("\n")[0] for block in others} == NOT_RUN.keys()
    site, nodes = installation.site, installation.nodes
    site.run("passwords", OPERATOR)
    assert "The schema is that of this version." in site.run("schema", OPERATOR)
    site.run("accounts", OPERATOR)
    installation.bring_files()

    take_over(installation, clients, 1)
    give_back(installation, clients, 1)
    for node in nodes:
        take_over(installation, clients, node)
    assert "Partition:" not in site.run("in-sync", OPERATOR)
    site.run("leaders", OPERATOR)
    until(
        "the clients to use every gateway",
        lambda: all(asked_of_gateway(installation, node) > 20 for node in nodes),
    )

    site.run("worker", OPERATOR)
    said = site.run("doctor", OPERATOR)
    assert "nobody attests" in said
    # The other one is of the store: SeaweedFS lets a late upload win (docs/stack.md).
    assert said.count("warning") == 2
    assert "late uploads" in said
    assert site.run("attest", OPERATOR).count("warning") == 1
    said = site.run("migrate", OPERATOR)
    assert f"{TOPIC} may migrate ({PARTITIONS} partitions)" in said

    clients.until_acknowledged(50)
    clients.settle()
    assert min(clients.boundaries()) > HISTORY
    assert [error for member in clients.members for error in member.errors] == []
    assert refused_by_kafka(installation) == set()
    assert marked.keys() - site.used == set()
