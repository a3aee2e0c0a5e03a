"""``sslmode=verify-full`` in the connection string holds for every connection to Postgres.

The Postgres that tests start is built without TLS: a front of the test's own ends it.
"""

from __future__ import annotations

import asyncio
import contextlib
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from psycopg.conninfo import make_conninfo

from tests.contract.conftest import Database, PostgresServer
from tideline.control_plane import connect
from tideline.control_plane.errors import ControlPlaneUnavailable
from tideline.control_plane.migrate import provision_roles
from tideline.control_plane.server_probe import probe
from tideline.domain.security import ClientAuth
from tideline.kafka.tls import TlsFiles
from tideline.settings import ControlPlaneSettings
from tideline.stack.certificates import Authority

SSL_REQUEST = (8).to_bytes(4, "big") + (80_877_103).to_bytes(4, "big")
"""What a client of Postgres asks first, if it wants TLS."""


@asynccontextmanager
async def tls_before(port: int, context: ssl.SSLContext) -> AsyncIterator[int]:
    """The port of a front that takes nobody in clear text; before the server at ``port``."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(ConnectionError, ssl.SSLError, asyncio.IncompleteReadError):
            if await reader.readexactly(8) != SSL_REQUEST:
                return writer.close()
            writer.write(b"S")
            await writer.start_tls(context)
            behind, before = await asyncio.open_connection("127.0.0.1", port)
            await asyncio.gather(passed_on(reader, before), passed_on(behind, writer))
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    try:
        yield server.sockets[0].getsockname()[1]
    finally:
        server.close()


async def passed_on(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with contextlib.suppress(ConnectionError, ssl.SSLError):
        while some := await reader.read(65_536):
            writer.write(some)
            await writer.drain()
    writer.close()


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    return Authority.load_or_create(tmp_path / "ca")


async def test_a_server_that_proves_its_name_is_used_and_no_other(
    postgres_server: PostgresServer, database: Database, authority: Authority, tmp_path: Path
) -> None:
    pair = authority.issue("postgres", "postgres.example")
    context = TlsFiles(None, pair.certificate, pair.key).server_context(ClientAuth.NONE)
    other = Authority.load_or_create(tmp_path / "other", "somebody else")
    async with tls_before(postgres_server.port, context) as port:

        def settings(**given: str) -> ControlPlaneSettings:
            verified = {"sslmode": "verify-full", "sslrootcert": str(authority.certificate)}
            whose = database.as_role("tideline_worker")
            dsn = make_conninfo(whose, port=port, **{**verified, **given})
            return ControlPlaneSettings.model_validate({"postgres_dsn": dsn})

        async with connect(settings(), application_name="verified") as plane:
            assert await plane.attestations() == []
        assert (await probe(settings(), "verified")).schema_agrees
        await asyncio.to_thread(
            provision_roles,
            settings(user="postgres", password="").postgres_dsn.get_secret_value(),
            {},
        )
        for wrong, why in (
            ({"sslrootcert": str(other.certificate)}, "certificate verify failed"),
            ({"host": "localhost"}, "localhost"),
            ({"sslmode": "disable"}, "closed"),
        ):
            with pytest.raises(ControlPlaneUnavailable, match=why):
                await probe(settings(**wrong), "refused")
