"""The bytes of record batches, as gateways send them."""

from __future__ import annotations

import asyncio

from tideline.kafka.batches import iter_batches
from tideline.kafka.client import KafkaCluster
from tideline.kafka.log_reader import LogReader
from tideline.stack import Stack

A_FEW = 7_000
"""Bytes of one answer: several batches of a test, never all of them."""


def raw_batches(stack: Stack, topic: str, partition: int, offset: int, end: int) -> list[bytes]:
    """Every batch from the one that holds ``offset`` up to ``end`` (exclusive). Raises
    ``KafkaError``."""
    host, _, port = stack.endpoints.gateway_bootstrap.split(",")[0].rpartition(":")

    async def ask() -> list[bytes]:
        at, batches = offset, []
        async with KafkaCluster([(host, int(port))], client_id="raw", timeout_ms=60_000) as cluster:
            node = next(iter(stack.endpoints.gateways))
            while at < end:
                piece = await LogReader(cluster).fetch(
                    topic, partition, at, node=node, max_bytes=A_FEW
                )
                headers = list(iter_batches(piece.data))
                assert headers[0].base_offset <= at <= headers[0].last_offset
                batches += [
                    piece.data[header.position : header.end]
                    for header in headers
                    if header.base_offset < end
                ]
                at = headers[-1].last_offset + 1
        return batches

    return asyncio.run(ask())
