"""Who attests that clients reach a cluster's brokers only through gateways, and who did."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from datetime import datetime

from tideline.control_plane.errors import ClusterNotAttested, InvalidInput
from tideline.control_plane.model import ClusterAttestation


@dataclass(slots=True)
class Attestations:
    """Every one ever made, in order; at most one per cluster is in force."""

    now: Callable[[], datetime]
    made: list[ClusterAttestation] = field(default_factory=list)

    def attest(self, cluster_id: str, attested_by: str, reason: str) -> None:
        """One that is in force stays. Raises ``InvalidInput``."""
        if "" in (cluster_id, attested_by, reason):
            raise InvalidInput("an attestation names a cluster, a person and a reason")
        if not self._in_force(cluster_id):
            self.made.append(ClusterAttestation(cluster_id, attested_by, reason, self.now()))

    def withdraw(self, cluster_id: str, withdrawn_by: str, reason: str) -> None:
        """Raises ``ClusterNotAttested``, ``InvalidInput``."""
        if "" in (withdrawn_by, reason):
            raise InvalidInput("nobody, or no reason, is named for the withdrawal")
        self.demand(cluster_id)
        self.made = [
            replace(
                one, withdrawn_by=withdrawn_by, withdrawn_reason=reason, withdrawn_at=self.now()
            )
            if one.cluster_id == cluster_id and one.in_force
            else one
            for one in self.made
        ]

    def demand(self, cluster_id: str) -> None:
        """Raises ``ClusterNotAttested`` unless one is in force."""
        if not self._in_force(cluster_id):
            raise ClusterNotAttested(
                "nobody attests that clients reach the brokers of Kafka cluster "
                f"{cluster_id or '(unknown)'} only through gateways. Close the brokers' listeners "
                "to clients, then run `tideline cluster attest --reason`."
            )

    def of(self, cluster_id: str | None) -> list[ClusterAttestation]:
        """Newest first."""
        return [one for one in reversed(self.made) if cluster_id in (None, one.cluster_id)]

    def _in_force(self, cluster_id: str) -> bool:
        return any(one.cluster_id == cluster_id and one.in_force for one in self.made)
