"""Configs that Tideline comes to hold while a user's change of them is under way in Kafka.

A change is judged by what Postgres says before it is sent. If a migration goes on meanwhile, Kafka
carries the change out over what Tideline has written since: a seal would be broken by it, and the
user's value forgotten. So whoever sends such a change looks at Postgres again when Kafka has
answered: what is held by then is written once more, until Postgres still says the same after the
write. A change whose end is not known (the client left, the broker did not answer) may be carried
out later: it is looked after for as long as a broker may go on with it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import TypeVar
from uuid import UUID

import structlog

from tideline.control_plane import ControlPlane
from tideline.control_plane.model import TopicStatus
from tideline.domain.topic_configs import differences
from tideline.errors import UnreachableError
from tideline.gateway.admin.tellings import Tellings
from tideline.kafka.admin import KafkaAdmin
from tideline.kafka.client import KafkaCluster
from tideline.kafka.errors import KafkaError, KafkaUnavailable
from tideline.kafka.held_configs import HeldInKafka
from tideline.kafka.observer import KafkaObserver
from tideline.kafka.topic_observer import TopicObserver

T = TypeVar("T")
TIMEOUT_MS = 5_000
LONGEST_IN_KAFKA_S = 90.0
"""A broker gives a change up that it could not forward to the controller for a minute
(``BrokerServer.clientToControllerChannelManager``, ``retryTimeoutMs``)."""
LOOK_EVERY_S = 2.0
LIVE = frozenset({TopicStatus.TRACKING, TopicStatus.ACTIVE})
HOLDING = LIVE | {TopicStatus.ABORTED}
"""Topics whose configs may be overridden: those of an aborted one until they are given back."""

log = structlog.get_logger()


@dataclass(slots=True)
class _Unknown:
    """Changes of one topic whose end is not known."""

    keys: frozenset[str]
    until: float
    """On the event loop's clock."""


class HeldConfigs:
    """One per process."""

    def __init__(
        self, control_plane: ControlPlane, cluster: KafkaCluster, tellings: Tellings
    ) -> None:
        self._plane, self._tellings = control_plane, tellings
        admin, observer = KafkaAdmin(cluster, TIMEOUT_MS), KafkaObserver(cluster, TIMEOUT_MS)
        self._kafka = HeldInKafka(control_plane, admin, observer, HOLDING)
        self._topics = TopicObserver(cluster, TIMEOUT_MS)
        self._unknown: dict[UUID, _Unknown] = {}

    async def carried_out(
        self, name: str, topic_id: UUID, users: Mapping[str, str | None], change: Awaitable[T]
    ) -> T:
        """The result of ``change``, which sets the configs ``users`` (``None``: removes) in Kafka;
        none of them was held when it was judged. Raises what ``change`` raises, and
        :class:`TidelineError` when what is held by now could not be put back yet, which goes on."""
        try:
            result = await change
        except BaseException:
            self._look_after(name, topic_id, frozenset(users), LONGEST_IN_KAFKA_S)
            raise
        work = self._put_back(name, topic_id, users)
        await self._tellings.whatever_the_client_does(work)
        return result

    async def given_back(self, name: str, topic_id: UUID, users: Mapping[str, str | None]) -> None:
        """Tideline has let go of these configs while the user's change of them was carried out:
        Kafka gets the change. Raises as :meth:`carried_out`."""
        work = self._kafka.write_held(name, topic_id, dict(users), users)
        await self._tellings.whatever_the_client_does(work)

    async def _put_back(self, name: str, topic_id: UUID, users: Mapping[str, str | None]) -> None:
        try:
            held = await self._kafka.held(name, topic_id, users.keys())
            for key in held:
                await self._plane.update_user_config(topic_id, key, users[key])
            if held:
                await self._kafka.write_held(name, topic_id, held, users)
        except (UnreachableError, KafkaError):
            self._look_after(name, topic_id, frozenset(users), 0.0)
            raise

    def _look_after(self, name: str, topic_id: UUID, keys: frozenset[str], for_s: float) -> None:
        until = asyncio.get_running_loop().time() + for_s
        if (known := self._unknown.get(topic_id)) is not None:
            known.keys, known.until = known.keys | keys, max(known.until, until)
            return
        self._unknown[topic_id] = _Unknown(keys, until)
        what = f"what Tideline holds of the configs of {name}"
        if self._tellings.tell(what, partial(self._watch, name, topic_id)) is None:
            del self._unknown[topic_id]

    async def _watch(self, name: str, topic_id: UUID) -> None:
        """Look until no change can be under way any more. Raises ``UnreachableError``, after
        which it is called again."""
        unknown = self._unknown[topic_id]
        try:
            while True:
                last = asyncio.get_running_loop().time() >= unknown.until
                await self._look(name, topic_id, unknown.keys)
                if last:
                    break
                await asyncio.sleep(LOOK_EVERY_S)
        except KafkaError as error:
            raise KafkaUnavailable(str(error)) from error
        except UnreachableError:
            raise
        except BaseException:
            del self._unknown[topic_id]
            raise
        del self._unknown[topic_id]

    async def _look(self, name: str, topic_id: UUID, keys: frozenset[str]) -> None:
        if held := await self._kafka.held(name, topic_id, keys):
            found = await self._topics.configs(name)
            own = {key: entry.value for key, entry in found.items() if entry.own}
            if differences(held, own):
                await self._kafka.write_held(name, topic_id, held, own)
