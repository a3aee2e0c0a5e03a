"""Results of jobs in the object store: ``runs/<job>/<run id>.json`` in the diskless bucket.

A driver on another machine leaves its result there, and whoever started it knows the key
beforehand, since it names the run.
"""

from __future__ import annotations

import re
from uuid import UUID

from tideline.errors import UsageError
from tideline.settings import ObjectStoreSettings

PREFIX = "runs/"
SCHEME = "s3://"
RESULT = re.compile(r"(?:^|/)runs/[\w-]+/[0-9a-f-]{36}\.json$")
"""What a key of a result looks like; no other object below :data:`PREFIX` is one."""


def url_of(settings: ObjectStoreSettings, job: str, run_id: UUID) -> str:
    """Where the result of a run of ``job`` is, below the installation's prefix."""
    return f"{SCHEME}{settings.s3_bucket}/{settings.diskless_prefix}{PREFIX}{job}/{run_id}.json"


def bucket_and_key(url: str) -> tuple[str, str]:
    """Of ``s3://bucket/key``. Raises :class:`UsageError` for what is no such URL."""
    bucket, slash, key = url.removeprefix(SCHEME).partition("/")
    if not url.startswith(SCHEME) or not bucket or not slash or not key:
        raise UsageError(f"{url!r} names no object: write s3://bucket/key")
    return bucket, key
