"""`python -m benchmarks.large_topics`: topics of many idle partitions become hybrid.

On an embedded stack with one broker, one topic after the other is created, given a few records in
each partition, and migrated. Told of each: how long each stage took, partitions a minute, which
process used how much CPU and memory, how long workflow tasks waited and took, and how many attempts
at each activity a partition needed: 1 is what there has to be, more is looking again.

Nobody looks on while a topic migrates but for its end: what a look at thousands of partitions costs
would be counted with the rest.
"""

from __future__ import annotations

import argparse
import asyncio
import statistics
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from itertools import pairwise
from pathlib import Path

import psutil
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient
from temporalio.api.enums.v1 import EventType
from temporalio.api.history.v1 import HistoryEvent
from temporalio.client import Client
from temporalio.converter import DefaultPayloadConverter

from benchmarks.own_stack import own_stack
from tideline import control_plane, temporal
from tideline.control_plane import ControlPlane
from tideline.demo import topic as topics
from tideline.demo.ledger import quantile
from tideline.demo.run import machine
from tideline.domain.messages import SearchAttribute, TopicMigrationInput, TopicOutcome, TopicRef
from tideline.domain.migration import Phase
from tideline.domain.options import MigrationOptions
from tideline.settings import WorkerSettings
from tideline.stack import Stack
from tideline.stack.processes import cpu_seconds, family

RECORDS = 5
"""In each partition before the migration."""
LOOKED_AT = 20
"""Partitions whose histories are read at the end."""
POLL_S = 1.0
PARTS = ("worker", "temporal", "kafka-1", "gateway-1", "postgres", "s3")
CONVERTER = DefaultPayloadConverter()


@dataclass(slots=True)
class FleetRun:
    """One topic. Times in seconds."""

    partitions: int
    stages: dict[str, float] = field(default_factory=dict)
    """How long the topic's workflow was in each."""
    crossed: float = 0.0
    """From the start to the last B0."""
    total: float = 0.0
    cpu: dict[str, float] = field(default_factory=dict)
    """Core seconds by process."""
    memory: dict[str, float] = field(default_factory=dict)
    """MiB by process, at the end."""
    waited_ms: list[float] = field(default_factory=list)
    """Of workflow tasks, from being due to being taken."""
    took_ms: list[float] = field(default_factory=list)
    """Of workflow tasks, from being taken to their answer."""
    attempts: dict[str, float] = field(default_factory=dict)
    """By activity, of a partition."""
    events: float = 0.0
    """In a partition's history."""
    topic_events: int = 0
    """In the topic's histories, all its runs."""

    @property
    def a_minute(self) -> float:
        return 60 * self.partitions / self.total if self.total else 0.0


