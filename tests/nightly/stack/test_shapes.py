"""Partitions of every shape cross the boundary: idle, empty, tiny, large, busy."""

from __future__ import annotations

import pytest
from confluent_kafka import Consumer, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import AdminClient

from tests.harness import Breakpoint, Case, alter_configs, migration_case
from tests.support.waiting import HANGS_S, flushed, until
from tideline.domain.migration import UNDEFINED_OFFSET, Phase
from tideline.domain.topic_configs import NOT_TIERED
from tideline.stack import Stack

CODECS = ("none", "gzip", "snappy", "lz4", "zstd")


def test_idle_partitions_cross_at_their_log_end(stack: Stack) -> None:
    with migration_case(stack, name="idle", partitions=3, history=500) as case:
        case.trigger()
        case.until_ready()
        assert case.boundaries() == [500, 500, 500]
        case.produce()
        case.consume()
        case.until_acknowledged(40)
        case.settle()


def test_an_empty_topic_gets_boundary_zero_and_needs_no_tiered_storage(stack: Stack) -> None:
    with migration_case(
        stack, name="empty", history=0, **{"remote.storage.enable": "false"}
    ) as case:
        case.trigger()
        case.until_ready()
        assert case.boundaries() == [0]
        assert case.rows("migration_state") == [("DISKLESS_ONLY",)]
        case.produce()
        case.consume()
        case.until_acknowledged(40)
        case.settle()


def test_an_empty_topic_that_fills_before_b0_says_what_is_missing(stack: Stack) -> None:
    """Its preflight asked for no tiered storage, since nothing would lie below B0."""
    with migration_case(
        stack, name="fills", history=0, **{"remote.storage.enable": "false"}
    ) as case:
        stop = Breakpoint(case.superuser_dsn, case.topic_id, Phase.VALIDATE)
        try:
            case.trigger()
            stop.wait_until_hit()
            case.write(50)
        finally:
            stop.release()
        until(
            "the drain to say what is missing",
            lambda: NOT_TIERED in (case.waiting_reason(Phase.DRAIN_TRANSACTIONS) or ""),
        )
        assert case.boundaries() == [UNDEFINED_OFFSET]
        broker = AdminClient({"bootstrap.servers": stack.endpoints.kafka_bootstrap})
        alter_configs(broker, case.topic, {"remote.storage.enable": "true"})
        case.until_ready()
        assert case.boundaries() == [50]
        case.produce()
        case.consume()
        case.until_acknowledged(40)
        case.settle()


def test_a_partition_of_one_record_crosses(stack: Stack) -> None:
    with migration_case(stack, name="tiny", history=1) as case:
        case.trigger()
        case.until_ready()
        assert case.boundaries() == [1]
        case.produce()
        case.consume()
        case.until_acknowledged(20)
        case.settle()


def test_a_large_partition_of_many_segments_crosses_while_busy(stack: Stack) -> None:
    with migration_case(stack, name="large", history=40_000) as case:
        for n in range(3):
            case.produce(f"busy-{n}", rate=300.0, **{"max.in.flight": 5, "linger.ms": 1})
        case.consume()
        case.until_acknowledged(500)
        case.trigger()
        case.until_ready(180)
        case.until_acknowledged(500)
        case.settle()


@pytest.mark.parametrize("timestamp_type", ["CreateTime", "LogAppendTime"])
def test_records_are_the_same_bytes_on_both_sides_of_the_boundary(
    stack: Stack, timestamp_type: str
) -> None:
    with migration_case(
        stack,
        name="bytes",
        history=0,
        # The records say that they are years old.
        **{"message.timestamp.type": timestamp_type, "retention.ms": "-1"},
    ) as case:
        sent = write_every_kind(case)
        case.trigger()
        case.until_ready()
        boundary = case.boundaries()[0]
        assert boundary == len(sent)
        sent += write_every_kind(case)
        received = read_all(case, len(sent))
        assert [(r[0], r[1], r[2]) for r in received] == sent
        assert [r[3] for r in received] == list(range(len(sent)))
        if timestamp_type == "CreateTime":
            assert all(r[4] == (1, 1_700_000_000_000 + r[3] % 1000) for r in received)
        else:
            times = [r[4] for r in received]
            assert all(kind == 2 for kind, _ in times)
            assert [at for _, at in times] == sorted(at for _, at in times)


Record = tuple[bytes | None, bytes | None, list[tuple[str, bytes | None]] | None]


def write_every_kind(case: Case) -> list[Record]:
    """Keys, nulls, headers and sizes in every codec; returns what was sent, in order."""
    sent: list[Record] = []
    kinds: list[Record] = [
        (b"key", b"value", [("h", b"1"), ("h", None), ("ü", b"")]),
        (None, b"no key", None),
        (b"tombstone", None, None),
        (b"", b"", None),
        (b"big", bytes(range(256)) * 200, [("size", b"51200")]),
    ]
    start = len(read_counts(case))
    for codec in CODECS:
        producer = Producer(
            {
                "bootstrap.servers": case.bootstrap,
                "enable.idempotence": True,
                "compression.type": codec,
                "linger.ms": 20,
            }
        )
        for key, value, headers in kinds:
            offset = start + len(sent)
            producer.produce(
                case.topic, value, key, 0,
                timestamp=1_700_000_000_000 + offset % 1000, headers=headers,
            )  # fmt: skip
            sent.append((key, value, headers))
        flushed(producer, 60)
    return sent


def read_counts(case: Case) -> range:
    """The offsets that exist, by the stock client's watermarks."""
    consumer = Consumer({"bootstrap.servers": case.bootstrap, "group.id": "watermarks"})

    def told() -> tuple[int, int] | None:
        try:
            return consumer.get_watermark_offsets(TopicPartition(case.topic, 0), HANGS_S)
        except KafkaException:  # its leader may not have its log yet
            return None

    low, high = until("the ends of the log", told)
    consumer.close()
    return range(low, high)


def read_all(case: Case, count: int) -> list[tuple[object, ...]]:
    """(key, value, headers, offset, (timestamp type, timestamp)) of ``count`` records."""
    consumer = Consumer(
        {
            "bootstrap.servers": case.bootstrap,
            "group.id": f"bytes-{case.topic}",
            "auto.offset.reset": "earliest",
            "enable.partition.eof": True,
        }
    )
    consumer.assign([TopicPartition(case.topic, 0, 0)])
    found: list[tuple[object, ...]] = []

    def all_read() -> bool:
        for message in consumer.consume(count - len(found), 0.5):
            if message.error() is None:
                found.append(
                    (message.key(), message.value(), message.headers(), message.offset(),
                     message.timestamp())
                )  # fmt: skip
        return len(found) >= count

    until(f"{count} records of {case.topic}", all_read)
    consumer.close()
    return found
