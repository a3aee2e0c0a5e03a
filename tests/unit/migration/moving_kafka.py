"""A broker that reassigns: partitions move when they are looked at often enough."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any
from uuid import UUID

from kio.schema.alter_partition_reassignments.v0 import response as ar
from kio.schema.describe_cluster.v2 import response as dc
from kio.schema.errors import ErrorCode
from kio.schema.list_partition_reassignments.v0 import response as lr
from kio.schema.metadata.v12 import response as md
from kio.schema.types import BrokerId, TopicName
from kio.static.primitive import i32

from tests.unit.kafka.fake_broker import api_versions
from tideline.gateway.messages import no_throttle
from tideline.kafka.protocol import RequestHeader, decode_request, encode_response

Name = tuple[str, int]


@dataclass
class MovingKafka:
    """``placed`` by topic; the first replica leads, unless its partition is ``leaderless``."""

    racks: Mapping[int, str | None]
    ids: Mapping[str, UUID]
    placed: dict[str, list[Sequence[int]]]
    fenced: set[int] = field(default_factory=set)
    leaderless: set[Name] = field(default_factory=set)
    refuses: set[Name] = field(default_factory=set)
    looks_to_move: int = 1
    """How often reassignments are listed until one that was begun is done."""
    stuck: set[Name] = field(default_factory=set)
    moving: dict[Name, tuple[Sequence[int], int]] = field(default_factory=dict)
    most_at_once: int = 0
    begun: list[dict[Name, Sequence[int] | None]] = field(default_factory=list)
    asked_to_move: asyncio.Event = field(default_factory=asyncio.Event)
    metadata_asked: list[list[str] | None] = field(default_factory=list)

    async def __call__(self, header: RequestHeader, frame: bytes) -> bytes | None:
        if header.api_key == 18:
            return api_versions(header)
        request: Any = decode_request(frame, header)
        answer = getattr(self, f"_{type(request).__name__}")(request)
        return encode_response(answer, header.correlation_id)

    def _DescribeClusterRequest(self, request: Any) -> dc.DescribeClusterResponse:
        return dc.DescribeClusterResponse(
            throttle_time=no_throttle(),
            error_code=ErrorCode.none,
            cluster_id="c",
            brokers=tuple(
                dc.DescribeClusterBroker(
                    broker_id=BrokerId(n),
                    host="h",
                    port=i32(1),
                    rack=rack,
                    is_fenced=n in self.fenced,
                )
                for n, rack in self.racks.items()
            ),
        )

    def _MetadataRequest(self, request: Any) -> md.MetadataResponse:
        names = None if request.topics is None else [str(t.name) for t in request.topics]
        self.metadata_asked.append(names)
        return md.MetadataResponse(
            throttle_time=no_throttle(),
            brokers=(),
            cluster_id="c",
            controller_id=BrokerId(1),
            topics=tuple(
                md.MetadataResponseTopic(
                    error_code=ErrorCode.none,
                    name=TopicName(name),
                    topic_id=self.ids[name],
                    is_internal=False,
                    partitions=tuple(
                        self._partition(name, n, replicas) for n, replicas in enumerate(lists)
                    ),
                )
                for name, lists in self.placed.items()
                if names is None or name in names
            ),
        )

    def _partition(
        self, name: str, number: int, replicas: Sequence[int]
    ) -> md.MetadataResponsePartition:
        target, _ = self.moving.get((name, number), ((), 0))
        shown = tuple(map(BrokerId, [*replicas, *(n for n in target if n not in replicas)]))
        leads = (name, number) not in self.leaderless
        return md.MetadataResponsePartition(
            error_code=ErrorCode.none if leads else ErrorCode.leader_not_available,
            partition_index=i32(number),
            leader_id=BrokerId(replicas[0] if leads else -1),
            leader_epoch=i32(0),
            replica_nodes=shown,
            isr_nodes=tuple(map(BrokerId, replicas)) if leads else (),
            offline_replicas=(),
        )

    def _AlterPartitionReassignmentsRequest(
        self, request: Any
    ) -> ar.AlterPartitionReassignmentsResponse:
        asked: dict[Name, Sequence[int] | None] = {
            (str(t.name), int(p.partition_index)): p.replicas
            for t in request.topics
            for p in t.partitions
        }
        self.begun.append(asked)
        self.asked_to_move.set()
        codes = {}
        for name, replicas in asked.items():
            codes[name] = ErrorCode.none
            if name in self.refuses:
                codes[name] = ErrorCode.invalid_replica_assignment
            elif replicas is None and self.moving.pop(name, None) is None:
                codes[name] = ErrorCode.no_reassignment_in_progress
            elif replicas is not None:
                self.moving[name] = (replicas, self.looks_to_move)
        self.most_at_once = max(self.most_at_once, len(self.moving))
        return ar.AlterPartitionReassignmentsResponse(
            throttle_time=no_throttle(),
            error_code=ErrorCode.none,
            error_message=None,
            responses=tuple(
                ar.ReassignableTopicResponse(
                    name=TopicName(topic),
                    partitions=(
                        ar.ReassignablePartitionResponse(
                            partition_index=i32(number), error_code=code, error_message=None
                        ),
                    ),
                )
                for (topic, number), code in codes.items()
            ),
        )

    def _ListPartitionReassignmentsRequest(
        self, request: Any
    ) -> lr.ListPartitionReassignmentsResponse:
        for name, (target, looks) in list(self.moving.items()):
            if looks == 0 and name not in self.stuck:
                self.placed[name[0]][name[1]] = target
                del self.moving[name]
            else:
                self.moving[name] = (target, max(looks - 1, 0))
        return lr.ListPartitionReassignmentsResponse(
            throttle_time=no_throttle(),
            error_code=ErrorCode.none,
            error_message=None,
            topics=tuple(
                lr.OngoingTopicReassignment(
                    name=TopicName(topic),
                    partitions=(
                        lr.OngoingPartitionReassignment(
                            partition_index=i32(number), adding_replicas=(BrokerId(1),)
                        ),
                    ),
                )
                for topic, number in self.moving
            ),
        )