@dataclass(slots=True)
class Fleet:
    """A stack, and what it is asked through."""

    stack: Stack
    plane: ControlPlane
    client: Client
    settings: WorkerSettings
    step: Callable[[str], None]
    within_s: float

    async def migrate(self, partitions: int, options: MigrationOptions, number: int) -> FleetRun:
        """Raises :class:`TimeoutError` after ``within_s``."""
        name = f"large-{partitions}-{number}"
        self.step(f"{name}: created and written")
        ref = await asyncio.to_thread(self._create, name, partitions)
        found = FleetRun(partitions)
        self.step(f"{name}: migrates")
        before, began, at = self._cpu(), time.monotonic(), datetime.now(UTC)
        given = TopicMigrationInput(name, options)
        queue = self.settings.temporal_task_queue
        handle = await temporal.start_or_join(self.client, queue, ref, given)
        result = asyncio.ensure_future(temporal.result_of(handle))
        while not result.done():
            await asyncio.wait([result], timeout=POLL_S)
            if time.monotonic() - began > self.within_s:
                result.cancel()
                raise TimeoutError(f"{name} is not hybrid after {self.within_s:.0f} s")
        outcome: TopicOutcome = result.result()
        found.total = time.monotonic() - began
        assert outcome.outcome == "hybrid", outcome
        after = self._cpu()
        found.cpu = {part: after[part] - before[part] for part in PARTS}
        found.memory = {part: self._memory(part) for part in PARTS}
        found.crossed = (await self._last_boundary(name) - at).total_seconds()
        self.step(f"{name}: hybrid after {found.total:.1f} s")
        await self._read_histories(ref, found)
        return found

    def _create(self, name: str, partitions: int) -> TopicRef:
        bootstrap = self.stack.endpoints.gateway_bootstrap
        admin = AdminClient({"bootstrap.servers": bootstrap})
        topic_id = topics.create_tiered(admin, name, partitions, 1)
        producer = Producer(
            # Errors only: it warns of each partition whose leader it hears of late.
            {"bootstrap.servers": bootstrap, "linger.ms": 100, "log_level": 3}
        )
        for record in range(RECORDS):
            for partition in range(partitions):
                producer.produce(name, b"%d" % record, partition=partition)
            producer.poll(0)
        if left := producer.flush(300):
            raise TimeoutError(f"{left} records of {name} were not taken")
        return TopicRef(name, topic_id.hex, partitions)

    async def _last_boundary(self, name: str) -> datetime:
        partitions = await self.plane.migration_status(name)
        ends = (
            phase.ended_at
            for partition in partitions
            for phase in partition.phases
            if phase.phase is Phase.SEED_AND_PERSIST and phase.ended_at is not None
        )
        return max(ends)

    def _memory(self, part: str) -> float:
        return sum(map(_resident_mib, family(self.stack.pid(part))))

    def _cpu(self) -> dict[str, float]:
        return {part: sum(map(cpu_seconds, family(self.stack.pid(part)))) for part in PARTS}

    async def _read_histories(self, ref: TopicRef, found: FleetRun) -> None:
        stages: list[tuple[float, str]] = []
        run: str | None = None
        while True:
            events = await self._events(ref.workflow_id, run)
            found.topic_events += len(events)
            _tasks(events, found)
            stages = [*_stages(events), *stages]
            started = events[0].workflow_execution_started_event_attributes
            if not (run := started.continued_execution_run_id):
                break
        for (since, stage), (until, _) in pairwise(stages):
            found.stages[stage] = found.stages.get(stage, 0.0) + until - since
        looked = range(0, ref.partitions, max(1, ref.partitions // LOOKED_AT))
        attempts: Counter[str] = Counter()
        for partition in looked:
            events = await self._events(ref.partition_workflow_id(partition), None)
            found.events += len(events) / len(looked)
            attempts.update(_activities(events))
            _tasks(events, found)
        found.attempts = {name: count / len(looked) for name, count in attempts.items()}

    async def _events(self, workflow_id: str, run: str | None) -> list[HistoryEvent]:
        history = await self.client.get_workflow_handle(workflow_id, run_id=run).fetch_history()
        return list(history.events)


def _resident_mib(process: psutil.Process) -> float:
    try:
        return process.memory_info().rss / 2**20
    except psutil.NoSuchProcess:
        return 0.0


def _time(event: HistoryEvent) -> float:
    return event.event_time.ToNanoseconds() / 1e9


def _stages(events: Iterable[HistoryEvent]) -> list[tuple[float, str]]:
    """When the workflow showed each phase."""
    found = []
    for event in events:
        fields = event.upsert_workflow_search_attributes_event_attributes.search_attributes
        if payload := fields.indexed_fields.get(SearchAttribute.PHASE):
            found.append((_time(event), str(CONVERTER.from_payload(payload))))
    return found


def _tasks(events: Sequence[HistoryEvent], found: FleetRun) -> None:
    at = {event.event_id: event for event in events}
    for event in events:
        if event.event_type == EventType.EVENT_TYPE_WORKFLOW_TASK_COMPLETED:
            done = event.workflow_task_completed_event_attributes
            due, taken = at[done.scheduled_event_id], at[done.started_event_id]
            found.waited_ms.append(1000 * (_time(taken) - _time(due)))
            found.took_ms.append(1000 * (_time(event) - _time(taken)))


def _activities(events: Iterable[HistoryEvent]) -> Counter[str]:
    """Attempts by activity: those of one call, and calls; of local ones each mark."""
    names: dict[int, str] = {}
    counted: Counter[str] = Counter()
    for event in events:
        if event.event_type == EventType.EVENT_TYPE_ACTIVITY_TASK_SCHEDULED:
            scheduled = event.activity_task_scheduled_event_attributes
            names[event.event_id] = scheduled.activity_type.name
        elif event.event_type == EventType.EVENT_TYPE_ACTIVITY_TASK_STARTED:
            started = event.activity_task_started_event_attributes
            counted[names[started.scheduled_event_id]] += started.attempt
        elif event.event_type == EventType.EVENT_TYPE_MARKER_RECORDED:
            counted[_local(event)] += 1
    counted.pop("", None)
    return counted


def _local(event: HistoryEvent) -> str:
    marker = event.marker_recorded_event_attributes
    data = marker.details.get("data")
    if data is None or not data.payloads:
        return ""
    value = CONVERTER.from_payload(data.payloads[0])
    return str(value.get("activity_type", "")) if isinstance(value, dict) else ""


async def measure(
    sizes: Sequence[int],
    rounds: int,
    options: MigrationOptions,
    within_s: float,
    step: Callable[[str], None],
    broker: Mapping[str, str],
) -> list[FleetRun]:
    """Each size ``rounds`` times, on one stack. ``broker``: files of its home that set it up."""

    def write_files(home: Path) -> None:
        for name, text in broker.items():
            (home / name).write_text(text)

    with own_stack(step, brokers=1, prepare=write_files) as stack:
        settings = WorkerSettings.of(stack.environment("worker"))
        client = await temporal.connect(settings)
        async with control_plane.connect(settings, application_name="tideline-bench") as plane:
            fleet = Fleet(stack, plane, client, settings, step, within_s)
            return [
                await fleet.migrate(size, options, number)
                for number in range(rounds)
                for size in sizes
            ]


def _spread(values: Sequence[float], digits: int = 0) -> str:
    middle = f"{statistics.median(values):.{digits}f}"
    if len(values) == 1:
        return middle
    return f"{middle} ({min(values):.{digits}f} to {max(values):.{digits}f})"


def to_markdown(runs: Sequence[FleetRun], on: str) -> str:
    """One column a size: the median of its rounds, and their spread."""
    sizes = sorted({run.partitions for run in runs})
    of = {size: [run for run in runs if run.partitions == size] for size in sizes}
    stages = list(dict.fromkeys(stage for run in runs for stage in run.stages))
    activities = sorted({name for run in runs for name in run.attempts})
    rows: list[tuple[str, Callable[[FleetRun], float], int]] = [
        ("whole, s", lambda run: run.total, 1),
        ("to the last B0, s", lambda run: run.crossed, 1),
        ("partitions a minute", lambda run: run.a_minute, 0),
        *((f"stage {name}, s", lambda run, n=name: run.stages.get(n, 0.0), 1) for name in stages),
        *(
            (f"CPU of {part}, ms a partition",
             lambda run, p=part: 1000 * run.cpu[p] / run.partitions, 0)
            for part in PARTS
        ),
        ("CPU together, ms a partition",
         lambda run: 1000 * sum(run.cpu.values()) / run.partitions, 0),
        *((f"memory of {part}, MiB", lambda run, p=part: run.memory[p], 0) for part in PARTS),
        ("workflow tasks wait, ms, p50", lambda run: quantile(run.waited_ms, 0.5), 0),
        ("workflow tasks wait, ms, p99", lambda run: quantile(run.waited_ms, 0.99), 0),
        ("workflow tasks take, ms, p99", lambda run: quantile(run.took_ms, 0.99), 0),
        ("workflow tasks take, ms, most", lambda run: max(run.took_ms, default=0.0), 0),
        ("events of a partition", lambda run: run.events, 0),
        ("events of the topic, a partition", lambda run: run.topic_events / run.partitions, 1),
        *((f"attempts at {n}, a partition", lambda run, n=n: run.attempts.get(n, 0.0), 2)
          for n in activities),
    ]  # fmt: skip
    head = " | ".join(f"{size} partitions" for size in sizes)
    lines = [
        f"{len(runs)} topics on one broker. Machine: {on}.", "",
        f"| what | {head} |", f"| --- |{' ---: |' * len(sizes)}",
    ]  # fmt: skip
    for name, value, digits in rows:
        cells = " | ".join(_spread([value(run) for run in of[size]], digits) for size in sizes)
        lines.append(f"| {name} | {cells} |")
    return "\n".join(lines)


def _broker(heap: str, look_every_s: int) -> dict[str, str]:
    files = {}
    if heap:
        files["kafka-1.jvm"] = f"-Xmx{heap}\n"
    if look_every_s:
        every = 1000 * look_every_s
        files["kafka-1.properties"] = (
            f"log.retention.check.interval.ms={every}\nremote.log.manager.task.interval.ms={every}\n"
        )
    return files


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--partitions", type=int, nargs="+", default=[30, 100, 300])
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--parallel", type=int, default=4, help="parallel_partitions")
    parser.add_argument("--broker-heap", default="", help="of the broker's JVM, such as 2g")
    parser.add_argument(
        "--look-every", type=int, default=0, metavar="S",
        help="how often the broker rolls, deletes and copies (the stack's: each second)",
    )  # fmt: skip
    parser.add_argument("--within", type=float, default=1_800.0, help="seconds for one topic")
    parser.add_argument("--reports", type=Path, default=Path("reports"))
    arguments = parser.parse_args()
    arguments.reports.mkdir(parents=True, exist_ok=True)
    started = time.monotonic()

    def step(text: str) -> None:
        print(f"{time.monotonic() - started:6.1f} s  {text}", file=sys.stderr, flush=True)

    options = MigrationOptions(parallel_partitions=arguments.parallel)
    broker = _broker(arguments.broker_heap, arguments.look_every)
    runs = asyncio.run(
        measure(arguments.partitions, arguments.rounds, options, arguments.within, step, broker)
    )
    text = to_markdown(runs, machine())
    (arguments.reports / "large-topics.md").write_text(text + "\n")
    print(text)
    return 0


if __name__ == "__main__":
    sys.exit(main())
