"""Brokers' addresses in responses become the addresses of the gateways beside them.

A broker without a gateway among the peers is left out: a client must not be led around the
gateways. An answer in which nothing changes keeps its bytes. What is neither looked into nor known
to name no broker (:data:`PASSED`) is not offered.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

from kio.schema.errors import ErrorCode
from kio.schema.types import BrokerId
from kio.static.primitive import i16, i32

from tideline.domain.stand_in import controller_for
from tideline.gateway.context import ApiKey
from tideline.gateway.transport.passed_apis import PASSED
from tideline.kafka.answer_tags import fetch_answer_has_tags, produce_answer_has_tags
from tideline.kafka.errors import MalformedFrame
from tideline.kafka.protocol import (
    decodable_versions,
    decode_response,
    encode_response,
    response_array,
    response_field,
    splice_array,
    splice_int32,
)

Address = tuple[str, int]
UNSUPPORTED_VERSION = int(ErrorCode.unsupported_version)


def offered_versions(decoded: Iterable[int]) -> dict[int, range]:
    """The versions that a gateway takes, by API key, whatever its broker has. ``decoded``: the APIs
    that it looks into."""
    return {key: range(highest + 1) for key, highest in PASSED.items()} | {
        key: decodable_versions(key) for key in decoded
    }


MOVED_LATELY_S = 60.0
"""Longer than a client waits before it tries to connect once more (10 s by default)."""
SEVERAL_COORDINATORS_SINCE = 4
"""Version of FindCoordinator. librdkafka asks with 2 at most; Kafka's own clients with this one and
higher, and go by the address that they are told. Their admin client waits for the node of a
transaction's coordinator to appear in Metadata: it must be one that does."""
NO_NODE = 2**30
"""No broker has such an id, nor is it one of those that clients make for themselves."""
FORGETS_WITHIN_S = 1.0
"""In this time a client that has lost its coordinator has asked again, and for Metadata."""


@dataclass(slots=True)
class Asker:
    """Of one connection: what answers depend on beside the request."""

    client_id: str | None = None
    of_transactions: bool = False
    """The coordinator that it asks for is one of transactions."""
    asked_of: dict[int, float] = field(default_factory=dict)
    """By coordinator: when it was told first since that one's address changed, on its clock."""


class Named:
    """The address that a client is told for each node."""

    def __init__(self, addresses: Mapping[int, Address], moved: Mapping[int, float]) -> None:
        """``moved``: when a node's address changed last, on :func:`time.monotonic`."""
        self.addresses = dict(addresses)
        self.moved = moved
        self.known: dict[tuple[int, int, bytes], bytes] = {}
        """What arrays of brokers became."""
        self.listed: dict[tuple[int, bytes], frozenset[int]] = {}
        """The nodes in each."""


CONTROLLER_SINCE = 1
"""Version of Metadata."""
MOST_LISTS = 32
Rewrite = Callable[[bytes, int, Named, Asker], bytes]


class NodeAddresses:
    """What clients are told: the gateway beside each broker, or who stands in for it."""

    def __init__(
        self, gateways: Mapping[int, Address], own: int | None = None, *, stood_in_for: bool = False
    ) -> None:
        """``own``: the node of this gateway, which it names as the controller; ``None``: whom the
        broker names stays. ``stood_in_for``: others stand in, so until now clients may have been
        told other addresses, of this node above all."""
        self._gateways = dict(gateways)
        self._own = own
        self.accepts: Callable[[], bool] = lambda: True
        """Whether this gateway takes clients of its own, now and in a moment."""
        self.zone_of: Callable[[str | None], str | None] = lambda client_id: None
        """The zone of a client, by its id."""
        self._moved = dict.fromkeys(gateways, time.monotonic()) if stood_in_for else {}
        self._now: Mapping[int, Address] = {}
        self._usual = Named(gateways, self._moved)
        self._instead: Callable[[str | None], Mapping[int, Address]] | None = None
        self._by_zone: dict[str | None, Named] = {}

    def stand_in(self, instead: Callable[[str | None], Mapping[int, Address]] | None) -> None:
        """From now on clients in a zone are told ``instead(zone)`` for the nodes that it has;
        ``None``: nobody is away."""
        self._instead = instead
        self._by_zone.clear()
        before, self._now = self._now, dict(instead(None)) if instead is not None else {}
        # Also those whose address is the same for clients without a zone: others may hear another.
        self._moved |= dict.fromkeys(before.keys() | self._now.keys(), time.monotonic())

    def told(self, asker: Asker) -> Named:
        if self._instead is None:
            return self._usual
        zone = self.zone_of(asker.client_id)
        if (named := self._by_zone.get(zone)) is None:
            named = Named(self._gateways | dict(self._instead(zone)), self._moved)
            self._by_zone[zone] = named
        return named

    def controller(self, listed: frozenset[int]) -> int | None:
        """Whom clients are told as the controller, of the nodes that they are told."""
        if self._own is None:
            return None
        away = self._now.keys() if self.accepts() else self._now.keys() | {self._own}
        return controller_for(self._own, listed, away)


