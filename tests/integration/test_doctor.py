"""``tideline doctor`` on the embedded stack: whole, and with one part that is wrong."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from typing import Any

import pytest

from tests.harness import HANGS_S, killed
from tideline.errors import ExitCode
from tideline.stack import Stack

pytestmark = [pytest.mark.integration]


def doctor(stack: Stack, **other: str) -> tuple[int, dict[str, Any]]:
    """Its exit code, and the checks that are not fine, by name."""
    done = subprocess.run(
        [sys.executable, "-m", "tideline", "doctor", "-o", "json"],
        env=os.environ | stack.environment("worker") | other,
        capture_output=True, text=True, check=False, timeout=HANGS_S,
    )  # fmt: skip
    found = json.loads(done.stdout)
    assert found["ok"] is (done.returncode == 0)
    return done.returncode, {c["check"]: c for c in found["checks"] if c["verdict"] != "ok"}


def test_a_whole_stack_has_nothing_that_fails(stack: Stack) -> None:
    code, wrong = doctor(stack)
    assert (code, wrong) == (ExitCode.OK, {})


def test_a_dead_gateway_is_named_with_what_to_do(stack: Stack) -> None:
    with killed(stack, "gateway-2"):
        code, wrong = doctor(stack)
    assert code == ExitCode.FAILED
    assert set(wrong) == {"gateway 2"}
    assert "does not renew its lease" in wrong["gateway 2"]["found"]
    assert "tideline gateway retire 2" in wrong["gateway 2"]["remedy"]


def test_what_cannot_be_reached_fails_its_own_check_alone(stack: Stack) -> None:
    nowhere = "127.0.0.1:9"
    code, wrong = doctor(
        stack, TIDELINE_TEMPORAL_ADDRESS=nowhere, TIDELINE_S3_ENDPOINT=f"http://{nowhere}"
    )
    assert code == ExitCode.FAILED
    assert set(wrong) == {"temporal", "object store", "installation"}
    assert nowhere in wrong["temporal"]["found"]
    assert "TIDELINE_S3_ENDPOINT" in wrong["object store"]["remedy"]


def test_a_bucket_that_is_not_there_is_named(stack: Stack) -> None:
    code, wrong = doctor(stack, TIDELINE_S3_TIERED_BUCKET="nobodys")
    assert code == ExitCode.FAILED
    assert "nobodys" in wrong["object store"]["found"]
