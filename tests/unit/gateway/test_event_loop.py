"""What a gateway's sockets are served by."""

from __future__ import annotations

import asyncio
from concurrent.futures import ThreadPoolExecutor
from typing import get_args

import pytest
import uvloop

from tests.unit.gateway.gateway_under_test import gateway_settings
from tideline.gateway.event_loop import run
from tideline.settings import EventLoop


@pytest.mark.parametrize("loop", get_args(EventLoop))
def test_a_gateway_runs_on_the_event_loop_that_is_set(loop: EventLoop) -> None:
    seen: list[bool] = []

    async def look() -> None:
        seen.append(isinstance(asyncio.get_running_loop(), uvloop.Loop))

    with ThreadPoolExecutor(1) as thread:  # this one has the loop of the other tests
        thread.submit(run, look(), loop).result()
    assert seen == [loop == "uvloop"]


def test_it_is_uvloop_unless_another_one_is_set() -> None:
    assert gateway_settings("127.0.0.1:1").gateway_event_loop == "uvloop"


async def test_the_tests_of_the_transport_run_on_what_production_runs_on() -> None:
    assert isinstance(asyncio.get_running_loop(), uvloop.Loop)
