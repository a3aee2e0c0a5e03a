"""What a broker's SASL listener answers, with Kafka's order of things, for fake brokers."""

from __future__ import annotations

import base64
import hashlib
import hmac
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any

from kio.schema.errors import ErrorCode
from kio.schema.sasl_authenticate.v1.response import SaslAuthenticateResponse
from kio.schema.sasl_handshake.v1.response import SaslHandshakeResponse
from kio.static.primitive import i64Timedelta

from tests.unit.kafka.fake_broker import api_versions
from tideline.kafka.protocol import RequestHeader, decode_request, encode_response

MECHANISMS = ("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512", "OAUTHBEARER")
Answer = Callable[[RequestHeader, bytes], Awaitable[bytes | None]]


@dataclass
class SaslBroker:
    """The answers of one connection at a time; anything else goes to ``then``."""

    then: Answer
    users: dict[str, str] = field(default_factory=lambda: {"alice": "secret"})
    lifetime_ms: int = 0
    iterations: int = 4_096
    mechanisms: tuple[str, ...] = MECHANISMS
    """Those that it has enabled."""
    logins: list[str] = field(default_factory=list)
    """Who has logged in, in order."""
    _mechanism: str = ""
    _scram: tuple[str, str] | None = None
    """The client's first message without its header, and the server's."""

    async def __call__(self, header: RequestHeader, frame: bytes) -> bytes | None:
        if header.api_key == 18:
            return api_versions(header)
        if header.api_key not in (17, 36):
            return await self.then(header, frame)
        request: Any = decode_request(frame, header)
        if header.api_key == 17:
            return encode_response(self._handshake(request.mechanism), header.correlation_id)
        return encode_response(self._authenticate(request.auth_bytes), header.correlation_id)

    def _handshake(self, mechanism: str) -> SaslHandshakeResponse:
        self._mechanism, self._scram = mechanism, None
        known = mechanism in self.mechanisms
        code = ErrorCode.none if known else ErrorCode.unsupported_sasl_mechanism
        return SaslHandshakeResponse(error_code=code, mechanisms=self.mechanisms)

    def _authenticate(self, token: bytes) -> SaslAuthenticateResponse:
        if self._mechanism == "PLAIN":
            _, user, password = token.decode().split("\0")
            good = self.users.get(user) == password
            return self._told(b"", user if good else None)
        if self._mechanism == "OAUTHBEARER":
            good = b"auth=Bearer " in token
            return self._told(b"", "token") if good else self._went_on(b'{"status":"invalid"}')
        if self._scram is None:
            return self._scram_first(token.decode())
        return self._scram_final(token.decode())

    def _scram_first(self, message: str) -> SaslAuthenticateResponse:
        bare = message.removeprefix("n,,")
        nonce = bare.partition("r=")[2]
        salt = base64.b64encode(b"salt of 16 bytes").decode()
        first = f"r={nonce}server,s={salt},i={self.iterations}"
        self._scram = bare, first
        return self._went_on(first.encode())

    def _scram_final(self, message: str) -> SaslAuthenticateResponse:
        assert self._scram is not None
        kind = "sha256" if self._mechanism.endswith("256") else "sha512"
        without_proof, _, proof = message.rpartition(",p=")
        user = self._scram[0].partition("n=")[2].partition(",")[0]
        password = self.users.get(user, "").encode()
        salted = hashlib.pbkdf2_hmac(kind, password, b"salt of 16 bytes", self.iterations)
        key = hmac.digest(salted, b"Client Key", kind)
        signed = ",".join((*self._scram, without_proof)).encode()
        signature = hmac.digest(hashlib.new(kind, key).digest(), signed, kind)
        right = bytes(a ^ b for a, b in zip(key, signature, strict=True))
        if base64.b64decode(proof) != right or user not in self.users:
            return self._told(b"", None)
        server = hmac.digest(hmac.digest(salted, b"Server Key", kind), signed, kind)
        return self._told(b"v=" + base64.b64encode(server), user)

    def _went_on(self, token: bytes) -> SaslAuthenticateResponse:
        return SaslAuthenticateResponse(
            error_code=ErrorCode.none, error_message=None, auth_bytes=token
        )

    def _told(self, token: bytes, user: str | None) -> SaslAuthenticateResponse:
        if user is None:
            return SaslAuthenticateResponse(
                error_code=ErrorCode.sasl_authentication_failed,
                error_message="Authentication failed: Invalid username or password",
                auth_bytes=b"",
            )
        self.logins.append(user)
        lifetime = i64Timedelta.parse(timedelta(milliseconds=self.lifetime_ms))
        return SaslAuthenticateResponse(
            error_code=ErrorCode.none,
            error_message=None,
            auth_bytes=token,
            session_lifetime=lifetime,
        )
