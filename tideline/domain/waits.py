"""What kind of thing a workflow waits for: what lists, gauges and alerts filter by.

The prose stands in the workflow's memo. Temporal on Postgres casts a Text attribute to a TSVECTOR
(temporalio/temporal#11085: a colon or a quote in it fails the whole row, with phase and status) and
keeps a Keyword in a VARCHAR(255): neither may hold a sentence.
"""

from __future__ import annotations

from enum import StrEnum

from tideline.domain import failures
from tideline.domain.messages import TopicActivity
from tideline.domain.migration import Phase
from tideline.domain.tiered_storage_change import TieredStorageActivity

MOST = 20
"""Characters of a kind."""


class Waits(StrEnum):
    """The search attribute ``TidelineWaits``; it is not set while nothing is waited for."""

    NOTHING = ""
    PAUSED = "paused"
    """An operator has paused it, and resumes it."""
    OPERATOR = "operator"
    """It goes on when an operator has decided."""
    PLACE = "place"
    """One of the places of topics that migrate at once; it comes by itself."""
    TOPIC = "topic"
    """A partition waits for its topic's workflow, which says what for."""
    PREFLIGHT = "preflight"
    GATEWAY = "gateway"
    CONFIGS = "configs"
    TRANSACTION = "transaction"
    WRITE_PAUSE = "write-pause"
    """One has ended without B0; producers go on."""
    REPLICAS = "replicas"
    SEGMENTS = "segments"
    DELETION = "deletion"
    """Of what a switched-off tiered storage has left."""
    RESTART = "restart"
    """The partition's workflow was ended from outside, and is started again."""
    UNREACHABLE = "unreachable"
    """Kafka, Postgres, the object store or Temporal."""
    WORKER = "worker"
    """No attempt of an activity has ended in time."""
    OTHER = "other"


_OF_FAILURE = {
    failures.UNREACHABLE: Waits.UNREACHABLE,
    failures.TIMED_OUT: Waits.WORKER,
    failures.UNTRACKED: Waits.TOPIC,
}
_OF_CALL: dict[str, Waits] = {
    Phase.VALIDATE: Waits.PREFLIGHT,
    Phase.DRAIN_TRANSACTIONS: Waits.TRANSACTION,
    Phase.QUIESCE: Waits.WRITE_PAUSE,
    Phase.ROLL_AND_FLUSH: Waits.WRITE_PAUSE,
    Phase.SEED_AND_PERSIST: Waits.WRITE_PAUSE,
    Phase.ZOMBIE_CLEANUP: Waits.REPLICAS,
    Phase.READINESS: Waits.SEGMENTS,
    TopicActivity.VALIDATE_TOPIC: Waits.PREFLIGHT,
    TopicActivity.TAKE_PLACE: Waits.PLACE,
    TopicActivity.AWAIT_TRACKING: Waits.GATEWAY,
    TopicActivity.RECONCILE_CONFIGS: Waits.CONFIGS,
    TopicActivity.PROVE_COVERAGE_FOR_ROLL: Waits.SEGMENTS,
    TopicActivity.AWAIT_READINESS: Waits.SEGMENTS,
    TieredStorageActivity.SET: Waits.CONFIGS,
    TieredStorageActivity.PROVE: Waits.SEGMENTS,
    TieredStorageActivity.DELETE: Waits.DELETION,
}


def waits_after(call: str, kind: str) -> Waits:
    """What is waited for when the activity ``call`` has failed as ``kind``, of
    :mod:`tideline.domain.failures`, or as the class of an unexpected error."""
    return _OF_FAILURE.get(kind) or _OF_CALL.get(call, Waits.OTHER)
