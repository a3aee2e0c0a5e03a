"""Every gateway restarted, and one killed, under clients of each kind: their brokers stay reachable
through the siblings, nobody is told an error, and what was acknowledged is consumed.
"""

from __future__ import annotations

import re
import threading
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import pairwise
from urllib.request import urlopen
from uuid import uuid4

from confluent_kafka import Consumer, KafkaError, KafkaException, Message, Producer
from confluent_kafka.admin import AdminClient, NewTopic

from tests.harness import LASTING_SESSION, create_topics, delete_topics, until_led
from tests.support.waiting import HANGS_S, Wait, flushed, joined, until
from tideline.stack import Stack

PARTITIONS = 6
PAUSE_S = 0.05
"""Between two records of a producer, or two transactions: a producer that goes on with each answer
leaves no core to a gateway that starts."""
LOOKS_AGAIN_S = 0.5
"""The admin client asks for all topics there are."""
IN_A_TRANSACTION = 5
LOOK_S = 30
GIVEN_UP = (KafkaError._TIMED_OUT, KafkaError._TRANSPORT)
ENOUGH = 8
"""Acknowledgements of each producer on partitions of a broker whose gateway is away."""


class Load:
    """Clients of each kind; what was acknowledged to them and when, and what went wrong."""

    def __init__(self, stack: Stack) -> None:
        self.bootstrap = stack.endpoints.gateway_bootstrap
        self.stopping = threading.Event()
        self.wrong: list[str] = []
        self.acknowledged: dict[str, list[tuple[float, int, bytes]]] = defaultdict(list)
        """By client: when, on which partition, and which value."""
        self.looks: list[float] = []
        """When the admin client was answered."""
        self.unanswered: list[str] = []
        """What it gave up waiting for."""
        self.handed_over: list[str] = []
        """What it gave up as its connection ended."""
        self.consumed: Counter[bytes] = Counter()
        self.read_at: list[float] = []
        name = uuid4().hex[:8]
        self.topics = {kind: f"rolled-{kind}-{name}" for kind in ("idempotent", "plain", "txn")}
        self._group = f"rolled-{name}"
        self._admin = AdminClient({"bootstrap.servers": self.bootstrap})
        made = [NewTopic(topic, PARTITIONS, 3) for topic in self.topics.values()]
        create_topics(self._admin, *made)
        # Who subscribes to a topic that its broker does not know yet looks again in five minutes.
        for topic in self.topics.values():
            until_led(stack.endpoints.gateways.values(), topic, PARTITIONS)
        self._clients: list[object] = []
        """One that is destroyed while it waits for its coordinator holds up the interpreter."""
        self._threads = [
            threading.Thread(target=self._guarded, args=(run,), name=run.__name__, daemon=True)
            for run in (self._idempotent, self._plain, self._txn, self._consume, self._look)
        ]

    def __enter__(self) -> Load:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stopping.set()
        for thread in self._threads:
            joined(thread, 120)
        delete_topics(self._admin, *self.topics.values())

    def _guarded(self, run: Callable[[], None]) -> None:
        try:
            run()
        except Exception as error:
            self.wrong.append(f"{run.__name__}: {error!r}")

    def _producer(self, **config: object) -> Producer:
        made = Producer({"bootstrap.servers": self.bootstrap, "linger.ms": 1, **config})
        self._clients.append(made)
        return made

    def _told(self, kind: str) -> Callable[[KafkaError | None, Message], None]:
        def told(error: KafkaError | None, message: Message) -> None:
            if error is not None:
                self.wrong.append(f"{kind}: {error}")
                return
            value = message.value() or b""
            self.acknowledged[kind].append((time.monotonic(), message.partition() or 0, value))

        return told

    def _produce(self, kind: str, producer: Producer) -> None:
        told, number = self._told(kind), 0
        while not self.stopping.is_set():
            value = f"{kind}-{number}".encode()
            producer.produce(
                self.topics[kind], value, partition=number % PARTITIONS, on_delivery=told
            )
            number += 1
            producer.poll(0)
            self.stopping.wait(PAUSE_S)
        flushed(producer, 60)

    def _idempotent(self) -> None:
        self._produce("idempotent", self._producer(**{"enable.idempotence": True}))

    def _plain(self) -> None:
        self._produce("plain", self._producer(acks="all"))

    def _txn(self) -> None:
        producer = self._producer(**{"transactional.id": f"{self._group}-txn"})
        producer.init_transactions(HANGS_S)
        number = 0
        while not self.stopping.is_set():
            values = []
            producer.begin_transaction()
            for _ in range(IN_A_TRANSACTION):
                value, partition = f"txn-{number}".encode(), number % PARTITIONS
                producer.produce(self.topics["txn"], value, partition=partition)
                values.append((partition, value))
                number += 1
            producer.commit_transaction(HANGS_S)
            now = time.monotonic()
            self.acknowledged["txn"] += [(now, *one) for one in values]
            self.stopping.wait(PAUSE_S)

    def _consume(self) -> None:
        consumer = Consumer(
            {
                "bootstrap.servers": self.bootstrap,
                "group.id": self._group,
                "auto.offset.reset": "earliest",
                "isolation.level": "read_committed",
                "enable.auto.commit": True,
                "auto.commit.interval.ms": 500,
                "group.instance.id": "reader",
                **LASTING_SESSION,
            }
        )
        self._clients.append(consumer)
        consumer.subscribe(list(self.topics.values()))

        def take() -> None:
            for message in consumer.consume(500, 0.2):
                error = message.error()
                if error is not None and error.fatal():
                    self.wrong.append(f"consumer: {error}")
                elif error is None:
                    self.consumed[message.value() or b""] += 1
                    self.read_at.append(time.monotonic())

        while not self.stopping.is_set():
            take()
        wait = Wait("all to be consumed", 60)
        while not self._all_read() and not wait.over:
            take()
        consumer.close()

    def _all_read(self) -> bool:
        """Of what will be acknowledged, everything once its producers have ended."""
        producing = self._threads[:3]
        return not any(thread.is_alive() for thread in producing) and not self.lost()

    def lost(self) -> set[bytes]:
        told = {value for rows in self.acknowledged.values() for _, _, value in rows}
        return told - self.consumed.keys()

    def _look(self) -> None:
        """Where its connection was handed over librdkafka gives up a request, once: the next one
        goes to whom it was handed over to."""
        given_up = False
        while not self.stopping.is_set():
            try:
                self._admin.list_topics(timeout=LOOK_S)
                self._admin.describe_cluster(request_timeout=LOOK_S).result()
                self._admin.list_consumer_groups(request_timeout=LOOK_S).result()
            except KafkaException as error:
                if error.args[0].code() not in GIVEN_UP:
                    raise
                if given_up or error.args[0].code() == KafkaError._TIMED_OUT:
                    self.unanswered.append(str(error))
                else:
                    self.handed_over.append(str(error))
                given_up = True
                continue
            given_up = False
            self.looks.append(time.monotonic())
            self.stopping.wait(LOOKS_AGAIN_S)

    def went(self, done: bool) -> bool:
        """``done``; nobody waits for a client that was told an error."""
        assert self.wrong == []
        return done

    def since(self, moment: float, kind: str, partitions: set[int]) -> int:
        rows = self.acknowledged[kind]
        return sum(at > moment and partition in partitions for at, partition, _ in reversed(rows))

    def leaders(self) -> dict[str, dict[int, set[int]]]:
        """By kind and node: the partitions that it leads."""
        found: dict[str, dict[int, set[int]]] = {kind: defaultdict(set) for kind in self.topics}
        told = self._admin.list_topics(timeout=HANGS_S).topics
        for kind, topic in self.topics.items():
            for number, partition in told[topic].partitions.items():
                found[kind][partition.leader].add(number)
        return found

    def gaps(self) -> dict[str, float]:
        """The longest time between two successes of each client, s; of producers per partition."""
        found = {"admin": _longest(self.looks), "consumer": _longest(self.read_at)}
        for kind, rows in self.acknowledged.items():
            found[kind] = max(
                _longest([at for at, partition, _ in rows if partition == number])
                for number in range(PARTITIONS)
            )
        return found


