"""One migration under load with a fault in it: the pieces that every fault test shares.

A fault test first proves that the fault overlapped the state it names (a
:class:`Breakpoint` holds the migration in a phase, and Postgres says so), then that what was
consumed is what was acknowledged.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import os
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, TypeVar
from urllib.request import urlopen
from uuid import UUID

import psycopg
from confluent_kafka import KafkaError, KafkaException
from confluent_kafka.admin import (
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    NewTopic,
    ResourceType,
)
from prometheus_client.parser import text_string_to_metric_families

from tests import deaths
from tests.raw import ask, message
from tests.support.waiting import HANGS_S, WITHIN_S, output_of, until
from tideline.control_plane.model import TrackedPartition
from tideline.demo import topic as topics
from tideline.demo.ledger import Ledger
from tideline.demo.workload import GroupConsumer, LibrdkafkaProducer, wait_until_consumed
from tideline.domain.migration import PHASE_ORDER, Phase, phase_rule
from tideline.gateway.tracking.snapshot import SnapshotFile
from tideline.kafka.client import KafkaCluster
from tideline.kafka.errors import KafkaError as KafkaSays
from tideline.kafka.errors import KafkaUnavailable
from tideline.kafka.observer import KafkaObserver
from tideline.stack import Stack

T = TypeVar("T")
_numbers = itertools.count(1)

RATE = 25.0
"""Records a second of a producer: there is always one under way when a fault comes, which lasts for
seconds. Each goes to three brokers, and in the suffix is an object and a commit of its own."""
SEEMS_DEAD = "no sign of life"
"""So a migration is refused while a gateway's renewals do not reach Postgres for as long as its
lease lasts, as on a disk that others use."""
UNDECIDED = (KafkaError.REQUEST_TIMED_OUT, KafkaError._TRANSPORT, KafkaError._TIMED_OUT)
"""Nobody knows whether it was made: whoever asks again finds out. librdkafka repeats no admin
request that met with a connection that ended."""
NOT_HEARD_YET = (KafkaError.UNKNOWN_TOPIC_OR_PART, KafkaError.LEADER_NOT_AVAILABLE)
"""So a broker says of a topic that was made a moment ago, at another one."""
OF_THE_TOPIC = 1
"""Where a config comes from (Kafka: ``ConfigSource``)."""
CONSOLE_MS = "120000"
"""Between two records of Kafka's console consumer, which makes its group first: how long it may
take on this machine is said by who runs it."""
LASTING_SESSION: dict[str, str | int | float | bool] = {"session.timeout.ms": 300_000}
"""Of a group's member: brokers that start one after the other on a busy machine take longer than
the 45 s after which it gives its partitions up, and reads again what it has read."""


def undecided(error: Exception) -> bool:
    """Whether an admin client was told nothing: right behind a fault that is so."""
    if isinstance(error, KafkaException):
        return error.args[0].code() in UNDECIDED
    return isinstance(error, TimeoutError)  # of its future


def again(what: str, how: Callable[[], T], *told: int, seconds: float = WITHIN_S) -> T:
    """What an admin request comes to that does no more when it is repeated: repeated while nobody
    knows whether it was done, or it is told one of ``told``."""

    def answered() -> list[T]:
        try:
            return [how()]
        except (KafkaException, TimeoutError) as error:
            if not undecided(error) and error.args[0].code() not in told:
                raise
            return []

    return until(what, answered, seconds)[0]


def _once(what: str, how: Callable[[], object], done: int) -> None:
    """As :func:`again`, of what cannot be done twice: told ``done`` when it is asked anew, it was
    done the first time."""
    asked = False

    def answered() -> None:
        nonlocal asked
        before, asked = asked, True
        try:
            how()
        except KafkaException as error:
            if not before or error.args[0].code() != done:
                raise

    again(what, answered, seconds=HANGS_S)


def create_topics(admin: AdminClient, *wanted: NewTopic) -> None:
    """One after the other. A broker may still have to hear of them then."""
    for new in wanted:
        _once(
            f"topic {new.topic}",
            partial(_result, admin.create_topics, new, new.topic),
            KafkaError.TOPIC_ALREADY_EXISTS,
        )


def delete_topics(admin: AdminClient, *names: str) -> None:
    """One after the other."""
    for name in names:
        _once(
            f"the end of topic {name}",
            partial(_result, admin.delete_topics, name, name),
            KafkaError.UNKNOWN_TOPIC_OR_PART,
        )


def _result(how: Callable[..., Mapping[str, Any]], one: object, name: str) -> None:
    how([one], operation_timeout=30)[name].result(HANGS_S)


def id_of(admin: AdminClient, topic: str) -> UUID:
    """Of a topic of which a broker may still have to hear."""
    return again(
        f"the id of {topic}", lambda: topics.topic_id(admin, topic), *NOT_HEARD_YET,
        seconds=HANGS_S,
    )  # fmt: skip


def create_tiered(
    admin: AdminClient,
    topic: str,
    partitions: int,
    replicas: int,
    placed: Sequence[int] = (),
    **configs: str,
) -> UUID:
    """As the demo does it, right behind a fault, too. ``placed``: the brokers of each partition,
    its leader first, in the place of so many replicas anywhere."""
    how: dict[str, Any] = (
        {"replica_assignment": [list(placed)] * partitions}
        if placed
        else {"replication_factor": replicas}
    )
    made = NewTopic(topic, partitions, config={**topics.TIERED_CONFIGS, **configs}, **how)
    create_topics(admin, made)
    return id_of(admin, topic)


def until_led(addresses: Iterable[str], topic: str, partitions: int) -> None:
    """Each of these brokers, or gateways, tells a leader of every partition: they learn of a new
    topic after its creation is answered, each by itself. Where nobody has to log in."""
    asked = message("Metadata", 12, topics=[{"topic_id": None, "name": topic}],
                    allow_auto_topic_creation=False,
                    include_topic_authorized_operations=False)  # fmt: skip

    def told_by(address: str) -> bool:
        (told,) = ask(address, asked).topics
        return len(told.partitions) == partitions and all(p.leader_id > 0 for p in told.partitions)

    for address in addresses:
        until(f"{address} to tell the leaders of {topic}", partial(told_by, address))


def asked_of(addresses: Iterable[str], how: Callable[[KafkaCluster], Awaitable[T]]) -> T:
    """What brokers or gateways answer who asks without a client library: asked again while none
    answers, or it says what Kafka has clients ask again for."""
    bootstrap = [(host, int(port)) for host, _, port in (at.rpartition(":") for at in addresses)]

    async def connected() -> T:
        async with KafkaCluster(bootstrap, client_id="test", timeout_ms=30_000) as cluster:
            return await how(cluster)

    def answered() -> list[T]:
        try:
            return [asyncio.run(connected())]
        except KafkaUnavailable:
            return []
        except KafkaSays as error:
            if not error.retriable:
                raise
            return []

    return until("an answer of Kafka's", answered)[0]


def until_taken(trigger: Callable[[], object]) -> None:
    """Repeat the config change that ``trigger`` makes while it is refused for a gateway that seems
    dead, or nobody knows whether it was made: right behind a fault that is so."""

    said = ""

    def taken() -> bool:
        nonlocal said
        try:
            trigger()
        except (KafkaException, TimeoutError) as error:
            if SEEMS_DEAD in str(error) or undecided(error):
                said = repr(error)
                return False
            raise
        return True

    try:
        until("the config change to be taken", taken, 180.0)
    except AssertionError as error:
        raise AssertionError(f"{error}: {said}") from error


def counted(stack: Stack, name: str, **labels: str) -> int:
    """Of all gateways, over the samples that have these labels."""
    found = 0.0
    for program, address in stack.endpoints.metrics.items():
        if program.startswith("gateway-"):
            with urlopen(f"http://{address}/metrics", timeout=HANGS_S) as answer:
                page = answer.read().decode()
            for family in text_string_to_metric_families(page):
                for sample in family.samples:
                    if sample.name == name and labels.items() <= sample.labels.items():
                        found += sample.value
    return int(found)


def until_in_snapshot(
    stack: Stack, node: int, topic: str, holds: Callable[[TrackedPartition], bool]
) -> None:
    """Wait until what the gateway of ``node`` starts from without Postgres, which it writes behind
    the news, says of partition 0 what is asked for."""
    own = stack.environment(f"gateway-{node}")
    file = SnapshotFile(Path(own["TIDELINE_GATEWAY_STATE_DIR"]), int(own["TIDELINE_GATEWAY_ID"]))

    def written() -> bool:
        snapshot = file.read()
        tracked = {t.name: t.partitions for t in snapshot.topics} if snapshot else {}
        return topic in tracked and holds(tracked[topic][0])

    until(f"the snapshot of gateway {node} to have it", written)


def ports_of(stack: Stack) -> dict[str, int]:
    """By listener, as :func:`tideline.stack.ports.preferred` names them."""
    found: dict[str, int] = json.loads((stack.home / "stack.json").read_text())["ports"]
    return found


def start_gateway(stack: Stack, node: int) -> None:
    """Start it, and wait until it is named: librdkafka cuts the connection to a node whose address
    changes, and gives up admin requests that wait there."""
    stack.start(f"gateway-{node}")
    until_named(stack, node)


def until_named(stack: Stack, node: int) -> None:
    """Wait until every gateway names the gateway of ``node`` to its clients."""
    own = stack.endpoints.gateways[node]

    def named_by(gateway: str) -> bool:
        asked = AdminClient({"bootstrap.servers": gateway, **stack.kafka_login().librdkafka})
        try:
            told = asked.list_topics(timeout=HANGS_S).brokers.get(node)
        except KafkaException:
            return False
        return told is not None and f"{told.host}:{told.port}" == own

    until(
        f"every gateway to name gateway {node}",
        lambda: all(map(named_by, stack.endpoints.gateways.values())),
    )


def described(admin: AdminClient, name: str) -> dict[str, ConfigEntry]:
    """Configs of a topic, from a broker that knows it already."""

    def known() -> dict[str, ConfigEntry]:
        (asked,) = admin.describe_configs([ConfigResource(ResourceType.TOPIC, name)]).values()
        return asked.result(HANGS_S)

    return again(f"the configs of {name}", known, *NOT_HEARD_YET)


def alter_configs(
    admin: AdminClient,
    topic: str,
    wanted: Mapping[str, str | None],
    *,
    only_ask: bool = False,
    kind: ResourceType = ResourceType.TOPIC,
) -> None:
    """Set configs of ``topic``, or delete those whose value is None."""
    changes = [
        ConfigEntry(
            key,
            value,
            incremental_operation=(
                AlterConfigOpType.DELETE if value is None else AlterConfigOpType.SET
            ),
        )
        for key, value in wanted.items()
    ]
    resource = ConfigResource(kind, topic, incremental_configs=changes)
    again(
        f"{dict(wanted)} of {topic}",
        lambda: admin.incremental_alter_configs([resource], validate_only=only_ask)[
            resource
        ].result(HANGS_S),
    )


def own_configs(address: str, topic: str) -> dict[str, str | None]:
    """Set on the topic itself, as this broker or gateway knows. Where nobody has to log in."""
    about = {"resource_type": 2, "resource_name": topic, "configuration_keys": None}
    asked = message("DescribeConfigs", 4, resources=[about], include_synonyms=False,
                    include_documentation=False)  # fmt: skip
    (told,) = ask(address, asked).results
    return {row.name: row.value for row in told.configs if row.config_source == OF_THE_TOPIC}


@dataclass(frozen=True)
class GatewayRow:
    """One registration."""

    incarnation: UUID
    status: str


class Breakpoint:
    """Holds a migration where it says that ``phase`` runs, or is done without having said so.

    A trigger on ``migration_phases`` takes an advisory lock that the test holds, so the worker's
    own write blocks there, and the next one when that has timed out. Survives the worker; ends with
    :meth:`release` or with Postgres. Each has a lock and a trigger of its own, so that many
    migrations can be held at once.
    """

    KEY = 815_100

    def __init__(
        self, dsn: str, topic_id: UUID, phase: Phase, partition: int | None = None
    ) -> None:
        """``partition``: only this one is held; by default every one."""
        self._dsn, self.phase, self._topic_id = dsn, phase, topic_id
        held = "" if partition is None else f"AND l.partition = {partition}"
        self._released = False
        number = next(_numbers)
        self._key, self._name = self.KEY + number, f"test_breakpoint_{number}"
        self._holder = psycopg.connect(dsn, autocommit=True)
        self._holder.execute("SELECT pg_advisory_lock(%s)", [self._key])
        self._holder.execute(
            f"""
            CREATE FUNCTION tideline.{self._name}() RETURNS trigger
            LANGUAGE plpgsql AS $$
            BEGIN
                IF NEW.phase = '{phase}' AND NEW.status IN ('running', 'waiting', 'done')
                   AND EXISTS (SELECT FROM tideline.logs AS l
                       WHERE l.log_id = NEW.log_id AND l.topic_id = '{topic_id}' {held}) THEN
                    PERFORM pg_advisory_xact_lock_shared({self._key});
                END IF;
                RETURN NEW;
            END $$;
            CREATE TRIGGER {self._name} BEFORE INSERT OR UPDATE ON tideline.migration_phases
                FOR EACH ROW EXECUTE FUNCTION tideline.{self._name}();
            """.encode()
        )

    def wait_until_hit(self, timeout_s: float = 60.0) -> None:
        """The worker's transaction waits at the breakpoint."""
        until(f"the migration to reach {self.phase}", lambda: self.hit, timeout_s)

    @property
    def hit(self) -> bool:
        """Whether a transaction waits here now."""
        row = self._holder.execute(
            "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND NOT granted"
            " AND objid = %s",
            [self._key],
        ).fetchone()
        return row is not None and row[0] > 0

    def let_go(self) -> None:
        """Let the migration go on; the trigger stays, and holds nobody any more."""
        self._holder.close()

    def release(self) -> None:
        """Let the migration go on. Safe after Postgres was restarted, and when repeated."""
        if self._released:
            return
        self.let_go()
        with psycopg.connect(self._dsn, autocommit=True) as connection:
            connection.execute(f"DROP FUNCTION tideline.{self._name} CASCADE".encode())
        self._released = True


