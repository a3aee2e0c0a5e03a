"""Requests that ask one thing of many partitions: some of Kafka, some answered here."""

from __future__ import annotations

from collections import Counter, defaultdict, deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import Enum, auto
from itertools import islice
from typing import Any

from tideline.control_plane.errors import (
    BoundaryUnset,
    OffsetOutOfRange,
    TopicDeleted,
    UnknownLog,
)
from tideline.domain.ack_gate import told_as
from tideline.domain.answers import (
    OVER_ANOTHER,
    Asked,
    Behaviour,
    Handling,
    LeaseState,
    handling,
)
from tideline.domain.authorization import Verdict
from tideline.domain.ids import TopicPartition
from tideline.domain.request_handling import (
    FAILURE_ERRORS,
    FIND_ERRORS,
    Failure,
    KafkaErrorCode,
    PartitionRoute,
    RouteKind,
)
from tideline.errors import TidelineError, UnreachableError
from tideline.gateway.context import ApiKey, RequestContext
from tideline.gateway.messages import (
    NO_TIME,
    Messages,
    RequestedPartition,
    TopicKey,
    each_partition,
    error,
    group_by_topic,
    key_fields,
    leaves_out,
    locate,
    messages,
    topic_key,
)
from tideline.gateway.prefix_leader import PrefixLeaders, may_be_told
from tideline.gateway.rights import Judged, TopicRights
from tideline.gateway.tracking.view import TrackingView
from tideline.kafka.errors import UnsupportedVersion

CONSUMER = -1
"""Replica id of every client that is neither a broker nor a debugging consumer (-2)."""


class Twice(Enum):
    """What Kafka does with a partition that a request names twice."""

    EACH = auto()
    """Each row has its own answer."""
    LAST = auto()
    """The last row counts, as they are kept in a map."""
    REFUSED = auto()
    """It is refused, once: ``INVALID_REQUEST``."""


@dataclass(frozen=True, slots=True)
class ApiNames:
    """The names of an API's structures."""

    api: ApiKey
    request_topic: str
    response_topic: str
    response_partition: str
    index: str
    """The field that holds a partition's number, in request and response."""
    twice: Twice
    extra: tuple[str, ...] = ()
    """Fields of the request beside its topics."""


@dataclass(frozen=True, slots=True)
class Question:
    """One version of an API, with what its request has beside the topics."""

    names: ApiNames
    api: Messages
    beside: Mapping[str, Any]

    def message(self, items: Sequence[tuple[PartitionEntry, Any]]) -> Any:
        """The request about ``items``, each with its structure."""
        topics = group_by_topic([(item.at.key, row) for item, row in items])
        return self.api.request(
            **self.beside,
            topics=tuple(
                self.api.request_part(
                    self.names.request_topic, **key_fields(key), partitions=tuple(rows)
                )
                for key, rows in topics
            ),
        )

    def rows(self, response: Any, items: Sequence[PartitionEntry]) -> dict[PartitionEntry, Any]:
        """The structures of an answer about ``items``, which has them in the order of the question;
        none of ``None``."""
        found: defaultdict[tuple[TopicKey, int], deque[Any]] = defaultdict(deque)
        topics = response.topics if response is not None else ()
        for named, row in each_partition(topics, "partitions", self.names.index):
            found[named].append(row)
        return {item: rows.popleft() for item in items if (rows := found[item.at.named])}


@dataclass(frozen=True, slots=True, eq=False)
class PartitionEntry:
    at: RequestedPartition
    row: Any


