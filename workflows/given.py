"""What a person or a program gave a workflow, in JSON: as it was typed, and as it is accepted."""

from __future__ import annotations

from typing import Any, TypeVar

from temporalio import workflow
from temporalio.api.common.v1 import Payload
from temporalio.common import RawValue
from temporalio.exceptions import ApplicationError

with workflow.unsafe.imports_passed_through():
    from tideline.domain import failures
    from tideline.domain.messages import TopicActivity, TopicRef, Update
    from tideline.domain.migration_input import InvalidMigrationInput, Shape
    from tideline.domain.operator_choices import ConfigurationRecord, Decider
    from workflows.calls import CallFailed, perform, quick

T = TypeVar("T")
INVALID_INPUT = "InvalidInput"
NO_INPUT = RawValue(Payload())
"""Started or updated without any input, as the Temporal UI allows."""


def typed(raw: RawValue) -> Any:
    """The JSON value; ``None``: there is none. Raises :class:`InvalidMigrationInput`."""
    if raw is NO_INPUT:
        return None
    try:
        return workflow.payload_converter().from_payload(raw.payload)
    except Exception as error:
        raise InvalidMigrationInput(f"the input is not JSON: {error}") from error


def accept(shape: Shape[T], raw: RawValue) -> T:
    """What an update's validator lets pass. Raises what refuses it, with field, rule and
    example."""
    try:
        return shape.read(typed(raw))
    except InvalidMigrationInput as error:
        raise ApplicationError(str(error), type=failures.REFUSED) from error


def accepted(kind: type[T], raw: RawValue) -> T:
    """What a validator has let pass."""
    return workflow.payload_converter().from_payload(raw.payload, kind)


async def keep(
    action: Update,
    raw: RawValue,
    ref: TopicRef,
    partition: int | None = None,
    details: dict[str, Any] | None = None,
) -> str:
    """Keep who has steered and why, after it was done: a pause must not wait for Postgres. Returns
    what to add to the answer where it was not kept."""
    record = ConfigurationRecord(ref, accepted(Decider, raw), details or {}, action, partition)
    try:
        await perform(quick(TopicActivity.RECORD_CONFIGURATION), record)
    except CallFailed as failure:
        return f"; only the workflow's history has who and why, Postgres not: {failure.message}"
    return ""