@dataclass
class Case:
    """A topic with history, live clients and a ledger."""

    stack: Stack
    topic: str
    partitions: int
    topic_id: UUID
    ledger: Ledger
    admin: AdminClient
    bootstrap: str
    producers: list[LibrdkafkaProducer] = field(default_factory=list)
    members: list[GroupConsumer] = field(default_factory=list)
    _connection: psycopg.Connection[tuple[object, ...]] | None = None

    @property
    def login(self) -> dict[str, str]:
        """How clients of librdkafka connect to this stack."""
        return self.stack.kafka_login().librdkafka

    @property
    def superuser_dsn(self) -> str:
        return self.stack.endpoints.postgres_dsn("postgres")

    def produce(self, name: str = "p1", rate: float = RATE, **config: object) -> None:
        """Start an idempotent producer over all partitions."""
        producer = LibrdkafkaProducer(
            name,
            self.bootstrap,
            self.topic,
            range(self.partitions),
            self.ledger,
            records_per_second=rate,
            config={**self.login, **config},  # type: ignore[dict-item]
        )
        producer.start()
        self.producers.append(producer)

    def write(self, records: int, name: str = "") -> None:
        """By a producer of their own; all are acknowledged when it returns."""
        write(self.bootstrap, self.topic, self.partitions, self.ledger, records, name, self.login)

    def consume(self, name: str = "c1") -> None:
        """Start a group member from the earliest offset."""
        member = GroupConsumer(
            name, self.bootstrap, self.topic, f"g-{self.topic}", self.ledger,
            config={**self.login, **LASTING_SESSION},
        )  # fmt: skip
        member.start()
        until(f"an assignment for {name}", member.assigned.is_set)
        self.members.append(member)

    def until_acknowledged(self, more: int, timeout_s: float = 60.0) -> None:
        """Wait until producers got ``more`` acknowledgements from now on."""
        start = self.ledger.counts()[0]
        until(
            f"{more} more acknowledgements",
            lambda: self.ledger.counts()[0] >= start + more,
            timeout_s,
        )

    def trigger(self) -> None:
        """Start the migration as a user does: by a config change."""
        until_taken(lambda: topics.trigger_migration(self.admin, self.topic))

    def rows(self, columns: str) -> list[tuple[object, ...]]:
        """Columns of this topic's ``logs`` rows, by partition."""
        return self._ask(
            f"SELECT {columns} FROM tideline.logs WHERE topic_id = %s ORDER BY partition"
        )

    def _ask(self, query: str, *more: object) -> list[tuple[object, ...]]:
        """Over one connection, for those who poll; over a new one after an outage."""
        while True:
            if self._connection is None:
                self._connection = psycopg.connect(self.superuser_dsn, autocommit=True)
            try:
                return self._connection.execute(query.encode(), [self.topic_id, *more]).fetchall()
            except psycopg.OperationalError:
                self._connection.close()
                self._connection = None

    def boundaries(self) -> list[int]:
        """B0 by partition, -1 where it is unset."""
        return [int(str(row[0])) for row in self.rows("diskless_log_start_offset")]

    def phases(self) -> dict[tuple[int, str], str]:
        """Status by (partition, phase)."""
        found = self._ask(
            "SELECT partition, phase, status FROM tideline.migration_phases"
            " JOIN tideline.logs USING (log_id) WHERE topic_id = %s"
        )
        return {(int(str(row[0])), str(row[1])): str(row[2]) for row in found}

    def waiting_reason(self, phase: Phase, partition: int = 0) -> str | None:
        """Why the phase waits, as an operator sees it."""
        found = self._ask(
            "SELECT waiting_reason FROM tideline.migration_phases"
            " JOIN tideline.logs USING (log_id)"
            " WHERE topic_id = %s AND partition = %s AND phase = %s",
            partition,
            phase,
        )
        return None if not found or found[0][0] is None else str(found[0][0])

    def evidence(self, phase: Phase) -> list[dict[str, Any]]:
        """What the phase has observed, by partition."""
        found = self._ask(
            "SELECT evidence FROM tideline.migration_phases JOIN tideline.logs USING (log_id)"
            " WHERE topic_id = %s AND phase = %s ORDER BY partition",
            phase,
        )
        return [row[0] for row in found]  # type: ignore[misc]

    def until_crossed(self, timeout_s: float = 90.0) -> list[int]:
        """Wait until every partition has its B0."""
        until(
            f"B0 of every partition of {self.topic}",
            lambda: len(self.boundaries()) == self.partitions and min(self.boundaries()) >= 0,
            timeout_s,
        )
        return self.boundaries()

    def until_ready(self, timeout_s: float = 120.0) -> None:
        """Wait until every partition's readiness is done."""
        until(
            f"readiness of every partition of {self.topic}",
            lambda: all(
                self.phases().get((p, Phase.READINESS)) == "done" for p in range(self.partitions)
            ),
            timeout_s,
        )

    def rest(self) -> None:
        """Stop the producers; everything that they sent is settled."""
        while self.producers:
            self.producers.pop().stop()

    def settle(self) -> None:
        """Stop the producers, let the group read to the end, and compare."""
        self.rest()
        caught_up = wait_until_consumed(self.ledger, 60.0)
        states = [] if caught_up else [member.state() for member in self.members]
        deaths.check()
        for member in self.members:
            member.stop()
        assert not self.ledger.failures, self.ledger.failures[:3]
        for partition in range(self.partitions):
            verdict = self.ledger.verdict(partition)
            assert verdict.ok, verdict
        assert caught_up, f"the group did not read to the end within 60 s: {states}"
        assert not [reset for member in self.members for reset in member.resets]

    def end_well(self) -> None:
        """The migration ends, clients go on, and nothing is lost."""
        self.until_ready()
        self.until_acknowledged(20)
        self.settle()

    def stop(self) -> None:
        """Stop whatever still runs, after a failed test too."""
        for producer in self.producers:
            producer.abandon()
        for member in self.members:
            member.stop()
        if self._connection is not None:
            self._connection.close()