class SplitRequest:
    """One request, partition by partition."""

    def __init__(
        self,
        context: RequestContext,
        tracking: TrackingView,
        names: ApiNames,
        leaders: PrefixLeaders,
        asked: Callable[[Any, PartitionRoute], Asked],
    ) -> None:
        """``asked``: what a structure of the request asks of a partition."""
        self.context = context
        self._tracking, self._leaders, self._asked = tracking, leaders, asked
        self.names = names
        self.api = messages(names.api, context.header.api_version)
        request: Any = context.request()
        beside = {n: getattr(request, n) for n in names.extra if hasattr(request, n)}
        self._own = Question(names, self.api, beside)
        self._throttle = NO_TIME
        self.replica_id = int(getattr(request, "replica_id", CONSUMER))
        self._topics = request.topics
        rows = list(each_partition(request.topics, "partitions", names.index))
        self._twice: frozenset[tuple[TopicKey, int]] = frozenset()
        """What is refused because it is named twice."""
        if names.twice is Twice.REFUSED:
            counted = Counter(named for named, _ in rows)
            self._twice = frozenset(named for named, count in counted.items() if count > 1)
        if names.twice is not Twice.EACH:
            rows = list(dict(rows).items())
        self.items = [PartitionEntry(locate(tracking, *named), row) for named, row in rows]
        self._denied: dict[PartitionEntry, KafkaErrorCode] = {}
        self._asked_by: dict[PartitionEntry, Handling] = {}
        self.is_tracked = any(
            item.at.route(tracking).kind is not RouteKind.CLASSIC for item in self.items
        )

    async def authorize(self, rights: TopicRights) -> None:
        """Have what the client may not ask refused, whatever else would be done with it. A topic
        that joins the tracked set meanwhile is not Kafka's any more, and is asked about too: when
        this returns the partitions are what they are now."""
        verdicts: dict[str, Verdict] = {}
        while unknown := self._tracked_names() - verdicts.keys():
            verdicts |= (await rights.judge(self.context, unknown)).verdicts
            self.items = [
                PartitionEntry(locate(self._tracking, item.at.key, item.at.partition), item.row)
                for item in self.items
            ]
        judged = Judged(verdicts)
        for item in self.items:
            if (code := judged.refusal(item.at)) is not None:
                self._denied[item] = code

    def _tracked_names(self) -> set[str]:
        return {item.at.topic.name for item in self.items if item.at.topic is not None}

    @property
    def of_leaders(self) -> Question:
        """The client's own question, as the leader alone answers it: any replica answers a
        debugging consumer's ListOffsets (``ReplicaManager.fetchOffset``)."""
        return replace(self._own, beside={**self._own.beside, "replica_id": CONSUMER})

    def refused(self, item: PartitionEntry) -> KafkaErrorCode | None:
        """Why it is answered this, whatever is asked of it."""
        twice = KafkaErrorCode.INVALID_REQUEST if item.at.named in self._twice else None
        return self._denied.get(item, twice)

    def rule(self, item: PartitionEntry) -> Handling:
        """What to do with it, as it is now. The first that says to ask Kafka is remembered."""
        found = self._rule(item)
        if found.asks_kafka:
            self._asked_by.setdefault(item, found)
        return found

    def _rule(self, item: PartitionEntry) -> Handling:
        if (refused := self.refused(item)) is not None:
            return Handling(Behaviour.REFUSE, refused)
        route = item.at.route(self._tracking)
        return handling(self._asked(item.row, route), route, self._tracking.lease)

    async def forward(
        self, items: Sequence[tuple[PartitionEntry, Any]], question: Question | None = None
    ) -> Mapping[PartitionEntry, Any]:
        """Ask Kafka about ``items``, each with the structure to send, the client's own question if
        no other; its structures. Where the paired broker refuses because of its role the leader is
        asked, if the client may be here all the same; and nobody hears that a tracked topic does
        not exist (seed 000 "Produce request handling by state")."""
        if not items:
            return {}
        asked = question or self._own
        response: Any = await self.context.forward_message(asked.message(items))
        self._throttle = max(self._throttle, getattr(response, "throttle_time", NO_TIME))
        answers = asked.rows(response, [item for item, _ in items])
        for item, _ in items:
            if item not in answers:
                raise leaves_out(item.at)
        for_leaders: dict[TopicPartition, list[tuple[PartitionEntry, Any]]] = defaultdict(list)
        for item, row in items:
            if item.at.topic is not None and self._is_for_the_leader(
                item, int(answers[item].error_code)
            ):
                at = TopicPartition(item.at.topic.name, item.at.partition)
                for_leaders[at].append((item, row))
        answers |= await self._from_leaders(asked, for_leaders)
        return {item: self._told(item, row) for item, row in answers.items()}

    def _is_for_the_leader(self, item: PartitionEntry, code: int) -> bool:
        """Either by what holds now, or by what held when Kafka was to be asked: the prefix may
        have gone since, and with it the reason to ask."""
        rules = (self._rule(item), self._asked_by.get(item))
        return any(rule is not None and rule.is_for_the_leader(code) for rule in rules)

    def _told(self, item: PartitionEntry, row: Any) -> Any:
        code = int(row.error_code)
        if told_as(code) == code or item.at.route(self._tracking).kind is RouteKind.CLASSIC:
            return row
        return replace(row, error_code=error(told_as(code)))

    async def _from_leaders(
        self, asked: Question, wanted: Mapping[TopicPartition, list[tuple[PartitionEntry, Any]]]
    ) -> dict[PartitionEntry, Any]:
        told: dict[PartitionEntry, Any] = {}
        for leader, partitions in (await self._leaders.leading(wanted)).items():
            items = [one for at in wanted if at in partitions for one in wanted[at]]
            answer = await self._leaders.ask(leader, asked.message(items))
            told |= asked.rows(answer, [item for item, _ in items])
        return {item: row for item, row in told.items() if may_be_told(int(row.error_code))}

    def row(self, item: PartitionEntry, code: int = KafkaErrorCode.NONE, **values: Any) -> Any:
        """A structure of our own for the response."""
        return self.api.response_part(
            self.names.response_partition,
            **{self.names.index: item.at.partition},
            error_code=error(code),
            **values,
        )

    async def respond(self, rows: Mapping[PartitionEntry, Any]) -> bytes:
        """The response, in the order of the request."""
        if self.names.twice is Twice.EACH:
            left = iter(self.items)
            topics = [
                (topic_key(topic), [rows[item] for item in islice(left, len(topic.partitions))])
                for topic in self._topics
            ]
        else:
            topics = group_by_topic([(item.at.key, rows[item]) for item in self.items])
        message = self.api.response(
            throttle_time=self._throttle,
            topics=tuple(
                self.api.response_part(
                    self.names.response_topic, **key_fields(key), partitions=tuple(group)
                )
                for key, group in topics
            ),
        )
        return await self.context.respond_of(message, len(self.items))


