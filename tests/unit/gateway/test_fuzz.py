"""Hostile clients of a gateway with every handler in it, over a made broker: a short, seeded part
of `make fuzz`, and each frame that was ever found to hurt."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from random import Random
from typing import Any

import pytest
from structlog.testing import capture_logs

from tests.fuzz.answering import answering
from tests.fuzz.driver import PROBE, Hostile
from tests.fuzz.found import FOUND
from tests.fuzz.frames import NEVER_WHOLE, Names, corpus, framed, make, mutated, offered
from tests.fuzz.shrink import one_of, shrunk
from tests.unit.gateway.fakes import TOPIC, TOPIC_ID, tracked_row, until
from tests.unit.gateway.gateway_under_test import Gateway, gateway
from tests.unit.gateway.tracked_bench import TrackedBench
from tests.unit.kafka.fake_broker import FakeBroker
from tideline.gateway.passing import WhatPasses
from tideline.kafka.errors import MalformedFrame
from tideline.kafka.protocol import decode_request

NAMES = Names(topics=(TOPIC, "classic"), topic_ids=(TOPIC_ID,))
HYBRID = tracked_row(generation=2, boundary=100, boundary_epoch=7)
STATES = {
    "pending": tracked_row(generation=1),
    "hybrid": HYBRID,
    "born diskless": replace(HYBRID, prefix_gone=True),
}
FRAMES, SECONDS = 3_000, 2.0
"""For each state, whatever comes first."""


@asynccontextmanager
async def attacked(directory: Path, state: str) -> AsyncIterator[tuple[Gateway, list[Any]]]:
    """A gateway with a topic in ``state``, and what went wrong in it unseen."""
    bench = TrackedBench(directory, gateway_park_max_ms="100", produce_timeout_ms="200")
    await bench.lease()
    bench.show(STATES[state])
    wrong: list[Any] = []
    loop = asyncio.get_running_loop()
    gc.collect()  # what earlier tests left in cycles would be told to this one's handler
    before = loop.get_exception_handler()
    loop.set_exception_handler(lambda _, told: wrong.append(told))
    try:
        with capture_logs() as logs:
            passing = WhatPasses(bench.parts.tracking, bench.parts.quotas)
            async with (
                FakeBroker(answering(1)) as broker,
                gateway(broker, bench.rules, passing=passing) as under,
            ):
                yield under, wrong
        wrong += [line for line in logs if line.get("exc_info") or line["log_level"] == "critical"]
    finally:
        loop.set_exception_handler(before)
        await bench.close()


@pytest.mark.parametrize("state", STATES)
async def test_hostile_clients_end_their_own_connections_and_leave_nothing(
    tmp_path: Path, state: str
) -> None:
    async with attacked(tmp_path, state) as (under_test, wrong):
        room = under_test.room
        hostile = Hostile(
            under_test.server.address,
            len(state),
            NAMES,
            frames=FRAMES,
            seconds=SECONDS,
            at_once=20,
            progress=wrong.append,
        )
        await hostile.run()
        assert hostile.looked_at > 0
        await until(lambda: not len(under_test.connections), "every hostile client to be gone")
        await until(lambda: {room.held("requests"), room.held("answers")} == {0})
        client = await under_test.connect()
        await client.send(PROBE)
        assert (await client.receive())[:4] == PROBE[4:8]
        client.close()
    assert wrong == []


@pytest.mark.parametrize("what", FOUND)
async def test_what_was_found_once_is_refused_without_a_traceback(
    tmp_path: Path, what: str
) -> None:
    async with attacked(tmp_path, "hybrid") as (under_test, wrong):
        client = await under_test.connect()
        await client.send(bytes.fromhex(FOUND[what]))
        await client.disconnected()
    assert wrong == []


def test_equal_seeds_make_equal_frames() -> None:
    first, second = (corpus(Random(5), NAMES) for _ in range(2))
    assert first == second
    assert [mutated(Random(n), first[n], first) for n in range(100)] == [
        mutated(Random(n), second[n], second) for n in range(100)
    ]


def test_every_api_and_version_that_is_offered_is_made_and_most_of_it_is_well_formed() -> None:
    random = Random(3)
    made = [make(random, NAMES, api, version) for api, version in offered()]
    assert len(made) > 250
    malformed = 0
    for one in made:
        try:
            decode_request(one.frame)
        except MalformedFrame:
            malformed += one.api not in NEVER_WHOLE
    assert malformed < len(made) / 10


def test_what_could_hurt_the_cluster_by_rights_is_sent_whole_by_nobody() -> None:
    random = Random(4)
    known = corpus(random, NAMES)
    for one in known:
        if one.api in NEVER_WHOLE:
            with pytest.raises(MalformedFrame):
                decode_request(one.frame)


def test_a_finding_is_shrunk_to_what_shows_it() -> None:
    def shows(frame: bytes) -> bool:
        return b"bad" in frame

    frames = [b"good", b"a lot before " + b"bad" + b" and behind", b"bad"]
    found = one_of(frames, shows)
    assert found == frames[1]
    assert shrunk(found, shows) == b"bad"


def test_a_frame_goes_behind_its_length() -> None:
    assert framed(b"abc") == b"\0\0\0\x03abc"
