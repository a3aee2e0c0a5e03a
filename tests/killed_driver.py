"""kill -9 of a Spark driver exactly where a write of Postgres is held."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass

import psutil
import psycopg

from tests.support.waiting import HANGS_S, until
from tideline.stack import Stack
from tideline.stack.spark_classes import driver_options

LOCK = 815_003
SMALL = ("--conf", "spark.sql.shuffle.partitions=2")


@dataclass(frozen=True)
class Step:
    """A write of Postgres before which the driver dies. ``commits``: Postgres ends the write
    after the death, as when only the answer was lost; else it is undone. ``in_spark``: the driver
    has Spark's JVM and its Python workers; else its tasks run in its own process
    (:mod:`tests.spark_without_jvm`), which leaves the same behind and costs a quarter."""

    name: str
    event: str
    when: str
    commits: bool
    in_spark: bool = False


@contextmanager
def held(dsn: str, step: Step) -> Iterator[psycopg.Connection]:
    """Whoever writes at ``step`` waits until the end of the block."""
    table = step.event.split(" ON ")[1]
    row = "OLD" if step.event.startswith("DELETE") else "NEW"
    with psycopg.connect(dsn, autocommit=True) as holder:
        holder.execute("SELECT pg_advisory_lock(%s)", [LOCK])
        holder.execute(
            f"""
            CREATE OR REPLACE FUNCTION tideline.test_job_step() RETURNS trigger
            LANGUAGE plpgsql AS $$
            BEGIN
                PERFORM pg_advisory_xact_lock_shared({LOCK});
                RETURN {row};
            END $$;
            CREATE OR REPLACE TRIGGER test_job_step BEFORE {step.event}
                FOR EACH ROW WHEN ({step.when}) EXECUTE FUNCTION tideline.test_job_step();
            """.encode()
        )
        try:
            yield holder
        finally:
            # Those that wait hold locks on the table: let them go on before the trigger goes.
            holder.execute("SELECT pg_advisory_unlock_all()")
            holder.execute(f"DROP TRIGGER test_job_step ON {table}".encode())


def waiting(holder: psycopg.Connection) -> list[int]:
    """Backends that wait at the step."""
    rows = holder.execute(
        "SELECT pid FROM pg_locks WHERE locktype = 'advisory' AND NOT granted AND objid = %s",
        [LOCK],
    ).fetchall()
    return [int(row[0]) for row in rows]


def start(stack: Stack, step: Step, *arguments: str, **settings: str) -> subprocess.Popen[bytes]:
    """A driver of its own, with its JVM and Python workers if the step is one in Spark."""
    quick: dict[str, str] = {}
    command = [sys.executable, "-m", "tests.spark_without_jvm", *arguments]
    if step.in_spark:
        quick = {"SPARK_SUBMIT_OPTS": " ".join(driver_options())}
        command = [sys.executable, "-m", *arguments, "--master", "local[2]", *SMALL]
    return subprocess.Popen(
        command,
        env={**os.environ, **quick, **stack.environment("jobs"), **settings},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )


def killed_at(stack: Stack, step: Step, *arguments: str, **settings: str) -> None:
    """A run that reaches ``step`` and dies there, with its JVM and its executors."""
    with held(stack.endpoints.postgres_dsn("postgres"), step) as holder:
        driver = start(stack, step, *arguments, **settings)
        try:
            until(f"a run to reach: {step.name}", lambda: reached(holder, driver), 180)
        finally:
            kill_nine(driver)
        if not step.commits:
            until("the write to be undone", lambda: ended(holder))


def ended(holder: psycopg.Connection) -> bool:
    """Whether nobody waits at the step any more. Who comes to it only now is ended, too."""
    for pid in waiting(holder):
        holder.execute("SELECT pg_terminate_backend(%s)", [pid])
    return not waiting(holder)


def reached(holder: psycopg.Connection, driver: subprocess.Popen[bytes]) -> bool:
    """Whether somebody waits at the step. A driver that has ended never will."""
    if waiting(holder):
        return True
    assert driver.poll() is None, f"the driver ended with {driver.returncode}"
    return False


def kill_nine(driver: subprocess.Popen[bytes]) -> None:
    """All processes of the run, before any of them can react. One that has ended by itself left
    none that matters, and why it did is for its caller to say."""
    try:
        main = psutil.Process(driver.pid)
        family = [main, *main.children(recursive=True)]
    except psutil.NoSuchProcess:
        return
    # A suspended group of processes that has lost its parent gets a SIGHUP of the kernel, and may
    # be gone before its turn comes.
    for process in family:
        with suppress(psutil.NoSuchProcess):
            process.suspend()
    for process in family:
        with suppress(psutil.NoSuchProcess):
            process.kill()
    psutil.wait_procs(family, timeout=HANGS_S)
    driver.wait(HANGS_S)
