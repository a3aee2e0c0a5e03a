"""The embedded stack's S3 server without the rest of the stack."""

from __future__ import annotations

import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from benchmarks.beside import START_S, free_port
from tideline.stack.credentials import load_or_create
from tideline.stack.errors import NotReadyError
from tideline.stack.home import Home
from tideline.stack.parts.base import StackPlan
from tideline.stack.parts.s3 import S3
from tideline.stack.ports import preferred


@contextmanager
def s3_alone(home: Path, cluster_id: str) -> Iterator[dict[str, str]]:
    """Yields the settings of those who use it. ``home`` is the server's own."""
    where = Home.locate(home)
    where.create()
    state = where.new_state(brokers=1, parts=["s3"], cluster_id=cluster_id)
    state.runtime_dir = str(home)
    state.ports = {name: free_port() for name in preferred(1)}
    plan = StackPlan(where, state, load_or_create(where))
    part = S3(plan)
    part.prepare()
    with (home / "s3.log").open("wb") as log:
        process = subprocess.Popen(part.program().command, stdout=log, stderr=log)
    try:
        deadline = time.monotonic() + START_S
        while True:
            try:
                part.probe()
                break
            except NotReadyError:
                if time.monotonic() > deadline:
                    raise
                time.sleep(0.2)
        environment = plan.environment("gateway-1")
        yield {name: value for name, value in environment.items() if "_S3_" in name}
    finally:
        process.kill()
        process.wait()
