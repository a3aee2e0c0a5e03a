"""Producers of every kind at once, and each offset read from where it lives through every gateway,
judged by what clients did and were told (docs/proof.md)."""

from __future__ import annotations

from tests.harness import asked_of, leader_of, migration_case
from tests.history.operations import TransactionEnd
from tests.recorder import Recorder
from tests.support.waiting import until
from tests.tiering_now import merge, merged_end, split
from tideline.kafka.client import KafkaCluster
from tideline.kafka.observer import KafkaObserver, OffsetSpec
from tideline.stack import Stack

RECORD_BYTES = 10_000
SEGMENT_BYTES = 1_048_576


def test_what_producers_of_every_kind_were_told_is_read_from_every_tier(stack: Stack) -> None:
    """Idempotent, plain and transactional on the classic topic; the first two go on through the
    migration. Read apart: remote and local segments of Kafka, merged segments, split files, WAL
    objects."""
    with migration_case(stack, name="tiers", history=0) as case:
        recorder = Recorder(case.topic, RECORD_BYTES)
        try:
            recorder.produce("idempotent", case.bootstrap, idempotent=True)
            recorder.produce("plain", case.bootstrap, idempotent=False)
            for name in ("payments", "refunds"):
                recorder.transact(name, case.bootstrap)
            recorder.follow("follower", case.bootstrap)
            until(
                "segments that are in remote storage only", lambda: local_start(stack, case.topic)
            )
            recorder.stop("payments", "refunds")
            ended = [o.committed for o in recorder.operations if isinstance(o, TransactionEnd)]
            assert {True, False} == set(ended)
            local = local_start(stack, case.topic)
            gateways = {str(n): where for n, where in stack.endpoints.gateways.items()}
            recorder.read_through(gateways, (0, local))
            case.trigger()
            (boundary,) = case.until_crossed()
            until("a suffix", lambda: recorder.told_through("plain") > boundary + 20)
            case.until_ready()
            assert split(stack, case.topic) > 0
            assert merge(stack, case.topic, SEGMENT_BYTES) > 0
            merged = merged_end(stack, case.topic)
            recorder.until_told("idempotent", "plain")
            assert split(stack, case.topic) > 0
            in_wal = recorder.told_through("idempotent", "plain") + 1
            recorder.until_told("idempotent", "plain", more=50)
        finally:
            recorder.stop()
        assert 0 < local < boundary < merged < in_wal
        assert in_wal < recorder.finish(gateways, (0, local, boundary, merged, in_wal))


def local_start(stack: Stack, topic: str) -> int:
    """The first offset that the leader has on its own disk."""
    leader, _ = leader_of(stack, topic, 0)

    async def start(cluster: KafkaCluster) -> int:
        asked = KafkaObserver(cluster).offset(topic, 0, OffsetSpec.EARLIEST_LOCAL, node=leader)
        return (await asked).offset

    return asked_of([stack.endpoints.brokers[leader]], start)