def write(
    bootstrap: str,
    topic: str,
    partitions: int,
    ledger: Ledger,
    records: int,
    name: str = "",
    config: Mapping[str, str] | None = None,
) -> None:
    """So many records over all partitions, as fast as they are taken, by an idempotent producer
    that nobody was before unless ``name`` says so."""
    producer = LibrdkafkaProducer(
        name or f"producer-{time.monotonic_ns()}", bootstrap, topic, range(partitions), ledger,
        records_per_second=1e9, limit=records, config=config,
    )  # fmt: skip
    producer.start()
    producer.wait()


@contextmanager
def migration_case(
    stack: Stack,
    *,
    partitions: int = 1,
    history: int = 200,
    name: str = "fault",
    placed: Sequence[int] = (),
    **configs: str,
) -> Iterator[Case]:
    """A tiered topic with ``history`` records per partition and nobody attached yet. ``placed``:
    the brokers of each partition, its leader first; by default any three."""
    bootstrap = stack.endpoints.gateway_bootstrap
    admin = AdminClient({"bootstrap.servers": bootstrap, **stack.kafka_login().librdkafka})
    topic = f"{name}-{next(_numbers)}-{time.monotonic_ns() % 1_000_000}"
    replicas = min(3, len(stack.endpoints.gateways))

    topic_id = create_tiered(admin, topic, partitions, replicas, placed=placed, **configs)
    case = Case(stack, topic, partitions, topic_id, Ledger(), admin, bootstrap)
    if history:
        case.write(history * partitions, "history")
    try:
        yield case
    finally:
        case.stop()


