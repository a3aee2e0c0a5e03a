"""Runs pytest in forks of a process that has imported what a tree needs of others: most of what a
run of one test costs is its start.

Started by its path, so that nothing of any tree is imported before the fork. Each line on the
standard input is a run as JSON: ``root`` of the tree, ``arguments`` of pytest, its ``environment``,
and the file for what it ``said``; each line of the output is the exit code of one.
"""

from __future__ import annotations

import json
import os
import sys
from typing import Any

import boto3  # noqa: F401
import kio.schema.index  # noqa: F401
import prometheus_client  # noqa: F401
import psycopg_pool  # noqa: F401
import pydantic_settings  # noqa: F401
import pytest
import rich.console  # noqa: F401
import structlog  # noqa: F401
import supervisor.supervisord  # noqa: F401
import temporalio.worker  # noqa: F401
import yoyo  # noqa: F401


def _run(root: str, arguments: list[str], environment: dict[str, str], said: str) -> int:
    with open(said, "wb") as file:
        os.dup2(file.fileno(), 1)
        os.dup2(file.fileno(), 2)
    os.chdir(root)
    os.environ.clear()
    os.environ.update(environment)
    sys.path[0] = root
    code = int(pytest.main(arguments))
    sys.stdout.flush()
    sys.stderr.flush()
    return code


def main() -> None:
    for line in sys.stdin:
        run: dict[str, Any] = json.loads(line)
        if (child := os.fork()) == 0:
            os._exit(_run(**run))
        print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)


if __name__ == "__main__":
    main()
