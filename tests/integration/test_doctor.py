"""``tideline doctor`` on the embedded stack: whole, and with one address that is wrong. With a part
that is away: nightly/stack/test_doctor.py."""

from __future__ import annotations

import json
from typing import Any

from tests.harness import Command, command
from tests.support.waiting import HANGS_S, Wait
from tideline.errors import ExitCode
from tideline.migration.doctor import LATE_PUTS
from tideline.object_store.client import ObjectStoreClient
from tideline.settings import WorkerSettings
from tideline.stack import Stack


def doctor(stack: Stack, **other: str) -> tuple[int, dict[str, Any]]:
    """Its exit code, and the checks that are not fine, by name: beside what holds of every stack,
    whose store lets a late, partial upload win."""
    code, wrong = everything(stack, **other)
    if (late := wrong.pop(LATE_PUTS, None)) is not None:
        assert late["verdict"] == "warning"
    return code, wrong


def everything(stack: Stack, **other: str) -> tuple[int, dict[str, Any]]:
    run = Command(stack, ["doctor", "-o", "json"], **other)
    code = run.wait(HANGS_S)
    found = json.loads(run.answer())
    assert found["ok"] is (code == 0)
    return code, {c["check"]: c for c in found["checks"] if c["verdict"] != "ok"}


def alone(stack: Stack, *checks: str, **other: str) -> tuple[int, dict[str, Any]]:
    """What it says once these are all that fail: a gateway's renewal may be late for once."""
    wait = Wait(f"{checks} to be all that fails", 30)
    while True:
        code, wrong = doctor(stack, **other)
        if set(wrong) == set(checks):
            return code, wrong
        assert not wait.over, wrong


def test_a_whole_stack_has_nothing_that_fails(stack: Stack) -> None:
    assert alone(stack) == (ExitCode.OK, {})


def test_a_store_that_lets_a_late_partial_upload_win_is_found_out_and_nothing_is_left(
    stack: Stack,
) -> None:
    _, wrong = everything(stack)
    assert "0 bytes were left of the object" in wrong[LATE_PUTS]["found"]
    settings = WorkerSettings.of(stack.environment("worker"))
    store = ObjectStoreClient(settings)
    assert list(store.list_objects(settings.s3_bucket, f"{settings.diskless_prefix}doctor/")) == []


def test_what_cannot_be_reached_fails_its_own_check_alone(stack: Stack) -> None:
    nowhere = "127.0.0.1:9"
    code, wrong = alone(
        stack,
        *("temporal", "object store", "installation"),
        TIDELINE_TEMPORAL_ADDRESS=nowhere,
        TIDELINE_S3_ENDPOINT=f"http://{nowhere}",
    )
    assert code == ExitCode.FAILED
    assert nowhere in wrong["temporal"]["found"]
    assert "TIDELINE_S3_ENDPOINT" in wrong["object store"]["remedy"]


def test_a_bucket_that_is_not_there_is_named(stack: Stack) -> None:
    code, wrong = doctor(stack, TIDELINE_S3_TIERED_BUCKET="nobodys")
    assert code == ExitCode.FAILED
    assert "nobodys" in wrong["object store"]["found"]


def test_an_address_where_no_gateway_answers_is_named(stack: Stack) -> None:
    run = command(stack, "gateway", "show", "127.0.0.1:9")
    assert run.wait(HANGS_S) == ExitCode.UNREACHABLE
    assert "no gateway answers at 127.0.0.1:9" in run.output()
