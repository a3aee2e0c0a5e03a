"""docs/install.md, taken as it stands: gateways take over a cluster whose clients are connected to
its brokers, nobody touches the clients, and a topic migrates.

What the test puts in the place of the page's addresses and paths, for broker N:

| the page | here |
| --- | --- |
| ``kafka-N:9092``, ``0.0.0.0:9092`` | where broker N serves clients at first |
| ``kafka-N:9094``, ``0.0.0.0:9094`` | a port that nothing of the stack uses |
| ``127.0.0.1:19092`` | another one, where the broker's old listener goes |
| ``127.0.0.1:9404``, ``127.0.0.1:9405`` | the metrics of gateway N and of the worker |
| ``postgres:5432/tideline`` | the stack's Postgres, an empty database |
| ``temporal:7233``, S3's endpoint, buckets, region, keys | the stack's |
| ``/etc/tideline``, ``/var/lib/tideline-gateway`` | directories of the host's own |
| ``/opt/tideline/bin/tideline`` | this program |
| broker 1 of the examples | broker N |
| ``listeners=`` | the same, and the ``CONTROLLER`` listener of the stack's combined nodes |
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from urllib.request import urlopen

import psycopg
import pytest
from confluent_kafka import ElectionType
from confluent_kafka.admin import AdminClient

from tests import systemctl
from tests.conftest import HOMES_VARIABLE
from tests.harness import Case, until
from tests.rehearsed import blocks, substituted
from tideline.demo import topic as topics
from tideline.demo.ledger import Ledger
from tideline.stack import Stack
from tideline.stack.ports import is_free

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "install.md"
DATABASE = "installed"
TOPIC, PARTITIONS = "orders", 3
BLOCK_S = 300
STORES = ("postgres", "s3", "temporal")
OPERATOR = 0
"""The host that is no broker's."""
REQUESTS = re.compile(r"^inkless_gateway_requests_total\{[^}]*\} (\S+)$", re.MULTILINE)