def one_fault_each(phases: Sequence[Phase]) -> list[tuple[Phase, ...]]:
    """``phases`` in as few groups as faults are needed.

    A migration that is held outside the write pause stays where it is; one inside goes back to the
    drain when the quiesce's hold is over. So each group has one of those inside, last, and the
    first group has all of the others.
    """
    inside = [phase for phase in phases if phase_rule(phase).inside_write_pause]
    outside = [phase for phase in phases if phase not in inside]
    return [(*outside, inside[0]), *((phase,) for phase in inside[1:])]


@dataclass(frozen=True)
class Held:
    """Migrations under load that stand still, each in a phase of its own."""

    migrations: list[tuple[Case, Breakpoint]]
    _together: ThreadPoolExecutor

    @property
    def cases(self) -> list[Case]:
        return [case for case, _ in self.migrations]

    def check(self) -> None:
        """None has got through its phase. What was done before it may be noted a moment later."""
        for case, stop in self.migrations:
            found = case.phases()
            rest = PHASE_ORDER[PHASE_ORDER.index(stop.phase) :]
            done = [phase for phase in rest if found.get((0, phase)) == "done"]
            assert not done, f"{stop.phase} is not held: {done} are done"

    def let_go(self) -> None:
        """All of them, before any trigger is dropped: that waits for those held at the others."""
        for _, stop in self.migrations:
            stop.let_go()

    def each(self, step: Callable[[Case], object]) -> None:
        """Do ``step`` with every case, side by side."""
        list(self._together.map(step, self.cases))


