"""Which operations of Kafka's a client needs for what a gateway answers of a tracked topic, and how
long it goes by what the broker last said of them.

The broker judges: it alone knows who the client is, and which authorizer it has. What it says is
the bit field of KIP-430 (``Utils.to32BitField`` over ``AclOperation.code``).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import IntEnum, StrEnum

from tideline.domain.request_handling import KafkaErrorCode


class Operation(IntEnum):
    """``org.apache.kafka.common.acl.AclOperation``; the value is its bit in the field."""

    READ = 3
    WRITE = 4
    DELETE = 6
    ALTER = 7
    DESCRIBE = 8


NEEDED: Mapping[int, Operation] = {
    0: Operation.WRITE,
    1: Operation.READ,
    2: Operation.DESCRIBE,
    21: Operation.DELETE,
    23: Operation.DESCRIBE,
    37: Operation.ALTER,
    61: Operation.READ,
    78: Operation.READ,
}
"""On the topic, by API key, as ``KafkaApis`` and ``ControllerApis`` ask their authorizer
(``handleProduceRequest``, ``handleFetchRequest``, ``handleListOffsetRequest``,
``handleDeleteRecordsRequest``, ``handleOffsetForLeaderEpochRequest``, ``createPartitions``,
``handleDescribeProducersRequest``, ``handleShareFetchRequest``). Of other APIs that a gateway looks
into Kafka is asked for the answer itself."""

ALL_OPERATIONS = sum(1 << operation for operation in range(3, 12))
"""Of a topic. A broker without an authorizer allows them to everybody."""
OMITTED = -(2**31)
"""``MetadataResponse.AUTHORIZED_OPERATIONS_OMITTED``: the broker has not said."""
NONE_ALLOWED = 0

DENIED_FOR_S = 1.0
"""How long a refusal is gone by: who was just given a right need not wait long, and who asks again
and again costs the broker one question a second."""
REFRESH_FROM = 0.6
"""Part of its time after which an answer that is used is asked for anew, before it runs out."""


class Verdict(StrEnum):
    """Whether a client may do something with a topic."""

    ALLOWED = "allowed"
    DENIED = "denied"
    UNKNOWN = "unknown"
    """Nothing that the broker has said lately tells."""


def operations_of(code: int, operations: int) -> int | None:
    """What a topic's row of a Metadata answer allows, as a bit field; ``None`` if it does not tell.

    ``code``: its error. Who may not describe the topic is told so and nothing else; of a topic that
    the broker does not know it says the rights all the same (``handleTopicMetadataRequest``).
    """
    if code == KafkaErrorCode.TOPIC_AUTHORIZATION_FAILED:
        return NONE_ALLOWED
    return None if operations == OMITTED else operations


@dataclass(frozen=True, slots=True)
class Rights:
    """What one client may do with one topic."""

    operations: int
    """Bit field."""
    asked_at: float
    """When the broker was asked, in s: what it said is no older."""

    def allows(self, operation: Operation) -> bool:
        return bool(self.operations >> operation & 1)

    def verdict(self, operation: Operation, now: float, allowed_for_s: float) -> Verdict:
        """What still holds at ``now``; a refusal holds for at most :data:`DENIED_FOR_S`."""
        age = now - self.asked_at
        if self.allows(operation):
            return Verdict.ALLOWED if age < allowed_for_s else Verdict.UNKNOWN
        return Verdict.DENIED if age < min(DENIED_FOR_S, allowed_for_s) else Verdict.UNKNOWN

    def is_due(self, now: float, allowed_for_s: float) -> bool:
        """Whether it is asked for anew while it still holds."""
        return now - self.asked_at >= allowed_for_s * REFRESH_FROM


CANNOT_ASK = KafkaErrorCode.NOT_LEADER_OR_FOLLOWER
"""To a client whose rights are not known now, because its broker has not answered. It looks for
the leader anew, and tries again; it is never served."""


def refusal(verdict: Verdict) -> KafkaErrorCode | None:
    """The answer to who may not, or of whom it is not known; ``None``: it may."""
    match verdict:
        case Verdict.ALLOWED:
            return None
        case Verdict.DENIED:
            return KafkaErrorCode.TOPIC_AUTHORIZATION_FAILED
        case Verdict.UNKNOWN:
            return CANNOT_ASK
