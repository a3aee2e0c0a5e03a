"""One migration with every client library attached to its topic, by one or several ways at once.

Written and read before, while an open transaction holds the drain, through the quiesce, between B0
and readiness, and afterwards; then what was acknowledged is compared with what each consumer read.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import NewTopic

from tests.clients.driving import (
    Program,
    Told,
    UnavailableError,
    go_command,
    java_command,
    program,
    python_command,
    streams_command,
)
from tests.clients.ways import Way, write_ways
from tests.harness import Case, create_topics
from tests.support.waiting import HANGS_S, flushed, until
from tideline.domain.migration import Phase

LIBRARIES = ("librdkafka", "java", "kafka-python", "go")
CONSUMERS = (
    ("librdkafka", "classic"),
    ("librdkafka", "consumer"),
    ("java", "classic"),
    ("java", "consumer"),
    ("kafka-python", "classic"),
    ("go", "classic"),
    ("go", "consumer"),
)
STREAMS = ("classic", "streams")
ABORTABLE = {
    "librdkafka": "POLICY_VIOLATION",
    "java": "TransactionAbortableException",
    "kafka-python": "KafkaError",
    "go": "TRANSACTION_ABORTABLE",
}
"""How each library names the refusal of a new transaction; docs/gateway.md, "Transactions"."""
PRODUCERS = ("transactional", "newcomer")
"""One that has committed before the migration, and one whose first transaction comes during it."""
MOVES_S = 120.0
Record = tuple[int, str]


@dataclass
class Migration:
    """The programs, and what was seen of one migration. Clients are named by way, library and what
    they are."""

    case: Case
    ways: Sequence[Way]
    told: Told = field(default_factory=Told)
    programs: dict[str, Program] = field(default_factory=dict)
    missing: dict[str, str] = field(default_factory=dict)
    """Why a library cannot be had here."""
    outcomes: dict[tuple[str, str, str], list[str]] = field(default_factory=dict)
    """How transactions ended, by library, producer (with its way) and when."""
    committed: list[Record] = field(default_factory=list)
    aborted: list[Record] = field(default_factory=list)
    boundary: int = -1

    def of(self, library: str) -> Program:
        """Skips the test where the library cannot be had."""
        if library in self.missing:
            pytest.skip(self.missing[library])
        return self.programs[library]

    @property
    def libraries(self) -> list[str]:
        return [library for library in LIBRARIES if library in self.programs]

    def consumers(self, of: Iterable[str] = LIBRARIES) -> list[tuple[str, str, str]]:
        """Way, library and group protocol of those that read all along."""
        return [
            (way.name, library, protocol)
            for way in self.ways
            for library, protocol in CONSUMERS
            if library in of and library in self.programs
        ]

    def producers(self) -> list[str]:
        return [f"{way.name}:{library}-producer" for way in self.ways for library in self.libraries]

    def streams(self) -> list[tuple[str, str]]:
        """Way and group protocol of each application."""
        if "streams" not in self.programs:
            return []
        return [(way.name, protocol) for way in self.ways for protocol in STREAMS]

    def beside(self, what: str, way: str, protocol: str = "") -> str:
        """A topic or group beside the topic, for the clients of one way."""
        return "-".join(filter(None, (what, way.lower(), protocol, self.case.topic)))

    def together(self, step: Callable[[str], None]) -> None:
        """Do ``step`` with each library, side by side: each is a program of its own."""
        with ThreadPoolExecutor(len(self.libraries)) as pool:
            list(pool.map(step, self.libraries))

    def acknowledged(self) -> list[Record]:
        """Of the topic, outside transactions, in order."""
        history = [(a.offset, a.record_id) for a in self.case.ledger.acknowledgements(0)]
        return sorted(itertools.chain(history, *(self.told.acked[n] for n in self.producers())))

    def seen_by_readers(self, isolation: str) -> list[Record]:
        """What a reader of the topic has to see."""
        more = self.aborted if isolation == "read_uncommitted" else []
        return sorted([*self.acknowledged(), *self.committed, *more])

    def open(self, consumer: tuple[str, str, str], suffix: str, isolation: str) -> None:
        way, library, protocol = consumer
        name = reader(consumer) + suffix
        group = self.beside(f"{library}{suffix}", way, protocol)
        self.programs[library].ask("open", name, group, protocol, isolation, self.case.topic)

    def open_all(self, suffix: str = "", isolation: str = "read_committed") -> None:
        def opened(library: str) -> None:
            for consumer in self.consumers([library]):
                self.open(consumer, suffix, isolation)

        self.together(opened)

    def restart_consumers(self) -> None:
        """All leave, then all come back, and go on where they committed."""

        def closed(library: str) -> None:
            for consumer in self.consumers([library]):
                self.programs[library].ask("close", reader(consumer))

        self.together(closed)
        self.open_all()

    def close_consumers(self) -> None:
        """For good, those of Streams' answers among them: what they have told stays as it is."""

        def closed(library: str) -> None:
            for consumer, suffix in itertools.product(self.consumers([library]), ("", "-late")):
                self.programs[library].ask("close", reader(consumer) + suffix)

        self.together(closed)
        for way, protocol in self.streams():
            self.programs["streams"].ask("close", f"{way}:streams-{protocol}")
            self.programs["librdkafka"].ask("close", f"{way}:numbered-{protocol}")

    def until_read(self, offset: int, suffix: str = "") -> None:
        """All of the consumers have read so far; by default those that read all along."""
        for consumer in self.consumers():
            name = reader(consumer) + suffix
            until(
                f"{name} to read offset {offset}",
                lambda read=self.told.read[name]: read and read[-1][0] >= offset,  # type: ignore[misc]
                MOVES_S,
            )

    def until_written(self, more: int) -> int:
        """Every producer has so many more acknowledged; the last offset."""
        for name in self.producers():
            acked = self.told.acked[name]
            until(
                f"{name} to write",
                lambda acked=acked, wanted=len(acked) + more: len(acked) >= wanted,  # type: ignore[misc]
                MOVES_S,
            )
        return max(offset for offset, _ in self.acknowledged())

    def until_numbered(self, offset: int) -> None:
        for way, protocol in self.streams():
            read = self.told.read[f"{way}:numbered-{protocol}"]
            until(
                f"Streams ({way}, {protocol}) to number offset {offset}",
                lambda read=read: read and int(read[-1][1].split("|")[0]) >= offset,  # type: ignore[misc]
                MOVES_S,
            )

    def transact(
        self, when: str, topic: str, *ends: str, producers: Sequence[str] = PRODUCERS
    ) -> None:
        def transacted(library: str) -> None:
            for way, producer, end in itertools.product(self.ways, producers, ends):
                one, value = f"{way.name}:{producer}", f"{end}-{when}-{library}-{way.name}"
                outcome = self.programs[library].ask(
                    "transact", f"{way.name}:{library}-{producer}", topic, end, value
                )
                self.outcomes.setdefault((library, one, when), []).append(outcome)
                how, _, at = outcome.partition(" ")
                if how != "refused" and topic == self.case.topic:
                    kept = self.committed if how == "committed" else self.aborted
                    kept.append((int(at), value))

        self.together(transacted)

    def wrote_on(self, way: str, library: str) -> None:
        """Its idempotent producer lost nothing, and was told of no error."""
        self.of(library)
        name = f"{way}:{library}-producer"
        acked = self.told.acked[name]
        offsets = [offset for offset, _ in acked]
        assert offsets[0] < self.boundary <= offsets[-1]
        assert offsets == sorted(offsets)
        assert [value for _, value in acked] == [f"{name}/{n}" for n in range(len(acked))]
        assert self.told.errors[name] == []

    def read_each_once(
        self, way: str, library: str, protocol: str, suffix: str = "", isolation: str = ""
    ) -> None:
        """Its group read each record once, where its producer was told that it is."""
        self.of(library)
        name = reader((way, library, protocol)) + suffix
        assert self.told.read[name] == self.seen_by_readers(isolation or "read_committed")
        assert self.told.errors[name] == []

    def read_late(self, way: str, library: str, protocol: str) -> None:
        """A group that came afterwards read the hybrid topic from its beginning."""
        self.read_each_once(way, library, protocol, "-late", "read_uncommitted")

    def told_abortable(self, way: str, library: str, producer: str) -> None:
        """New transactions were refused, and the producer committed others elsewhere."""
        self.of(library)
        one = f"{way}:{producer}"

        def ends(when: str) -> list[str]:
            return [outcome.split()[0] for outcome in self.outcomes[library, one, when]]

        if producer == "transactional":
            assert ends("before") == ["committed", "aborted"]
        for when in ("during", "after"):
            assert self.outcomes[library, one, when] == [f"refused {ABORTABLE[library]}"]
        assert ends("elsewhere") == ["committed", "committed"]

    def shared_elsewhere(self, way: str) -> None:
        """A share group of another topic got every record; at least once, as share groups promise:
        its session ends when a topic begins to migrate."""
        told = self.told
        assert {*told.read[f"{way}:sharer"]} == {*told.acked[f"{way}:shared-producer"]}
        assert told.errors[f"{way}:sharer"] == told.errors[f"{way}:shared-producer"] == []

    def late_sharer_was_told(self, way: str) -> None:
        """A share group that came during the migration was told that it may not read."""
        told, late = self.told, f"{way}:late-sharer-of-it"
        assert told.read[f"{way}:sharer-of-it"], "before the migration it reads"
        until("the share consumer to be told", lambda: told.errors[late])
        assert {error.split(":")[0] for error in told.errors[late]} == {
            "org.apache.kafka.common.errors.TopicAuthorizationException"
        }
        assert told.read[late] == []

    def numbered_exactly_once(self, way: str, protocol: str) -> None:
        """Streams processed each record once, in order, across B0 and its restart."""
        self.of("streams")
        read = self.told.read[f"{way}:numbered-{protocol}"]
        numbered = [value.split("|") for _, value in read]
        records = [(int(offset), record_id) for offset, record_id, _ in numbered]
        assert records == self.seen_by_readers("read_committed")
        assert [int(number) for _, _, number in numbered] == list(range(1, len(numbered) + 1))
        assert self.told.errors[f"{way}:streams-{protocol}"] == []


