"""Whether a request may pass while topics are tracked, told by the topics that it names.

Of each API that nearly all traffic is made of, a handler asks this before it decodes anything. A
request that names classic topics alone then costs a walk over their names. The decision is made at
the moment at which the frame goes to the broker or to its handler, in the same step of the event
loop, so the drain barrier covers it as it covers what a handler forwards (schedule 9).
"""

from __future__ import annotations

from collections.abc import Collection
from uuid import UUID

from tideline.gateway.context import ClientConnection
from tideline.gateway.listeners import Listeners
from tideline.gateway.quotas import ClientQuotas
from tideline.gateway.tracking.view import TrackingView
from tideline.kafka.named_topics import NamedTopics, named_topics
from tideline.kafka.protocol import RequestHeader


def classic_alone(
    tracking: TrackingView, header: RequestHeader, frame: bytes
) -> NamedTopics | None:
    """What the request names if that is classic topics alone, without doubt; else ``None``."""
    named = named_topics(frame, header)
    if named is None or not all(map(tracking.is_classic, named.keys)):
        return None
    return named


def always_by_topics() -> bool:
    """See :attr:`tideline.gateway.context.Rule.by_topics`."""
    return True


class WhatPasses:
    """See :class:`tideline.gateway.context.Passing`: everything that a rule which says
    ``by_topics`` may go by is of one of these."""

    def __init__(self, tracking: TrackingView, quotas: ClientQuotas) -> None:
        self._tracking = tracking
        self.changed: Listeners[[]] = Listeners()
        tracking.members_changed.add(self.changed)
        quotas.changed.add(self.changed)

    def names(self) -> Collection[str]:
        return self._tracking.names()

    def ids(self) -> Collection[UUID]:
        return self._tracking.ids()


class PassesByTopics:
    """Requests of which nothing counts but their topics (ListOffsets, OffsetForLeaderEpoch)."""

    def __init__(self, tracking: TrackingView) -> None:
        self._tracking = tracking

    def __call__(self, header: RequestHeader, frame: bytes, connection: ClientConnection) -> bool:
        return classic_alone(self._tracking, header, frame) is not None
