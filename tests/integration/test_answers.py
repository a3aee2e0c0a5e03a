"""The table of answers in raw frames, at the gateways beside brokers of every role.

Each partition of one topic is held in a state of its own. What a role cannot be here, the lease,
and accepted log gaps are asked over a made broker (``tests/unit/gateway/test_answers.py``).
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from datetime import timedelta
from functools import partial

import pytest
from confluent_kafka import ElectionType
from confluent_kafka.admin import AdminClient, PartitionMetadata

from tests.asked import Places, Told, expected, request, told
from tests.harness import again, delete_topics, until_led
from tests.integration.migration_by_hand import Migration
from tests.raw import ask
from tests.support.waiting import HANGS_S, until
from tests.unit.gateway.fakes import record_batch
from tideline.control_plane import ControlPlane
from tideline.domain.answers import KAFKA_SAYS, Asked, Case, LeaseState, Role, State
from tideline.domain.request_handling import KafkaErrorCode
from tideline.stack import Stack

STATES = (State.PENDING, State.QUIESCING, State.NOT_READY, State.READY, State.NO_PREFIX)
"""By partition."""
NOBODYS = 99
"""A partition that the topic does not have."""
RECORDS = 20
"""In each partition before anything is tracked."""
ROLES = (Role.NO_REPLICA, Role.FOLLOWER, Role.LEADER)
"""In the order of the questions: who may delete comes last."""
HOLD_MS = 300_000
WRITTEN = (Asked.PRODUCE, Asked.DELETE_PREFIX, Asked.DELETE_SUFFIX)
WHEN_LAPSED = (
    KafkaErrorCode.NOT_LEADER_OR_FOLLOWER.name,
    KafkaErrorCode.REQUEST_TIMED_OUT.name,
)
"""The second one for what is written only."""
ANYWHERE = Places(prefix=0, suffix=0, end=0, old_epoch=-1, new_epoch=0)
"""Of a produce, which says no offset."""
ASKED = [asked for asked in Asked if asked is not Asked.FETCH_GAP]
COORDINATORS = ("__consumer_offsets", "__transaction_state", "__share_group_state")


def records(count: int) -> bytes:
    """One batch, of now: retention would take an old one."""
    return record_batch(count, max_timestamp=time.time_ns() // 1_000_000)


def append(address: str, topic: str, partition: int, batch: bytes, *, lapses: bool = False) -> None:
    """Once. ``lapses``: at a gateway, whose lease may have lapsed for a moment."""
    message = request(Asked.PRODUCE, topic, partition, ANYWHERE, batch)
    message = replace(message, timeout=timedelta(seconds=60))
    # A broker that has just been named leader may not know it yet.
    later = {"NOT_LEADER_OR_FOLLOWER", "UNKNOWN_TOPIC_OR_PARTITION"}
    if lapses:
        later.update(WHEN_LAPSED)

    def taken() -> bool:
        answer = told(Asked.PRODUCE, ask(address, message)).error
        assert answer in {"NONE", *later}
        return answer == "NONE"

    until("its leader takes records", taken)


class Held(Migration):
    """A topic of which each partition is in a state of its own."""

    def __init__(self, stack: Stack) -> None:
        super().__init__(stack, len(STATES), replicas=2)
        self.boundaries: dict[int, int] = {}
        self.nodes: dict[int, dict[Role, int]] = {}
        for number, found in self.placed(self._are_led).items():
            (follower,) = set(found.replicas) - {found.leader}
            (none,) = set(stack.endpoints.brokers) - set(found.replicas)
            self.nodes[number] = {
                Role.LEADER: found.leader,
                Role.FOLLOWER: follower,
                Role.NO_REPLICA: none,
            }

    def _are_led(self, found: dict[int, PartitionMetadata]) -> bool:
        return len(found) == self.partitions and all(p.leader > 0 for p in found.values())

    def places(self, partition: int) -> Places:
        """No epoch is older than that of a topic's first leader: -1 stands for one."""
        start = self.boundaries.get(partition, RECORDS)
        return Places(prefix=2, suffix=start, end=start, old_epoch=-1, new_epoch=0, gap=2)

    def told(self, address: str, asked: Asked, partition: int) -> Told:
        message = request(asked, self.name, partition, self.places(partition), records(2))
        return told(asked, ask(address, message))

    def at_gateway(self, role: Role, asked: Asked, partition: int) -> Told:
        node = self.nodes.get(partition, self.nodes[0])[role]
        return self.told(self.stack.endpoints.gateways[node], asked, partition)

    def answers(self, case: Case, number: int, code: KafkaErrorCode) -> None:
        """The gateway beside the role says ``code``; one whose lease has lapsed for a moment
        refuses what is tracked, and is asked again."""

        def said() -> bool:
            answer = self.at_gateway(case.role, case.asked, number).error
            lapsed = WHEN_LAPSED if case.asked in WRITTEN else WHEN_LAPSED[:1]
            assert answer in {code.name, *lapsed}, case
            return answer == code.name

        until(f"{code.name} to {case}", said)

    def at_broker(self, role: Role, asked: Asked, partition: int) -> Told:
        return self.told(
            self.stack.endpoints.brokers[self.nodes[partition][role]], asked, partition
        )

    def fill(self) -> None:
        """Records below B0, which followers show as well. Who has no replica knows who leads."""
        until_led(self.stack.endpoints.brokers.values(), self.name, self.partitions)
        for number in range(self.partitions):
            leader = self.stack.endpoints.brokers[self.nodes[number][Role.LEADER]]
            for batch in self.batches():
                append(leader, self.name, number, batch)
            until("a follower shows the records", partial(self._follower_shows, number))

    def batches(self) -> list[bytes]:
        """Of each partition, :data:`RECORDS` records together."""
        return [records(RECORDS)]

    def _follower_shows(self, number: int) -> bool:
        return self.at_broker(Role.FOLLOWER, Asked.FETCH_PREFIX, number).offset >= 0

    def hold(self) -> None:
        """Every partition in its state, at every gateway."""
        for role in (Role.LEADER, Role.FOLLOWER):
            for number in range(self.partitions):
                # A gateway whose lease has lapsed for a moment refuses what is tracked.
                until(f"the gateway of the {role} to serve", partial(self._serves, role, number))
        self.close(STATES.index(State.QUIESCING), HOLD_MS)
        for state in (State.NOT_READY, State.READY, State.NO_PREFIX):
            number = STATES.index(state)
            self.boundaries[number] = self.cross(self.close(number), number)
        self.do(self._prefixes)
        for role in ROLES:
            until(f"the gateway beside the {role} knows", partial(self._has_heard, role))

    def _serves(self, role: Role, number: int) -> bool:
        answer = self.at_gateway(role, Asked.FETCH_PREFIX, number).error
        assert answer in {"NONE", "NOT_LEADER_OR_FOLLOWER"}
        return answer == "NONE"

    async def _prefixes(self, plane: ControlPlane) -> None:
        ready, none = STATES.index(State.READY), STATES.index(State.NO_PREFIX)
        view = await plane.tracked_topics()
        (generation,) = (t.partitions[ready].generation for t in view if t.name == self.name)
        await plane.set_tiering_complete(self.log(ready), generation, True, "for this test")
        await plane.advance_prefix_start(self.log(none), self.boundaries[none])

    def _has_heard(self, role: Role) -> bool:
        def error(asked: Asked, state: State) -> str:
            return self.at_gateway(role, asked, STATES.index(state)).error

        return (
            error(Asked.LATEST, State.NOT_READY) == "NONE"
            and error(Asked.EARLIEST, State.READY) == "NONE"
            and error(Asked.FETCH_PREFIX, State.NO_PREFIX) == "OFFSET_OUT_OF_RANGE"
        )


