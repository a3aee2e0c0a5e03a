"""Questions to Postgres after Kafka's answer: grouped, fresh, bounded, and none without need."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from uuid import UUID

import pytest

from tests.support.waiting import lasts_async, within
from tests.unit.gateway.fakes import (
    LOG,
    TOPIC_ID,
    FakeClock,
    GatewayPlane,
    tracked_row,
    tracked_topic,
    until,
)
from tideline.domain.ack_gate import Standing
from tideline.domain.ids import TopicIdPartition
from tideline.gateway.tracking import confirm
from tideline.gateway.tracking.confirm import Confirmations
from tideline.gateway.tracking.lease import Lease

OTHER = TopicIdPartition(TOPIC_ID, 1)


class AskedPlane(GatewayPlane):
    """Notes each question, and answers it when the test says so."""

    def __init__(self) -> None:
        super().__init__()
        self.questions: list[list[TopicIdPartition]] = []
        self.may_answer = asyncio.Event()
        self.may_answer.set()

    async def confirm_partitions(
        self, gateway_id: int, incarnation: UUID, logs: Sequence[TopicIdPartition]
    ) -> dict[TopicIdPartition, Standing]:
        self.questions.append(list(logs))
        found = await super().confirm_partitions(gateway_id, incarnation, logs)
        await self.may_answer.wait()
        return found


@pytest.fixture
def plane() -> AskedPlane:
    return AskedPlane()


@pytest.fixture
async def confirmations(plane: AskedPlane) -> AsyncIterator[Confirmations]:
    lease = Lease(
        plane, gateway_id=1, broker_id=1, address="here:1", version="0", duration_ms=3_000,
        clock=FakeClock(),
    )  # fmt: skip
    await lease.renew()
    plane.put(tracked_topic(tracked_row(0), tracked_row(1)))
    made = Confirmations(plane, lease)
    yield made
    await made.close()


async def test_whoever_waits_is_asked_about_together(
    confirmations: Confirmations, plane: AskedPlane
) -> None:
    found = await asyncio.gather(*(confirmations.standing(at) for at in (LOG, OTHER, LOG)))
    assert all(standing is not None and standing.confirms for standing in found)
    assert plane.questions == [[LOG, OTHER]]


async def test_an_answer_that_is_under_way_is_not_taken_by_who_came_later(
    confirmations: Confirmations, plane: AskedPlane
) -> None:
    """Its snapshot may be older than what Kafka has answered meanwhile."""
    plane.may_answer.clear()
    first = asyncio.create_task(confirmations.standing(LOG))
    await until(lambda: plane.questions)
    second = asyncio.create_task(confirmations.standing(LOG))
    await asyncio.sleep(0)
    await lasts_async("one is asked at a time", lambda: plane.questions == [[LOG]], 0.01)
    plane.put_row(tracked_row(0, boundary=10, boundary_epoch=1))
    plane.may_answer.set()
    before, after = await first, await second
    assert before is not None
    assert after is not None
    assert (before.boundary, after.boundary) == (-1, 10)
    assert plane.questions == [[LOG], [LOG]]


async def test_a_question_that_fails_is_answered_with_nothing(
    confirmations: Confirmations, plane: AskedPlane
) -> None:
    plane.down = True
    assert await confirmations.standing(LOG) is None
    plane.down = False
    assert await confirmations.standing(LOG) is not None


async def test_the_queue_is_bounded(
    confirmations: Confirmations, plane: AskedPlane, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(confirm, "MOST_WAITING", 1)
    plane.may_answer.clear()
    first = asyncio.create_task(confirmations.standing(LOG))
    await until(lambda: plane.questions)
    waiting = asyncio.create_task(confirmations.standing(LOG))
    await asyncio.sleep(0)
    assert await confirmations.standing(OTHER) is None
    plane.may_answer.set()
    await asyncio.gather(first, waiting)


async def test_a_large_question_is_cut(
    confirmations: Confirmations, plane: AskedPlane, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(confirm, "LARGEST_QUESTION", 2)
    logs = [TopicIdPartition(TOPIC_ID, number) for number in range(5)]
    await asyncio.gather(*(confirmations.standing(at) for at in logs))
    assert [len(question) for question in plane.questions] == [2, 2, 1]


async def test_who_gives_up_does_not_end_the_question_of_the_others(
    confirmations: Confirmations, plane: AskedPlane
) -> None:
    plane.may_answer.clear()
    gives_up = asyncio.create_task(confirmations.standing(LOG))
    stays = asyncio.create_task(confirmations.standing(LOG))
    await until(lambda: plane.questions)
    gives_up.cancel()
    plane.may_answer.set()
    assert await stays is not None


async def test_a_stop_answers_whoever_waits(
    confirmations: Confirmations, plane: AskedPlane
) -> None:
    plane.may_answer.clear()
    asked = [asyncio.create_task(confirmations.standing(LOG))]
    await until(lambda: plane.questions)
    asked.append(asyncio.create_task(confirmations.standing(OTHER)))
    await asyncio.sleep(0)
    await confirmations.close()
    assert await within("the answers", asyncio.gather(*asked)) == [None, None]
