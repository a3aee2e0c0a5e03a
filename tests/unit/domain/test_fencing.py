"""Who may act, and whom a barrier waits for."""

from __future__ import annotations

from uuid import uuid4

from tideline.domain.fencing import (
    Gateway,
    GatewayStatus,
    may_act,
    missing_at_quiesce,
    missing_at_tracking,
)

ACTIVE = Gateway(1, uuid4(), GatewayStatus.ACTIVE)
FENCED = Gateway(2, uuid4(), GatewayStatus.FENCED)
RETIRED = Gateway(3, uuid4(), GatewayStatus.RETIRED)
ALL = [ACTIVE, FENCED, RETIRED]


def test_only_the_registered_active_incarnation_may_act() -> None:
    assert may_act(ACTIVE, ACTIVE.incarnation)
    assert not may_act(ACTIVE, uuid4())
    assert not may_act(FENCED, FENCED.incarnation)
    assert not may_act(RETIRED, RETIRED.incarnation)
    assert not may_act(None, uuid4())


def test_tracking_waits_for_a_fenced_gateway_and_quiesce_does_not() -> None:
    """It may wake and pass a topic through that it never heard of; a topic that it tracks not."""
    assert missing_at_tracking(ALL, []) == [ACTIVE, FENCED]
    assert missing_at_quiesce(ALL, []) == [ACTIVE]


def test_an_acknowledgement_counts_for_one_incarnation() -> None:
    assert missing_at_tracking([ACTIVE], [(1, uuid4())]) == [ACTIVE]
    assert missing_at_tracking([ACTIVE], [(1, ACTIVE.incarnation)]) == []
    assert missing_at_quiesce([ACTIVE], [(1, ACTIVE.incarnation)]) == []
