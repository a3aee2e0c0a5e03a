"""Why an object could not be stored or read."""

from __future__ import annotations

from tideline.errors import TidelineError, UnreachableError


class ObjectStoreUnavailable(UnreachableError):
    """No answer, a timeout, throttling or a 5xx: trying again may help."""


class ObjectStoreRefused(TidelineError):
    """The store answered and said no (credentials, bucket, bad request): an operator must act."""


class ObjectMissing(ObjectStoreRefused):
    """There is no such object."""


class ObjectExists(ObjectStoreRefused):
    """The key is taken (``If-None-Match: *``). After a put of unknown outcome: it was ours."""