def reader(consumer: tuple[str, str, str]) -> str:
    way, library, protocol = consumer
    return f"{way}:{library}-{protocol}"


def checks(way: str) -> dict[str, Callable[[Migration], None]]:
    """All that is asserted of the clients of one way, by a name for each."""
    found: dict[str, Callable[[Migration], None]] = {}

    def add(name: str, method: Callable[..., None], *arguments: str) -> None:
        found[name] = lambda migration: method(migration, way, *arguments)

    for library in LIBRARIES:
        add(f"producer-{library}", Migration.wrote_on, library)
        for producer in PRODUCERS:
            add(f"{producer}-{library}", Migration.told_abortable, library, producer)
    for library, protocol in CONSUMERS:
        add(f"group-{library}-{protocol}", Migration.read_each_once, library, protocol)
        add(f"late-group-{library}-{protocol}", Migration.read_late, library, protocol)
    for protocol in STREAMS:
        add(f"streams-{protocol}", Migration.numbered_exactly_once, protocol)
    add("share-group-elsewhere", Migration.shared_elsewhere)
    add("share-group-of-it", Migration.late_sharer_was_told)
    return found


@contextmanager
def migrated(case: Case, ways: Sequence[Way], directory: Path) -> Iterator[Migration]:
    """The topic of ``case`` migrates under clients of every library by all of the ways."""
    seen, file = Migration(case, ways), write_ways(ways, directory / "ways.json")
    commands: Mapping[str, Callable[[], list[str]]] = {
        "librdkafka": partial(python_command, "librdkafka", file),
        "kafka-python": partial(python_command, "kafka_python", file),
        "java": partial(java_command, file),
        "go": partial(go_command, file, directory),
        "streams": partial(streams_command, file, directory / "state"),
    }
    with ExitStack() as exits:
        for library, command in commands.items():
            try:
                seen.programs[library] = exits.enter_context(program(command(), seen.told))
            except UnavailableError as error:
                seen.missing[library] = str(error)
        migrate(seen)
        yield seen


