"""Signatures are those that botocore makes."""

from __future__ import annotations

import time
from unittest.mock import patch

from botocore.auth import S3SigV4Auth
from botocore.awsrequest import AWSRequest
from botocore.credentials import ReadOnlyCredentials
from hypothesis import given, settings
from hypothesis import strategies as st

from tideline.object_store.listing import Asked
from tideline.object_store.signature import Signer, escaped

WORDS = st.text(st.characters(codec="ascii", categories=["L", "N"]), min_size=1, max_size=40)


@settings(max_examples=60, deadline=None)
@given(
    method=st.sampled_from(["GET", "PUT"]),
    key=st.text(st.characters(codec="utf-8"), min_size=1, max_size=30),
    body=st.binary(max_size=40),
    asked=st.sampled_from([{}, {"range": "bytes=0-9"}, {"if-none-match": "*"}]),
    prefix=st.none() | st.text(st.characters(codec="utf-8"), max_size=20),
    access=WORDS,
    secret=WORDS,
    token=st.none() | WORDS,
    region=WORDS,
    now=st.integers(1_500_000_000, 4_000_000_000),
)
def test_a_call_is_signed_as_botocore_signs_it(
    method: str,
    key: str,
    body: bytes,
    asked: dict[str, str],
    prefix: str | None,
    access: str,
    secret: str,
    token: str | None,
    region: str,
    now: int,
) -> None:
    keys, path = ReadOnlyCredentials(access, secret, token), f"/wal/{escaped(key)}"
    query = "" if prefix is None else Asked(prefix, "k", "/", "t=/").query()
    signer = Signer(region)
    made = signer.headers(method, path, {"host": "h:9000", **asked}, body, keys, now, query)
    assert made == signer.headers(method, path, {"host": "h:9000", **asked}, body, keys, now, query)
    url = f"http://h:9000{path}{'?' if query else ''}{query}"
    request = AWSRequest(method=method, url=url, data=body, headers=asked)
    moment = time.gmtime(now)
    with patch("botocore.auth.get_current_datetime") as clock:
        clock.return_value.strftime = lambda form: time.strftime(form, moment)
        S3SigV4Auth(keys, "s3", region).add_auth(request)
    theirs = {name.lower(): value for name, value in request.headers.items()}
    assert made == {"host": "h:9000"} | theirs
