"""A gateway of its own beside a stack's, whose networks and state directory a test may take."""

from __future__ import annotations

import os
import secrets
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from urllib.parse import urlsplit

import psycopg
from psycopg.conninfo import conninfo_to_dict, make_conninfo

from tests.harness import Case
from tests.ports import free_port
from tests.proxy import Proxy
from tests.support.waiting import until
from tideline.control_plane.migrate import gateway_role, provision_roles
from tideline.stack import Stack
from tideline.stack.credentials import SUPERUSER

_ids = count(91)


@dataclass(frozen=True)
class Networks:
    """Its ways to everything that it talks to."""

    postgres: Proxy
    broker: Proxy
    s3: Proxy


@contextmanager
def networks(stack: Stack, node: int) -> Iterator[Networks]:
    """Ways that can be cut, for a gateway beside broker ``node``."""
    postgres = conninfo_to_dict(stack.environment(f"gateway-{node}")["TIDELINE_POSTGRES_DSN"])
    s3 = urlsplit(stack.endpoints.s3.url)
    host, _, port = stack.endpoints.brokers[node].rpartition(":")
    with ExitStack() as held:
        yield Networks(
            held.enter_context(Proxy(str(postgres["host"]), int(str(postgres["port"])))),
            held.enter_context(Proxy(host, int(port))),
            held.enter_context(Proxy(str(s3.hostname), int(str(s3.port)))),
        )


@dataclass(frozen=True)
class Beside:
    """The process, and where its clients bootstrap."""

    number: int
    address: str
    kill: Callable[[], None]
    exit_code: Callable[[], int | None]
    """``None`` while it runs."""
    log: Path


@contextmanager
def gateway(
    stack: Stack,
    node: int,
    state: Path,
    ways: Networks | None = None,
    *,
    alone: bool = False,
    number: int | None = None,
    peers: Mapping[int, str] | None = None,
    settings: Mapping[str, str] | None = None,
) -> Iterator[Beside]:
    """A process beside broker ``node``, with a new state directory and, by default, an id that no
    other one had. Its clients are told of it in the place of the stack's gateway of that broker,
    and, with ``alone``, of no other one; with ``peers`` of those alone, itself among them, and it
    stands in for nobody. ``settings`` over the others."""
    number = next(_ids) if number is None else number
    own = peers[node] if peers is not None else f"127.0.0.1:{free_port()}"
    environment = stack.environment(f"gateway-{node}")
    told = environment["TIDELINE_GATEWAY_PEERS"].split(",")
    if peers is not None:
        told = [f"{peer}={address}" for peer, address in peers.items()]
        del environment["TIDELINE_GATEWAY_STAND_IN"]
    elif places := environment.get("TIDELINE_GATEWAY_STAND_IN"):
        # The stack's own gateway may be listening at its addresses.
        nodes = (place.partition("=")[0] for place in places.split(","))
        environment["TIDELINE_GATEWAY_STAND_IN"] = ",".join(
            f"{other}=127.0.0.1:{free_port()}" for other in nodes
        )
    others = [] if alone else [peer for peer in told if not peer.startswith(f"{node}=")]
    environment |= {
        "TIDELINE_GATEWAY_ID": str(number),
        "TIDELINE_GATEWAY_LISTEN": own,
        "TIDELINE_GATEWAY_ADVERTISED": own,
        "TIDELINE_GATEWAY_PEERS": ",".join([f"{node}={own}", *others]),
        "TIDELINE_GATEWAY_STATE_DIR": str(state),
        "TIDELINE_METRICS_ADDRESS": f"127.0.0.1:{free_port()}",
    }
    role, password = gateway_role(number), secrets.token_hex()
    provision_roles(stack.endpoints.postgres_dsn(SUPERUSER), {role: password})
    dsn = conninfo_to_dict(environment["TIDELINE_POSTGRES_DSN"])
    dsn |= {"user": role, "password": password}
    if ways is not None:
        dsn |= {"host": "127.0.0.1", "port": str(ways.postgres.port)}
        environment |= {
            "TIDELINE_GATEWAY_BROKER": ways.broker.address,
            "TIDELINE_S3_ENDPOINT": f"http://{ways.s3.address}",
        }
    environment["TIDELINE_POSTGRES_DSN"] = make_conninfo(**{k: str(v) for k, v in dsn.items()})
    environment |= settings or {}
    state.mkdir()
    written = state.with_suffix(".log")
    with written.open("w") as log:
        process = subprocess.Popen(
            [sys.executable, "-m", "tideline", "gateway", "run"],
            env=os.environ | environment, stdout=log, stderr=log,
        )  # fmt: skip

        def kill() -> None:
            process.kill()
            process.wait()

        try:
            yield Beside(number, own, kill, process.poll, written)
        finally:
            kill()


@contextmanager
def fleet(case: Case, directory: Path, settings: Mapping[str, str]) -> Iterator[str]:
    """One beside each broker, a second way into the cluster of the case: their clients are told of
    no others. Where those bootstrap."""
    stack = case.stack
    peers = {node: f"127.0.0.1:{free_port()}" for node in stack.endpoints.brokers}
    with ExitStack() as retired, ExitStack() as running:
        made = [
            running.enter_context(
                gateway(stack, node, directory / f"gateway-{node}", peers=peers, settings=settings)
            )
            for node in peers
        ]
        for one in made:
            until(f"{one.address} to listen", lambda one=one: serves(one))  # type: ignore[misc]
            retired.callback(retire, case, one.number)
        yield ",".join(peers.values())


def serves(one: Beside) -> bool:
    assert one.exit_code() is None, one.log.read_text()[-2_000:]
    return listens(one.address)


def listens(address: str) -> bool:
    host, _, port = address.rpartition(":")
    try:
        socket.create_connection((host, int(port)), timeout=5).close()
    except OSError:
        return False
    return True


def retire(case: Case, number: int) -> None:
    """The stack's later migrations do not wait for a gateway that is gone."""
    with psycopg.connect(case.superuser_dsn, autocommit=True) as connection:
        connection.execute("SELECT tideline.retire_gateway(%s, 'the test')", [number])