def other_topics(seen: Migration) -> str:
    """Classic topics beside it; the one for transactions."""
    elsewhere = f"elsewhere-{seen.case.topic}"
    names = [elsewhere]
    for way in seen.ways:
        names.append(seen.beside("shared", way.name))
        names += [seen.beside("numbered", way.name, protocol) for protocol in STREAMS]
    replicas = min(3, seen.case.stack.brokers)
    create_topics(seen.case.admin, *(NewTopic(name, 1, replicas) for name in names))
    until("leaders", lambda: all(has_leader(seen.case, name) for name in names))
    return elsewhere


def has_leader(case: Case, name: str) -> bool:
    found = case.admin.list_topics(timeout=HANGS_S).topics.get(name)
    return found is not None and all(p.leader > 0 for p in found.partitions.values())


def attach(seen: Migration) -> None:
    """Every client begins while the topic is a classic one."""
    for way, library in itertools.product(seen.ways, seen.libraries):
        name = f"{way.name}:{library}-producer"
        seen.programs[library].ask("produce", name, seen.case.topic)
    seen.open_all()
    java = seen.programs["java"]
    for way in seen.ways:
        shared = seen.beside("shared", way.name)
        java.ask("produce", f"{way.name}:shared-producer", shared)
        java.ask("share", f"{way.name}:sharer", f"sharer-{shared}", shared)
    share(seen, "sharer-of-it")
    start_streams(seen)
    for way, protocol in seen.streams():
        name, topic = f"{way}:numbered-{protocol}", seen.beside("numbered", way, protocol)
        seen.programs["librdkafka"].ask("open", name, topic, "classic", "read_committed", topic)


