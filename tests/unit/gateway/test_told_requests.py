"""What an operator is told of requests: how long they took and how they ended, and in the log whose
they were."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from prometheus_client import REGISTRY
from structlog.testing import capture_logs

from tests.asked import Places, request
from tests.unit.gateway.fakes import TOPIC, record_batch, tracked_row, until
from tests.unit.gateway.gateway_under_test import gateway, gateway_settings
from tests.unit.gateway.test_transport import frame
from tests.unit.gateway.tracked_bench import TrackedBench, leased, produce
from tests.unit.kafka.fake_broker import FakeBroker, nothing_but_versions
from tideline.domain.answers import Asked
from tideline.domain.foreign_text import MOST_OF_A_NAME
from tideline.gateway.context import ApiKey, RequestContext, Rule, words_of
from tideline.gateway.metrics import note_settings
from tideline.kafka.errors import KafkaUnavailable
from tideline.kafka.protocol import encode_request, parse_header
from tideline.subject import add_words

ASKED = request(Asked.LATEST, TOPIC, 0, Places(0, 0, 0, 0, 0), b"")
CLOSED = tracked_row(generation=2, quiesced=True)
SUFFIX = tracked_row(generation=2, boundary=100, boundary_epoch=7)


def handled(outcome: str) -> float:
    labels = {"api": "ListOffsets", "outcome": outcome}
    return REGISTRY.get_sample_value("inkless_gateway_handling_seconds_count", labels) or 0


def gauge(name: str, **labels: str) -> float:
    found = REGISTRY.get_sample_value(name, labels)
    assert found is not None
    return found


@pytest.mark.parametrize(
    ("raised", "outcome"),
    [(None, "answered"), (KafkaUnavailable("gone"), "broker_away"), (ValueError("so"), "failed")],
)
async def test_each_request_that_is_handled_is_timed_by_api_and_outcome(
    raised: Exception | None, outcome: str
) -> None:
    async def handler(context: RequestContext) -> bytes | None:
        if raised is not None:
            raise raised
        return context.frame[4:8] + b"done"

    rules = {int(ApiKey.LIST_OFFSETS): Rule(handler, lambda: True)}
    before = handled(outcome)
    async with FakeBroker(nothing_but_versions) as broker, gateway(broker, rules) as under_test:
        client = await under_test.connect()
        with capture_logs() as logs:
            await client.send(encode_request(ASKED, 77, "orders-app"))
            if outcome == "answered":
                await client.receive()
            else:
                await client.disconnected()
            await until(lambda: handled(outcome) > before)
        client.close()
    assert handled(outcome) == before + 1
    if outcome == "failed":
        (line,) = [each for each in logs if each["event"] == "request failed"]
        assert (line["api"], line["client_id"], line["correlation_id"]) == (
            "ListOffsets",
            "orders-app",
            77,
        )
        assert line["client"].startswith("127.0.0.1:")


async def test_the_time_of_a_request_whose_client_leaves_counts_as_given_up() -> None:
    begun = asyncio.Event()

    async def handler(context: RequestContext) -> bytes | None:
        begun.set()
        await asyncio.Event().wait()
        return None

    rules = {int(ApiKey.LIST_OFFSETS): Rule(handler, lambda: True)}
    before = handled("given_up")
    async with FakeBroker(nothing_but_versions) as broker, gateway(broker, rules) as under_test:
        client = await under_test.connect()
        await client.send(encode_request(ASKED, 1, "c"))
        await begun.wait()
        client.close()
        await until(lambda: handled("given_up") == before + 1)


async def test_the_line_on_a_connection_that_ends_for_a_request_says_which_one() -> None:
    async with FakeBroker(nothing_but_versions) as broker, gateway(broker) as under_test:
        with capture_logs() as logs:
            client = await under_test.connect()
            await client.send(frame(9, ApiKey.FETCH, 99))
            await client.disconnected()
            await until(lambda: any(each["event"] == "connection closed" for each in logs))
    (line,) = [each for each in logs if each["event"] == "connection closed"]
    assert (line["api"], line["api_version"], line["correlation_id"]) == ("Fetch", 99, 9)
    assert "not offered" in line["reason"]


def test_of_a_long_client_id_the_log_has_the_beginning() -> None:
    header = parse_header(encode_request(ASKED, 1, "x" * 5_000))
    assert words_of(header, "a:1")["client_id"] == "x" * MOST_OF_A_NAME


async def test_a_handlers_lines_are_about_its_request() -> None:
    told: list[dict[str, Any]] = []

    async def handler(context: RequestContext) -> bytes | None:
        told.append(dict(add_words(None, "info", {"event": "x"})))
        return context.frame[4:8] + b"done"

    rules = {int(ApiKey.LIST_OFFSETS): Rule(handler, lambda: True)}
    async with FakeBroker(nothing_but_versions) as broker, gateway(broker, rules) as under_test:
        client = await under_test.connect()
        for number in (1, 2):
            await client.send(encode_request(ASKED, number, "c"))
            await client.receive()
        client.close()
    assert [line["correlation_id"] for line in told] == [1, 2]


@pytest.fixture
async def bench(tmp_path: Path) -> AsyncIterator[TrackedBench]:
    async with leased(tmp_path) as made:
        yield made


async def test_the_age_of_what_waits_longest_is_shown(bench: TrackedBench) -> None:
    bench.show(CLOSED)
    assert gauge("inkless_gateway_parked_oldest_seconds") == 0
    waiting = asyncio.ensure_future(bench.ask(produce((TOPIC, 0, record_batch(1)))))
    await until(lambda: bench.parts.parking.parked_bytes > 0)
    await until(lambda: gauge("inkless_gateway_parked_oldest_seconds") > 0.02)
    waiting.cancel()
    await asyncio.gather(waiting, return_exceptions=True)
    assert gauge("inkless_gateway_parked_oldest_seconds") == 0


async def test_the_age_of_what_is_accepted_and_not_committed_is_shown(bench: TrackedBench) -> None:
    bench.show(SUFFIX)
    assert gauge("inkless_wal_oldest_seconds") == 0
    bench.store.holds[0] = asyncio.Event()
    produced = asyncio.ensure_future(bench.ask(produce((TOPIC, 0, record_batch(1)))))
    await until(lambda: len(bench.store.puts) == 1)
    await until(lambda: gauge("inkless_wal_oldest_seconds") > 0.02)
    bench.store.holds[0].set()
    await produced
    assert gauge("inkless_wal_oldest_seconds") == 0


async def test_how_long_the_lease_still_holds_is_shown(bench: TrackedBench) -> None:
    most = bench.settings.gateway_lease_ms / 1000
    assert 0 < gauge("inkless_gateway_lease_left_seconds") <= most
    bench.lapse()
    assert gauge("inkless_gateway_lease_left_seconds") == 0


def test_settings_in_which_gateways_must_not_differ_are_shown() -> None:
    note_settings(gateway_settings("127.0.0.1:1", diskless_managed_rf_enabled="true"))

    def shown(setting: str) -> float | None:
        return gauge("inkless_gateway_switch", setting=setting)

    assert shown("TIDELINE_DISKLESS_MANAGED_RF_ENABLED") == 1
    assert shown("TIDELINE_HYBRID_READ_ENABLED") == 1
    note_settings(gateway_settings("127.0.0.1:1", hybrid_read_enabled="false"))
    assert shown("TIDELINE_DISKLESS_MANAGED_RF_ENABLED") == 0
    assert shown("TIDELINE_HYBRID_READ_ENABLED") == 0


def test_bounds_are_shown_as_they_are_configured() -> None:
    note_settings(gateway_settings("127.0.0.1:1", gateway_max_connections="77"))
    assert gauge("inkless_gateway_bound", bound="connections") == 77
    assert gauge("inkless_gateway_bound", bound="memory") == 1_073_741_824
