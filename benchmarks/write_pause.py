"""The write pause over many partition migrations, as a producer sees it.

Topics of 12 partitions are migrated one after the other on one stack of three brokers, each under
load; the pause of each partition is the longest gap between acknowledgements at the producer,
less the suffix's steady latency. The alternative it is put beside, in the same run: the longest
gap of the same producer while nothing is migrated.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from benchmarks.page import Figure
from tideline.demo.context import DemoOptions, DemoOutput
from tideline.demo.ledger import Ledger, quantile
from tideline.demo.report import Proof, spread
from tideline.demo.run import Demo

if TYPE_CHECKING:
    from tideline.control_plane import ControlPlane
    from tideline.stack import Stack


DEFAULT = "default"
"""Started by a topic config, as a client does it; any other durability by ``tideline migrate``."""


@dataclass(slots=True)
class PauseResult:
    """All values in ms."""

    pauses: list[float] = field(default_factory=list)
    raw_gaps: list[float] = field(default_factory=list)
    quiet_gaps: list[float] = field(default_factory=list)
    phases: dict[str, list[float]] = field(default_factory=dict)
    steady: list[float] = field(default_factory=list)
    failed_checks: list[str] = field(default_factory=list)


def quiet_gap(ledger: Ledger, partition: int, boundary: int) -> float:
    """Longest gap between acknowledgements before the last two seconds ahead of B0."""
    acks = [
        a
        for a in ledger.acknowledgements(partition)
        if a.offset < boundary and a.record_id.startswith("librdkafka/")
    ]
    if not acks:
        return 0.0
    end = acks[-1].at - 2.0
    times = [a.at for a in acks if a.at <= end]
    return max((b - a for a, b in itertools.pairwise(times)), default=0.0) * 1000


async def measure(
    stack: Stack,
    control_plane: ControlPlane,
    topics: int,
    durabilities: Sequence[str],
    options: DemoOptions,
    console: DemoOutput,
) -> dict[str, PauseResult]:
    """Migrate ``topics`` topics with each of ``durabilities`` in turn, one after the other.

    The result is by durability.
    """
    results = {durability: PauseResult() for durability in durabilities}
    for number, (durability, result) in itertools.product(range(topics), results.items()):
        run = replace(
            options,
            topic=f"{options.topic}-{durability}-{number}",
            migrate=() if durability == DEFAULT else ("--durability", durability),
        )
        demo = Demo(stack, control_plane, run, console)
        proof: Proof = await demo.run()
        result.pauses += proof.pauses()
        result.raw_gaps += proof.raw_gaps()
        result.steady.append(proof.steady_latency_ms)
        result.quiet_gaps += [quiet_gap(demo.ledger, r.partition, r.boundary) for r in proof.rows]
        for phase, values in proof.phase_ms.items():
            result.phases.setdefault(phase, []).extend(values)
        result.failed_checks += [f"{run.topic}: {c.name}: {c.found}" for c in proof.checks
                                 if not c.ok]  # fmt: skip
    return results


def figure(results: dict[str, PauseResult]) -> Figure:
    """Of the first durability."""
    result = next(iter(results.values()))
    beside = f"longest gap without a migration: {spread(result.quiet_gaps)}"
    ratio = quantile(result.pauses, 0.5) / quantile(result.quiet_gaps, 0.5)
    return Figure(spread(result.pauses), beside, ratio)


def to_markdown(results: dict[str, PauseResult], machine: str) -> str:
    """The report: a column for each durability."""
    phases = list(dict.fromkeys(phase for result in results.values() for phase in result.phases))
    rows: list[tuple[str, Callable[[PauseResult], list[float]]]] = [
        ("write pause (longest gap - steady suffix latency)", lambda r: r.pauses),
        ("longest gap, raw", lambda r: r.raw_gaps),
        ("longest gap of the same producers with no migration", lambda r: r.quiet_gaps),
        ("steady produce latency in the suffix, median per topic", lambda r: r.steady),
        *((phase, lambda r, phase=phase: r.phases.get(phase, [])) for phase in phases),
    ]
    counts = " + ".join(str(len(result.pauses)) for result in results.values())
    failed = [check for result in results.values() for check in result.failed_checks]
    return "\n".join(
        [
            f"Partition migrations: {counts} observed by the producer. Machine: {machine}.",
            "",
            f"| what (ms, p50 / p99 / max) | {' | '.join(results)} |",
            f"| --- |{' --- |' * len(results)}",
            *(
                f"| {name} | {' | '.join(spread(values(r)) for r in results.values())} |"
                for name, values in rows
            ),
            "| median pause / median gap without a migration | "
            + " | ".join(_ratio(result) for result in results.values())
            + " |",
            "",
            "Failed checks: " + ("; ".join(failed) or "none") + ".",
        ]
    )


def _ratio(result: PauseResult) -> str:
    quiet = quantile(result.quiet_gaps, 0.5)
    return f"{quantile(result.pauses, 0.5) / quiet:.2f}" if quiet else "-"