@contextmanager
def held_in_phases(
    stack: Stack, name: str, phases: Sequence[Phase], placed: Sequence[int] = (), **configs: str
) -> Iterator[Held]:
    """Topics under load, the migration of each held in another phase; see :func:`one_fault_each`.

    A held write is cancelled by its timeout and tried again, so a migration counts as held once it
    has been seen waiting. That of the write pause comes last, and is seen waiting at the end.
    """
    with ExitStack() as exits, ThreadPoolExecutor(len(phases)) as together:
        cases = [
            exits.enter_context(
                migration_case(
                    stack, name=f"{name}-{phase.replace('_', '-')}", placed=placed, **configs
                )
            )
            for phase in phases
        ]

        def load(case: Case) -> None:
            case.produce(rate=RATE / 2 if len(cases) > 1 else RATE)
            case.consume()
            case.until_acknowledged(20)

        list(together.map(load, cases))
        stops = []
        for case, phase in zip(cases, phases, strict=True):
            stops.append(Breakpoint(case.superuser_dsn, case.topic_id, phase))
            exits.callback(stops[-1].release)
        held = Held(list(zip(cases, stops, strict=True)), together)
        exits.callback(held.let_go)
        *lasting, last = held.migrations
        for case, _ in lasting:
            case.trigger()
        for _, stop in lasting:
            stop.wait_until_hit()
        last[0].trigger()
        last[1].wait_until_hit()
        held.check()
        yield held