class ResponseRewriter:
    """Rewrites each response of a broker on its way to a client."""

    def __init__(self, nodes: NodeAddresses, decoded: Iterable[int]) -> None:
        """``decoded``: the APIs that the gateway looks into, beside those rewritten here."""
        self._nodes = nodes
        self._rewrites: dict[int, Rewrite] = {
            ApiKey.METADATA: self._metadata,
            ApiKey.FIND_COORDINATOR: self._find_coordinator,
            ApiKey.DESCRIBE_CLUSTER: self._describe_cluster,
            ApiKey.PRODUCE: self._endpoints_of(ApiKey.PRODUCE, 10, produce_answer_has_tags),
            ApiKey.FETCH: self._endpoints_of(ApiKey.FETCH, 16, fetch_answer_has_tags),
            ApiKey.SHARE_FETCH: self._share_endpoints_of(ApiKey.SHARE_FETCH),
            ApiKey.SHARE_ACKNOWLEDGE: self._share_endpoints_of(ApiKey.SHARE_ACKNOWLEDGE),
            ApiKey.API_VERSIONS: self._api_versions,
        }
        self._offered = offered_versions({*map(int, decoded), *self._rewrites})

    @property
    def offered(self) -> Mapping[int, range]:
        """The versions that are taken, by API key."""
        return self._offered

    @property
    def rewritten(self) -> Collection[int]:
        """The APIs of which an answer may become another one."""
        return self._rewrites.keys()

    def offers(self, api_key: int, version: int) -> bool:
        """Whether a request is taken: its answer can be looked into, or need not be."""
        return version in self._offered.get(api_key, ())

    def __call__(
        self, frame: bytes, api_key: int, version: int, asker: Asker | None = None
    ) -> bytes:
        """The frame for the client. Raises :class:`MalformedFrame` if the broker's cannot be
        understood."""
        rewrite = self._rewrites.get(api_key)
        if rewrite is None:
            return frame
        asker = asker or Asker()
        return rewrite(frame, version, self._nodes.told(asker), asker)

    @staticmethod
    def _moved(nodes: tuple[Any, ...], named: Named, id_field: str = "node_id") -> tuple[Any, ...]:
        moved = []
        for node in nodes:
            peer = named.addresses.get(getattr(node, id_field))
            if peer is not None:
                moved.append(replace(node, host=peer[0], port=i32(peer[1])))
        return tuple(moved)

    def _metadata(self, frame: bytes, version: int, named: Named, _: Asker) -> bytes:
        moved = partial(self._moved, named=named)
        frame = splice_array(frame, ApiKey.METADATA, version, "brokers", moved, named.known)
        if version < CONTROLLER_SINCE:
            return frame
        controller = self._nodes.controller(_listed(frame, version, named))
        if controller is None:
            return frame
        return splice_int32(frame, ApiKey.METADATA, version, "controller_id", controller)

    def _describe_cluster(self, frame: bytes, version: int, named: Named, _: Asker) -> bytes:
        answer: Any = decode_response(frame, ApiKey.DESCRIBE_CLUSTER, version)
        brokers = self._moved(answer.brokers, named, "broker_id")
        controller = self._nodes.controller(frozenset(int(b.broker_id) for b in brokers))
        changes = {} if controller is None else {"controller_id": BrokerId(controller)}
        return _changed(frame, answer, brokers=brokers, **changes)

    def _find_coordinator(self, frame: bytes, version: int, named: Named, asker: Asker) -> bytes:
        answer: Any = decode_response(frame, ApiKey.FIND_COORDINATOR, version)
        if version < SEVERAL_COORDINATORS_SINCE:
            return _changed(frame, self._coordinator(answer, named, asker), base=answer)
        goes_by_address = asker.of_transactions
        found = tuple(
            self._coordinator(c, named, asker, goes_by_address) for c in answer.coordinators
        )
        return _changed(frame, answer, coordinators=found)

    def _coordinator(
        self, found: Any, named: Named, asker: Asker, goes_by_address: bool = False
    ) -> Any:
        if found.node_id < 0:
            return found
        moved = self._moved((found,), named)
        if moved and (goes_by_address or not _must_forget(int(found.node_id), named, asker)):
            return moved[0]
        if moved and asker.of_transactions:
            return replace(moved[0], node_id=BrokerId(NO_NODE + int(found.node_id)))
        return replace(
            found,
            node_id=BrokerId(-1),
            host="",
            port=i32(-1),
            error_code=ErrorCode.coordinator_not_available,
        )

    def _endpoints_of(
        self, api_key: int, since: int, has_tags: Callable[[bytes, int], bool]
    ) -> Rewrite:
        def rewrite(frame: bytes, version: int, named: Named, _: Asker) -> bytes:
            if version < since or not has_tags(frame, version):
                return frame
            answer: Any = decode_response(frame, api_key, version)
            return _changed(frame, answer, node_endpoints=self._moved(answer.node_endpoints, named))

        return rewrite

    def _share_endpoints_of(self, api_key: int) -> Rewrite:
        def rewrite(frame: bytes, version: int, named: Named, _: Asker) -> bytes:
            answer: Any = decode_response(frame, api_key, version)
            return _changed(frame, answer, node_endpoints=self._moved(answer.node_endpoints, named))

        return rewrite

    def _api_versions(self, frame: bytes, version: int, _: Named, __: Asker) -> bytes:
        # A broker that does not know the version says so in version 0 (KIP-511).
        if len(frame) < 6:
            raise MalformedFrame(f"an ApiVersions answer of {len(frame)} bytes")
        refused = int.from_bytes(frame[4:6], "big") == UNSUPPORTED_VERSION
        answer: Any = decode_response(frame, ApiKey.API_VERSIONS, 0 if refused else version)
        return _changed(
            frame, answer, api_keys=tuple(filter(None, map(self._common, answer.api_keys)))
        )

    def _common(self, api: Any) -> Any:
        """The versions that the broker knows and that are offered here; ``None``: none. Of Produce
        the lowest is the broker's: Kafka 4 says 0 and refuses everything below 3, because older
        librdkafka does not compress otherwise (KAFKA-18659)."""
        offered = self._offered.get(api.api_key, range(0))
        shown_from = api.min_version if api.api_key == ApiKey.PRODUCE else offered.start
        low = max(api.min_version, shown_from)
        high = min(api.max_version, offered.stop - 1)
        if low > high:
            return None
        return replace(api, min_version=i16(low), max_version=i16(high))


