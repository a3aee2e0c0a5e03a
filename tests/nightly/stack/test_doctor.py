"""``tideline doctor`` and the pages of gateways on the stack, with one part that is away."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any
from urllib.error import HTTPError
from urllib.request import urlopen

from tests.harness import command, killed, migration_case
from tests.integration.test_doctor import alone
from tests.support.waiting import HANGS_S, until
from tideline.errors import ExitCode
from tideline.pages import read_state
from tideline.stack import Stack


def test_a_dead_gateway_is_named_with_what_to_do(stack: Stack) -> None:
    with killed(stack, "gateway-2"):
        code, wrong = alone(stack, "gateway 2")
    assert code == ExitCode.FAILED
    assert "does not renew its lease" in wrong["gateway 2"]["found"]
    assert "tideline gateway retire 2" in wrong["gateway 2"]["remedy"]


def test_a_gateway_says_why_it_is_not_ready(stack: Stack) -> None:
    until("gateway 2 to be ready", lambda: told(stack, "ready") == (200, []))
    with killed(stack, "kafka-2"):
        until(
            "gateway 2 to miss its broker",
            lambda: any("broker does not answer" in why for why in told(stack, "ready")[1]),
        )
        assert told(stack, "ready")[0] == 503
        assert told(stack, "health") == (200, []), "a restart would mend nothing"
    until("gateway 2 to be ready again", lambda: told(stack, "ready") == (200, []))


def told(stack: Stack, page: str) -> tuple[int, list[str]]:
    """By gateway 2."""
    where = stack.endpoints.metrics["gateway-2"]
    try:
        with urlopen(f"http://{where}/{page}", timeout=HANGS_S) as answer:
            return answer.status, json.loads(answer.read())["why"]
    except HTTPError as refused:
        return refused.code, json.loads(refused.read())["why"]


def test_a_gateway_tells_what_it_believes(stack: Stack) -> None:
    where = stack.endpoints.metrics["gateway-1"]
    with migration_case(stack, name="believed", history=20, partitions=2) as case:

        def believes() -> bool:
            told = json.loads(shown(stack, where, "--topic", case.topic))
            return (told["ready"], told["lease"], told["topic"]) == (True, "held", None)

        until("the gateway to hold its lease", believes)
        case.trigger()
        case.until_ready()
        b0 = case.boundaries()
        until("the gateway to know B0", lambda: [
            row["b0"] for row in partitions(read_state(where, case.topic))] == b0)  # fmt: skip
        rows = partitions(json.loads(shown(stack, where, "--topic", case.topic)))
        assert [(row["route"], row["b0"]) for row in rows] == [("suffix", b) for b in b0]
        everything = json.loads(shown(stack, where))
        assert everything["topics"][case.topic]["partitions"] == {"suffix": 2}
        assert everything["held_bytes"]["parked"] == 0


def partitions(state: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Of the topic that was asked about."""
    return state["topic"]["partitions"] if state["topic"] else []


def shown(stack: Stack, where: str, *arguments: str) -> str:
    run = command(stack, "gateway", "show", where, "-o", "json", *arguments, wait=True)
    return run.answer()
