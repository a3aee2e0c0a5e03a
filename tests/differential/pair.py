"""A topic with a partition in every state of a migration, one that was born diskless and a classic
one, each with a twin on the brokers that holds the same records at the same offsets."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from functools import partial
from uuid import UUID

from confluent_kafka import TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from tests.differential.batches import YEAR_MS
from tests.differential.machine import Machine
from tests.differential.places import Place
from tests.differential.questions import Edges
from tests.differential.sides import Side, twin_of
from tests.harness import again, create_topics, delete_topics, id_of, until_led
from tests.integration.test_answers import (
    HOLD_MS,
    RECORDS,
    STATES,
    Held,
    append,
    settle_coordinators,
)
from tests.support.waiting import HANGS_S, until
from tests.unit.gateway.fakes import record_batch
from tideline.domain.answers import State
from tideline.stack import Stack

MOVING, BORN, CLASSIC = "moving", "born", "classic"
CROSSED = (State.NOT_READY, State.READY, State.NO_PREFIX)
BOUNDARY = {"born": 0, **{state.value: RECORDS for state in CROSSED}}


def prefix_of(now_ms: int) -> list[bytes]:
    """Together as many records as :data:`RECORDS`; times go back once."""
    return [
        record_batch(5, max_timestamp=now_ms - 2_000),
        record_batch(10, producer_id=5_000_000, epoch=0, sequence=0, max_timestamp=now_ms),
        record_batch(RECORDS - 15, max_timestamp=now_ms - 1_000),
    ]


def suffix_of(now_ms: int) -> list[bytes]:
    return [
        record_batch(4, max_timestamp=now_ms + 1_000),
        record_batch(3, producer_id=5_000_001, epoch=0, sequence=0, max_timestamp=now_ms + 500),
    ]


class Moving(Held):
    """With the batches of the prefix in the place of one batch."""

    now_ms = 0

    def batches(self) -> list[bytes]:
        return prefix_of(self.now_ms)


@contextmanager
def machine_on(stack: Stack) -> Iterator[Machine]:
    """Everything is made, and gone afterwards."""
    settle_coordinators(stack)
    made = Twins(stack)
    gateways, brokers = made.sides()
    with closing(gateways), closing(brokers):
        yield Machine(gateways, brokers, made.places(), made.edges(), made.keep_quiesced)
    delete_topics(made.moving.admin, *(name for name, _ in gateways.topics.values()))
    delete_topics(made.brokers, *(name for name, _ in brokers.topics.values()))


class Twins:
    def __init__(self, stack: Stack) -> None:
        self.stack, self.now_ms = stack, time.time_ns() // 1_000_000
        self.brokers = AdminClient({"bootstrap.servers": stack.endpoints.kafka_bootstrap})
        self.moving = Moving(stack)
        self.moving.now_ms = self.now_ms
        self.names = {MOVING: self.moving.name}
        self.ids = {MOVING: self.moving.topic_id}
        for which in (BORN, CLASSIC):
            self.names[which] = f"{which}-of-{self.moving.name}"
            config = {"diskless.enable": "true"} if which == BORN else {}
            create_topics(self.moving.admin, NewTopic(self.names[which], 1, 2, config=config))
            self.ids[which] = id_of(self.moving.admin, self.names[which])
        self.replicas = {which: self._placed(which) for which in self.names}
        for which, replicas in self.replicas.items():
            create_topics(
                self.brokers, NewTopic(self.twin(which), len(replicas), replica_assignment=replicas)
            )
        self._fill()
        self._quiesce_until = time.monotonic() + HOLD_MS / 2_000

    def twin(self, which: str) -> str:
        return twin_of(self.names[which])

    def keep_quiesced(self) -> None:
        """The hold of a quiesce ends; in time before that the partition is quiesced anew."""
        if time.monotonic() > self._quiesce_until:
            self._quiesce_until = time.monotonic() + HOLD_MS / 2_000
            self.moving.close(STATES.index(State.QUIESCING), HOLD_MS)

    def _placed(self, which: str) -> list[list[int]]:
        """Of each partition, its leader first."""

        def found() -> list[list[int]] | None:
            told = self.brokers.list_topics(self.names[which], timeout=HANGS_S)
            rows = told.topics[self.names[which]].partitions
            if len(rows) != (len(STATES) if which == MOVING else 1):
                return None
            ordered = [rows[number] for number in sorted(rows)]
            if any(row.leader <= 0 for row in ordered):
                return None
            return [[r.leader, *(set(r.replicas) - {r.leader})] for r in ordered]

        return until(f"the replicas of {which}", found)

    def _fill(self) -> None:
        brokers, gateways = self.stack.endpoints.brokers, self.stack.endpoints.gateways
        for which, replicas in self.replicas.items():
            until_led(brokers.values(), self.twin(which), len(replicas))
        self.moving.fill()
        for number, (leader, *_) in enumerate(self.replicas[MOVING]):
            for batch in prefix_of(self.now_ms):
                append(brokers[leader], self.twin(MOVING), number, batch)
        for which in (BORN, CLASSIC):
            leader = self.replicas[which][0][0]
            for batch in prefix_of(self.now_ms):
                append(gateways[leader], self.names[which], 0, batch, lapses=True)
                append(brokers[leader], self.twin(which), 0, batch)
        self.moving.track()
        self.moving.hold()
        for state in CROSSED:
            number = STATES.index(state)
            leader = self.replicas[MOVING][number][0]
            for batch in suffix_of(self.now_ms):
                append(gateways[leader], self.names[MOVING], number, batch, lapses=True)
                append(brokers[leader], self.twin(MOVING), number, batch)
        gone = TopicPartition(self.twin(MOVING), STATES.index(State.NO_PREFIX), RECORDS)
        again("records to be deleted", partial(self._deleted, gone))

    def _deleted(self, gone: TopicPartition) -> object:
        return self.brokers.delete_records([gone])[gone].result(HANGS_S)

    def sides(self) -> tuple[Side, Side]:
        twins = {which: (self.twin(which), self._twin_id(which)) for which in self.names}
        own = {which: (name, self.ids[which]) for which, name in self.names.items()}
        endpoints = self.stack.endpoints
        return (
            Side(endpoints.gateways, own, twins, self.now_ms),
            Side(endpoints.brokers, twins, own, self.now_ms),
        )

    def _twin_id(self, which: str) -> UUID:
        return id_of(self.brokers, self.twin(which))

    def places(self) -> dict[str, Sequence[Place]]:
        states = {MOVING: [str(s.value) for s in STATES], BORN: ["born"], CLASSIC: ["classic"]}
        return {
            which: [
                Place(
                    state,
                    self._nodes(replicas),
                    takes_writes=state != State.QUIESCING.value,
                    boundary=BOUNDARY.get(state, -1),
                )
                for state, replicas in zip(states[which], self.replicas[which], strict=True)
            ]
            for which in self.names
        }

    def _nodes(self, replicas: Sequence[int]) -> dict[str, int]:
        (none,) = set(self.stack.endpoints.brokers) - set(replicas)
        return {"leader": replicas[0], "follower": replicas[1], "none": none}

    def edges(self) -> dict[str, Edges]:
        times = [1_000, *(self.now_ms + d for d in (-2_000, -1_001, -1_000, -1, 0, 1, 500, 1_000))]
        later = (self.now_ms + 1_001, self.now_ms + YEAR_MS)
        prefix = (0, 1, 4, 5, 14, 15, RECORDS - 1, RECORDS)
        suffix = (RECORDS + 3, RECORDS + 4, RECORDS + 6, RECORDS + 7, RECORDS + 8)
        return {
            which: Edges(prefix + suffix, (*times, *later)) for which in (MOVING, BORN, CLASSIC)
        }
