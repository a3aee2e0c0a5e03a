"""Signature Version 4 of a call of S3, as its documentation has it ("Signature Calculations for the
Authorization Header: Transferring Payload in a Single Chunk").

It is what ``botocore.auth.S3SigV4Auth`` makes, byte for byte (a property test), at a fourteenth of
its cost: the key of a day is derived once, and no request is taken apart that was put together just
before.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import time
from collections.abc import Mapping
from typing import Protocol, TypeAlias
from urllib.parse import quote

Piece: TypeAlias = bytes | bytearray | memoryview
"""A ``memoryview`` of bytes."""
Body: TypeAlias = Piece | tuple[Piece, ...]
"""Of a call; what lies in pieces is sent as it lies."""
_ALGORITHM = "AWS4-HMAC-SHA256"


class Keys(Protocol):
    """What signs; ``token`` goes with keys that end by themselves."""

    @property
    def access_key(self) -> str | None: ...

    @property
    def secret_key(self) -> str | None: ...

    @property
    def token(self) -> str | None: ...


def pieces(body: Body) -> tuple[Piece, ...]:
    return body if isinstance(body, tuple) else (body,)


def size(body: Body) -> int:
    """In bytes."""
    return sum(map(len, pieces(body)))


def escaped(key: str) -> str:
    """An object's key in a URL, as it is sent and signed: slashes stay, dots are not resolved."""
    return quote(key, safe="/~")


def content_md5(body: Body) -> str:
    """The value of ``Content-MD5`` (RFC 1864). Under S3 Object Lock a checksum is needed, and this
    is the one that every store knows."""
    found = hashlib.md5(usedforsecurity=False)
    for piece in pieces(body):
        found.update(piece)
    return base64.b64encode(found.digest()).decode()


class Signer:
    """Signs for one region. Safe to share between threads."""

    def __init__(self, region: str) -> None:
        self._region = region
        self._derived: tuple[str, str | None, bytes] = ("", "", b"")
        """Day and secret, and the key that is derived of them."""

    def headers(
        self,
        method: str,
        path: str,
        signed: Mapping[str, str],
        body: Body,
        keys: Keys,
        now_s: float,
        query: str = "",
    ) -> dict[str, str]:
        """``signed`` (names in lower case, ``host`` among them) and what makes them a signed call.
        ``path`` and ``query`` are escaped, the latter in the order of its names; ``now_s`` since
        the epoch."""
        moment = time.strftime("%Y%m%dT%H%M%SZ", time.gmtime(now_s))
        of_body = hashlib.sha256()
        for piece in pieces(body):
            of_body.update(piece)
        digest = of_body.hexdigest()
        headers = {**signed, "x-amz-content-sha256": digest, "x-amz-date": moment}
        if keys.token:
            headers["x-amz-security-token"] = keys.token
        names = sorted(headers)
        lines = "".join([f"{name}:{headers[name]}\n" for name in names])
        listed = ";".join(names)
        request = f"{method}\n{path}\n{query}\n{lines}\n{listed}\n{digest}"
        scope = f"{moment[:8]}/{self._region}/s3/aws4_request"
        hashed = hashlib.sha256(request.encode()).hexdigest()
        text = f"{_ALGORITHM}\n{moment}\n{scope}\n{hashed}"
        signature = hmac.digest(self._key(keys.secret_key, moment[:8]), text.encode(), "sha256")
        headers["authorization"] = (
            f"{_ALGORITHM} Credential={keys.access_key}/{scope}, SignedHeaders={listed}, "
            f"Signature={signature.hex()}"
        )
        return headers

    def _key(self, secret: str | None, day: str) -> bytes:
        derived = self._derived
        if derived[:2] != (day, secret):
            key = f"AWS4{secret}".encode()
            for part in (day, self._region, "s3", "aws4_request"):
                key = hmac.digest(key, part.encode(), "sha256")
            self._derived = derived = (day, secret, key)
        return derived[2]
