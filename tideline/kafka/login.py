"""SASL on a connection of our own: SaslHandshake v1, then SaslAuthenticate (KIP-43, KIP-152)."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from kio.schema.errors import ErrorCode
from kio.schema.sasl_authenticate.v1.request import SaslAuthenticateRequest
from kio.schema.sasl_authenticate.v1.response import SaslAuthenticateResponse
from kio.schema.sasl_handshake.v1.request import SaslHandshakeRequest
from kio.schema.sasl_handshake.v1.response import SaslHandshakeResponse
from kio.static.protocol import RequestPayload, ResponsePayload

from tideline.domain.security import OwnMechanism
from tideline.kafka.errors import KafkaError
from tideline.kafka.scram import ScramClient, ScramFailed
from tideline.kafka.security import KafkaSecurity

Send = Callable[[RequestPayload], Awaitable[ResponsePayload]]
REMEDY = (
    "look at TIDELINE_KAFKA_SASL_MECHANISM, TIDELINE_KAFKA_SASL_USERNAME and "
    "TIDELINE_KAFKA_SASL_PASSWORD_FILE"
)


async def log_in(send: Send, security: KafkaSecurity, peer: str) -> int:
    """Log in; for how many ms the broker takes it (``connections.max.reauth.ms``), 0: for ever.

    ``peer`` names the broker in errors. Raises :class:`KafkaError` if it refuses.
    """
    mechanism = security.mechanism
    assert mechanism is not None
    who = f"{security.username!r} at broker {peer} by {mechanism}"
    answer = await send(SaslHandshakeRequest(mechanism=str(mechanism)))
    assert isinstance(answer, SaslHandshakeResponse)
    if answer.error_code is not ErrorCode.none:
        offered = ", ".join(answer.mechanisms) or "none"
        raise KafkaError(answer.error_code, f"login of {who} (it offers {offered}); {REMEDY}")

    async def say(token: bytes) -> SaslAuthenticateResponse:
        told = await send(SaslAuthenticateRequest(auth_bytes=token))
        assert isinstance(told, SaslAuthenticateResponse)
        if told.error_code is not ErrorCode.none:
            raise KafkaError(told.error_code, f"login of {who} ({told.error_message}); {REMEDY}")
        return told

    if mechanism is OwnMechanism.PLAIN:
        last = await say(b"\0".join((b"", security.username.encode(), security.password.encode())))
    else:
        scram = ScramClient(mechanism, security.username, security.password)
        try:
            challenge = await say(scram.first())
            last = await say(await asyncio.to_thread(scram.final, challenge.auth_bytes))
            scram.verify(last.auth_bytes)
        except ScramFailed as error:
            code = ErrorCode.sasl_authentication_failed
            raise KafkaError(code, f"login of {who}: {error}") from None
    return int(last.session_lifetime.total_seconds() * 1000)
