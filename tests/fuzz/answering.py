"""A broker that answers what it is asked, about what it was asked of, with anything in it."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import fields, is_dataclass, replace
from random import Random
from typing import Any

from kio.serial._introspect import EntityTupleField, classify_field

from tests.unit.kafka.fake_broker import api_versions
from tests.unit.kafka.messages import random_message
from tideline.kafka.errors import MalformedFrame, UnsupportedVersion
from tideline.kafka.protocol import RequestHeader, decode_request, encode_response, response_class

API_VERSIONS, PRODUCE = 18, 0
ALIKE = (
    ("topic_id",),
    ("name", "topic", "resource_name"),
    ("partition_index", "index", "partition"),
    ("resource_type",),
    ("transactional_id",),
    ("group_id",),
)
"""Fields that say what a part of a request or answer is about, by whatever name."""


def answering(seed: int) -> Callable[[RequestHeader, bytes], Awaitable[bytes | None]]:
    """For :class:`~tests.unit.kafka.fake_broker.FakeBroker`; it closes for what it cannot read, as
    Kafka does."""
    random = Random(seed)

    async def answer(header: RequestHeader, frame: bytes) -> bytes | None:
        if header.api_key == API_VERSIONS:
            return api_versions(header)
        try:
            request = decode_request(frame, header)
        except (MalformedFrame, UnsupportedVersion) as error:
            raise ConnectionResetError(str(error)) from error
        if header.api_key == PRODUCE and getattr(request, "acks", 1) == 0:
            return None
        schema: Any = response_class(header.api_key, header.api_version)
        found = about(random_message(schema, random), request, random)
        return encode_response(found, header.correlation_id)

    return answer


def about(answer: Any, request: Any, random: Random) -> Any:
    """``answer`` with one part for each part of the request, wherever both name the same kind of
    thing."""
    changes: dict[str, Any] = {}
    for field in fields(answer):
        kind = classify_field(field)
        if not isinstance(kind, EntityTupleField):
            continue
        asked = _asked(kind.type_, request)
        if asked is not None:
            changes[field.name] = tuple(
                about(_named(random_message(kind.type_, random), one), one, random) for one in asked
            )
    return replace(answer, **changes)


def _asked(part: type, request: Any) -> Sequence[Any] | None:
    """The parts of the request that are about what an answer's ``part`` is about."""
    wanted = _about_what(part)
    if not wanted or not is_dataclass(request):
        return None
    for field in fields(request):
        kind = classify_field(field)
        if isinstance(kind, EntityTupleField) and wanted <= _about_what(kind.type_):
            return getattr(request, field.name) or ()
    return None


def _about_what(part: type) -> set[int]:
    names = {field.name for field in fields(part)}
    return {n for n, alike in enumerate(ALIKE) if names & set(alike)}


def _named(part: Any, asked: Any) -> Any:
    changes = {}
    for alike in ALIKE:
        ours = next((name for name in alike if hasattr(part, name)), None)
        theirs = next((name for name in alike if hasattr(asked, name)), None)
        if ours is not None and theirs is not None:
            changes[ours] = getattr(asked, theirs)
    return replace(part, **changes)
