"""Temporal keeps an id in 255 characters, Kafka's names go to 249."""

from __future__ import annotations

from uuid import UUID

import pytest

from tideline.domain.messages import MOST_OF_ID, TopicRef

FIRST, OTHER = UUID(int=1).hex, UUID(int=2).hex
MOST_PARTITIONS = 2**31 - 1


@pytest.mark.parametrize("length", [1, 200, 208, 212, 249])
def test_every_id_fits_and_names_its_topic_alone(length: int) -> None:
    name = "n" * length
    ids = [
        of
        for topic_id in (FIRST, OTHER)
        for ref in [TopicRef(name, topic_id, 1)]
        for of in (
            ref.workflow_id,
            ref.partition_workflow_id(1),
            ref.partition_workflow_id(MOST_PARTITIONS),
        )
    ]
    assert max(map(len, ids)) <= MOST_OF_ID
    assert len(set(ids)) == len(ids)
    assert all(f"/{name[:200]}" in one for one in ids)
