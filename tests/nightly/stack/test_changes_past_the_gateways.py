"""What somebody does to a diskless topic at the brokers themselves."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from confluent_kafka import (
    KafkaException,
)
from confluent_kafka.admin import (
    AdminClient,
    AlterConfigOpType,
)

from tests.integration.test_gateway_admin import admin, altered, born, broker_admin, name, send
from tests.support.waiting import until
from tideline import control_plane
from tideline.control_plane.model import WatchFinding
from tideline.settings import WorkerSettings
from tideline.stack import Stack

__all__ = ["admin", "born", "name"]


def test_what_goes_past_the_gateways_is_found_and_kept(
    stack: Stack, admin: AdminClient, born: str
) -> None:
    send(stack, born, b"x", bootstrap=stack.endpoints.kafka_bootstrap)
    with pytest.raises(KafkaException, match=r"MSG_SIZE_TOO_LARGE|too large"):
        send(stack, born, b"x" * 100, bootstrap=stack.endpoints.kafka_bootstrap)
    altered(broker_admin(stack), born, "cleanup.policy", "compact")

    def found() -> dict[str, dict[str, Any]]:
        rows = asyncio.run(findings(stack, born))
        return {row.kind.value: row.detail for row in rows if row.ended_at is None}

    until("the worker finds both", lambda: set(found()) == {"tail", "config"}, 60)
    assert found()["tail"]["object"].startswith("s3://")
    altered(broker_admin(stack), born, "cleanup.policy", None, AlterConfigOpType.DELETE)
    until("the config is as it was", lambda: set(found()) == {"tail"}, 60)


async def findings(stack: Stack, name: str) -> list[WatchFinding]:
    settings = WorkerSettings.of(stack.environment("worker"))
    async with control_plane.connect(settings, application_name="test") as plane:
        return await plane.findings(name)
