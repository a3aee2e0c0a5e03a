"""GET and PUT on a real S3 server: boto3, direct calls and those of an event loop are one."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from itertools import count

import pytest

from benchmarks.s3_alone import s3_alone
from tideline.object_store.async_store import S3ObjectStore
from tideline.object_store.client import (
    GATEWAY,
    ObjectExists,
    ObjectMissing,
    ObjectStoreClient,
    ObjectStoreRefused,
    ObjectTooShort,
    ObjectTruncated,
)
from tideline.settings import ObjectStoreSettings
from tideline.stack.parts.kafka import new_cluster_id

KEYS = ["a b", "a+b", "a%b", "a%20b", "ü/日本", "a=b", "a//b", "~", "a?b#c", 'a"<&>']
_numbers = count()


@pytest.fixture(scope="module")
def settings(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ObjectStoreSettings]:
    with s3_alone(tmp_path_factory.mktemp("s3"), new_cluster_id()) as environment:
        yield ObjectStoreSettings.of(environment)


@pytest.fixture(scope="module")
def both(settings: ObjectStoreSettings) -> Iterator[dict[bool, ObjectStoreClient]]:
    clients = {
        direct: ObjectStoreClient(settings, bounds=GATEWAY, direct=direct)
        for direct in (False, True)
    }
    yield clients
    for client in clients.values():
        client.close()


@pytest.fixture(params=[False, True], ids=["boto3", "direct"])
def client(
    request: pytest.FixtureRequest, both: dict[bool, ObjectStoreClient]
) -> ObjectStoreClient:
    return both[request.param]


@pytest.fixture
def key() -> str:
    return f"contract/{next(_numbers)}"


def test_what_one_has_put_the_other_gets_under_any_key(
    settings: ObjectStoreSettings, both: dict[bool, ObjectStoreClient], key: str
) -> None:
    bucket = settings.s3_bucket
    for name in KEYS:
        for direct, client in both.items():
            body = f"{name} {direct}".encode()
            client.put(bucket, f"{key}/{direct}/{name}", body, new=True)
            assert both[not direct].get(bucket, f"{key}/{direct}/{name}") == body
    listed = {entry.key for entry in both[False].list_objects(bucket, f"{key}/True/")}
    # This server lists two slashes as one, whoever put them.
    assert listed == {f"{key}/True/{name}".replace("a//b", "a/b") for name in KEYS}


@pytest.mark.parametrize("size", [0, 1, 300, 65_537, 3_000_000])
def test_bodies_of_any_size_come_back(
    settings: ObjectStoreSettings, client: ObjectStoreClient, key: str, size: int
) -> None:
    body = bytes(range(256)) * (size // 256) + bytes(size % 256)
    client.put(settings.s3_bucket, key, body)
    assert client.get(settings.s3_bucket, key) == body


def test_ranges(settings: ObjectStoreSettings, client: ObjectStoreClient, key: str) -> None:
    bucket = settings.s3_bucket
    client.put(bucket, key, b"0123456789")
    assert client.get(bucket, key, 0, 4) == b"0123"
    assert client.get(bucket, key, 3) == b"3456789"
    assert client.get(bucket, key, size=5) == b"01234"
    with pytest.raises(ObjectTruncated, match="7 bytes came, not 8"):
        client.get(bucket, key, 3, 8)
    for beyond in ((10, 1), (10, None), (50, 5)):
        with pytest.raises(ObjectTooShort, match="InvalidRange"):
            client.get(bucket, key, *beyond)


def test_a_new_object_is_written_once(
    settings: ObjectStoreSettings, client: ObjectStoreClient, key: str
) -> None:
    client.put(settings.s3_bucket, key, b"first", new=True)
    with pytest.raises(ObjectExists):
        client.put(settings.s3_bucket, key, b"second", new=True)
    assert client.get(settings.s3_bucket, key) == b"first"
    client.put(settings.s3_bucket, key, b"third")
    assert client.get(settings.s3_bucket, key) == b"third"


def test_what_is_not_there_and_who_may_not(
    settings: ObjectStoreSettings, client: ObjectStoreClient, key: str
) -> None:
    with pytest.raises(ObjectMissing):
        client.get(settings.s3_bucket, key)
    calls: list[Callable[[], object]] = [
        lambda: client.get("nobodys", key),
        lambda: client.put("nobodys", key, b"x"),
    ]
    for call in calls:
        with pytest.raises(ObjectStoreRefused, match="AccessDenied"):
            call()


@pytest.mark.parametrize("direct", [False, True])
def test_a_wrong_secret_is_named(settings: ObjectStoreSettings, direct: bool, key: str) -> None:
    wrong = ObjectStoreSettings.model_validate(settings.model_dump() | {"s3_secret_key": "wrong"})
    client = ObjectStoreClient(wrong, bounds=GATEWAY, direct=direct)
    with pytest.raises(ObjectStoreRefused, match="SignatureDoesNotMatch"):
        client.put(settings.s3_bucket, key, b"x")
    client.close()


async def test_small_calls_of_a_gateway_at_once(settings: ObjectStoreSettings, key: str) -> None:
    async with S3ObjectStore(settings) as store:
        bodies = {f"{key}/{n}": bytes([n]) * (1 + 997 * n) for n in range(60)}
        await store.put(f"{key}/first", b"")
        await asyncio.gather(*(store.put(name, body) for name, body in bodies.items()))
        await asyncio.gather(*(store.put(name, body) for name, body in bodies.items()))
        got = await asyncio.gather(*(store.get(n, 0, len(b)) for n, b in bodies.items()))
        assert got == list(bodies.values())
        with pytest.raises(ObjectMissing):
            await store.get(f"{key}/none", 0, 1)
        with pytest.raises(ObjectTruncated):
            await store.get(f"{key}/0", 0, 2)
        with pytest.raises(ObjectTooShort, match="InvalidRange"):
            await store.get(f"{key}/0", 9, 2)