@contextmanager
def killed(stack: Stack, *programs: str) -> Iterator[None]:
    """The programs are killed and stay away inside. When it is over clients are led to them."""
    for program in programs:
        stack.kill(program, restart=False)
    try:
        yield
    finally:
        # All, then each: one broker of three answers only once it has a quorum.
        for program in programs:
            stack.start(program, wait=False)
        for program in programs:
            stack.wait_ready(program)
    for program in programs:
        kind, _, node = program.partition("-")
        if kind in ("kafka", "gateway"):
            until_named(stack, int(node))


def leader_of(stack: Stack, topic: str, partition: int, *, avoid: int = -1) -> tuple[int, int]:
    """(leader id, leader epoch) from a broker other than ``avoid``; (-1, -1) without a leader."""

    async def told(cluster: KafkaCluster) -> tuple[int, int]:
        layout = await KafkaObserver(cluster).partition(topic, partition)
        return layout.leader, layout.leader_epoch if layout.leader >= 0 else -1

    return asked_of((at for node, at in stack.endpoints.brokers.items() if node != avoid), told)


def gateways(case: Case) -> dict[int, GatewayRow]:
    """Registrations by gateway id."""
    with psycopg.connect(case.superuser_dsn, autocommit=True) as connection:
        rows = connection.execute(
            "SELECT gateway_id, incarnation, status FROM tideline.gateways"
        ).fetchall()
    return {row[0]: GatewayRow(row[1], row[2]) for row in rows}