def share(seen: Migration, name: str) -> None:
    """A share group of the topic itself by each way, of this name."""
    for way in seen.ways:
        group = seen.beside(name, way.name)
        seen.programs["java"].ask("share", f"{way.name}:{name}", group, seen.case.topic)


def start_streams(seen: Migration) -> None:
    for way, protocol in seen.streams():
        seen.programs["streams"].ask(
            "open", f"{way}:streams-{protocol}", seen.beside("streams", way, protocol), protocol,
            seen.case.topic, seen.beside("numbered", way, protocol),
        )  # fmt: skip


def migrate(seen: Migration) -> None:
    """From a classic topic to a hybrid one, every client at work all along."""
    case, told = seen.case, seen.told
    ways = [way.name for way in seen.ways]
    elsewhere = other_topics(seen)
    attach(seen)
    seen.transact("before", case.topic, "commit", "abort", producers=["transactional"])
    last = seen.until_written(10)
    seen.until_read(last)
    seen.until_numbered(last)
    until(
        "the share consumers",
        lambda: all(told.read[f"{w}:sharer"] and told.read[f"{w}:sharer-of-it"] for w in ways),
    )
    seen.restart_consumers()
    for way in ways:  # with one the migration would be refused
        seen.programs["java"].ask("close", f"{way}:sharer-of-it")

    holder = Producer(
        {
            "bootstrap.servers": case.bootstrap,
            **case.login,
            "transactional.id": case.topic,
            "transaction.timeout.ms": 900_000,
        }
    )
    holder.init_transactions(HANGS_S)
    holder.begin_transaction()
    holder.produce(
        case.topic, "held-open", partition=0,
        on_delivery=lambda _, at: seen.committed.append((at.offset(), "held-open")),
    )  # fmt: skip
    flushed(holder, 30)
    case.trigger()
    until("the drain to wait", lambda: case.waiting_reason(Phase.DRAIN_TRANSACTIONS))
    seen.transact("during", case.topic, "commit")
    share(seen, "late-sharer-of-it")
    seen.transact("elsewhere", elsewhere, "commit")
    seen.restart_consumers()
    seen.until_written(10)
    assert case.boundaries() == [-1]
    holder.commit_transaction(HANGS_S)

    (seen.boundary,) = case.until_crossed()
    last = seen.until_written(10)
    seen.restart_consumers()
    seen.until_read(last)
    case.until_ready()
    seen.transact("after", case.topic, "commit")
    seen.transact("elsewhere", elsewhere, "commit")
    seen.until_numbered(seen.until_written(10))
    seen.restart_consumers()
    for way, protocol in seen.streams():
        seen.programs["streams"].ask("close", f"{way}:streams-{protocol}")
    start_streams(seen)
    seen.open_all("-late", "read_uncommitted")
    seen.until_written(10)
    for name in seen.producers():
        library = name.partition(":")[2].removesuffix("-producer")
        seen.programs[library].ask("rest", name)
    for way in ways:
        seen.programs["java"].ask("rest", f"{way}:shared-producer")
    last = seen.acknowledged()[-1][0]
    seen.until_read(last)
    seen.until_read(last, "-late")
    seen.until_numbered(last)
    until(
        "all of the other topics to be shared",
        lambda: all(
            {*told.read[f"{w}:sharer"]} >= {*told.acked[f"{w}:shared-producer"]} for w in ways
        ),
    )
    seen.close_consumers()
