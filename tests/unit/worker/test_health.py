"""The worker tells whether it serves, and why not."""

from __future__ import annotations

import asyncio
import json
import time
import urllib.error
import urllib.request
from collections.abc import Iterator

import pytest

from tests.ports import free_port
from tests.support.waiting import HANGS_S
from tests.unit.kafka.fake_broker import FakeBroker, api_versions
from tideline import pages
from tideline.errors import RefusedError, UnreachableError, UsageError
from tideline.kafka.client import KafkaCluster
from tideline.kafka.protocol import RequestHeader
from tideline.worker import app
from tideline.worker import health as health_module
from tideline.worker.health import Health, keep_looking


@pytest.fixture
def address() -> tuple[str, int]:
    return "127.0.0.1", free_port()


@pytest.fixture
def health(address: tuple[str, int]) -> Iterator[Health]:
    known = Health(versions={"version": "1"})
    stop = pages.serve(address, known.pages())
    yield known
    stop()


def get(address: tuple[str, int], path: str) -> tuple[int, str]:
    try:
        with urllib.request.urlopen(
            f"http://{address[0]}:{address[1]}{path}", timeout=HANGS_S
        ) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        return error.code, error.read().decode()


def test_a_worker_that_waits_says_for_what(address: tuple[str, int], health: Health) -> None:
    health.waiting("Temporal at 127.0.0.1:7233 does not answer")
    status, body = get(address, "/health")
    assert status == 503
    assert "127.0.0.1:7233" in json.loads(body)["waits_for"]


def test_a_worker_that_serves_is_healthy(address: tuple[str, int], health: Health) -> None:
    health.ready()
    assert get(address, "/health")[0] == 200


def test_metrics_are_served_beside(address: tuple[str, int], health: Health) -> None:
    status, body = get(address, "/metrics")
    assert status == 200
    assert "python_info" in body


def test_an_address_that_is_taken_is_named(address: tuple[str, int], health: Health) -> None:
    with pytest.raises(UsageError, match=str(address[1])):
        pages.serve(address, health.pages())


async def test_a_part_that_comes_back_ends_the_wait() -> None:
    known, answers = Health(), iter([UnreachableError("Postgres is away"), None])

    async def attempt() -> str:
        if error := next(answers):
            raise error
        return "connected"

    assert await app.retry_at_start(known, attempt) == "connected"
    assert known.waits_for == "Postgres is away"


@pytest.mark.parametrize(("level", "refused"), [(21, True), (22, False), (None, False)])
async def test_a_worker_does_not_start_beside_brokers_that_are_too_old(
    level: int | None, refused: bool
) -> None:
    async def answer(header: RequestHeader, _: bytes) -> bytes:
        return api_versions(header, level)

    async with FakeBroker(answer) as broker, KafkaCluster([broker.address]) as cluster:
        if not refused:
            await app.refuse_old_brokers(cluster)
            return
        with pytest.raises(RefusedError, match=r"before 4\.0.*upgrade the brokers"):
            await app.refuse_old_brokers(cluster)


def ready(health: Health) -> tuple[bool, object]:
    well, body = health.ready_page({})
    return well, body["missing"]


async def looked_at(health: Health, **found: str | Exception) -> None:
    """One look, and what it finds."""

    def look(answer: str | Exception) -> health_module.Look:
        async def said() -> str:
            if isinstance(answer, Exception):
                raise answer
            return answer

        return said

    looking = asyncio.ensure_future(
        keep_looking(health, {name: look(answer) for name, answer in found.items()})
    )
    while health.looked_s is None:  # noqa: ASYNC110 - a task that sleeps next
        await asyncio.sleep(0)
    looking.cancel()


async def test_a_worker_is_ready_when_it_serves_and_all_parts_are_there() -> None:
    known = Health()
    known.ready()
    assert ready(known)[0] is False, "nobody has looked yet"
    await looked_at(known, temporal="", postgres="")
    assert ready(known) == (True, {})
    known.waiting("stopping")
    assert ready(known)[0] is False


async def test_a_worker_that_lacks_a_part_is_not_ready_and_says_which() -> None:
    known = Health()
    known.ready()
    await looked_at(known, temporal="does not poll q", postgres=UnreachableError("away"))
    assert ready(known) == (False, {"temporal": "does not poll q", "postgres": "away"})
    assert known.health_page({})[0], "a new start would not help"


async def test_a_look_that_is_old_says_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    known = Health()
    known.ready()
    await looked_at(known, temporal="")
    later = time.monotonic() + health_module.LOOK_LASTS_S + 1
    monkeypatch.setattr(health_module.time, "monotonic", lambda: later)
    assert ready(known)[0] is False
