"""The same odd requests to a gateway and to the stock broker beside it, and what their answers do
not have in common."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from tests.differential.answers import Path, differing
from tests.differential.differences import BY_DESIGN, Seen
from tests.differential.places import Place
from tests.differential.questions import Edges, Question, Questions
from tests.differential.sides import Side
from tests.support.waiting import Wait

SETTLES_S = 5.0
"""How long two answers to a read may differ: a follower hears of its leader's end a moment later,
and a gateway of a lease that it has renewed."""


@dataclass
class Found:
    """Where two answers differ and no rule says why."""

    question: Question
    state: str
    differences: dict[Path, tuple[Any, Any]]

    def text(self) -> str:
        rows = [f"{self.question.text()} ({self.state})"]
        rows += [
            f"    {'.'.join(path)}: the gateway {gateway!r}, the broker {broker!r}"
            for path, (gateway, broker) in self.differences.items()
        ]
        return "\n".join(rows)


@dataclass
class Report:
    asked: Counter[str] = field(default_factory=Counter)
    """By API."""
    by_design: Counter[str] = field(default_factory=Counter)
    """How often each rule said why two answers differ."""
    unsendable: int = 0
    """Requests that the schema does not let anybody write."""
    found: list[Found] = field(default_factory=list)

    def text(self) -> str:
        asked = ", ".join(f"{api} {count:,}" for api, count in sorted(self.asked.items()))
        ruled = ", ".join(f"{name} {count:,}" for name, count in self.by_design.most_common())
        lines = [
            f"{sum(self.asked.values()):,} requests were asked of both: {asked}",
            f"answers that differ by design: {ruled or 'none'}",
            f"{len(self.found)} differ without a reason",
        ]
        return "\n".join([*lines, *(found.text() for found in self.found)])


class Machine:
    def __init__(
        self,
        gateways: Side,
        brokers: Side,
        places: Mapping[str, Sequence[Place]],
        edges: Mapping[str, Edges],
        between: Callable[[], None],
    ) -> None:
        """``places``: the partitions of each topic. ``between`` is done before each question."""
        self._gateways, self._brokers = gateways, brokers
        self._places, self._edges, self._between = places, edges, between
        self._diverged: set[tuple[str, int]] = set()
        """Partitions to which one side alone has written: nothing more is asked of them."""

    def run(self, seed: int, count: int) -> Report:
        report = Report()
        numbers = {which: range(len(places)) for which, places in self._places.items()}
        questions = Questions(seed, numbers, self._edges)
        for _ in range(count):
            self._between()
            question = questions.next(self._takes_writes)
            if (question.which, question.partition) not in self._diverged:
                self._compare(question, report)
        return report

    def _takes_writes(self, which: str, partition: int) -> bool:
        return self._places[which][partition].takes_writes

    def _compare(self, question: Question, report: Report) -> None:
        place = self._places[question.which][question.partition]
        node = place.nodes[question.beside]
        try:
            left = self._differences(question, node, report)
        except (TypeError, ValueError, OverflowError):
            report.unsendable += 1
            return
        report.asked[question.api] += 1
        if left:
            report.found.append(Found(question, place.state, left))
            if question.api == "Produce":
                self._diverged.add((question.which, question.partition))

    def _differences(
        self, question: Question, node: int, report: Report
    ) -> dict[Path, tuple[Any, Any]]:
        """Those that no rule explains. What may be done twice is asked again while there are any: a
        gateway on a busy machine may be without its broker, or its lease, for a moment."""
        wait = Wait("both sides to say the same", SETTLES_S)
        while True:
            gateway = self._gateways.ask(question, node)
            broker = self._brokers.ask(question, node)
            pairs = differing(gateway, broker)
            if not pairs:
                return {}
            explained, left = self._judged(question, pairs)
            if not left or question.api == "Produce" or wait.over:
                report.by_design.update(explained)
                return left
            wait.pause()

    def _judged(
        self, question: Question, pairs: Mapping[Path, tuple[Any, Any]]
    ) -> tuple[set[str], dict[Path, tuple[Any, Any]]]:
        """The rules that explain some, and what none does."""
        explained: set[str] = set()
        left: dict[Path, tuple[Any, Any]] = {}
        for path, (one, other) in pairs.items():
            seen = Seen(question, self._places, path, one, other, pairs)
            for rule in BY_DESIGN:
                if question.api in rule.apis and rule.applies(seen):
                    explained.add(rule.name)
                    break
            else:
                left[path] = (one, other)
        return explained, left
