"""The topics of an incremental session, which names each only once, and whether one has become
tracked since.

A session in which none has goes on, however many other topics join the tracked set.
"""

from __future__ import annotations

from collections.abc import Collection

from tideline.gateway.messages import TopicKey
from tideline.gateway.tracking.view import TrackingView

LONGEST_NAME = 249
"""Characters; Kafka has no topic of a longer name, so none is ever tracked."""


class SessionTopics:
    """One session. Topics that it forgets are kept in mind: a session that is ended for one of them
    costs its client one full request."""

    __slots__ = ("_keys", "_version")

    def __init__(self, version: int) -> None:
        """``version``: of the tracked set under which the first request was looked into."""
        self._version = version
        self._keys: set[TopicKey] | None = set()

    def __len__(self) -> int:
        """How many topics are kept in mind."""
        return len(self._keys or ())

    @property
    def topics(self) -> Collection[TopicKey] | None:
        """All that it has ever named; ``None``: they are not kept in mind."""
        return self._keys

    def name(self, keys: Collection[TopicKey], room: int) -> bool:
        """These topics are in it too. If they are more than ``room`` none is kept in mind: the
        session then ends with whatever topic joins the tracked set. Whether :attr:`topics` are
        others than before."""
        if self._keys is None:
            return False
        more = {key for key in keys if not (isinstance(key, str) and len(key) > LONGEST_NAME)}
        more -= self._keys
        if len(more) > room:
            self._keys = None
        else:
            self._keys |= more
        return self._keys is None or bool(more)

    def is_classic(self, tracking: TrackingView) -> bool:
        """Whether none of its topics is tracked now. Topics are looked at only if some topic has
        joined the tracked set since the last look."""
        if self._version == tracking.version:
            return True
        if self._keys is None or not all(map(tracking.is_classic, self._keys)):
            return False
        self._version = tracking.version
        return True