class Site:
    """The hosts of the page: one of each broker, and one for worker and operator."""

    def __init__(self, stack: Stack, root: Path) -> None:
        self.stack, self.root = stack, root
        self.page, _ = blocks(PAGE)
        self.nodes = sorted(stack.endpoints.brokers)
        self._exports: list[str] = []
        self._ports = json.loads((stack.home / "stack.json").read_text())["ports"]
        for node in (OPERATOR, *self.nodes):
            self._make_host(node)

    def host(self, node: int) -> Path:
        return self.root / f"host-{node}"

    def _make_host(self, node: int) -> None:
        here = self.host(node)
        (here / "bin").mkdir(parents=True)
        (here / "etc" / "secrets").mkdir(parents=True)
        paths = {
            "/etc/tideline": str(here / "etc"),
            "/var/lib/tideline-gateway": str(here / "var/lib/tideline-gateway"),
            "/opt/tideline/bin/tideline": str(here / "bin" / "tideline"),
        }
        known = {"node": node, "stack": str(self.stack.home), "paths": paths}
        (here / "host.json").write_text(json.dumps(known))
        for name, command in (("tideline", "tideline"), ("systemctl", f"tests.systemctl {here}")):
            program = here / "bin" / name
            program.write_text(
                f'#!/bin/sh\nPYTHONPATH={ROOT} exec {sys.executable} -m {command} "$@"\n'
            )
            program.chmod(0o755)

    def _aside(self, node: int) -> int:
        """Where the old listener goes: a port that nothing of the stack has."""
        first = int(self.stack.endpoints.brokers[node].rpartition(":")[2]) + 400
        return next(port for port in range(first, first + 1000, 10) if is_free(port))

    def _table(self, node: int) -> dict[str, str]:
        """What stands for what in a block of this host."""
        endpoints, s3 = self.stack.endpoints, self.stack.endpoints.s3
        server = endpoints.postgres_dsn("postgres").rpartition("@")[2].partition("/")[0]
        table = json.loads((self.host(node) / "host.json").read_text())["paths"] | {
            "127.0.0.1:9405": endpoints.metrics["worker"],
            "postgres:5432/tideline": f"{server}/{DATABASE}",
            "temporal:7233": endpoints.temporal,
            "https://s3:443": s3.url,
            "eu-central-1": s3.region,
            "tideline-diskless": s3.bucket,
            "kafka-tiered": s3.tiered_bucket,
            '"segments"': f'"{s3.tiered_prefix}"',
            "the-access-key": s3.access_key,
            "the-secret-key": s3.secret_key,
        }
        for peer in self.nodes:
            table[f"kafka-{peer}:9092"] = endpoints.brokers[peer]
            table[f"kafka-{peer}:9094"] = endpoints.gateways[peer]
        if node != OPERATOR:
            controller = f"CONTROLLER://127.0.0.1:{self._ports[f'controller-{node}']}"
            table |= {
                "0.0.0.0:9092": endpoints.brokers[node],
                "0.0.0.0:9094": endpoints.gateways[node],
                "127.0.0.1:19092": f"127.0.0.1:{self._aside(node)}",
                "127.0.0.1:9404": endpoints.metrics[f"gateway-{node}"],
                "\nlisteners=": f"\nlisteners={controller},",
                "GATEWAY_ID=1\n": f"GATEWAY_ID={node}\n",
                "BROKER_ID=1\n": f"BROKER_ID={node}\n",
            }
        return table

    def text(self, name: str, node: int = OPERATOR) -> str:
        """The block for this host: what the page says of broker 1 is said of it."""
        found = f"\n{self.page[name].text}"
        if node != OPERATOR and self.page[name].kind != "toml":
            found = found.replace("kafka-1:", f"kafka-{node}:")
        return substituted(found, self._table(node)).lstrip("\n")

    def write(self, name: str, where: str, node: int = OPERATOR) -> None:
        """A block that the page wants in a file of this host."""
        (self.host(node) / "etc" / where).write_text(self.text(name, node))

    def run(self, name: str, node: int = OPERATOR) -> str:
        """A block, in the shell where those of before have exported what they did; its stdout."""
        text = self.text(name, node)
        before = "\n".join(self._exports if node == OPERATOR else [])
        own = {k: v for k, v in os.environ.items() if not k.startswith("TIDELINE_")}
        own["PATH"] = f"{self.host(node) / 'bin'}:{own['PATH']}"
        done = subprocess.run(
            ["bash", "-euo", "pipefail", "-c", f"{before}\n{text}"], env=own,
            cwd=self.host(node), capture_output=True, text=True, check=False, timeout=BLOCK_S,
        )  # fmt: skip
        assert done.returncode == 0, f"{name} on host {node}:\n{done.stdout}{done.stderr}"
        if node == OPERATOR:
            self._exports += [
                line for line in text.splitlines() if line.startswith(("export ", "set -a;"))
            ]
        return done.stdout

    def configure_broker(self, node: int, *names: str) -> None:
        """What the page adds to ``server.properties``, in the order of the rolls."""
        text = "".join(self.text(name, node) for name in names)
        (self.stack.home / f"kafka-{node}.properties").write_text(text)

    def boundaries(self) -> list[int]:
        """B0 by partition, -1 where it is unset."""
        dsn = self.stack.endpoints.postgres_dsn("postgres").rpartition("/")[0]
        with psycopg.connect(f"{dsn}/{DATABASE}") as connection:
            rows = connection.execute(
                "SELECT diskless_log_start_offset FROM tideline.logs ORDER BY partition"
            ).fetchall()
        return [row[0] for row in rows]

    def stop(self) -> None:
        for node in (OPERATOR, *self.nodes):
            host = json.loads((self.host(node) / "host.json").read_text())
            for unit in ("tideline-worker", "tideline-gateway"):
                systemctl.Unit(unit, self.host(node), host["paths"]).stop()


