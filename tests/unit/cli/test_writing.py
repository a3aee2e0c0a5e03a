"""Commands that change something look first whether Postgres, Kafka and buckets are one fleet's."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import asynccontextmanager, contextmanager
from types import SimpleNamespace
from typing import Any
from uuid import UUID

import pytest
from typer.testing import CliRunner

from tideline.cli import collection, migrate, operators, writing
from tideline.cli.app import app
from tideline.cli.commands import TABLE, Later
from tideline.domain.history import WrongHistory
from tideline.errors import ExitCode

ID = str(UUID(int=7))
WHY = ("--reason", "because", "--by", "ann")
CHANGING = (
    ("cluster attest", *WHY),
    ("cluster withdraw", *WHY),
    ("gap accept orders 0 --from 1 --to 2", *WHY),
    ("gap keep orders 0",),
    ("gateway account 1", "--gone", "--attested-by", "ann", ID),
    ("gateway retire 1 --cut-off",),
    ("gc adopt", *WHY),
    (f"gc allow {ID}", *WHY),
    ("limits set --partitions 3", *WHY),
    ("migrate", "orders"),
    ("replicas cancel orders",),
    ("replicas normalise", "--run"),
    ("request call-off orders", *WHY),
    ("tiered-storage disable orders --delete",),
    ("tiered-storage enable orders",),
    ("tiered-storage read-only orders",),
    ("tiered-storage resume orders",),
    ("tiering pause orders",),
    ("tiering resume orders",),
    ("tiering trigger orders",),
    (f"topic forget orders --id {ID}", *WHY),
)
ELSEWHERE = {
    "coverage": "as a job, which asks for itself",
    "verify": "as a job, which asks for itself",
    "retention": "as a job, which asks for itself",
    "gc": "as a job, which asks for itself",
    "records": "looks; with --tell it asks for itself",
    "installation adopt": "an operator's word against what the look would say",
    "rebuild": "writes where nobody lives, under a halted history, and then begins a new one",
    "temporal prepare": "Temporal's namespace alone",
    "db migrate": "the schema, before anything lives in it or beside what does",
    **dict.fromkeys(
        ("gateway run", "worker run"), "a process of its own, which looks at its start"
    ),
    **dict.fromkeys(
        ("abort", "complete", "configure", "pause", "resume"),
        "tells a workflow; the worker that carries it out has asked",
    ),
}
LOOKING = {
    "cluster show", "db check", "doctor", "export remote-log-metadata", "gap show",
    "gateway list", "gateway show", "gc runs",
    "installation show", "jobs", "limits show", "preflight", "replicas report", "request list",
    "status",
    "tiered-storage show",
    "tiering status", "topic check", "topic deleted",
}  # fmt: skip
OWN_STACK = {"demo", "stack down", "stack logs", "stack status", "stack up"}


class Untouched:
    """Whatever is asked of it has changed something."""

    def __getattr__(self, name: str) -> Any:
        raise AssertionError(f"{name} was called on a Postgres that is not the fleet's")


@pytest.fixture(autouse=True)
def a_wrong_postgres(monkeypatch: pytest.MonkeyPatch) -> None:
    async def cluster_id() -> str:
        return "kafka-1"

    cluster = SimpleNamespace(cluster_id=cluster_id)
    services = SimpleNamespace(control_plane=Untouched(), cluster=cluster, settings=None)

    @asynccontextmanager
    async def opened(*_: Any, **__: Any) -> Any:
        yield services

    @asynccontextmanager
    async def connected(*_: Any, **__: Any) -> Any:
        yield Untouched()

    @contextmanager
    def jobs_connected(*_: Any, **__: Any) -> Iterator[Any]:
        yield Untouched()

    @asynccontextmanager
    async def brokers(*_: Any) -> Any:
        yield cluster

    async def refused(*_: Any) -> None:
        raise WrongHistory("Postgres is not the one that the fleet has seen")

    def refused_job(*_: Any) -> None:
        raise WrongHistory("Postgres is not the one that the fleet has seen")

    async def found(*_: Any) -> Any:
        return UUID(ID), 1

    async def no_workflow(*_: Any) -> Any:
        raise operators.temporal.NoSuchMigration("orders")

    monkeypatch.setattr(writing, "load", lambda kind: None)
    monkeypatch.setattr(writing, "open_services", opened)
    monkeypatch.setattr(writing.control_plane, "connect", connected)
    monkeypatch.setattr(writing, "connect_jobs", jobs_connected)
    monkeypatch.setattr(writing, "KafkaCluster", SimpleNamespace(of=brokers))
    monkeypatch.setattr(writing, "command_must_own", refused)
    monkeypatch.setattr(writing, "job_must_own", refused_job)
    monkeypatch.setattr(operators, "load", lambda kind: None)
    monkeypatch.setattr(migrate, "load", lambda kind: None)
    monkeypatch.setattr(migrate, "open_services", opened)
    monkeypatch.setattr(operators, "find_topic", found)
    monkeypatch.setattr(operators, "update", no_workflow)


@pytest.mark.parametrize("line", CHANGING, ids=lambda line: line[0])
def test_it_changes_nothing_in_a_postgres_that_is_not_the_fleets(line: tuple[str, ...]) -> None:
    command, *more = line
    done = CliRunner().invoke(app, [*command.split(), *more])
    assert isinstance(done.exception, WrongHistory), done.output
    assert done.exception.exit_code is ExitCode.REFUSED


def test_every_command_is_known_to_change_something_or_not() -> None:
    """A new one must say where it belongs."""
    changing = {" ".join(w for w in line[0].split()[:2]) for line in CHANGING}
    named = changing | LOOKING | ELSEWHERE.keys() | OWN_STACK
    assert set(_commands()) == named
    assert collection.changing_jobs_plane is writing.changing_jobs_plane


def _commands() -> Iterator[str]:
    for entry in TABLE:
        found = Later(entry).command
        inner = getattr(found, "commands", {})
        yield from (f"{entry.name} {sub}" for sub in inner)
        if not inner or found.invoke_without_command:
            yield entry.name
