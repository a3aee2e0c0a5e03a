"""An admin client that deletes a topic and makes another of its name, and may leave at any time."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from typing import Any
from uuid import UUID

from kio.schema.errors import ErrorCode
from kio.schema.metadata.v12.request import MetadataRequest, MetadataRequestTopic
from kio.schema.types import TopicName

from tests.simulation.clients import AWAY, REQUEST_MS, Client, History
from tests.simulation.identities import Lives
from tests.simulation.loop import VirtualLoop
from tideline.domain.admin_trigger import DISKLESS_ENABLE
from tideline.gateway.context import ApiKey
from tideline.gateway.messages import messages
from tideline.kafka.client import KafkaConnection
from tideline.kafka.errors import KafkaUnavailable

PAUSE_S = 0.3
TIMEOUT_S = 4.0
CLASSIC = {"remote.storage.enable": "true"}
DISKLESS = {DISKLESS_ENABLE: "true"}


@dataclass(frozen=True)
class Plan:
    """What is done, once it is time: ``at`` seconds after the milestone ``after``."""

    after: str
    at: float
    via: int
    """The place of the gateway that is asked first, among the addresses."""
    born_diskless: bool
    migrated: bool
    """A new classic topic is migrated, too."""
    by_id: bool
    version: int
    """Of DeleteTopics; by id from 6 on."""

    def __str__(self) -> str:
        kind = "diskless" if self.born_diskless else "classic"
        named = "id" if self.by_id else "name"
        return (
            f"{self.at:.3f} s after {self.after}: deleted by {named} (version {self.version}), and "
            f"created again {kind}{', migrated again' if self.migrated else ''}"
        )


class Admin(Client):
    """It looks first when it comes back, asks for what is not done, and goes on looking: a request
    that it gave up may be carried out late, and delete what was made since."""

    def __init__(
        self,
        loop: VirtualLoop,
        gateways: list[tuple[str, int]],
        topic: str,
        lives: Lives,
        plan: Plan,
        partitions: int,
        history: History,
        reach: Callable[[str], None],
    ) -> None:
        """``reach``: told of the milestones that it knows of."""
        super().__init__(loop, "admin", gateways, topic, history, lives)
        self._plan, self._partitions = plan, partitions
        self._note, self._reach = history.note, reach
        self._next = plan.via
        self._doomed: UUID | None = None
        self.looks_on = False
        """Somebody else does what it was to do."""
        self.done = asyncio.Event()

    def leave(self) -> None:
        """Its connection ends, whatever is on its way."""
        self._note("the admin client leaves")
        self.drop()

    async def run(self, doomed: UUID) -> None:
        self._doomed = doomed
        self._reach("delete")
        asked = False
        while True:
            try:
                await self._connect()
                found = await self._id() if asked or self.looks_on else doomed
                asked = True
                await self._go_on(found)
            except AWAY:
                self.drop()
            await asyncio.sleep(PAUSE_S)

    async def _connect(self) -> None:
        if self.connection is None or self.connection.is_closed:
            host, port = self._bootstrap[self._next % len(self._bootstrap)]
            self._next += 1
            self.connection = await KafkaConnection.open(
                host, port, client_id=self.name, timeout_ms=2000
            )
            self.via = host

    async def _go_on(self, found: UUID | None) -> None:
        if self.looks_on and found in (self._doomed, None):
            return
        if found == self._doomed:
            await self._delete()
        elif found is None:
            self.done.clear()
            await self._create()
        elif not self.done.is_set():
            self._note(f"the admin client sees {found}")
            self._reach("seen")
            self.done.set()

    async def _ask(self, request: Any) -> Any:
        if self.connection is None:
            raise KafkaUnavailable("it has left")
        return await self.connection.send(request, timeout_ms=REQUEST_MS)

    async def _id(self) -> UUID | None:
        answer = await self._ask(
            MetadataRequest(
                topics=(MetadataRequestTopic(topic_id=None, name=TopicName(self.topic)),),
                allow_auto_topic_creation=False,
                include_topic_authorized_operations=False,
            )
        )
        found: UUID | None = answer.topics[0].topic_id
        return found

    async def _delete(self) -> None:
        api = messages(ApiKey.DELETE_TOPICS, self._plan.version)
        values: dict[str, Any] = {"topic_names": (self.topic,)}
        if self._plan.version >= 6:
            name, id = (None, self._doomed) if self._plan.by_id else (self.topic, None)
            values["topics"] = (api.request_part("DeleteTopicState", name=name, topic_id=id),)
        answer = await self._ask(api.request(timeout=timedelta(seconds=TIMEOUT_S), **values))
        self._note(f"DeleteTopics by {self.via}: {answer.responses[0].error_code.name}")

    async def _create(self) -> None:
        self._reach("create")
        api = messages(ApiKey.CREATE_TOPICS, 7)
        configs = DISKLESS if self._plan.born_diskless else CLASSIC
        answer = await self._ask(
            api.request(
                topics=(
                    api.request_part(
                        "CreatableTopic",
                        name=self.topic,
                        num_partitions=self._partitions,
                        replication_factor=3,
                        assignments=(),
                        configs=tuple(
                            api.request_part("CreatableTopicConfig", name=name, value=value)
                            for name, value in configs.items()
                        ),
                    ),
                ),
                timeout=timedelta(seconds=TIMEOUT_S),
                validate_only=False,
            )
        )
        (result,) = answer.topics
        why = f" ({result.error_message})" if result.error_message else ""
        self._note(f"CreateTopics by {self.via}: {result.error_code.name}{why}")
        if result.error_code is ErrorCode.none:
            self._reach("told")
