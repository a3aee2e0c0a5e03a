"""The write pause over many partition migrations, as a producer sees it.

Topics of 12 partitions are migrated one after the other on one stack of three brokers, each under
load; the pause of each partition is the longest gap between acknowledgements at the producer,
less the suffix's steady latency. The alternative it is put beside, in the same run: the longest
gap of the same producer while nothing is migrated.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from tideline.demo.ledger import Ledger, quantile
from tideline.demo.report import Proof, spread
from tideline.demo.run import Console, Demo, DemoOptions

if TYPE_CHECKING:
    from tideline.control_plane import ControlPlane
    from tideline.stack import Stack


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
    stack: Stack, control_plane: ControlPlane, topics: int, options: DemoOptions, console: Console
) -> PauseResult:
    """Migrate ``topics`` topics one after the other."""
    result = PauseResult()
    for number in range(topics):
        run = replace(options, topic=f"{options.topic}-{number}")
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
    return result


def to_markdown(result: PauseResult, machine: str) -> str:
    """The table that docs/performance.md shows."""
    quiet = quantile(result.quiet_gaps, 0.5)
    pause = quantile(result.pauses, 0.5)
    lines = [
        f"Partition migrations: {len(result.pauses)} observed by the producer. Machine: {machine}.",
        "",
        "| what (ms) | p50 / p99 / max |",
        "| --- | --- |",
        f"| write pause (longest gap - steady suffix latency) | {spread(result.pauses)} |",
        f"| longest gap, raw | {spread(result.raw_gaps)} |",
        f"| longest gap of the same producers with no migration | {spread(result.quiet_gaps)} |",
        f"| steady produce latency in the suffix, median per topic | {spread(result.steady)} |",
        *(f"| {phase} | {spread(values)} |" for phase, values in result.phases.items()),
        "",
        f"Median pause / median gap without a migration: {pause / quiet:.2f}" if quiet else "",
        "",
        "Failed checks: " + ("; ".join(result.failed_checks) or "none") + ".",
    ]
    return "\n".join(lines)
