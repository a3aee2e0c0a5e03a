"""Every API that the gateway looks into, and its handler."""

from __future__ import annotations

from tideline.gateway import transactions
from tideline.gateway.admin import configs, create_topics, delete_records, share_groups, topics
from tideline.gateway.fetch import handler as fetch
from tideline.gateway.interception import ApiKey, Rules
from tideline.gateway.offsets import leader_epoch, list_offsets
from tideline.gateway.produce import handler as produce
from tideline.kafka.protocol import decodable_versions, request_class, response_class

RULES: Rules = {
    **configs.RULES,
    **create_topics.RULES,
    **share_groups.RULES,
    **topics.RULES,
    **transactions.RULES,
    **produce.RULES,
    **fetch.RULES,
    **list_offsets.RULES,
    **leader_epoch.RULES,
    **delete_records.RULES,
}


def preload() -> None:
    """Load the message classes now: the first request of each version would wait for them."""
    for key in {*RULES, ApiKey.METADATA, ApiKey.FIND_COORDINATOR, ApiKey.API_VERSIONS}:
        for version in decodable_versions(key):
            request_class(key, version)
            response_class(key, version)
