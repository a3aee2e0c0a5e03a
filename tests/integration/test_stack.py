"""The embedded stack: who knows whom, who listens where, and who may open what."""

from __future__ import annotations

from contextlib import suppress
from functools import partial

import boto3
import psutil
import pytest
from botocore.exceptions import ClientError

from tests.support.waiting import until
from tideline.stack import Stack
from tideline.stack.errors import NotReadyError
from tideline.stack.ports import LOOPBACK
from tideline.stack.probes import kafka_nodes


def test_every_broker_knows_every_other(stack: Stack) -> None:
    nodes = set(range(1, stack.brokers + 1))
    for where in stack.endpoints.brokers.values():
        host, _, port = where.partition(":")
        until("it to know every other", partial(knows, (host, int(port)), nodes))


def knows(address: tuple[str, int], nodes: set[int]) -> bool:
    with suppress(NotReadyError):
        return kafka_nodes(address) == nodes
    return False


def test_a_second_start_finds_the_running_stack(stack: Stack) -> None:
    pids = {row.info.name: row.info.pid for row in stack.status()}
    kinds = {name.partition("-")[0] for name in pids}
    again = Stack.up(stack.home, parts=kinds)
    assert again.was_running
    assert {row.info.name: row.info.pid for row in again.status()} == pids


def test_everything_listens_on_loopback_only(stack: Stack) -> None:
    listening = [
        connection.laddr.ip
        for row in stack.status()
        if row.info.pid is not None
        for process in [psutil.Process(row.info.pid)]
        for connection in process.net_connections("inet")
        if connection.status == psutil.CONN_LISTEN
    ]
    assert listening
    assert set(listening) <= {LOOPBACK, "::ffff:127.0.0.1", "::1"}


def test_each_key_of_the_object_store_opens_only_what_its_owner_needs(stack: Stack) -> None:
    s3 = stack.endpoints.s3
    owner = boto3.client(
        "s3",
        endpoint_url=s3.url,
        region_name=s3.region,
        aws_access_key_id=s3.access_key,
        aws_secret_access_key=s3.secret_key,
    )
    with pytest.raises(ClientError, match="AccessDenied"):
        owner.create_bucket(Bucket="another")
    stranger = boto3.client(
        "s3",
        endpoint_url=s3.url,
        region_name=s3.region,
        aws_access_key_id=s3.access_key,
        aws_secret_access_key="wrong",
    )
    with pytest.raises(ClientError, match="SignatureDoesNotMatch"):
        stranger.list_objects_v2(Bucket=s3.bucket)


def test_secrets_are_readable_by_their_owner_only(stack: Stack) -> None:
    private = ["client.env", "credentials.json", "run/supervisord.conf", "run/s3.json"]
    private += [f"run/kafka-{node}.properties" for node in stack.endpoints.brokers]
    for name in private:
        assert (stack.home / name).stat().st_mode & 0o077 == 0, name
