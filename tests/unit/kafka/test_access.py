"""What the watch asks of all topics at once: ACLs that name a host, and share groups."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
from kio.schema.errors import ErrorCode

from tests.unit.kafka.fake_broker import FakeBroker, api_versions
from tideline.domain.watched import HostAcl
from tideline.gateway.context import ApiKey
from tideline.gateway.messages import messages
from tideline.kafka.client import KafkaCluster
from tideline.kafka.errors import KafkaError
from tideline.kafka.protocol import RequestHeader, decode_request, encode_response
from tideline.kafka.topic_observer import TopicObserver

LIST_GROUPS, DESCRIBE_ACLS, SHARE_GROUP_DESCRIBE = 16, 29, 77
LITERAL, PREFIXED, ALLOW, READ = 3, 4, 3, 3
ACLS = [
    ("orders", LITERAL, "User:ada", "*"),
    ("orders", LITERAL, "User:ada", "10.0.0.1"),
    ("or", PREFIXED, "User:bob", "10.0.0.2"),
]


class Kafka:
    """One broker, which has :data:`ACLS` and two share groups."""

    def __init__(self) -> None:
        self.code = ErrorCode.none
        self.of_group = ErrorCode.none
        self.address = ("", 0)

    async def __call__(self, header: RequestHeader, frame: bytes) -> bytes:
        if header.api_key == ApiKey.API_VERSIONS:
            return api_versions(header)
        api = messages(header.api_key, header.api_version)
        answers = {
            ApiKey.METADATA: self.metadata,
            DESCRIBE_ACLS: self.describe_acls,
            LIST_GROUPS: self.list_groups,
            SHARE_GROUP_DESCRIBE: self.share_group_describe,
        }
        if header.api_key == LIST_GROUPS:
            request: Any = decode_request(frame)
            assert request.types_filter == ("share",), "groups of other types may be many"
        return encode_response(answers[header.api_key](api), header.correlation_id)

    def metadata(self, api: Any) -> Any:
        host, port = self.address
        broker = api.response_part(
            "MetadataResponseBroker", node_id=1, host=host, port=port, rack=None
        )
        return api.response(
            throttle_time=timedelta(0),
            brokers=(broker,),
            cluster_id="c",
            controller_id=1,
            topics=(),
        )

    def describe_acls(self, api: Any) -> Any:
        found = [
            api.response_part(
                "DescribeAclsResource",
                resource_type=2,
                resource_name=name,
                pattern_type=pattern,
                acls=(
                    api.response_part(
                        "AclDescription",
                        principal=principal,
                        host=host,
                        operation=READ,
                        permission_type=ALLOW,
                    ),
                ),
            )
            for name, pattern, principal, host in ACLS
            if self.code is ErrorCode.none
        ]
        return api.response(
            throttle_time=timedelta(0),
            error_code=self.code,
            error_message=None,
            resources=tuple(found),
        )

    def list_groups(self, api: Any) -> Any:
        groups = tuple(
            api.response_part(
                "ListedGroup",
                group_id=name,
                protocol_type="",
                group_state="Stable",
                group_type=kind,
            )
            for name, kind in (("s1", "Share"), ("c1", "Consumer"), ("s2", "Share"))
        )
        return api.response(throttle_time=timedelta(0), error_code=ErrorCode.none, groups=groups)

    def share_group_describe(self, api: Any) -> Any:
        def group(name: str, *topics: str) -> Any:
            member = api.response_part(
                "Member",
                member_id="m",
                rack_id=None,
                member_epoch=1,
                client_id="c",
                client_host="h",
                subscribed_topic_names=topics,
                assignment=api.response_part("Assignment", topic_partitions=()),
            )
            return api.response_part(
                "DescribedGroup",
                error_code=self.of_group,
                error_message=None,
                group_id=name,
                group_state="Stable",
                group_epoch=1,
                assignment_epoch=1,
                assignor_name="a",
                members=(member,) if self.of_group is ErrorCode.none else (),
                authorized_operations=0,
            )

        groups = (group("s1", "orders", "other"), group("s2", "orders"))
        return api.response(throttle_time=timedelta(0), groups=groups)


async def test_acls_of_hosts_and_share_groups_are_asked_of_all_topics_at_once() -> None:
    kafka = Kafka()
    async with FakeBroker(kafka) as broker, KafkaCluster([broker.address]) as cluster:
        kafka.address = broker.address
        topics = TopicObserver(cluster)
        assert await topics.host_acls() == (
            HostAcl("orders", False, "ALLOW READ to User:ada from 10.0.0.1"),
            HostAcl("or", True, "ALLOW READ to User:bob from 10.0.0.2"),
        )
        assert await topics.share_groups() == {"orders": ("s1", "s2"), "other": ("s1",)}
        kafka.of_group = ErrorCode.group_id_not_found
        assert await topics.share_groups() == {}, "gone since they were listed"
        kafka.of_group = ErrorCode.coordinator_load_in_progress
        with pytest.raises(KafkaError, match="members of group 's1'"):
            await topics.share_groups()
        kafka.code = ErrorCode.security_disabled
        assert await topics.host_acls() == ()
        kafka.code = ErrorCode.cluster_authorization_failed
        with pytest.raises(KafkaError, match="ACLs of topics"):
            await topics.host_acls()
