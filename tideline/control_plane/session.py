"""What every session with Postgres is to hold, whatever a server, a database or a role has set.

What a connection says in its start-up message outweighs each of these defaults ("Server
Configuration", 20.1.3 in Postgres' documentation). Named is what changes what text or bytes come
back, what a statement means, or whether a call ends; planner and memory are the database
administrator's.
"""

from __future__ import annotations

from collections.abc import Mapping

from psycopg.conninfo import conninfo_to_dict, make_conninfo

SESSION: Mapping[str, str] = {
    # psycopg reads no other timestamps and intervals.
    "DateStyle": "ISO",
    "IntervalStyle": "postgres",
    "TimeZone": "UTC",
    "bytea_output": "hex",
    "extra_float_digits": "1",
    # Functions are written for these.
    "default_transaction_isolation": "read committed",
    "default_transaction_read_only": "off",
    "default_transaction_deferrable": "off",
    "standard_conforming_strings": "on",
    "transform_null_equals": "off",
    "array_nulls": "on",
    "plpgsql.extra_errors": "none",
    "row_security": "on",
    # A commit that a crash can undo would lose B0.
    "synchronous_commit": "on",
    # Waits are bounded by statement_timeout, and by those who call.
    "lock_timeout": "0",
    "idle_session_timeout": "0",
    # A refusal ends no connection.
    "exit_on_error": "off",
}


def with_session(dsn: str, more: Mapping[str, object] | None = None) -> str:
    """The connection string with :data:`SESSION`, and with ``more`` parameters of the server. What
    ``dsn`` has in ``options`` is kept, and outweighed."""
    wanted = {**SESSION, **(more or {})}
    settings = " ".join(
        f"-c {name}={str(value).replace(chr(92), chr(92) * 2).replace(' ', chr(92) + ' ')}"
        for name, value in wanted.items()
    )
    given = conninfo_to_dict(dsn).get("options") or ""
    return make_conninfo(dsn, client_encoding="UTF8", options=f"{given} {settings}".strip())
