"""Incremental fetch sessions (KIP-227) of one connection.

A session lives in the broker and names its partitions only once. What always holds: an incremental
fetch is passed only if the full fetch that opened its session was looked into under the present
set of tracked topics, and named none of them (schedule 9).
"""

from __future__ import annotations

from collections import OrderedDict

REMEMBERED = 64
"""Sessions per connection; a client has one per broker connection."""


class FetchSessions:
    """The sessions that a connection's full fetches opened, with the tracking version."""

    def __init__(self) -> None:
        self._inspected: OrderedDict[int, int] = OrderedDict()

    def opened(self, session_id: int, tracking_version: int) -> None:
        """A full fetch without tracked topics was answered with this session."""
        if session_id == 0:
            return
        self._inspected[session_id] = tracking_version
        self._inspected.move_to_end(session_id)
        while len(self._inspected) > REMEMBERED:
            self._inspected.popitem(last=False)

    def may_continue(self, session_id: int, tracking_version: int) -> bool:
        """Whether an incremental fetch in this session may pass."""
        return self._inspected.get(session_id) == tracking_version


def is_incremental(session_id: int, session_epoch: int) -> bool:
    """Epoch 0 opens a session, -1 asks for none (``FetchMetadata``)."""
    return session_epoch > 0