def _longest(moments: list[float]) -> float:
    return max((b - a for a, b in pairwise(moments)), default=0.0)


def carried(stack: Stack, node: int) -> int:
    """Connections that the siblings carry for the gateway of ``node``."""
    found = 0
    wanted = re.compile(
        rf'^inkless_gateway_stand_in_connections{{node="{node}"}} (\S+)$', re.MULTILINE
    )
    for program, address in stack.endpoints.metrics.items():
        if program.startswith("gateway-") and program != f"gateway-{node}":
            with urlopen(f"http://{address}/metrics", timeout=HANGS_S) as answer:
                found += sum(int(float(n)) for n in wanted.findall(answer.read().decode()))
    return found


@contextmanager
def away(stack: Stack, load: Load, node: int, leave: Callable[[str], None]) -> Iterator[None]:
    """The gateway of ``node`` is away; all clients go on at its broker, through its siblings."""
    led = load.leaders()
    assert all(led[kind][node] for kind in load.topics), "the broker leads some of each topic"
    began = time.monotonic()
    try:
        leave(f"gateway-{node}")
        gone = time.monotonic()
        until("siblings to carry its clients", lambda: carried(stack, node) > 0)
        until(
            "everybody to go on at its broker",
            lambda: load.went(
                all(load.since(gone, kind, led[kind][node]) >= ENOUGH for kind in load.topics)
            ),
        )
        until("the admin client to go on", lambda: load.went(load.looks[-1] > gone))
        until("the group to go on", lambda: load.went(load.read_at[-1] > gone))
        print(
            f"gateway-{node} left in {gone - began:.1f} s; after {time.monotonic() - gone:.1f} s "
            f"everybody had gone on, {carried(stack, node)} connections carried"
        )
        yield
    finally:
        stack.start(f"gateway-{node}")
    until("its clients to be handed back", lambda: carried(stack, node) == 0)


