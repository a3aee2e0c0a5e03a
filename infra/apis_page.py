"""docs/apis.md, made from the tables of APIs (`make docs`)."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path

from infra.apis_shown import NOT_SHOWN, ONLY_REFUSED, SHOWN
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
`tideline/domain/api_answers.py:API_RULES`, by which the handlers go. Which test shows a row on real
brokers, and which rows none shows, is [below](#shown-on-real-brokers).

## Answers by state

*Before B0*: the topic is tracked and appends go on. *In the pause*: B0 is about to be chosen.
*From B0 on*: hybrid, or diskless. *Unknown*: the gateway knows the topic and not this partition.
*Confirmed*: Postgres has said after the broker's answer that every B0 that may yet be set lies past
it; else the answer is `NOT_LEADER_OR_FOLLOWER`.
"""
PASSES = """
### The broker answers, whatever the state

| API | why that is right |
| --- | --- |
"""
SHOWN_HEAD = """
## Shown on real brokers

Made from `infra/apis_shown.py`. Gateways count requests by API, and a test fails in which none was
counted of an API in its row. What passes is asked of brokers too, of a topic with a partition in
every state or while one migrates, and both say the same. Of APIs that change topics and configs the
tests take the states that their rules name. The column *unknown* of the first table, and what is
answered without a lease or without Postgres, is shown over made brokers only
(`tests/unit/gateway/test_api_answers.py`, `tests/unit/gateway/test_answers.py`).

| APIs | test |
| --- | --- |
"""
NOT_SHOWN_HEAD = """
*Only the refusal* is shown of these, and that it is the broker's:

| APIs | because |
| --- | --- |
"""
NONE_SHOWN_HEAD = """
*No test* on brokers shows these:

| APIs | because |
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
`nightly/stack/test_gateway_classic.py::test_clients_are_offered_all_that_a_stock_broker_has_for_them`.
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


def _by_reason(reasons: Mapping[str, str]) -> str:
    by_why: dict[str, list[str]] = {}
    for name, why in reasons.items():
        by_why.setdefault(why, []).append(name)
    return "".join(f"| {', '.join(names)} | {why} |\n" for why, names in by_why.items())


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
    text += SHOWN_HEAD
    text += "".join(f"| {', '.join(names)} | `{test}` |\n" for test, names in SHOWN.items())
    text += NOT_SHOWN_HEAD + _by_reason(ONLY_REFUSED)
    text += NONE_SHOWN_HEAD + _by_reason(NOT_SHOWN)
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
