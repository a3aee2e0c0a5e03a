"""Client libraries on a topic that migrates under all of them at once (docs/clients.md).

One migration, every library attached to it: written and read before, while an open transaction
holds the drain, through the quiesce, between B0 and readiness, and afterwards.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field

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
from tests.harness import Case, migration_case, until
from tideline.domain.migration import Phase
from tideline.stack import Stack

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
    """The programs, and what was seen of one migration."""

    case: Case
    told: Told = field(default_factory=Told)
    programs: dict[str, Program] = field(default_factory=dict)
    missing: dict[str, str] = field(default_factory=dict)
    """Why a library cannot be had here."""
    outcomes: dict[tuple[str, str, str], list[str]] = field(default_factory=dict)
    """How transactions ended, by library, producer and when."""
    committed: list[Record] = field(default_factory=list)
    aborted: list[Record] = field(default_factory=list)
    boundary: int = -1
    shared: str = ""
    numbered: str = ""

    def of(self, library: str) -> Program:
        """Skips the test where the library cannot be had."""
        if library in self.missing:
            pytest.skip(self.missing[library])
        return self.programs[library]

    @property
    def consumers(self) -> list[tuple[str, str]]:
        return [(x, protocol) for x, protocol in CONSUMERS if x in self.programs]

    @property
    def libraries(self) -> list[str]:
        return [library for library in LIBRARIES if library in self.programs]

    def acknowledged(self) -> list[Record]:
        """Of the topic, outside transactions, in order."""
        history = [(a.offset, a.record_id) for a in self.case.ledger.acknowledgements(0)]
        live = (self.told.acked[f"{library}-producer"] for library in LIBRARIES)
        return sorted(itertools.chain(history, *live))

    def seen_by_readers(self, isolation: str) -> list[Record]:
        """What a reader of the topic has to see."""
        more = self.aborted if isolation == "read_uncommitted" else []
        return sorted([*self.acknowledged(), *self.committed, *more])

    def open(self, library: str, protocol: str, name: str, isolation: str) -> None:
        group = f"{name}-{self.case.topic}"
        self.programs[library].ask("open", name, group, protocol, isolation, self.case.topic)

    def restart_consumers(self) -> None:
        """All leave, then all come back, and go on where they committed."""
        for library, protocol in self.consumers:
            self.programs[library].ask("close", f"{library}-{protocol}")
        for library, protocol in self.consumers:
            self.open(library, protocol, f"{library}-{protocol}", "read_committed")

    def until_read(self, offset: int, *names: str) -> None:
        """All of the consumers have read so far; by default those that read all along."""
        for name in names or [f"{x}-{protocol}" for x, protocol in self.consumers]:
            until(
                f"{name} to read offset {offset}",
                lambda read=self.told.read[name]: read and read[-1][0] >= offset,  # type: ignore[misc]
                MOVES_S,
            )

    def until_written(self, more: int) -> int:
        """Every producer has so many more acknowledged; the last offset."""
        for library in self.libraries:
            acked = self.told.acked[f"{library}-producer"]
            until(
                f"{library} to write",
                lambda acked=acked, wanted=len(acked) + more: len(acked) >= wanted,  # type: ignore[misc]
                MOVES_S,
            )
        return max(offset for offset, _ in self.acknowledged())

    def transact(
        self, when: str, topic: str, *ends: str, producers: Sequence[str] = PRODUCERS
    ) -> None:
        for library, producer, end in itertools.product(self.libraries, producers, ends):
            value = f"{end}-{when}-{library}"
            outcome = self.programs[library].ask(
                "transact", f"{library}-{producer}", topic, end, value
            )
            self.outcomes.setdefault((library, producer, when), []).append(outcome)
            how, _, at = outcome.partition(" ")
            if how != "refused" and topic == self.case.topic:
                kept = self.committed if how == "committed" else self.aborted
                kept.append((int(at), value))


@pytest.fixture(scope="module")
def migration(stack: Stack, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Migration]:
    directory = tmp_path_factory.mktemp("clients")
    bootstrap = stack.endpoints.gateway_bootstrap
    with ExitStack() as exits:
        seen = Migration(exits.enter_context(migration_case(stack, name="clients")))
        commands = {
            "librdkafka": lambda: python_command("librdkafka", bootstrap),
            "kafka-python": lambda: python_command("kafka_python", bootstrap),
            "java": lambda: java_command(bootstrap),
            "go": lambda: go_command(bootstrap, directory),
            "streams": lambda: streams_command(bootstrap, directory / "state"),
        }
        for library, command in commands.items():
            try:
                seen.programs[library] = exits.enter_context(program(command(), seen.told))
            except UnavailableError as error:
                seen.missing[library] = str(error)
        migrate(seen)
        yield seen


def other_topics(seen: Migration) -> str:
    """Classic topics beside it; the one for transactions."""
    seen.shared, seen.numbered = f"shared-{seen.case.topic}", f"numbered-{seen.case.topic}"
    names = [seen.shared, f"elsewhere-{seen.case.topic}"]
    names += [f"{seen.numbered}-{protocol}" for protocol in STREAMS]
    for made in seen.case.admin.create_topics([NewTopic(name, 1, 3) for name in names]).values():
        made.result(30)
    until("leaders", lambda: all(has_leader(seen.case, name) for name in names))
    return names[1]


def has_leader(case: Case, name: str) -> bool:
    found = case.admin.list_topics(timeout=10).topics.get(name)
    return found is not None and all(p.leader > 0 for p in found.partitions.values())


def attach(seen: Migration) -> None:
    """Every client begins while the topic is a classic one."""
    for library in seen.libraries:
        seen.programs[library].ask("produce", f"{library}-producer", seen.case.topic)
    for library, protocol in seen.consumers:
        seen.open(library, protocol, f"{library}-{protocol}", "read_committed")
    java = seen.programs["java"]
    java.ask("produce", "shared-producer", seen.shared)
    java.ask("share", "sharer", f"sharer-{seen.shared}", seen.shared)
    share(seen, "sharer-of-it")
    start_streams(seen)
    for protocol in STREAMS if "streams" in seen.programs else ():
        name = f"numbered-{protocol}"
        topic = f"{seen.numbered}-{protocol}"
        seen.programs["librdkafka"].ask("open", name, name, "classic", "read_committed", topic)


def share(seen: Migration, name: str) -> None:
    """A share group of the topic itself, of this name."""
    group = f"{name}-{seen.case.topic}"
    seen.programs["java"].ask("share", name, group, seen.case.topic)


def start_streams(seen: Migration) -> None:
    for protocol in STREAMS if "streams" in seen.programs else ():
        seen.programs["streams"].ask(
            "open", f"streams-{protocol}", f"streams-{protocol}-{seen.case.topic}", protocol,
            seen.case.topic, f"{seen.numbered}-{protocol}",
        )  # fmt: skip


def until_numbered(seen: Migration, offset: int) -> None:
    for protocol in STREAMS if "streams" in seen.programs else ():
        read = seen.told.read[f"numbered-{protocol}"]
        until(
            f"Streams ({protocol}) to number offset {offset}",
            lambda read=read: read and int(read[-1][1].split("|")[0]) >= offset,  # type: ignore[misc]
            MOVES_S,
        )


def migrate(seen: Migration) -> None:
    """From a classic topic to a hybrid one, every client at work all along."""
    case, told = seen.case, seen.told
    elsewhere = other_topics(seen)
    attach(seen)
    seen.transact("before", case.topic, "commit", "abort", producers=["transactional"])
    last = seen.until_written(10)
    seen.until_read(last)
    until_numbered(seen, last)
    until("the share consumers", lambda: told.read["sharer"] and told.read["sharer-of-it"])
    seen.restart_consumers()
    seen.programs["java"].ask("close", "sharer-of-it")  # with one the migration would be refused

    holder = Producer({"bootstrap.servers": case.bootstrap, "transactional.id": case.topic})
    holder.init_transactions(30)
    holder.begin_transaction()
    holder.produce(
        case.topic, "held-open", partition=0,
        on_delivery=lambda _, at: seen.committed.append((at.offset(), "held-open")),
    )  # fmt: skip
    assert holder.flush(30) == 0
    case.trigger()
    until("the drain to wait", lambda: case.waiting_reason(Phase.DRAIN_TRANSACTIONS))
    seen.transact("during", case.topic, "commit")
    share(seen, "late-sharer-of-it")
    seen.transact("elsewhere", elsewhere, "commit")
    seen.restart_consumers()
    seen.until_written(10)
    assert case.boundaries() == [-1]
    holder.commit_transaction(30)

    (seen.boundary,) = case.until_crossed()
    last = seen.until_written(10)
    seen.restart_consumers()
    seen.until_read(last)
    case.until_ready()
    seen.transact("after", case.topic, "commit")
    seen.transact("elsewhere", elsewhere, "commit")
    until_numbered(seen, seen.until_written(10))
    seen.restart_consumers()
    if "streams" in seen.programs:
        for protocol in STREAMS:
            seen.programs["streams"].ask("close", f"streams-{protocol}")
        start_streams(seen)
    for library, protocol in seen.consumers:
        seen.open(library, protocol, f"{library}-{protocol}-late", "read_uncommitted")
    seen.until_written(10)
    for library in seen.libraries:
        seen.programs[library].ask("rest", f"{library}-producer")
    seen.programs["java"].ask("rest", "shared-producer")
    last = seen.acknowledged()[-1][0]
    seen.until_read(last)
    seen.until_read(last, *(f"{x}-{protocol}-late" for x, protocol in seen.consumers))
    until_numbered(seen, last)
    until(
        "all of the other topic to be shared",
        lambda: {*told.read["sharer"]} >= {*told.acked["shared-producer"]},
    )


def by_name(consumer: tuple[str, str]) -> str:
    return "-".join(consumer)


@pytest.mark.parametrize("library", LIBRARIES)
def test_an_idempotent_producer_writes_on_through_the_migration(
    migration: Migration, library: str
) -> None:
    migration.of(library)
    acked = migration.told.acked[f"{library}-producer"]
    offsets = [offset for offset, _ in acked]
    assert offsets[0] < migration.boundary <= offsets[-1]
    assert offsets == sorted(offsets)
    assert [value for _, value in acked] == [f"{library}-producer/{n}" for n in range(len(acked))]
    assert migration.told.errors[f"{library}-producer"] == []


@pytest.mark.parametrize("consumer", CONSUMERS, ids=by_name)
def test_a_group_consumer_reads_each_record_once_across_b0_and_its_restarts(
    migration: Migration, consumer: tuple[str, str]
) -> None:
    migration.of(consumer[0])
    name = by_name(consumer)
    assert migration.told.read[name] == migration.seen_by_readers("read_committed")
    assert migration.told.errors[name] == []


@pytest.mark.parametrize("consumer", CONSUMERS, ids=by_name)
def test_a_group_that_comes_afterwards_reads_the_hybrid_topic_from_its_beginning(
    migration: Migration, consumer: tuple[str, str]
) -> None:
    migration.of(consumer[0])
    name = f"{by_name(consumer)}-late"
    assert migration.told.read[name] == migration.seen_by_readers("read_uncommitted")
    assert migration.told.errors[name] == []


@pytest.mark.parametrize("producer", PRODUCERS)
@pytest.mark.parametrize("library", LIBRARIES)
def test_a_transaction_is_told_abortable_and_the_producer_goes_on_elsewhere(
    migration: Migration, library: str, producer: str
) -> None:
    migration.of(library)
    if producer == "transactional":
        ends = [outcome.split()[0] for outcome in migration.outcomes[library, producer, "before"]]
        assert ends == ["committed", "aborted"]
    for when in ("during", "after"):
        assert migration.outcomes[library, producer, when] == [f"refused {ABORTABLE[library]}"]
    ends = [outcome.split()[0] for outcome in migration.outcomes[library, producer, "elsewhere"]]
    assert ends == ["committed", "committed"]


def test_a_share_group_of_another_topic_gets_every_record(migration: Migration) -> None:
    """At least once, as share groups promise: its session ends when a topic begins to migrate."""
    told = migration.told
    assert {*told.read["sharer"]} == {*told.acked["shared-producer"]}
    assert told.errors["sharer"] == told.errors["shared-producer"] == []


def test_a_share_group_that_comes_during_a_migration_is_told_that_it_may_not_read(
    migration: Migration,
) -> None:
    told = migration.told
    assert told.read["sharer-of-it"], "before the migration it reads"
    until("the share consumer to be told", lambda: told.errors["late-sharer-of-it"])
    assert {error.split(":")[0] for error in told.errors["late-sharer-of-it"]} == {
        "org.apache.kafka.common.errors.TopicAuthorizationException"
    }
    assert told.read["late-sharer-of-it"] == []


@pytest.mark.parametrize("protocol", STREAMS)
def test_streams_processes_each_record_exactly_once_across_b0(
    migration: Migration, protocol: str
) -> None:
    migration.of("streams")
    numbered = [value.split("|") for _, value in migration.told.read[f"numbered-{protocol}"]]
    records = [(int(offset), record_id) for offset, record_id, _ in numbered]
    assert records == migration.seen_by_readers("read_committed")
    assert [int(number) for _, _, number in numbered] == list(range(1, len(numbered) + 1))
    assert migration.told.errors[f"streams-{protocol}"] == []
