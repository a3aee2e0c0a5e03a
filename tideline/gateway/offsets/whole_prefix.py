"""Whether what a leader said of the prefix may be believed: only if it has all of it.

A leader that has lost the end of the prefix, a log gap, knows nothing of what lay there: an epoch
seems to end early, and a search by time finds nothing.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tideline.domain.offset_search import has_whole_prefix
from tideline.domain.request_handling import KafkaErrorCode, PartitionRoute
from tideline.gateway.context import ApiKey
from tideline.gateway.messages import messages
from tideline.gateway.per_partition import (
    CONSUMER,
    ApiNames,
    PartitionEntry,
    Question,
    SplitRequest,
    Twice,
)

EPOCHS = ApiNames(
    ApiKey.OFFSET_FOR_LEADER_EPOCH,
    "OffsetForLeaderTopic",
    "OffsetForLeaderTopicResult",
    "EpochEndOffset",
    "partition",
    Twice.EACH,
    extra=("replica_id",),
)
VERSION = 4
"""Of OffsetForLeaderEpoch, which every broker here has."""
ANY_LEADER = -1
"""As the leader epoch that the client knows: none."""
NOT_NOW = KafkaErrorCode.REQUEST_TIMED_OUT
"""What a broker says at once, now and then, of a search by time in its remote log."""
ONCE_MORE = 3
"""How often it is asked anew then: librdkafka does not repeat a search that ends by an error."""


async def said_by_whole_leaders(
    split: SplitRequest,
    answers: Mapping[PartitionEntry, Any],
    routes: Mapping[PartitionEntry, PartitionRoute],
) -> frozenset[PartitionEntry]:
    """Those of ``routes``, partitions in the suffix, whose leader has the whole prefix and was the
    one that gave their ``answers``, or has the same: the end of B0's epoch is asked for, and then
    the same once more of the leader, whoever gave the first answer. Between two questions the
    leader may move, but not there and back."""
    question = Question(EPOCHS, messages(EPOCHS.api, VERSION), {"replica_id": CONSUMER})
    at_boundary = [
        (
            item,
            question.api.request_part(
                "OffsetForLeaderPartition",
                partition=item.at.partition,
                current_leader_epoch=ANY_LEADER,
                leader_epoch=route.boundary_epoch,
            ),
        )
        for item, route in routes.items()
    ]
    ends = await split.forward(at_boundary, question)
    again = dict(await split.forward([(item, item.row) for item in routes], split.of_leaders))
    for _ in range(ONCE_MORE):
        unsaid = [item for item in routes if int(again[item].error_code) == NOT_NOW]
        if not unsaid:
            break
        again |= await split.forward([(item, item.row) for item in unsaid], split.of_leaders)
    return frozenset(
        item
        for item, route in routes.items()
        if int(ends[item].error_code) == KafkaErrorCode.NONE
        and has_whole_prefix(int(ends[item].end_offset), route.prefix_end)
        and again[item] == answers[item]
    )