def settle_coordinators(stack: Stack) -> None:
    """Each on the broker that Kafka prefers: it looks every five minutes, and moves back what is
    elsewhere since a broker was away, in the middle of a conversation."""
    admin = AdminClient({"bootstrap.servers": ",".join(stack.endpoints.brokers.values())})

    def settled() -> bool:
        again(
            "preferred leaders to be elected",
            lambda: admin.elect_leaders(ElectionType.PREFERRED).result(HANGS_S),
        )
        found = admin.list_topics(timeout=HANGS_S).topics
        of_coordinators = [t for name, t in found.items() if name in COORDINATORS]
        return all(
            p.leader == p.replicas[0] for t in of_coordinators for p in t.partitions.values()
        )

    until("coordinators where Kafka prefers them", settled)


@contextmanager
def held_topic(stack: Stack) -> Iterator[Held]:
    """Filled, tracked, and held in every state."""
    settle_coordinators(stack)
    made = Held(stack)
    made.fill()
    made.track()
    made.hold()
    yield made
    delete_topics(made.admin, made.name)


@pytest.fixture(scope="module")
def held(stack: Stack) -> Iterator[Held]:
    with held_topic(stack) as made:
        yield made


@pytest.mark.parametrize("state", STATES)
def test_gateways_answer_as_the_table_says_beside_every_role(held: Held, state: State) -> None:
    number = STATES.index(state)
    for asked in ASKED:
        for role in ROLES:
            case = Case(asked, state, LeaseState.HELD, role)
            code = expected(case, has_offset=asked is not Asked.TIERED)  # nothing is tiered
            held.answers(case, number, code)


