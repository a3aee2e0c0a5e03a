"""SASL between a client and the paired broker, relayed and followed.

The broker authenticates the client on the client's own connection. Until it has, nothing but SASL
and ApiVersions is looked at or sent on; while a login is renewed, what handlers send waits.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from kio.schema.errors import ErrorCode
from kio.schema.sasl_handshake.v0.response import SaslHandshakeResponse as HandshakeV0
from kio.schema.sasl_handshake.v1.request import SaslHandshakeRequest
from kio.schema.sasl_handshake.v1.response import SaslHandshakeResponse as HandshakeV1

from tideline.domain.foreign_text import quoted
from tideline.domain.sasl import (
    SASL_AUTHENTICATE,
    SASL_HANDSHAKE,
    Authentication,
    Identity,
    Mechanism,
    Stage,
)
from tideline.gateway.metrics import AUTHENTICATIONS
from tideline.gateway.transport.broker import Expected
from tideline.kafka.protocol import (
    RequestHeader,
    decode_request,
    decode_response,
    encode_request,
    encode_response,
)
from tideline.settings import GatewaySettings

MAX_FRAME_BYTES = 524_288
"""Before a login is complete: ``sasl.server.max.receive.size``."""
LOGIN_S = 30.0
"""A client whose login, or its renewal, takes longer is disconnected."""
_LIFETIME_BYTES = 8
"""By so much an answer to SaslAuthenticate v1 is longer than one of v0."""
RELAYED = tuple(str(each) for each in Mechanism)
NOBODYS_MECHANISM = "NOT-RELAYED"
"""In the place of one that is not relayed, and which the broker may have."""
_UNHEARD_OF_VERSION = (2**15 - 1).to_bytes(2, "big")


def stranger_frame_bytes(settings: GatewaySettings) -> int:
    """The most that a request of who has not logged in may have; of anybody, where nobody does."""
    most = settings.gateway_max_frame_bytes
    return min(most, MAX_FRAME_BYTES) if settings.gateway_security_protocol.is_sasl else most


@dataclass(frozen=True, slots=True)
class Refusal:
    """Of a handshake whose exchange is not relayed, whatever the broker would make of it."""

    code: ErrorCode
    reason: str
    """Why the connection ends."""


class Login:
    """One client's: what may pass, what is sent on in which form, and what waits."""

    def __init__(self) -> None:
        self._state = Authentication()
        self._refused: Refusal | None = None
        """Of the handshake that the broker is asked about."""
        self.waits = False
        """A SASL answer is due: the client's next request is looked at after it, as the broker
        does."""
        self.held: list[tuple[bytes, Expected | None]] = []
        """What was to be sent to the broker while a login is renewed, in order."""

    @property
    def identity(self) -> Identity | None:
        """Who the broker has taken the client for; ``None`` before it has."""
        return self._state.identity

    @property
    def is_complete(self) -> bool:
        """The broker takes all requests now."""
        return self._state.stage is Stage.DONE and not self.waits

    @property
    def expires_at(self) -> float | None:
        """On the event loop's clock: from then on nothing but a new login is taken."""
        return self._state.expires_at

    @property
    def owes_nothing(self) -> bool:
        """A renewal waits for its client, and what was sent before is served: the broker's last
        SASL answer shows it. What is held is no request of the client's."""
        held = any(expected is None or not expected.own for _, expected in self.held)
        return self._state.stage is Stage.TOKENS and not self.waits and not held

    def refuses(self, api_key: int, now: float) -> str | None:
        """See :meth:`Authentication.refuses`."""
        return self._state.refuses(api_key, now)

    def sends(self, frame: bytes, header: RequestHeader, now: float) -> bytes:
        """The frame for the broker in the place of the client's SASL request. Raises
        :class:`~tideline.kafka.errors.MalformedFrame`, and
        :class:`~tideline.kafka.errors.UnsupportedVersion`."""
        request: Any = decode_request(frame, header)
        if header.api_key == SASL_HANDSHAKE:
            self._refused = _refused(header, request.mechanism)
            if self._refused is None:
                self._state.shakes(Mechanism(request.mechanism))
            else:
                # The broker refuses it, too, and says what it takes.
                asked = SaslHandshakeRequest(mechanism=NOBODYS_MECHANISM)
                frame = encode_request(asked, header.correlation_id, header.client_id)
        else:
            self._state.says(request.auth_bytes, now)
            if header.api_version == 0:
                # Version 1 is the same, and its answer says how long the login holds.
                frame = b"".join((frame[:2], b"\0\1", frame[4:]))
        self.waits = True
        return frame

    def answered(self, response: bytes, header: RequestHeader) -> tuple[bytes, str | None]:
        """The frame for the client, and why its connection has to end, if it has. Raises as
        :meth:`sends`."""
        self.waits = False
        if header.api_key == SASL_HANDSHAKE:
            return self._shaken(response, header)
        answer: Any = decode_response(response, SASL_AUTHENTICATE, max(header.api_version, 1))
        accepted = answer.error_code is ErrorCode.none
        lifetime_ms = int(answer.session_lifetime.total_seconds() * 1000)
        why = self._state.told(accepted, answer.auth_bytes, lifetime_ms)
        if self._state.stage is not Stage.TOKENS:
            outcome = "done" if self._state.stage is Stage.DONE else "refused"
            AUTHENTICATIONS.labels(outcome).inc()
        return response[:-_LIFETIME_BYTES] if header.api_version == 0 else response, why

    def _shaken(self, response: bytes, header: RequestHeader) -> tuple[bytes, str | None]:
        """A client may choose by the mechanisms of an answer: they are those that the broker has
        enabled, and that are relayed."""
        refused, self._refused = self._refused, None
        version = header.api_version if refused is None else HandshakeV1.__version__
        answer: Any = decode_response(response, SASL_HANDSHAKE, version)
        enabled = tuple(each for each in answer.mechanisms if each in RELAYED)
        if refused is None:
            self._state.shaken(answer.error_code is ErrorCode.none)
            told = replace(answer, mechanisms=enabled)
            return encode_response(told, header.correlation_id), None
        AUTHENTICATIONS.labels("refused").inc()
        kind: Any = HandshakeV0 if header.api_version == 0 else HandshakeV1
        told = kind(error_code=refused.code, mechanisms=enabled)
        return encode_response(told, header.correlation_id), refused.reason


def _refused(header: RequestHeader, mechanism: str) -> Refusal | None:
    if header.api_version == 0:
        why = (
            "it would go on with tokens that are no Kafka requests (SaslHandshake v0): use a "
            "client that knows SaslHandshake v1 (KIP-152, 2017)"
        )
        return Refusal(ErrorCode.unsupported_version, why)
    if mechanism not in RELAYED:
        asked = quoted(mechanism, 40)
        why = f"it asks for SASL mechanism {asked}: {', '.join(RELAYED)} are relayed"
        return Refusal(ErrorCode.unsupported_sasl_mechanism, why)
    return None


def versions_nobody_has(frame: bytes, header: RequestHeader) -> bytes:
    """An ApiVersions request in place of one that is too new here, which the broker does not take
    for the one that it allows before a login: it answers UNSUPPORTED_VERSION, and waits on."""
    return b"".join((frame[:2], _UNHEARD_OF_VERSION, frame[4 : header.body_start], b"\0"))
