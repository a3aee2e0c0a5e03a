"""How this project speaks to S3: one way to make a client, one way to read its errors."""

from __future__ import annotations

from typing import TYPE_CHECKING

import boto3
from botocore.config import Config
from botocore.exceptions import ClientError

from tideline.object_store.errors import (
    ObjectExists,
    ObjectMissing,
    ObjectStoreRefused,
    ObjectStoreUnavailable,
)
from tideline.settings import ObjectStoreSettings

if TYPE_CHECKING:
    from mypy_boto3_s3.client import S3Client

_TRANSIENT_CODES = frozenset(
    {"InternalError", "ServiceUnavailable", "SlowDown", "RequestTimeout", "Throttling", "503"}
)


def make_client(
    settings: ObjectStoreSettings,
    *,
    connect_timeout_s: float,
    read_timeout_s: float,
    attempts: int,
    connections: int,
) -> S3Client:
    """A client whose every call ends within ``attempts`` times its timeouts, and their backoff."""
    access, secret = settings.s3_access_key, settings.s3_secret_key
    client: S3Client = boto3.client(
        "s3",
        endpoint_url=settings.s3_endpoint,
        region_name=settings.s3_region,
        aws_access_key_id=access.get_secret_value() if access else None,
        aws_secret_access_key=secret.get_secret_value() if secret else None,
        config=Config(
            connect_timeout=connect_timeout_s,
            read_timeout=read_timeout_s,
            retries={"total_max_attempts": attempts, "mode": "standard"},
            max_pool_connections=connections,
            s3={"addressing_style": "path"} if settings.s3_endpoint else {},
            request_checksum_calculation="when_required",
            response_checksum_validation="when_required",
        ),
    )
    return client


def translate(error: Exception, where: str) -> ObjectStoreUnavailable | ObjectStoreRefused:
    """An error of boto3 as one of ours. ``where`` says bucket, call and key."""
    if not isinstance(error, ClientError):
        return ObjectStoreUnavailable(f"{where}: {error}")
    status = error.response.get("ResponseMetadata", {}).get("HTTPStatusCode", 0)
    code = error.response.get("Error", {}).get("Code", "")
    return refusal(code, status, where)


def refusal(code: str, status: int, where: str) -> ObjectStoreUnavailable | ObjectStoreRefused:
    """An error code and HTTP status of S3 (0: none was told) as one of our errors."""
    if status == 412 or code == "PreconditionFailed":
        return ObjectExists(f"{where}: the key is taken")
    if status >= 500 or status in (409, 429) or code in _TRANSIENT_CODES:
        return ObjectStoreUnavailable(f"{where}: {code or status}")
    if code in ("NoSuchKey", "404"):
        return ObjectMissing(f"{where}: there is no such object")
    return ObjectStoreRefused(
        f"{where}: refused with {code or status}; check the bucket and the credentials"
    )
