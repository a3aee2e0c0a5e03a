"""Every API that the gateway looks into, and its handler."""

from __future__ import annotations

from tideline.gateway.handlers import (
    alter_configs,
    create_topics,
    delete_records,
    describe_configs,
    end_txn,
    fetch,
    leader_epoch,
    list_offsets,
    produce,
    share_groups,
    topics,
    transactions,
)
from tideline.gateway.interception import ApiKey, Rules
from tideline.kafka.protocol import decodable_versions, request_class, response_class

RULES: Rules = {
    **alter_configs.RULES,
    **create_topics.RULES,
    **describe_configs.RULES,
    **end_txn.RULES,
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
