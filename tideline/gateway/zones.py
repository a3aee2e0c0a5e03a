"""In which zone a client is, by what it says of itself: ``rack_id`` of a Fetch (KIP-392), or
``diskless_az=`` in its client id. A zone is the rack of a broker or of a gateway; another name is
none, and an operator is told of it once."""

from __future__ import annotations

from collections.abc import Mapping

import structlog

from tideline.domain.leader_choice import zone_among, zone_told
from tideline.gateway.tracking.peers import Peers

log = structlog.get_logger()
MOST_NOTED = 100
"""Names that are no zone, kept and logged: clients may say anything."""
SHOWN_OF_A_NAME = 80
"""Characters."""


class ClientZones:
    """Goes by the racks that :class:`Peers` has heard of."""

    def __init__(self, peers: Peers) -> None:
        self._peers = peers
        self._noted: dict[str, None] = {}
        """Names that clients gave for a zone, and that are none, in the order of their coming."""
        self._beside = peers.zones
        """The zones as of which that is so."""

    def of(self, client_id: str | None, rack: str = "") -> str | None:
        """The zone of a client; ``None``: it says none. Its ``rack`` counts before its id."""
        if rack and rack in self._peers.zones:
            return rack
        told = zone_told(client_id)
        zone = zone_among(told, self._peers.zones)
        if (name := rack or told) and (rack or zone is None):
            self._note(name)
        return zone

    def _note(self, name: str) -> None:
        """Only once Kafka has named its racks: before, any zone is a name like others."""
        self._forget()
        if not self._peers.racks_known or len(self._noted) >= MOST_NOTED:
            return
        name = name.split(",")[0].split(" ")[0][:SHOWN_OF_A_NAME]
        if name and name not in self._noted:
            self._noted[name] = None
            log.warning(
                "zones.not_a_zone: the client is served as one without a zone. Let client.rack, or "
                "diskless_az= in client.id, be a broker.rack or a TIDELINE_GATEWAY_RACK",
                named=name,
                zones=sorted(self._peers.zones),
            )

    def believed(self) -> Mapping[str, list[str]]:
        """For an operator: names that clients gave for a zone, and that are none."""
        self._forget()
        return {"no_zones": list(self._noted)}

    def _forget(self) -> None:
        """With other racks other names are zones."""
        if self._beside != self._peers.zones:
            self._beside = self._peers.zones
            self._noted.clear()
