"""The plane in memory and Postgres side by side: whatever is asked, they must answer alike.

The plane in memory is the rules, written to be read; the SQL is held to them.
"""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable
from contextlib import AbstractAsyncContextManager
from dataclasses import asdict, is_dataclass, replace
from datetime import datetime
from typing import Any, cast

import psycopg

from tests.contract.conftest import Database
from tests.contract.scenes import MemoryScene, PostgresScene, Scene
from tideline.control_plane import ControlPlane, connect
from tideline.control_plane.model import CommitError
from tideline.domain.ids import TopicIdPartition
from tideline.domain.migration import Phase
from tideline.errors import TidelineError


class TwinScene(Scene):
    """Each situation is built in both. Times are Postgres'."""

    def __init__(self, postgres: _OneConnection) -> None:
        super().__init__()
        self.postgres, self.of_memory = postgres, MemoryScene()
        self.plane = cast(ControlPlane, _Twins(self))
        self.jobs = cast(Any, _TwinJobs(self))

    @classmethod
    def connected(cls, database: Database) -> AbstractAsyncContextManager[TwinScene]:
        return _Connected(database)

    @property
    def memory(self) -> Any:
        return self.of_memory.memory

    def clear(self) -> None:
        self.postgres.clear()
        self.of_memory = MemoryScene()

    def expire_quiesce(self, log: TopicIdPartition) -> None:
        self.postgres.expire_quiesce(log)
        self.of_memory.expire_quiesce(log)

    def set_clock_forward(self, minutes: int) -> None:
        """The plane in memory goes by Postgres's clock: there, too, what was moves back."""
        self.postgres.set_clock_forward(minutes)
        passed, memory = minutes * 60_000, self.of_memory.memory
        for partition in memory.topics.partitions():
            for number, entry in partition.producers.items():
                partition.producers[number] = replace(entry, updated_at=entry.updated_at - passed)
        if memory.expiry_ran_at is not None:
            memory.expiry_ran_at -= passed
        memory.expiry_not_before -= passed

    def age_commits(self, ms: int) -> None:
        self.postgres.age_commits(ms)
        self.of_memory.age_commits(ms)

    def producers(self) -> list[int]:
        assert self.postgres.producers() == self.of_memory.producers()
        return self.of_memory.producers()

    def starts(self, log: TopicIdPartition) -> tuple[int, int]:
        assert self.postgres.starts(log) == self.of_memory.starts(log)
        return self.of_memory.starts(log)

    def time_phase(self, log: TopicIdPartition, phase: Phase, began: float, ended: float) -> None:
        self.postgres.time_phase(log, phase, began, ended)
        self.of_memory.time_phase(log, phase, began, ended)

    def lose(self, log: TopicIdPartition, first: int, last: int) -> None:
        self.postgres.lose(log, first, last)
        self.of_memory.lose(log, first, last)

    def promote(self) -> None:
        self.postgres.promote()
        self.of_memory.promote()

    def set_clock(self, answer: object = None) -> None:
        """The memory's clock to the present, or to when Postgres appended what it answers."""
        self.of_memory.clock.now = time.time_ns() // 1_000_000
        if isinstance(answer, list):
            appended = [o for o in answer if getattr(o, "error", None) is CommitError.NONE]
            for outcome in appended:
                self.of_memory.clock.now = outcome.append_time - 1


class _OneConnection(PostgresScene):
    """Looks at the tables through one connection: thousands of steps ask."""

    def __init__(self, plane: ControlPlane, dsn: str) -> None:
        super().__init__(plane, dsn)
        self.eyes = psycopg.connect(dsn, options="-c search_path=tideline", autocommit=True)

    def sql(self, query: str, *parameters: object) -> list[tuple[object, ...]]:
        cursor = self.eyes.execute(query.encode(), parameters or None)
        return cursor.fetchall() if cursor.description else []


class _Connected:
    def __init__(self, database: Database) -> None:
        self._database = database
        self._connection = connect(database.settings(), application_name="twins")

    async def __aenter__(self) -> TwinScene:
        plane = await self._connection.__aenter__()
        self._scene = TwinScene(_OneConnection(plane, self._database.dsn))
        self._scene.clear()
        return self._scene

    async def __aexit__(self, *_: object) -> None:
        self._scene.postgres.jobs.close()
        self._scene.postgres.eyes.close()
        await self._connection.__aexit__(None, None, None)


class _Twins:
    """Stands for ``ControlPlane``: every method, of both."""

    def __init__(self, scene: TwinScene) -> None:
        self._scene = scene

    def __getattr__(self, name: str) -> Callable[..., Awaitable[Any]]:
        async def call(*arguments: Any, **named: Any) -> Any:
            seen = await _outcome(getattr(self._scene.postgres.plane, name), arguments, named)
            self._scene.set_clock(seen)
            expected = await _outcome(getattr(self._scene.memory, name), arguments, named)
            assert _alike(seen, expected), f"{name}: SQL says {seen!r}, the rules {expected!r}"
            if isinstance(expected, TidelineError):
                raise expected
            return seen

        return call


class _TwinJobs:
    """Stands for ``Upkeep``."""

    def __init__(self, scene: TwinScene) -> None:
        self._scene = scene

    def __getattr__(self, name: str) -> Callable[..., Any]:
        def call(*arguments: Any) -> Any:
            seen = getattr(self._scene.postgres.jobs, name)(*arguments)
            self._scene.set_clock()
            expected = getattr(self._scene.memory, name)(*arguments)
            assert seen == expected, f"{name}: SQL says {seen!r}, the rules {expected!r}"
            return seen

        return call


async def _outcome(
    call: Callable[..., Awaitable[Any]], arguments: tuple[Any, ...], named: dict[str, Any]
) -> Any:
    try:
        return await call(*arguments, **named)
    except TidelineError as error:
        return error


def _alike(seen: Any, expected: Any) -> bool:
    if isinstance(expected, TidelineError):
        return type(seen) is type(expected)
    return bool(_timeless(seen) == _timeless(expected))


def _timeless(answer: Any) -> Any:
    """Without what depends on when a row was written."""
    if is_dataclass(answer) and not isinstance(answer, type):
        return {name: _timeless(value) for name, value in asdict(answer).items()}
    if isinstance(answer, list | tuple):
        return [_timeless(one) for one in answer]
    if isinstance(answer, dict):
        return {key: _timeless(value) for key, value in answer.items()}
    return None if isinstance(answer, datetime) else answer
