"""The whole of a migration under load: what passes does not come to a handler, and what a crossing
needs does."""

from __future__ import annotations

from tests.harness import counted, migration_case
from tests.nightly.stack.test_clients_across import java_console_consumer, read_across
from tests.support.waiting import until
from tideline.stack import Stack


def passed(stack: Stack, api: str) -> int:
    """Requests that no handler has seen, of all gateways."""
    return counted(stack, "inkless_gateway_requests_total", api=api, path="passed")


def test_a_consumer_with_a_session_reads_on_across_the_boundary(stack: Stack) -> None:
    """Its session passes until its topic is tracked, and from that moment on no more."""
    with migration_case(stack, name="session") as case:
        case.produce()
        case.consume()
        with java_console_consumer(case) as reading:
            until("a first record", lambda: reading.seen)
            before = passed(stack, "Fetch"), passed(stack, "Produce")
            until(
                "fetches and produces that pass",
                lambda: (
                    passed(stack, "Fetch") > before[0] + 20
                    and passed(stack, "Produce") > before[1] + 20
                ),
            )
            read_across(case, reading, acknowledged=(50, 100), past=50)
        offsets = [offset for offset, _ in reading.seen]
        assert offsets == list(range(len(offsets)))
        case.settle()