def _listed(frame: bytes, version: int, named: Named) -> frozenset[int]:
    """The nodes in a Metadata answer."""
    start, end = response_field(frame, ApiKey.METADATA, version, "brokers")
    key = (version, frame[start:end])
    if (found := named.listed.get(key)) is None:
        brokers = response_array(frame, ApiKey.METADATA, version, "brokers")
        if len(named.listed) >= MOST_LISTS:
            named.listed.clear()
        found = named.listed[key] = frozenset(int(b.node_id) for b in brokers)
    return found


def _must_forget(node: int, named: Named, asker: Asker) -> bool:
    """Whether a client has to lose its coordinator first. librdkafka keeps the address that it had
    for as long as the coordinator is the same node (``rd_kafka_txn_coord_set``,
    ``rd_kafka_cgrp_coord_update``). Of its group it takes the address from the answer, after it was
    told that there is no coordinator. Of its transactions it takes the one that it has of the node,
    which it asks for anew when it is told a node that it does not know; others go by the address.
    """
    moved_at, now = named.moved.get(node), time.monotonic()
    if moved_at is None or now > moved_at + MOVED_LATELY_S:
        return False
    first = asker.asked_of.get(node)
    if first is None or first < moved_at:
        first = asker.asked_of[node] = now
    return now < first + FORGETS_WITHIN_S


def _changed(frame: bytes, answer: Any, *, base: Any = None, **changes: Any) -> bytes:
    """The frame of ``answer`` with ``changes``; the frame itself if nothing differs from
    ``base`` (default: ``answer``)."""
    after = replace(answer, **changes)
    if after == (answer if base is None else base):
        return frame
    return encode_response(after, int.from_bytes(frame[:4], "big", signed=True))
