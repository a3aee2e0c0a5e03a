"""What a client may do with tracked topics: its broker says so, over the client's own connection.

The gateway knows no principal. The broker does: whoever has logged in on the client's connection
has logged in there, and who has not is ``User:ANONYMOUS``. So it is asked there, by a Metadata
request that wants the authorized operations (KIP-430), and its answer is gone by for a while.

What always holds: nothing of a tracked topic is answered here to a client of which the broker has
not said, within that while, that it may; and one whose answer is used is asked for again before it
runs out, so that who writes or reads all the time does not wait for it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from kio.schema.metadata.v12.request import MetadataRequest, MetadataRequestTopic
from kio.schema.types import TopicName

from tideline.background import spawn
from tideline.domain.authorization import (
    NEEDED,
    Operation,
    Rights,
    Verdict,
    operations_of,
    refusal,
)
from tideline.domain.request_handling import KafkaErrorCode
from tideline.gateway.context import RequestContext
from tideline.gateway.messages import RequestedPartition
from tideline.gateway.metrics import RIGHTS_ASKED, RIGHTS_DENIED
from tideline.kafka.errors import KafkaUnavailable

TOPICS_REMEMBERED = 5_000
"""Of one connection. What is asked beyond is used once."""
PATIENCE_S = 20.0
"""How long a request waits for the broker's word: Kafka serves a connection one request at a time,
so that a fetch of the client may be held there before it."""
Found = Mapping[str, Rights]


@dataclass(slots=True)
class ConnectionRights:
    """What is known of one client."""

    known: dict[str, Rights] = field(default_factory=dict)
    used: set[str] = field(default_factory=set)
    """Topics whose rights were looked up since they were asked for."""
    asking: dict[str, asyncio.Task[Found]] = field(default_factory=dict)
    """The question about a topic that is under way."""


@dataclass(frozen=True, slots=True)
class Judged:
    """What the broker says of the topics of one request."""

    verdicts: Mapping[str, Verdict]

    def refusal(self, at: RequestedPartition) -> KafkaErrorCode | None:
        """Why the client is not answered of a partition; ``None``: it is. A topic that is not
        tracked is the broker's to judge, and of one that is gone everybody hears the same."""
        return None if at.topic is None else self.refusal_of(at.topic.name)

    def refusal_of(self, topic: str) -> KafkaErrorCode | None:
        """The same of a tracked topic, by its name."""
        return refusal(self.verdicts.get(topic, Verdict.UNKNOWN))


@dataclass(frozen=True, slots=True)
class TopicRights:
    """Asks the brokers, and remembers per connection what they said."""

    allowed_for_s: float = 5.0
    """How long an answer is gone by, from when it was asked for."""

    async def judge(self, context: RequestContext, topics: Iterable[str]) -> Judged:
        """Whether the client may do what its request needs (:data:`NEEDED`) with each of these
        tracked topics. Returns at once while that is known."""
        operation = NEEDED[context.header.api_key]
        state = context.connection.state(ConnectionRights)
        verdicts, unknown = self._known(context, state, operation, topics)
        if unknown:
            for name, found in (await self._answered(context, state, unknown)).items():
                # Whatever its age: it was judged while the request waited.
                verdicts[name] = Verdict.ALLOWED if found.allows(operation) else Verdict.DENIED
        denied = sum(verdict is Verdict.DENIED for verdict in verdicts.values())
        if denied:
            RIGHTS_DENIED.labels(operation.name.lower()).inc(denied)
        return Judged(verdicts)

    def known_to_allow(self, context: RequestContext, topics: Iterable[str]) -> bool:
        """Whether :meth:`judge` would say at once that the client may, of each of them."""
        operation = NEEDED[context.header.api_key]
        state = context.connection.state(ConnectionRights)
        verdicts, _ = self._known(context, state, operation, topics)
        return all(verdict is Verdict.ALLOWED for verdict in verdicts.values())

    def _known(
        self,
        context: RequestContext,
        state: ConnectionRights,
        operation: Operation,
        topics: Iterable[str],
    ) -> tuple[dict[str, Verdict], list[str]]:
        """What still holds of what the broker said, and the topics of which nothing does. What runs
        out soon is asked for."""
        now = asyncio.get_running_loop().time()
        verdicts: dict[str, Verdict] = {}
        unknown: list[str] = []
        due = False
        for name in topics:
            rights = state.known.get(name)
            if rights is None:
                verdicts[name] = Verdict.UNKNOWN
                unknown.append(name)
                continue
            state.used.add(name)
            verdicts[name] = rights.verdict(operation, now, self.allowed_for_s)
            if verdicts[name] is Verdict.UNKNOWN:
                unknown.append(name)
            elif name not in state.asking and rights.is_due(now, self.allowed_for_s):
                due = True
        if due:
            self._refresh(context, state, now)
        return verdicts, unknown

    async def _answered(
        self, context: RequestContext, state: ConnectionRights, names: Collection[str]
    ) -> dict[str, Rights]:
        """What the broker says of ``names``; of those that it does not tell in time nothing."""
        self._ask(context, state, [name for name in names if name not in state.asking])
        questions = {state.asking[name] for name in names}
        await asyncio.wait(questions, timeout=PATIENCE_S)
        told: dict[str, Rights] = {}
        for question in questions:
            if question.done() and not question.cancelled():
                told |= question.result()
        return {name: told[name] for name in names if name in told}

    def _refresh(self, context: RequestContext, state: ConnectionRights, now: float) -> None:
        """Ask anew for what runs out soon, with all that this client has used lately."""
        old = [n for n, rights in state.known.items() if rights.is_due(now, self.allowed_for_s)]
        for name in old:
            if name not in state.used:
                del state.known[name]
        self._ask(context, state, [n for n in old if n in state.used and n not in state.asking])

    def _ask(self, context: RequestContext, state: ConnectionRights, names: list[str]) -> None:
        if not names:
            return
        RIGHTS_ASKED.inc()
        request = MetadataRequest(
            topics=tuple(
                MetadataRequestTopic(topic_id=None, name=TopicName(name)) for name in names
            ),
            allow_auto_topic_creation=False,
            include_topic_authorized_operations=True,
        )
        answer = context.ask(request)  # queued now, behind what the client has asked
        now = asyncio.get_running_loop().time()

        async def take() -> Found:
            try:
                told: Any = await answer
            except KafkaUnavailable:
                return {}
            found = {
                topic.name: Rights(operations, now)
                for topic in told.topics
                if topic.name is not None
                and (
                    operations := operations_of(
                        int(topic.error_code), int(topic.topic_authorized_operations)
                    )
                )
                is not None
            }
            self._remember(state, found)
            return found

        task = spawn(take(), "topic-rights")
        for name in names:
            state.asking[name] = task

        def over(_: asyncio.Task[Found]) -> None:
            for name in names:
                if state.asking.get(name) is task:
                    del state.asking[name]

        task.add_done_callback(over)

    def _remember(self, state: ConnectionRights, found: Found) -> None:
        for name, rights in found.items():
            state.used.discard(name)
            state.known.pop(name, None)
            state.known[name] = rights
        while len(state.known) > TOPICS_REMEMBERED:
            del state.known[next(iter(state.known))]