def quiesced(case: Case, partition: int) -> bool:
    """Whether the partition's generation is closed."""
    return bool(case.rows("quiesce = 'closed'")[partition][0])


class Command:
    """A ``tideline`` command, or another module's, in a process of its own."""

    def __init__(
        self,
        stack: Stack,
        arguments: Sequence[str],
        *,
        module: str = "tideline",
        role: str = "worker",
        **settings: str,
    ) -> None:
        """``role``: whose environment it has, with ``settings`` beside it."""
        # Not what a stack in this checkout has left: `make demo` does.
        own = {**stack.environment(role), "TIDELINE_HOME": str(stack.home), **settings}
        self._process = subprocess.Popen(
            [sys.executable, "-m", module, *arguments],
            env={**os.environ, **own},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        self._written = self._errors = ""

    def line(self) -> str:
        """The next line on stdout, once it is written; it does not count as answered."""
        assert self._process.stdout is not None
        return self._process.stdout.readline()

    def wait(self, timeout_s: float) -> int:
        """Its exit code."""
        self._written, self._errors = output_of(self._process, timeout_s)
        return self._process.returncode

    def answer(self) -> str:
        """What it wrote for scripts (stdout)."""
        return self._written

    def output(self) -> str:
        """What a person sees: stdout, then stderr."""
        return self._written + self._errors


def command(stack: Stack, *arguments: str, wait: bool = False) -> Command:
    """Run a command against the stack; ``wait`` asserts that it succeeds."""
    if not wait:
        return Command(stack, arguments)

    def ended() -> Command | None:
        ran = Command(stack, arguments)
        succeeded = ran.wait(HANGS_S) == 0
        assert succeeded or SEEMS_DEAD in ran.output(), ran.output()
        return ran if succeeded else None

    return until(f"{' '.join(arguments)} to succeed", ended)
