"""What a call of S3 costs: `python -m benchmarks.object_store_clients`.

PUT and GET by boto3, directly (`tideline/object_store/direct.py`), the same from an event loop: in
a thread, and as a gateway calls (what is small on the loop), and by `obstore` where it is
installed. The server is the embedded stack's, on loopback and in a process of its own. CPU time is
that of this process, all its threads. Every way has its turn in each round; figures are medians of
rounds, after one that warms up.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from importlib import import_module
from importlib.util import find_spec
from itertools import count
from pathlib import Path
from typing import Any

from benchmarks.beside import spread
from benchmarks.s3_alone import s3_alone
from tideline.object_store.async_store import S3ObjectStore
from tideline.object_store.client import JOB, ObjectStoreClient
from tideline.settings import ObjectStoreSettings
from tideline.stack.parts.kafka import new_cluster_id
from tideline.stack.signals import end_as_by_ctrl_c

KIBIBYTE, MEBIBYTE = 1024, 1024 * 1024


@dataclass(frozen=True, slots=True)
class Case:
    """``calls`` of one round, one after the other."""

    put: bool
    size: int
    calls: int

    @property
    def name(self) -> str:
        size = self.size
        scale, unit = (1, "B")
        if size >= KIBIBYTE:
            scale, unit = (KIBIBYTE, "KiB") if size < MEBIBYTE else (MEBIBYTE, "MiB")
        return f"{'PUT' if self.put else 'GET'} {size // scale} {unit}"


CASES = (
    Case(True, 300, 60),
    Case(True, 16 * KIBIBYTE, 60),
    Case(True, MEBIBYTE, 10),
    Case(True, 8 * MEBIBYTE, 3),
    Case(False, 16 * KIBIBYTE, 60),
    Case(False, MEBIBYTE, 10),
)


@dataclass(slots=True)
class Way:
    """``run`` makes so many calls of a case, each with a key of its own."""

    name: str
    run: Callable[[Case, Sequence[str], bytes], None]
    cpu_us: dict[str, list[float]] = field(default_factory=dict)


def _by(client: ObjectStoreClient, bucket: str) -> Callable[[Case, Sequence[str], bytes], None]:
    def run(case: Case, keys: Sequence[str], body: bytes) -> None:
        for key in keys:
            if case.put:
                client.put(bucket, key, body, new=True)
            elif len(client.get(bucket, key, 0, case.size)) != case.size:
                raise RuntimeError(f"{key} is short")

    return run


def _from_a_loop(
    store: S3ObjectStore, loop: asyncio.AbstractEventLoop
) -> Callable[[Case, Sequence[str], bytes], None]:
    async def calls(case: Case, keys: Sequence[str], body: bytes) -> None:
        for key in keys:
            if case.put:
                await store.put(key, body)
            else:
                await store.get(key, 0, case.size)

    return lambda case, keys, body: loop.run_until_complete(calls(case, keys, body))


def _in_threads(
    client: ObjectStoreClient, bucket: str, loop: asyncio.AbstractEventLoop
) -> Callable[[Case, Sequence[str], bytes], None]:
    run = _by(client, bucket)

    async def calls(case: Case, keys: Sequence[str], body: bytes) -> None:
        for key in keys:
            await loop.run_in_executor(None, run, case, (key,), body)

    return lambda case, keys, body: loop.run_until_complete(calls(case, keys, body))


def _by_obstore(settings: ObjectStoreSettings) -> Callable[[Case, Sequence[str], bytes], None]:
    obstore: Any = import_module("obstore")
    stores: Any = import_module("obstore.store")
    access, secret = settings.s3_access_key, settings.s3_secret_key
    assert access is not None
    assert secret is not None
    store = stores.S3Store(
        settings.s3_bucket,
        endpoint=settings.s3_endpoint,
        region=settings.s3_region,
        access_key_id=access.get_secret_value(),
        secret_access_key=secret.get_secret_value(),
        client_options={"allow_http": True},
        retry_config={"max_retries": 0},
    )

    def run(case: Case, keys: Sequence[str], body: bytes) -> None:
        for key in keys:
            if case.put:
                obstore.put(store, key, body, mode="create", use_multipart=False)
            else:
                bytes(obstore.get_range(store, key, start=0, length=case.size))

    return run


def to_markdown(ways: Sequence[Way], cases: Sequence[Case]) -> str:
    """The report."""
    lines = [
        "| " + " | ".join(["CPU of a call, µs", *(way.name for way in ways)]) + " |",
        "| --- |" + " ---: |" * len(ways),
    ]
    for case in cases:
        cells = [spread(way.cpu_us[case.name], ",.0f") for way in ways]
        lines.append("| " + " | ".join([case.name, *cells]) + " |")
    return "\n".join(lines)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    arguments = parser.parse_args()
    end_as_by_ctrl_c()
    with ExitStack() as parts:
        home = Path(parts.enter_context(tempfile.TemporaryDirectory(prefix="s3-clients-")))
        settings = ObjectStoreSettings.of(parts.enter_context(s3_alone(home, new_cluster_id())))
        loop = asyncio.new_event_loop()
        parts.callback(loop.close)
        store = S3ObjectStore(settings)
        loop.run_until_complete(store.__aenter__())
        parts.callback(lambda: loop.run_until_complete(store.__aexit__(None, None, None)))
        ways = [
            Way(
                name,
                _by(ObjectStoreClient(settings, bounds=JOB, direct=by), settings.s3_bucket),
            )
            for name, by in (("boto3", False), ("direct", True))
        ]
        direct = ObjectStoreClient(settings, bounds=JOB)
        ways += [
            Way("in a thread of a loop", _in_threads(direct, settings.s3_bucket, loop)),
            Way("as a gateway", _from_a_loop(store, loop)),
        ]
        if find_spec("obstore") is not None:
            ways.append(Way("obstore", _by_obstore(settings)))
        numbers = count()
        for case in CASES:
            body = os.urandom(case.size)
            for number in range(arguments.rounds + 1):
                print(f"{case.name}: round {number} of {arguments.rounds}", file=sys.stderr)
                for way in ways:
                    keys = [f"clients/{next(numbers)}" for _ in range(case.calls)]
                    if not case.put:
                        direct.put(settings.s3_bucket, keys[0], body)
                        keys = keys[:1] * case.calls
                    before = time.process_time()
                    way.run(case, keys, body)
                    used_s = time.process_time() - before
                    if number > 0:  # the first one warmed up
                        way.cpu_us.setdefault(case.name, []).append(used_s / case.calls * 1e6)
        print(to_markdown(ways, CASES))
        print(f"load average {os.getloadavg()[0]:.1f}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