def refusal_when_stopped(tracking: TrackingView, route: PartitionRoute) -> KafkaErrorCode | None:
    """The answer of APIs that are not in the table of answers, while Postgres is another one than
    was pinned."""
    if tracking.lease is not LeaseState.STOPPED or route.kind is RouteKind.CLASSIC:
        return None
    return OVER_ANOTHER


_REFUSALS: Mapping[type[TidelineError], KafkaErrorCode] = {
    UnknownLog: FIND_ERRORS["UNKNOWN_LOG"],
    BoundaryUnset: FIND_ERRORS["BOUNDARY_UNSET"],
    TopicDeleted: FIND_ERRORS["TOPIC_DELETED"],
    OffsetOutOfRange: FIND_ERRORS["OFFSET_OUT_OF_RANGE"],
    UnsupportedVersion: KafkaErrorCode.UNSUPPORTED_VERSION,
}
"""What Postgres says of a partition as an error, where its answer has no word for it; and that a
broker does not know what it is asked, which it will not know at the next try either."""


def failure_code(failure: TidelineError) -> KafkaErrorCode:
    """The answer when Postgres, S3 or a broker failed or refused (seed 000 "Error semantics")."""
    if (refused := _REFUSALS.get(type(failure))) is not None:
        return refused
    transient = isinstance(failure, UnreachableError)
    return FAILURE_ERRORS[Failure.TRANSIENT if transient else Failure.HARD]
