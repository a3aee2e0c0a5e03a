"""The client's side of SCRAM (RFC 5802, RFC 7677), with names and passwords as Kafka takes them.

Kafka does not prepare strings (``ScramFormatter.normalize``: UTF-8, no SASLprep), nor does this.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import secrets
from collections.abc import Mapping

from tideline.domain.security import OwnMechanism

MIN_ITERATIONS = 4_096
"""RFC 7677, and Kafka's own least: whoever asks for fewer wants the password guessed."""
MAX_ITERATIONS = 1_000_000
"""Kafka's own most is 16,384; a second of work is refused."""
MAX_CHALLENGE_BYTES = 16_384
_HASHES: Mapping[OwnMechanism, str] = {
    OwnMechanism.SCRAM_SHA_256: "sha256",
    OwnMechanism.SCRAM_SHA_512: "sha512",
}
_NO_BINDING = "n,,"


class ScramFailed(Exception):
    """The server's messages are wrong, or it does not know the password either."""


class ScramClient:
    """One exchange: :meth:`first`, :meth:`final` of the server's first message, then
    :meth:`verify` of its last."""

    def __init__(
        self, mechanism: OwnMechanism, username: str, password: str, nonce: str | None = None
    ) -> None:
        """``nonce``: printable, without commas; random unless a test gives it."""
        self._hash = _HASHES[mechanism]
        self._password = password.encode()
        self._nonce = nonce or secrets.token_urlsafe(24)
        name = username.replace("=", "=3D").replace(",", "=2C")
        self._first_bare = f"n={name},r={self._nonce}"
        self._expected: bytes | None = None

    def first(self) -> bytes:
        return f"{_NO_BINDING}{self._first_bare}".encode()

    def final(self, challenge: bytes) -> bytes:
        """The answer to the server's first message. Takes milliseconds (PBKDF2). Raises
        :class:`ScramFailed`."""
        text, fields = _fields(challenge)
        nonce, salt = fields.get("r", ""), _bytes(fields.get("s", ""), "salt")
        if "m" in fields:
            raise ScramFailed("the server asks for an extension that is not known here")
        if not nonce.startswith(self._nonce) or nonce == self._nonce:
            raise ScramFailed("the server answered another exchange's nonce")
        count = fields.get("i", "")
        # Not isdigit(): that takes digits of other scripts.
        iterations = int(count) if count.isascii() and count.isdecimal() and len(count) < 10 else 0
        if not salt or not MIN_ITERATIONS <= iterations <= MAX_ITERATIONS:
            raise ScramFailed(
                f"the server asks for {count or 'no'} iterations: {MIN_ITERATIONS} to "
                f"{MAX_ITERATIONS} are done"
            )
        salted = hashlib.pbkdf2_hmac(self._hash, self._password, salt, iterations)
        client_key = self._mac(salted, b"Client Key")
        binding = base64.b64encode(_NO_BINDING.encode()).decode()
        without_proof = f"c={binding},r={nonce}"
        signed = f"{self._first_bare},{text},{without_proof}".encode()
        signature = self._mac(hashlib.new(self._hash, client_key).digest(), signed)
        proof = bytes(a ^ b for a, b in zip(client_key, signature, strict=True))
        self._expected = self._mac(self._mac(salted, b"Server Key"), signed)
        return f"{without_proof},p={base64.b64encode(proof).decode()}".encode()

    def verify(self, outcome: bytes) -> None:
        """The server's last message proves that it knows the password. Raises
        :class:`ScramFailed`."""
        _, fields = _fields(outcome)
        if "e" in fields:
            raise ScramFailed(f"the server says {fields['e']}")
        if self._expected is None or not hmac.compare_digest(
            _bytes(fields.get("v", ""), "signature"), self._expected
        ):
            raise ScramFailed("the server does not prove that it knows the password")

    def _mac(self, key: bytes, text: bytes) -> bytes:
        return hmac.digest(key, text, self._hash)


def _fields(message: bytes) -> tuple[str, dict[str, str]]:
    if len(message) > MAX_CHALLENGE_BYTES:
        raise ScramFailed(f"the server's message has {len(message)} bytes")
    try:
        text = message.decode()
    except UnicodeDecodeError:
        raise ScramFailed("the server's message is no UTF-8") from None
    return text, {part[:1]: part[2:] for part in text.split(",") if part[1:2] == "="}


def _bytes(text: str, what: str) -> bytes:
    try:
        return base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError):
        raise ScramFailed(f"the server's {what} is no base64") from None