def test_gateways_restart_one_after_the_other_and_clients_are_told_no_error(stack: Stack) -> None:
    with Load(stack) as load:
        until(
            "everybody to be at work",
            lambda: (
                all(len(load.acknowledged[kind]) > ENOUGH for kind in load.topics)
                and load.consumed
                and load.looks
            ),
        )
        for node in (1, 2, 3):
            with away(stack, load, node, stack.stop):
                assert load.wrong == []
        rolled = load.gaps()
        assert load.unanswered == []
        assert len(load.handed_over) <= 6, "once as a gateway leaves, once as it is back"
        with away(stack, load, 2, lambda name: stack.kill(name, restart=False)):
            assert load.wrong == []
    # As at a broker that is killed: librdkafka waits for the controller that it was told last.
    print("what the admin client gave up waiting for after the kill:", load.unanswered)
    print("longest gap of a client over the rolling restart, s:", _shown(rolled))
    print("with the gateway that was killed, s:", _shown(load.gaps()))
    print("acknowledged:", {kind: len(rows) for kind, rows in load.acknowledged.items()})
    assert load.wrong == []
    assert load.lost() == set()
    twice = Counter(v.partition(b"-")[0].decode() for v, n in load.consumed.items() if n > 1)
    print("consumed more than once:", dict(twice))
    assert set(twice) <= {"plain"}, "only a producer that is not idempotent repeats itself"


def _shown(gaps: dict[str, float]) -> str:
    return ", ".join(f"{kind} {gap:.1f}" for kind, gap in sorted(gaps.items()))
