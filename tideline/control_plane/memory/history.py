"""Which history of commits a plane in memory keeps, and its beats."""

from __future__ import annotations

from dataclasses import dataclass, field
from uuid import UUID

from tideline.control_plane.errors import InvalidInput, WrongCluster
from tideline.domain.history import ServerIdentity

FIRST = UUID(int=1)


@dataclass(slots=True)
class History:
    """Ids are small numbers: a simulation gives the same ones again."""

    installation_id: UUID = FIRST
    history_id: UUID = FIRST
    cluster_id: str | None = None
    halted: str | None = None
    beats: dict[int, UUID] = field(default_factory=lambda: {1: FIRST})
    lsn: int = 0
    waits_for_standby: bool = True
    timeline: int = 1
    """On which commits are taken."""
    written: int = 1
    """Tokens that were given out, also in beats that a test has taken back."""

    def identity(self, server: tuple[str, int], seen: ServerIdentity | None) -> ServerIdentity:
        """``server``: system identifier and timeline."""
        beat, token = max(self.beats.items())
        knows = None
        if seen is not None:
            knows = seen.beat < min(self.beats) or self.beats.get(seen.beat) == seen.token
        return ServerIdentity(
            self.installation_id,
            self.history_id,
            self.cluster_id,
            *server,
            self.lsn,
            beat,
            token,
            self.waits_for_standby,
            knows,
            self.halted,
            self.timeline == server[1],
        )

    def beat(self) -> int:
        number = max(self.beats) + 1
        self.written += 1
        self.beats[number] = UUID(int=self.written)
        return number

    def bind(self, cluster_id: str) -> None:
        """Raises ``WrongCluster``, ``InvalidInput``."""
        if not cluster_id:
            raise InvalidInput("the brokers name no cluster id")
        self.cluster_id = self.cluster_id or cluster_id
        if self.cluster_id != cluster_id:
            raise WrongCluster(
                f"this control plane belongs to Kafka cluster {self.cluster_id}, the brokers are "
                f"of cluster {cluster_id}"
            )

    def begin(self, begun_by: str, reason: str, timeline: int) -> UUID:
        """Raises ``InvalidInput``."""
        if not begun_by or not reason:
            raise InvalidInput("nobody, or no reason, is named for a new history")
        self.written += 1
        self.history_id, self.halted = UUID(int=self.written), None
        self.timeline = timeline
        self.beat()
        return self.history_id
