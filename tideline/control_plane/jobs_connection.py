"""One connection to Postgres for a Spark driver or executor, healed after an outage.

As in :mod:`tideline.control_plane.pool` every operation is one call of one SQL function in
autocommit: it happened or it did not, and may be repeated.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, LiteralString, TypeVar

import psycopg
from psycopg.rows import DictRow, dict_row
from tenacity import (
    Retrying,
    retry_if_exception_type,
    stop_after_attempt,
    wait_random_exponential,
)

from tideline.control_plane.errors import ControlPlaneUnavailable, translate
from tideline.control_plane.pool import ATTEMPTS, conninfo
from tideline.settings import ControlPlaneSettings

STATEMENT_TIMEOUT_MS = 60_000
"""Jobs move many rows in one call: a segment of 100,000 batches takes seconds."""

Row = TypeVar("Row")


class JobsConnection:
    """Connects at the first call. Calls of several threads wait for each other."""

    def __init__(self, settings: ControlPlaneSettings, application_name: str) -> None:
        patient = settings.model_copy(
            update={"postgres_statement_timeout_ms": STATEMENT_TIMEOUT_MS}
        )
        self._conninfo = conninfo(patient, application_name)
        self._connection: psycopg.Connection[DictRow] | None = None
        self._lock = threading.Lock()

    def close(self) -> None:
        with self._lock:
            if self._connection is not None:
                self._connection.close()
                self._connection = None

    def fetch(self, query: LiteralString, *parameters: Any) -> list[DictRow]:
        """Run one statement and return its rows; repeated when the connection breaks.

        Raises :class:`ControlPlaneUnavailable` when the attempts are used up, and the typed
        refusals.
        """
        attempts = Retrying(
            stop=stop_after_attempt(ATTEMPTS),
            wait=wait_random_exponential(multiplier=0.05, max=1.0),
            retry=retry_if_exception_type(ControlPlaneUnavailable),
            reraise=True,
        )
        for attempt in attempts:
            with attempt, self._lock:
                return self._once(query, parameters)
        raise AssertionError("unreachable: the last attempt returns or raises")

    def pages(
        self,
        query: LiteralString,
        first: Sequence[Any],
        after: Callable[[DictRow], Sequence[Any]],
        build: Callable[[Mapping[str, Any]], Row],
        size: int,
    ) -> Iterator[Row]:
        """Rows of a keyset query page by page: ``query`` takes ``first``, then what ``after`` says
        of a page's last row, and ``size`` as its last parameter.
        """
        parameters = first
        while True:
            rows = self.fetch(query, *parameters, size)
            yield from map(build, rows)
            if len(rows) < size:
                return
            parameters = after(rows[-1])

    def _once(self, query: LiteralString, parameters: tuple[Any, ...]) -> list[DictRow]:
        try:
            if self._connection is None or self._connection.closed:
                self._connection = psycopg.connect(
                    self._conninfo, autocommit=True, row_factory=dict_row, prepare_threshold=2
                )
            cursor = self._connection.execute(query, parameters)
            return cursor.fetchall() if cursor.description else []
        except (psycopg.Error, OSError) as error:
            if self._connection is not None and self._connection.broken:
                self._connection.close()
                self._connection = None
            raise translate(error) from error
