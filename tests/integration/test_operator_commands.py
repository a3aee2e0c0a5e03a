"""What operators decide by a command that writes to Postgres itself: the command as a process of
its own, against the stack. Those that go through a workflow stand in
``contract/workflows/test_ways_out.py``."""

from __future__ import annotations

import json
from typing import Any

from tests.harness import Breakpoint, Command, command, migration_case
from tests.support.waiting import HANGS_S, until
from tideline.domain.migration import Phase
from tideline.errors import ExitCode
from tideline.stack import Stack

BY = ("--by", "ada", "--reason", "a quiet week")


def printed(stack: Stack, *arguments: str) -> Any:
    """The JSON that the command answers, which has to succeed."""
    ran = command(stack, *arguments, "-o", "json")
    assert ran.wait(HANGS_S) == ExitCode.OK, ran.output()
    return json.loads(ran.answer())


def refused(stack: Stack, *arguments: str) -> Command:
    ran = command(stack, *arguments)
    assert ran.wait(HANGS_S) == ExitCode.REFUSED, ran.output()
    return ran


def test_limits_are_set_shown_with_their_operator_and_left_to_the_settings_again(
    stack: Stack,
) -> None:
    limits = printed(stack, "limits", "set", "--topics", "64", *BY)["limits"]
    assert (limits["topics"], limits["partitions"]) == (64, None)
    assert (limits["set_by"], limits["reason"]) == BY[1::2]
    assert printed(stack, "limits", "set", *BY)["limits"]["topics"] is None
    assert printed(stack, "limits", "show")["limits"]["topics"] is None


def test_who_attests_what_is_attested_is_shown_who_has(stack: Stack) -> None:
    before = printed(stack, "cluster", "show")
    assert before["attested"]
    assert printed(stack, "cluster", "attest", *BY) == before


def test_a_request_is_listed_and_not_called_off_once_its_migration_has_begun(stack: Stack) -> None:
    with migration_case(stack, name="request") as case:
        assert "asked for" in refused(stack, "request", "call-off", case.topic, *BY).output()
        stop = Breakpoint(case.superuser_dsn, case.topic_id, Phase.VALIDATE)
        try:
            case.trigger()

            def started() -> Any:
                (request,) = printed(stack, "request", "list", case.topic)["requests"]
                return request if request["state"] == "started" else None

            request = until("the request to be started", started)
            assert (request["topic"], request["topic_id"]) == (case.topic, str(case.topic_id))
            said = refused(stack, "request", "call-off", case.topic, *BY).output()
            assert "is started: nothing waits to be called off" in said
        finally:
            stop.release()
        case.until_ready()
