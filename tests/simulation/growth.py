"""Partitions that are added while clients go on: at a broker itself, or through a gateway; before
the topic is tracked, while it migrates, or when it has.

Who reaches a broker's own listener adds one there, past the gateways, and writes to it by itself.
What that writer was told is promised, also when the topic grows through a gateway later on; what it
is told when the partition has begun diskless, or from the write pause before its B0 on, is not,
since nobody may write past the gateways then.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace
from datetime import timedelta
from math import inf
from typing import TYPE_CHECKING, Any

from kio.schema.errors import ErrorCode

from tests.history.operations import Operation, Outcome, Produce, Which
from tests.simulation.broker_wire import PORT, host_of
from tests.simulation.clients import AWAY, BACKOFF_S, REQUEST_MS, Producer, Style
from tests.simulation.faults import GROWS_PAST, UNTRACKED
from tests.simulation.loop import Process
from tideline.domain import failures
from tideline.domain.ids import TopicIdPartition
from tideline.gateway.context import ApiKey
from tideline.gateway.messages import messages
from tideline.kafka.client import KafkaConnection

if TYPE_CHECKING:
    from tests.simulation.faults import Fault
    from tests.simulation.run import World

ATTEMPTS, TIMEOUT_S = 8, 4.0
LOOKED_S = 2.0
"""How long before a partition begins diskless its replicas are looked at, at most."""
DONE = (ErrorCode.none, ErrorCode.invalid_partitions, ErrorCode.invalid_request)
"""It grew, has grown by an attempt whose answer was lost, or may not."""


class Growth:
    """Of the topic of one run, beyond the partitions that it has from the beginning."""

    def __init__(self, world: World, topic: str, partitions: int) -> None:
        self._world, self._topic, self._first = world, topic, partitions
        self._writers: list[Producer] = []
        self._used: set[int] = set()
        """Partitions that came later, and that clients write to."""
        self._under_way = self._asked = 0

    def expect(self) -> None:
        """Schedules without growth ask brokers for nothing of it, so that they stay as they are."""
        self._world.kafka.has_admins = self._world.driver.topic_grows = True
        self._world.driver.final.discard(failures.TOPIC_CHANGED)

    def begin(self, fault: Fault) -> None:
        grow = self._past if fault.kind == GROWS_PAST else self._through
        self._asked, self._under_way = self._asked + 1, self._under_way + 1
        Process(self._world.loop, f"admin-{self._asked}").spawn(self._counted(grow, fault), "admin")

    async def _counted(self, grow: Callable[[Fault], Awaitable[None]], fault: Fault) -> None:
        try:
            await grow(fault)
        finally:
            self._under_way -= 1

    @property
    def is_under_way(self) -> bool:
        return self._under_way > 0

    async def _past(self, fault: Fault) -> None:
        """Add a partition at the broker, and write as many batches there as the fault says."""
        world, count = self._world, self._count() + 1
        await self._ask(fault.who, count)
        if fault.after == UNTRACKED:
            self._begin_clients(count)
        if not int(fault.other):
            return
        writer = Producer(
            world.loop, f"librdkafka-{20 + count}", self._brokers(), self._topic, Style.LIBRDKAFKA,
            world.history, world.kafka.names, every_s=0.01, by_id=False,
            partition=world.partition, number=count - 1,
        )  # fmt: skip
        self._writers.append(writer)
        writing = Process(world.loop, writer.name).spawn(writer.run(), writer.name)
        while writer.begun < int(fault.other):  # noqa: ASYNC110
            await asyncio.sleep(0.01)
        writer.stopping = True
        await writing

    async def _through(self, fault: Fault) -> None:
        """Add a partition through the gateway, for clients."""
        count = self._count() + 1
        if await self._ask(fault.who, count) is not ErrorCode.invalid_request:
            self._begin_clients(count)

    def _begin_clients(self, count: int) -> None:
        """To write to all partitions that are new, and to read them."""
        for number in sorted({*range(self._first, count)} - self._used):
            self._used.add(number)
            self._world.begin_to_write_to(f"java-{30 + number}", number)
            for begins in (Which.EARLIEST, Which.LATEST):
                self._world.begin_to_read(f"consumer-{begins.value}-{number}", number, begins)

    def _count(self) -> int:
        return self._world.kafka.topics[self._topic].partitions

    def _brokers(self) -> list[tuple[str, int]]:
        return [(host_of(node), PORT) for node in self._world.kafka.brokers]

    async def _ask(self, host: str, count: int) -> ErrorCode:
        """CreatePartitions, again after an error that may pass."""
        api = messages(ApiKey.CREATE_PARTITIONS, 3)
        topic = api.request_part(
            "CreatePartitionsTopic", name=self._topic, count=count, assignments=None
        )
        request = api.request(
            topics=(topic,), timeout=timedelta(seconds=TIMEOUT_S), validate_only=False
        )
        code: ErrorCode = ErrorCode.request_timed_out
        for _ in range(ATTEMPTS):
            try:
                connection = await KafkaConnection.open(
                    host, PORT, client_id="admin", timeout_ms=2_000
                )
                try:
                    answer: Any = await connection.send(request, timeout_ms=REQUEST_MS)
                finally:
                    connection.close()
            except AWAY:
                await asyncio.sleep(BACKOFF_S)
                continue
            (result,) = answer.results
            code = result.error_code
            why = f" ({result.error_message})" if result.error_message else ""
            self._world.history.note(f"CreatePartitions to {count} by {host}: {code.name}{why}")
            if code in DONE:
                return code
            await asyncio.sleep(1.0)
        return code

    # -- the end of the run

    def read_at(self) -> list[tuple[int, list[tuple[str, int]]]]:
        """Partitions that came later, and where each is read: that of which Postgres has no row is
        served by nobody but the broker itself."""
        if not self._asked:
            return []
        at = self._world.addresses(), self._brokers()
        return [(n, at[self._row(n) is None]) for n in range(self._first, self._count())]

    def _row(self, number: int) -> Any:
        log = TopicIdPartition(self._world.topic_id, number)
        return self._world.around.plane.topics.partition(log)

    def give_up(self) -> None:
        for writer in self._writers:
            writer.stopping = True
            writer.give_up()

    def promised(self, operations: Sequence[Operation]) -> list[Operation]:
        """Of what was written past the gateways nothing is that came when its partition began
        diskless, or was about to, nor in the write pause before its B0, or later."""
        world, names = self._world, {writer.name for writer in self._writers}
        plane = world.around.plane
        until = {log: plane.closed_at[log][1] for log in plane.set_at if log in plane.closed_at}
        until |= {log: at - LOOKED_S for log, at in plane.grown_at.items()}
        told_until = {world.partition(log.topic_id, log.partition): at for log, at in until.items()}
        return [
            replace(one, outcome=Outcome.UNKNOWN, base_offset=None)
            if isinstance(one, Produce)
            and one.producer.partition(".")[0] in names
            and (one.answered or 0.0) > told_until.get(one.partition, inf)
            else one
            for one in operations
        ]
