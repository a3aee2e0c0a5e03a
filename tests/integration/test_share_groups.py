"""Share groups and a tracked topic, in raw frames: its coordinator goes on, and nothing is read.

What passes is asked of brokers too, in every state; what does not, brokers would get wrong.
"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta
from functools import partial
from typing import Any
from uuid import UUID, uuid4

import pytest
from kio.schema.errors import ErrorCode

from tests.harness import delete_topics
from tests.integration.migration_by_hand import Migration
from tests.integration.test_answers import (
    RECORDS,
    STATES,
    Held,
    records,
    settle_coordinators,
)
from tests.integration.test_passed_apis import EVERY, OK, by_both, member_of_a_group_by_heartbeats
from tests.raw import Doors, doors
from tests.support.waiting import until
from tideline.domain.answers import Role, State
from tideline.stack import Stack

REFUSED = ErrorCode.topic_authorization_failed
NOT_YET_LED = (ErrorCode.not_leader_or_follower, ErrorCode.unknown_topic_or_partition)
SUFFIX = 5
"""Records from B0 on of the partition that is ready."""


@pytest.fixture(scope="module")
def held(stack: Stack) -> Iterator[Held]:
    settle_coordinators(stack)
    made = Held(stack)
    made.fill()
    made.track()
    made.hold()
    number = STATES.index(State.READY)
    with doors(stack.endpoints.gateways) as asked:
        write(asked, made.nodes[number][Role.LEADER], made.name, number, SUFFIX)
    yield made
    delete_topics(made.admin, made.name)


def write(asked: Doors, leader: int, topic: str, partition: int, count: int) -> None:
    """A broker that has just been named leader may not know it yet."""

    def taken() -> bool:
        told = asked.ask(
            "Produce", leader, version=9, transactional_id=None, acks=-1,
            timeout=timedelta(seconds=30),
            topic_data=[{"name": topic, "partition_data": [
                {"index": partition, "records": records(count)}
            ]}],
        )  # fmt: skip
        (code,) = (p.error_code for t in told.responses for p in t.partition_responses)
        assert code in {OK, *NOT_YET_LED}, code
        return code is OK

    until("the leader to take records", taken)


def test_a_share_group_is_assigned_partitions_in_every_state_by_its_coordinator(
    stack: Stack, held: Held
) -> None:
    talk = partial(
        member_of_a_group_by_heartbeats, held, "ShareGroupHeartbeat", "ShareGroupDescribe",
        rack_id=None, subscribed_topic_names=[held.name],
    )  # fmt: skip
    told = by_both(stack, talk)
    assert told == {"assigned": EVERY, "described": [(held.name, EVERY)], "left": -1}


def starts_at(asked: Doors, at: int, group: str, topic: str, start: int) -> set[ErrorCode]:
    told = asked.ask(
        "AlterShareGroupOffsets", at, group_id=group,
        topics=[{"topic_name": topic, "partitions": [
            {"partition_index": p, "start_offset": start} for p in EVERY
        ]}],
    )  # fmt: skip
    assert told.error_code is OK, told
    return {p.error_code for t in told.responses for p in t.partitions}


def offsets(held: Held, asked: Doors, group: str) -> dict[str, object]:
    """What the coordinator keeps for a group without members."""
    at = asked.coordinator(group)

    def told() -> list[tuple[int, int]]:
        (found,) = asked.ask(
            "DescribeShareGroupOffsets", at,
            groups=[{"group_id": group, "topics": [
                {"topic_name": held.name, "partitions": EVERY}
            ]}],
        ).groups  # fmt: skip
        assert found.error_code is OK, found
        rows = sorted((p.partition_index, p) for t in found.topics for p in t.partitions)
        assert {p.error_code for _, p in rows} <= {OK}, rows
        return [(int(p.start_offset), int(p.lag)) for _, p in rows]

    set_ = starts_at(asked, at, group, held.name, 3)
    kept = until("the offsets", lambda: told() if told()[0][0] == 3 else None)
    deleted = asked.ask(
        "DeleteShareGroupOffsets", at, group_id=group, topics=[{"topic_name": held.name}]
    )
    return {
        "alter": set_,
        "describe": kept,
        "delete": (deleted.error_code, [t.error_code for t in deleted.responses]),
        "then": [start for start, _ in told()],
    }


def test_the_offsets_of_a_share_group_are_its_coordinators_and_a_lag_is_of_kafkas_log(
    stack: Stack, held: Held
) -> None:
    assert by_both(stack, partial(offsets, held)) == {
        "alter": {OK},
        "describe": [(3, RECORDS - 3) for _ in EVERY],
        "delete": (OK, [OK]),
        "then": [-1 for _ in EVERY],
    }


class Member:
    """Of a share group that begins at the beginning of all partitions of a topic."""

    def __init__(self, asked: Doors, topic: str, topic_id: UUID) -> None:
        self._asked, self._topic_id = asked, topic_id
        self._own = {"group_id": f"share-{uuid4()}", "member_id": str(uuid4())}
        group = self._own["group_id"]
        at = asked.coordinator(group)
        starts_at(asked, at, group, topic, 0)
        epoch = [0]

        def assigned() -> bool:
            told = asked.ask(
                "ShareGroupHeartbeat", at, **self._own, member_epoch=epoch[0], rack_id=None,
                subscribed_topic_names=[topic],
            )  # fmt: skip
            assert told.error_code is OK, told
            epoch[0] = told.member_epoch
            return told.assignment is not None and bool(told.assignment.topic_partitions)

        until("an assignment", assigned)

    def fetch(self, node: int, partition: int, session: int = 0) -> tuple[ErrorCode, list[int]]:
        """The error, and first and last offset of what was acquired. Session 0 begins one."""
        answer = self._asked.ask(
            "ShareFetch", node, **self._own, share_session_epoch=session,
            max_wait=timedelta(seconds=2), min_bytes=1, max_bytes=1 << 20, max_records=500,
            batch_size=500, share_acquire_mode=0, is_renew_ack=False,
            topics=[{"topic_id": self._topic_id, "partitions": [
                {"partition_index": partition, "acknowledgement_batches": []}
            ]}],
            forgotten_topics_data=[],
        )  # fmt: skip
        if answer.error_code is not OK:
            return answer.error_code, []
        rows = [p for t in answer.responses for p in t.partitions]
        acquired = [
            n for p in rows for a in p.acquired_records for n in (a.first_offset, a.last_offset)
        ]
        return next((p.error_code for p in rows), OK), sorted(map(int, acquired))

    def reads(self, node: int, partition: int) -> list[int]:
        """The first and last offset of what it is given; empty with nothing in two seconds."""
        error, acquired = self.fetch(node, partition)
        assert error is OK, error
        return [acquired[0], acquired[-1]] if acquired else []

    def acknowledge(self, node: int, partition: int, session: int, first: int, last: int) -> Any:
        return self._asked.ask(
            "ShareAcknowledge", node, **self._own, share_session_epoch=session,
            is_renew_ack=False,
            topics=[{"topic_id": self._topic_id, "partitions": [
                {"partition_index": partition, "acknowledgement_batches": [
                    {"first_offset": first, "last_offset": last, "acknowledge_types": [1]}
                ]}
            ]}],
        )  # fmt: skip


@pytest.mark.parametrize("state", STATES)
def test_a_share_group_reads_nothing_of_a_tracked_topic(
    stack: Stack, held: Held, state: State
) -> None:
    number = STATES.index(state)
    leader = held.nodes[number][Role.LEADER]
    with doors(stack.endpoints.gateways) as asked:
        member = Member(asked, held.name, held.topic_id)
        for node in asked.addresses:
            assert member.fetch(node, number) == (REFUSED, [])
    with doors(stack.endpoints.brokers) as asked:
        member = Member(asked, held.name, held.topic_id)
        given = until("records", partial(member.reads, leader, number))
    assert given == [0, RECORDS - 1], "all that a broker has, and so not the suffix"


def test_a_share_session_ends_when_its_topic_is_tracked_and_what_it_had_may_be_acknowledged(
    stack: Stack,
) -> None:
    moving = Migration(stack, len(EVERY))
    until("leaders", lambda: moving.leader(0) > 0)
    leader = moving.leader(0)
    with doors(stack.endpoints.gateways) as asked:
        write(asked, leader, moving.name, 0, RECORDS)
        member = Member(asked, moving.name, moving.topic_id)
        given = until("records", partial(member.reads, leader, 0))
        assert given == [0, RECORDS - 1]
        moving.track()
        over = ErrorCode.share_session_not_found
        assert member.acknowledge(leader, 0, 1, 0, 4).error_code is over
        assert member.fetch(leader, 0, session=1) == (over, [])
        last = member.acknowledge(leader, 0, -1, 0, RECORDS - 1)
        assert last.error_code is OK
        assert [p.error_code for t in last.responses for p in t.partitions] == [OK]
        assert member.fetch(leader, 0) == (REFUSED, [])
    delete_topics(moving.admin, moving.name)
