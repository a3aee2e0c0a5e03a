"""Signatures are those that botocore makes."""

from __future__ import annotations

import time
from unittest.mock import patch
from urllib.parse import quote

from botocore.auth import S3SigV4Auth
from botocore.awsrequest import AWSRequest
from botocore.credentials import ReadOnlyCredentials
from hypothesis import given, settings
from hypothesis import strategies as st

from tideline.object_store.listing import Asked
from tideline.object_store.signature import Signer, escaped

WORDS = st.text(st.characters(codec="ascii", categories=["L", "N"]), min_size=1, max_size=40)
TEXTS = st.text(st.characters(codec="utf-8"), max_size=20)
QUERIES = (
    st.just("")
    | TEXTS.map(lambda prefix: Asked(prefix, "k", "/", "t=/").query())
    | TEXTS.map(lambda upload: f"partNumber=3&uploadId={quote(upload, safe='~')}")
)
"""Of a list, and of a part."""


@settings(max_examples=60, deadline=None)
@given(
    method=st.sampled_from(["GET", "PUT"]),
    key=st.text(st.characters(codec="utf-8"), min_size=1, max_size=30),
    body=st.binary(max_size=40),
    asked=st.sampled_from([{}, {"range": "bytes=0-9"}, {"if-none-match": "*"}]),
    access=WORDS,
    secret=WORDS,
    token=st.none() | WORDS,
    region=WORDS,
    now=st.integers(1_500_000_000, 4_000_000_000),
    query=QUERIES,
)
def test_a_call_is_signed_as_botocore_signs_it(
    method: str,
    key: str,
    body: bytes,
    asked: dict[str, str],
    access: str,
    secret: str,
    token: str | None,
    region: str,
    now: int,
    query: str,
) -> None:
    keys, path = ReadOnlyCredentials(access, secret, token), f"/wal/{escaped(key)}"
    signer = Signer(region)
    made = signer.headers(method, path, {"host": "h:9000", **asked}, body, keys, now, query)
    assert made == signer.headers(method, path, {"host": "h:9000", **asked}, body, keys, now, query)
    target = f"{path}?{query}" if query else path
    request = AWSRequest(method=method, url=f"http://h:9000{target}", data=body, headers=asked)
    moment = time.gmtime(now)
    with patch("botocore.auth.get_current_datetime") as clock:
        clock.return_value.strftime = lambda form: time.strftime(form, moment)
        S3SigV4Auth(keys, "s3", region).add_auth(request)
    theirs = {name.lower(): value for name, value in request.headers.items()}
    assert made == {"host": "h:9000"} | theirs
