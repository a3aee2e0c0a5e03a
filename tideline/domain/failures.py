"""Type names of the failures that an activity reports to its workflow.

A retryable one is worth trying again as it is. Those in :data:`NON_RETRYABLE` need a decision:
of the workflow (a new generation, an abort that won) or of a person.
"""

from __future__ import annotations

WAITING = "Waiting"
"""A condition does not hold yet; the reason is recorded. Retried by the phase's own policy."""
UNREACHABLE = "Unreachable"
"""Kafka, Postgres, the object store or Temporal did not answer."""
NOT_SETTLED = "NotSettled"
"""The log end did not come to rest inside the quiesce's hold: a new generation is needed."""
QUIESCE_VOID = "QuiesceVoid"
"""The quiesce's deadline passed before B0 was persisted: gateways have un-parked."""
STALE_GENERATION = "StaleGeneration"
"""A newer attempt exists, so this one has no say any more."""
STALE_LEADER_EPOCH = "StaleLeaderEpoch"
"""The leader moved; the observation is void."""
BOUNDARY_RESET = "BoundaryReset"
"""B0 lies below the log start and the suffix is empty: B0 was unset, migrate anew."""
PREFLIGHT_REFUSED = "PreflightRefused"
UNKNOWN_TOPIC = "UnknownTopic"
TOPIC_CHANGED = "TopicChanged"
"""The name now belongs to a topic with another id, or the topic has more partitions."""
UNTRACKED = "Untracked"
"""Postgres does not say any more that every gateway tracks the topic: its history was begun without
that. The topic is tracked again before a partition goes on."""
REFUSED = "Refused"
"""A rule forbids it; nothing was changed."""
TIMED_OUT = "TimedOut"
"""No attempt answered in time, perhaps because no worker runs: what a workflow makes of Temporal's
timeout, which no activity reports."""
STALE_STAGE = "StaleStage"
"""Postgres no longer allows this config stage: the attempt is out of date."""

NON_RETRYABLE = (
    NOT_SETTLED,
    QUIESCE_VOID,
    STALE_GENERATION,
    STALE_LEADER_EPOCH,
    BOUNDARY_RESET,
    PREFLIGHT_REFUSED,
    UNKNOWN_TOPIC,
    TOPIC_CHANGED,
    UNTRACKED,
    REFUSED,
    STALE_STAGE,
)