@pytest.mark.parametrize("asked", ASKED)
def test_a_partition_that_is_not_known_is_nobodys_at_every_gateway(
    held: Held, asked: Asked
) -> None:
    for role in ROLES:
        case = Case(asked, State.UNKNOWN, LeaseState.HELD, role)
        held.answers(case, NOBODYS, expected(case))


def test_brokers_and_gateways_of_a_classic_topic_say_what_the_table_takes_for_granted(
    stack: Stack,
) -> None:
    classic = Held(stack)
    classic.fill()
    for asked in ASKED:
        for role in ROLES:
            case = Case(asked, State.CLASSIC, LeaseState.HELD, role)
            says = KAFKA_SAYS[asked.request][role].name
            assert classic.at_broker(role, asked, 0).error == says, case
            assert classic.at_gateway(role, asked, 1).error == expected(case).name, case
    delete_topics(classic.admin, classic.name)


def test_a_broker_that_does_not_know_a_topic_says_so_to_every_api(stack: Stack) -> None:
    places = Places(prefix=0, suffix=0, end=0, old_epoch=-1, new_epoch=0, gap=0)
    for asked in ASKED:
        message = request(asked, "no-such-topic", 0, places, records(2))
        case = Case(asked, State.CLASSIC, LeaseState.HELD, Role.UNAWARE)
        for address in (stack.endpoints.brokers[1], stack.endpoints.gateways[1]):
            assert told(asked, ask(address, message)).error == expected(case).name, case


def test_a_topic_that_was_deleted_past_the_gateways_is_gone_at_each_of_them(stack: Stack) -> None:
    gone = Held(stack)
    gone.track()
    brokers = AdminClient({"bootstrap.servers": ",".join(stack.endpoints.brokers.values())})
    delete_topics(brokers, gone.name)

    def is_gone(role: Role) -> bool:
        return gone.at_gateway(role, Asked.LATEST, 0).error == "UNKNOWN_TOPIC_OR_PARTITION"

    for role in ROLES:
        until(f"the gateway beside the {role} knows", partial(is_gone, role))
        for asked in ASKED:
            case = Case(asked, State.DELETED, LeaseState.HELD, role)
            assert expected(case) is KafkaErrorCode.UNKNOWN_TOPIC_OR_PARTITION
            gone.answers(case, 0, expected(case))
