"""A broker of the test's own making, on a real socket."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import fields
from datetime import timedelta
from types import TracebackType
from typing import Any, Self

from kio.schema.api_versions.v0.response import ApiVersion, ApiVersionsResponse
from kio.schema.errors import ErrorCode
from kio.static.primitive import i16

from tests.support.waiting import bounded
from tideline.gateway.messages import messages
from tideline.kafka.protocol import (
    RequestHeader,
    decodable_versions,
    encode_response,
    parse_header,
)

Answer = Callable[[RequestHeader, bytes], Awaitable[bytes | None]]
"""Makes the response frame of a request; ``None``: no response."""

UNHEARD_OF = 95
"""No Kafka to 4.4 has such an API."""


SAYS_FEATURES = 3
"""Version of ApiVersions."""


def api_versions(
    header: RequestHeader, level: int | None = None, *, highest: Mapping[int, int] | None = None
) -> bytes:
    """Every API that can be decoded, in versions that cannot too, and one that nobody knows.
    ``level``: the highest metadata.version that it says to support. ``highest``: by API key, where
    that is another one."""
    keys = [
        ApiVersion(
            api_key=i16(key),
            min_version=i16(v.start),
            max_version=i16((highest or {}).get(key, v.stop + 2)),
        )
        for key in range(UNHEARD_OF)
        if (v := decodable_versions(key))
    ]
    keys.append(ApiVersion(api_key=i16(UNHEARD_OF), min_version=i16(0), max_version=i16(0)))
    known = header.api_version in decodable_versions(header.api_key)
    if not known or header.api_version < SAYS_FEATURES:
        code = ErrorCode.none if known else ErrorCode.unsupported_version
        message = ApiVersionsResponse(error_code=code, api_keys=tuple(keys))
        return encode_response(message, header.correlation_id)
    api = messages(header.api_key, header.api_version)
    features = () if level is None else (("metadata.version", level),)
    answer = api.response(
        error_code=ErrorCode.none,
        api_keys=tuple(
            api.response_part("ApiVersion", **{f.name: getattr(k, f.name) for f in fields(k)})
            for k in keys
        ),
        throttle_time=timedelta(0),
        supported_features=tuple(
            api.response_part("SupportedFeatureKey", name=n, min_version=i16(1), max_version=i16(m))
            for n, m in features
        ),
        finalized_features=(),
    )
    return encode_response(answer, header.correlation_id)


class FakeBroker:
    """Serves each connection one request at a time, as Kafka does."""

    def __init__(self, answer: Answer, tls: ssl.SSLContext | None = None) -> None:
        self._answer, self._tls = answer, tls
        self._server: asyncio.Server | None = None
        self.received: list[RequestHeader] = []
        self.frames: list[bytes] = []
        self.writers: list[asyncio.StreamWriter] = []
        self.asking: asyncio.StreamWriter | None = None
        """Of whose request is being answered, until its answer is waited for."""
        self.arrived = asyncio.Condition()
        self._stopped_at = ("", 0)

    @property
    def address(self) -> tuple[str, int]:
        assert self._server is not None
        if not self._server.sockets:
            return self._stopped_at
        host, port = self._server.sockets[0].getsockname()[:2]
        return host, port

    async def __aenter__(self) -> Self:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0, ssl=self._tls)
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        assert self._server is not None
        self._server.close()
        self.hang_up()

    async def stop(self) -> None:
        """As a broker that is stopped: no connections, and no new ones."""
        assert self._server is not None
        self._stopped_at = self.address
        self._server.close()
        self.hang_up()

    async def start_again(self) -> None:
        """Where it was."""
        self._server = await asyncio.start_server(self._serve, *self._stopped_at, ssl=self._tls)

    def hang_up(self) -> None:
        """End every connection at once."""
        for writer in self.writers:
            writer.transport.abort()
        self.writers.clear()

    async def until_received(self, count: int) -> None:
        """Wait until ``count`` requests have arrived."""
        async with bounded(f"request {count} at the broker"), self.arrived:
            await self.arrived.wait_for(lambda: len(self.received) >= count)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.writers.append(writer)
        try:
            while True:
                size = int.from_bytes(await reader.readexactly(4), "big")
                frame = await reader.readexactly(size)
                header = parse_header(frame)
                async with self.arrived:
                    self.received.append(header)
                    self.frames.append(frame)
                    self.arrived.notify_all()
                self.asking = writer
                response = await self._answer(header, frame)
                if response is not None:
                    writer.write(len(response).to_bytes(4, "big") + response)
                    await writer.drain()
        except (asyncio.IncompleteReadError, ConnectionError):
            writer.close()


async def nothing_but_versions(header: RequestHeader, frame: bytes) -> Any:
    """Answers ApiVersions and leaves everything else unanswered."""
    return api_versions(header) if header.api_key == 18 else None