@pytest.fixture
def site(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Site]:
    """A cluster without Tideline whose brokers have a listener of their own already, the stores
    beside it, and hosts with nothing on them."""
    process = os.environ.get("PYTEST_XDIST_WORKER", "one")
    home = Path(os.environ[HOMES_VARIABLE]) / f"{process}-install"
    home.mkdir(mode=0o755)
    made: list[Site] = []
    try:
        stack = Stack.up(home, brokers=3, parts=STORES)
        made.append(Site(stack, tmp_path))
        for node in made[0].nodes:
            made[0].configure_broker(node, "first-roll", "second-roll")
        made[0].stack = Stack.up(home, parts=(*STORES, "kafka"))
        with psycopg.connect(stack.endpoints.postgres_dsn("postgres"), autocommit=True) as owner:
            owner.execute(f"CREATE DATABASE {DATABASE}".encode())
        yield made[0]
    finally:
        for one in made:
            one.stop()
            for node in one.nodes:
                (one.stack.home / f"kafka-{node}.properties").unlink(missing_ok=True)
        (Stack.take_down if request.session.testsfailed else Stack.purge)(home)


@pytest.fixture
def clients(site: Site) -> Iterator[Case]:
    """Of the brokers: nobody tells them anything until the end."""
    bootstrap = site.stack.endpoints.kafka_bootstrap
    admin = AdminClient({"bootstrap.servers": bootstrap})
    topic_id = topics.create_tiered(admin, TOPIC, PARTITIONS, 3)
    case = Case(site.stack, TOPIC, PARTITIONS, topic_id, Ledger(), admin, bootstrap)
    case.write(200 * PARTITIONS, "history")
    case.produce(rate=60)
    case.consume()
    case.until_acknowledged(50)
    try:
        yield case
    finally:
        case.stop()


def in_sync(admin: AdminClient) -> bool:
    """Whether every replica is in sync, and every broker there."""
    seen = admin.list_topics(timeout=30)
    partitions = [p for topic in seen.topics.values() for p in topic.partitions.values()]
    return len(seen.brokers) == 3 and all(len(p.isrs) == len(p.replicas) for p in partitions)


def take_over(site: Site, clients: Case, node: int) -> None:
    site.configure_broker(node, "first-roll", "second-roll", "third-roll")
    site.run("takeover", node)
    until(f"broker {node} to be in sync", lambda: in_sync(clients.admin))


def give_back(site: Site, clients: Case, node: int) -> None:
    site.run("way-back", node)
    site.configure_broker(node, "first-roll", "second-roll")
    site.run("broker-again", node)
    site.stack.wait_ready(f"kafka-{node}")
    until(f"broker {node} to be in sync", lambda: in_sync(clients.admin))


def asked_of_gateway(site: Site, node: int) -> float:
    where = site.stack.endpoints.metrics[f"gateway-{node}"]
    with urlopen(f"http://{where}/metrics", timeout=30) as answer:
        return sum(map(float, REQUESTS.findall(answer.read().decode())))


def test_gateways_take_over_a_cluster_in_use_and_a_topic_migrates(
    site: Site, clients: Case
) -> None:
    site.write("tideline.toml", "tideline.toml")
    secrets = site.host(OPERATOR) / "etc" / "secrets"
    owner = site.stack.endpoints.postgres_dsn("postgres").rpartition("/")[0]
    (secrets / "owner-postgres-dsn").write_text(f"{owner}/{DATABASE}\n")
    site.run("passwords")
    said = site.run("schema")
    assert "The schema is that of this version." in said
    site.write("s3.env", "secrets/s3.env")
    site.write("worker.env", "worker.env")
    for node in site.nodes:
        site.write("tideline.toml", "tideline.toml", node)
        site.write("gateway.env", "gateway.env", node)
        site.write("s3.env", "secrets/s3.env", node)
        dsn = (secrets / "gateway-postgres-dsn").read_text()
        (site.host(node) / "etc/secrets/gateway-postgres-dsn").write_text(dsn)

    take_over(site, clients, 1)
    give_back(site, clients, 1)
    for node in site.nodes:
        take_over(site, clients, node)
    clients.admin.elect_leaders(ElectionType.PREFERRED).result(60)
    until(
        "the clients to use every gateway",
        lambda: all(asked_of_gateway(site, node) > 20 for node in site.nodes),
    )

    site.run("worker")
    assert "nobody attests" in site.run("doctor").replace("\n", " ")
    assert "nobody attests" not in site.run("attest").replace("\n", " ")
    said = site.run("migrate")
    assert f"{TOPIC} may migrate ({PARTITIONS} partitions)" in said

    clients.until_acknowledged(50)
    clients.settle()
    assert min(site.boundaries()) > 200
