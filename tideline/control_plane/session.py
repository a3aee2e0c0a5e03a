"""What every session with Postgres is to hold, whatever a server, a database or a role has set.

What a connection says in its start-up message outweighs each of these defaults ("Server
Configuration", 20.1.3 in Postgres' documentation). Named is what changes what text or bytes come
back, what a statement means, or whether a call ends; planner and memory are the database
administrator's.
"""

from __future__ import annotations

import re
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

EXPECTED: Mapping[str, str] = {
    # Postgres 17 and newer: it ends the connection, whatever statement_timeout says. Older ones
    # refuse a connection that names it.
    "transaction_timeout": "0",
    # Else triggers do not fire. Only a superuser may say so of a session.
    "session_replication_role": "origin",
}
"""What a session cannot be started with, and has to be all the same."""
_WORD, _ESCAPED = re.compile(r"(?:\\.|[^\s\\])+"), re.compile(r"\\(.)")
"""Of ``options``, in which a backslash alone quotes (``pg_split_opts`` in postinit.c)."""
_TIMEOUTS = ("statement_timeout", "idle_in_transaction_session_timeout")


def given_to(conninfo: str) -> dict[str, str]:
    """Of the parameters that a connection string of :func:`with_session` gives a session those of
    which Tideline knows how Postgres shows them."""
    words = _WORD.findall(str(conninfo_to_dict(conninfo).get("options") or ""))
    plain = [_ESCAPED.sub(r"\1", word) for word in words]
    given = dict(word.split("=", 1) for word in plain if "=" in word)
    return {name: given[name] for name in (*SESSION, *_TIMEOUTS) if name in given}


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
