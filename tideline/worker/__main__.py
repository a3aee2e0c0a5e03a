"""``python -m tideline.worker``."""

from __future__ import annotations

import asyncio
import os
import sys

import structlog

from tideline.errors import ExitCode, TidelineError
from tideline.importing import kept
from tideline.installation import refuse_strangers
from tideline.observability import configure_logging
from tideline.settings import WorkerSettings, load
from tideline.worker.logs import configure_library_logs


def main() -> ExitCode:
    """Serve until a signal; the exit code says why it ended."""
    configure_logging("worker")
    configure_library_logs()
    try:
        refuse_strangers()
        with kept():
            from tideline.worker.app import run

        asyncio.run(run(load(WorkerSettings)))
    except TidelineError as error:
        structlog.get_logger().error("worker_ended", why=str(error))
        return error.exit_code
    return ExitCode.OK


if __name__ == "__main__":
    code = main()
    sys.stdout.flush()
    sys.stderr.flush()
    # Temporal's native threads may crash the interpreter's own teardown after all is done.
    os._exit(code)
