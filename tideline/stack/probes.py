"""Does it answer? Each probe raises :class:`NotReadyError` with the reason when it does not."""

from __future__ import annotations

import http.client
import io
import socket
import struct

from kio.schema.metadata.v1.request import MetadataRequest
from kio.schema.metadata.v1.response import MetadataResponse
from kio.schema.request_header.v1.header import RequestHeader
from kio.serial import entity_reader, entity_writer
from kio.static.primitive import i16, i32

from tideline.stack.errors import NotReadyError

Address = tuple[str, int]

MAX_ANSWER_BYTES = 4_000_000


def show(address: Address) -> str:
    return f"{address[0]}:{address[1]}"


def kafka_nodes(address: Address, timeout_s: float = 2) -> set[int]:
    """Node ids of the brokers that the broker or gateway at ``address`` names as alive."""
    header = RequestHeader(
        request_api_key=i16(3),
        request_api_version=i16(1),
        correlation_id=i32(1),
        client_id="tideline-stack",
    )
    request = io.BytesIO()
    entity_writer(RequestHeader)(request, header)
    entity_writer(MetadataRequest)(request, MetadataRequest(topics=()))
    body = request.getvalue()
    try:
        with socket.create_connection(address, timeout_s) as connection:
            connection.settimeout(timeout_s)
            connection.sendall(struct.pack(">i", len(body)) + body)
            (size,) = struct.unpack(">i", _read(connection, 4))
            if not 4 <= size <= MAX_ANSWER_BYTES:
                raise NotReadyError(f"{show(address)} does not speak Kafka")
            answer = _read(connection, size)
    except OSError as error:
        raise NotReadyError(f"{show(address)}: {error}") from None
    response, _ = entity_reader(MetadataResponse)(answer, 4)
    return {int(broker.node_id) for broker in response.brokers}


def _read(connection: socket.socket, size: int) -> bytes:
    chunks = bytearray()
    while len(chunks) < size:
        chunk = connection.recv(size - len(chunks))
        if not chunk:
            raise NotReadyError("the connection was closed")
        chunks += chunk
    return bytes(chunks)


def http_up(address: Address, path: str, timeout_s: float = 2) -> None:
    """``GET path`` must answer 200."""
    connection = http.client.HTTPConnection(*address, timeout=timeout_s)
    try:
        connection.request("GET", path)
        status = connection.getresponse().status
    except (OSError, http.client.HTTPException) as error:
        raise NotReadyError(f"{show(address)}{path}: {error or type(error).__name__}") from None
    finally:
        connection.close()
    if status != 200:
        raise NotReadyError(f"{show(address)}{path} answers {status}")
