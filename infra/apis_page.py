"""docs/apis.md, made from the tables of APIs (`make docs`)."""

from __future__ import annotations

import sys
from pathlib import Path

from tideline.domain.api_answers import (
    API_RULES,
    BROKER_HIGHEST,
    CAPPED,
    NOT_OFFERED,
    REMARKS,
    ApiAnswer,
    Whose,
)
from tideline.gateway.context import ApiKey
from tideline.gateway.transport.addresses import offered_versions

HEAD = """# Every API, and its versions

What a tracked topic is answered, for each API that a broker of Kafka 4.2 has for its clients. A
topic that is not tracked is answered by its broker. This page is made by `make docs` from
`tideline/domain/api_answers.py:API_RULES`, by which the handlers go; that the broker's own answers
are the right ones where it answers is shown on real brokers
(`integration/test_api_answers.py::test_what_passes_is_true_of_a_hybrid_topic`).

## Answers by state

*Before B0*: the topic is tracked and appends go on. *In the pause*: B0 is about to be chosen.
*From B0 on*: hybrid, or diskless. *Unknown*: the gateway knows the topic and not this partition.
"""
PASSES = """
### The broker answers, whatever the state

| API | why that is right |
| --- | --- |
"""
VERSIONS = """
## Versions

Offered is what the broker and the gateway both have: an API that the gateway looks into in the
versions that it can decode, any other up to the version of which somebody has read that its answers
name no broker (`tideline/gateway/transport/passed_apis.py:PASSED`). The last column says why it is
less than a broker of Kafka 4.2 has.

| key | API | offered up to | Kafka 4.2 | why less |
| --- | --- | --- | --- | --- |
"""
END = """
That a gateway offers this, and the broker has it, is asked of both in
`integration/test_gateway_classic.py::test_clients_are_offered_all_that_a_stock_broker_has_for_them`.
"""


def offered_up_to() -> dict[int, int]:
    """Highest version that clients of a broker of Kafka 4.2 are offered, by API key."""
    taken = offered_versions(ApiKey)
    return {
        key: min(taken[key].stop - 1, highest)
        for key, highest in BROKER_HIGHEST.items()
        if key in taken
    }


def _said(answer: ApiAnswer) -> str:
    return f"`{answer.error.name}`" if answer.whose is Whose.REFUSED else str(answer.whose)


def render() -> str:
    """The whole page."""
    looked = [r for r in API_RULES.values() if r.pending.whose is Whose.GATEWAY]
    passed: dict[str, list[str]] = {}
    for rule in API_RULES.values():
        if rule.passes:
            passed.setdefault(rule.why, []).append(rule.name)
    lines = [
        HEAD,
        "| API | before B0 | in the pause | from B0 on | unknown | why |",
        "| --- | --- | --- | --- | --- | --- |",
    ]
    for rule in API_RULES.values():
        if not rule.passes and rule not in looked:
            answers = (rule.pending, rule.quiescing, rule.suffix, rule.unknown)
            lines.append(f"| {rule.name} | {' | '.join(map(_said, answers))} | {rule.why} |")
    lines += ["", "### By rules of the gateway's own", "", "| API | what |", "| --- | --- |"]
    lines += [f"| {rule.name} | {rule.why} |" for rule in looked]
    text = "\n".join(lines) + "\n" + PASSES
    text += "".join(f"| {', '.join(names)} | {why} |\n" for why, names in passed.items())
    text += VERSIONS
    offered = offered_up_to()
    for key, highest in BROKER_HIGHEST.items():
        name, why = NOT_OFFERED.get(key) or (
            API_RULES[key].name,
            CAPPED.get(key) or REMARKS.get(key, ""),
        )
        shown = offered.get(key, "not offered")
        text += f"| {key} | {name} | {shown} | {highest} | {why} |\n"
    return text + END


if __name__ == "__main__":
    Path(sys.argv[1]).write_text(render())
