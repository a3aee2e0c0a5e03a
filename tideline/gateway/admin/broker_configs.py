"""Configs of brokers, as clients may see them: without addresses.

A client that read where a broker listens could go around the gateways.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

BROKER = 4
"""``ConfigResource.Type.BROKER``."""
ADDRESSES = frozenset(
    {
        "listeners",
        "advertised.listeners",
        "controller.quorum.voters",
        "controller.quorum.bootstrap.servers",
    }
)
"""Configs whose values say where somebody listens. What a broker does not know as a config, it does
not show either: Kafka holds it for a secret."""


def without_addresses(result: Any) -> Any:
    """A result of DescribeConfigs. An address is shown as Kafka shows a secret: that there is one,
    but no value. (The gateway's own address in its place would be written back by tools that set
    all that they have read.)"""
    return replace(result, configs=tuple(_withheld(config) for config in result.configs))


def _withheld(config: Any) -> Any:
    if config.name not in ADDRESSES:
        return config
    synonyms = tuple(replace(synonym, value=None) for synonym in config.synonyms)
    return replace(config, value=None, is_sensitive=True, synonyms=synonyms)
