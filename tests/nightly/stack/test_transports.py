"""The whole of a migration under load, by gateways of either transport: what passes does not come
to a handler, and what a crossing needs does."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.conftest import SHARED
from tests.harness import counted, migration_case, start_gateway
from tests.nightly.stack.test_clients_across import java_console_consumer, read_across
from tests.support.waiting import until
from tideline.settings import TransportSettings
from tideline.stack import Stack


def serve_by(stack: Stack, transport: str) -> None:
    """Restart the gateways, one by one, with this transport."""
    stack.configure({**SHARED, "TIDELINE_GATEWAY_TRANSPORT": transport})
    for node in stack.endpoints.gateways:
        stack.stop(f"gateway-{node}")
        start_gateway(stack, node)


OF_THE_STACK = SHARED.get(
    "TIDELINE_GATEWAY_TRANSPORT", TransportSettings.model_fields["gateway_transport"].default
)


@pytest.fixture(scope="module", params=["native", "python"])
def served(stack: Stack, request: pytest.FixtureRequest) -> Iterator[Stack]:
    """A stack whose gateways serve by one transport."""
    if request.param != OF_THE_STACK:
        serve_by(stack, request.param)
    yield stack
    if request.param != OF_THE_STACK:
        serve_by(stack, OF_THE_STACK)


def passed(stack: Stack, api: str) -> int:
    """Requests that no handler has seen, of all gateways."""
    return counted(stack, "inkless_gateway_requests_total", api=api, path="passed")


def test_a_consumer_with_a_session_reads_on_across_the_boundary(served: Stack) -> None:
    """Its session passes until its topic is tracked, and from that moment on no more."""
    with migration_case(served, name="transport") as case:
        case.produce()
        case.consume()
        with java_console_consumer(case) as reading:
            until("a first record", lambda: reading.seen)
            before = passed(served, "Fetch"), passed(served, "Produce")
            until(
                "fetches and produces that pass",
                lambda: (
                    passed(served, "Fetch") > before[0] + 20
                    and passed(served, "Produce") > before[1] + 20
                ),
            )
            read_across(case, reading, acknowledged=(50, 100), past=50)
        offsets = [offset for offset, _ in reading.seen]
        assert offsets == list(range(len(offsets)))
        case.settle()
