"""Failures of Kafka's own making: a broker that does not answer, an answer that is an error, and
frames that are not Kafka's protocol."""

from __future__ import annotations

from uuid import UUID

from kio.schema.errors import ErrorCode

from tideline.errors import RefusedError, TidelineError, UnreachableError


class KafkaUnavailable(UnreachableError):
    """A broker did not answer: refused, disconnected, or too late. Trying again may help."""


class KafkaError(TidelineError):
    """A broker answered with an error code."""

    def __init__(self, code: ErrorCode, what: str) -> None:
        super().__init__(f"{what}: Kafka answered {code.name.upper()} ({code.value})")
        self.code = code
        self.what = what

    @property
    def retriable(self) -> bool:
        """Kafka calls this code retriable (``RetriableException``)."""
        return self.code.retriable


class TopicReplaced(RefusedError):
    """The name means another topic than the one that is meant, or none: the id is gone for ever."""


class MetadataNotUnderstood(RefusedError):
    """``__remote_log_metadata`` has records that this Tideline cannot read: whatever is judged of
    remote storage might be wrong."""

    def __init__(
        self,
        partition: int,
        offset: int,
        *,
        count: int | None = None,
        why: str = "",
        topic_id: UUID | None = None,
    ) -> None:
        """Where the first of them is. ``count``: how many there are, if that is known;
        ``topic_id``: whom all of them concern, ``None``: whomever."""
        self.topic_id = topic_id
        what = "records" if count is None else f"{count} records"
        because = f" ({why})" if why else ""
        super().__init__(
            f"{what} of __remote_log_metadata are of an unknown kind or cannot be read, the first "
            f"one in partition {partition} at offset {offset}{because}: nothing is judged, what "
            "was known stays. Run a Tideline that knows this Kafka"
        )


class UnsupportedVersion(RefusedError):
    """The broker does not know this API, or not in this version."""


class MalformedFrame(ValueError):
    """Bytes that are not a frame of Kafka's protocol: nothing of it may be trusted."""


class TooManyElements(MalformedFrame):
    """A request names more than one request may: looking at them would hold everybody else up."""
