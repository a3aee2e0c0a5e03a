"""Which region of a partition's log answers for an offset, and what kind of partition it is.

What always holds: offsets below B0 belong to Kafka's log, offsets from B0 on to the suffix, and
a partition about which too little is known is served by neither (seed 000 "Fetch routing",
architecture "Fencing 3": fail closed).
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from tideline.domain.migration import UNDEFINED_OFFSET


class RouteKind(StrEnum):
    """What a gateway knows of a partition when a request for it arrives."""

    CLASSIC = "classic"
    """Not tracked: passed through."""
    PENDING = "pending"
    """Tracked, B0 unset, appends go on in Kafka's log behind the ack gate."""
    QUIESCING = "quiescing"
    """Tracked, B0 unset, the generation is closed: produces are parked."""
    SUFFIX = "suffix"
    """B0 is set: records below it are Kafka's, from it on the suffix's."""
    DELETED = "deleted"
    """The topic was deleted; its id never comes back."""
    UNKNOWN = "unknown"
    """The topic is tracked but this partition has no row: fails closed."""


@dataclass(frozen=True, slots=True)
class PartitionRoute:
    """One partition as a gateway sees it. Immutable: a change makes another route."""

    kind: RouteKind
    generation: int = 0
    boundary: int = UNDEFINED_OFFSET
    """B0: first offset of the suffix, inclusive."""
    boundary_epoch: int = -1

    @property
    def boundary_known(self) -> bool:
        return self.kind is RouteKind.SUFFIX

    @property
    def in_kafka(self) -> bool:
        """Every offset is still Kafka's, and what becomes visible is fenced."""
        return self.kind in (RouteKind.PENDING, RouteKind.QUIESCING)


CLASSIC = PartitionRoute(RouteKind.CLASSIC)
UNKNOWN = PartitionRoute(RouteKind.UNKNOWN)
DELETED = PartitionRoute(RouteKind.DELETED)


def route_tracked(
    *, generation: int, quiesced: bool, boundary: int, boundary_epoch: int
) -> PartitionRoute:
    """The route of a tracked partition that has a row. A boundary outweighs a closed generation:
    B0 is the point of no return."""
    if boundary != UNDEFINED_OFFSET:
        return PartitionRoute(RouteKind.SUFFIX, generation, boundary, boundary_epoch)
    return PartitionRoute(RouteKind.QUIESCING if quiesced else RouteKind.PENDING, generation)


class FetchRegion(StrEnum):
    """Where one fetch is served."""

    KAFKA = "kafka"
    """The whole log is Kafka's (classic, or tracked with B0 unset)."""
    PREFIX = "prefix"
    """Kafka's log, and nothing from B0 on may be returned."""
    SUFFIX = "suffix"
    NOWHERE = "nowhere"


def region_of(route: PartitionRoute, offset: int) -> FetchRegion:
    """The one region that may answer a fetch at ``offset`` (inclusive)."""
    if route.kind is RouteKind.CLASSIC or route.in_kafka:
        return FetchRegion.KAFKA
    if route.kind is RouteKind.SUFFIX:
        return FetchRegion.PREFIX if offset < route.boundary else FetchRegion.SUFFIX
    return FetchRegion.NOWHERE
