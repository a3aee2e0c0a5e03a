"""docs/requests.md, made from the table of answers (`make docs`)."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Mapping, Sequence
from itertools import groupby
from pathlib import Path

from tideline.domain.answers import (
    ANSWERS,
    KAFKA_SAYS,
    Asked,
    Behaviour,
    Case,
    Handling,
    LeaseState,
    Role,
    State,
)
from tideline.domain.request_handling import (
    COMMIT_ERRORS,
    FAILURE_ERRORS,
    FETCH_FAILURE,
    FIND_ERRORS,
    KafkaErrorCode,
)

INTRODUCTION = """\
# What a gateway answers

Every request about a partition is answered by one table: what is asked, the partition's state, the
lease of the gateway, the role of the broker beside it. It is `tideline/domain/answers.py`; handlers
look their behaviour up there, and this page is made from it by `make docs`. Every case is asked of
a gateway in raw frames: over a made broker in `tests/unit/gateway/test_answers.py`, and beside real
ones in `tests/integration/test_answers.py`. How each behaviour is done is in
[tracked topics at the gateway](gateway-tracked-topics.md).

All of it is for clients that may: one that lacks the right hears `TOPIC_AUTHORIZATION_FAILED`
whatever the state, of a deleted topic by its name only ([authorization](authorization.md)).

| state | means |
| --- | --- |
| classic | not tracked |
| pending | tracked, B0 unset, appends go on in Kafka's log |
| quiescing | tracked, B0 unset, the generation is closed |
| prefix not ready | B0 is set; Kafka has records below it, and remote storage not all of them yet |
| prefix ready | the same, and remote storage has them all (`tieringComplete`) |
| no prefix | B0 is set; born diskless, or Kafka has nothing below B0 any more |
| deleted | the topic is gone, or its name means another one |
| unknown | the topic is tracked; the partition has no row, or the topic's id is not known yet |

| answer | means |
| --- | --- |
| pass | Kafka answers, and is relayed as it is |
| gate / CODE | Kafka answers; told if it is confirmed to lie below every B0 that may yet be set |
| park / CODE | waits in order of arrival for the next state; past its bounds CODE |
| prefix | Kafka answers for what lies below B0, and nothing from B0 on is told |
| both | Kafka answers below B0, the suffix from B0 on, as one log |
| suffix | Postgres and the object store answer alone |
| CODE | refused at once |

*Then the leader*: what the paired broker refuses because of its role is asked of Kafka's leader.
A leader that has lost the end of the prefix ([a log gap](failures.md#a-log-gap)) is not believed
that a time, or the end of an older epoch, is not in what it lost: `NOT_LEADER_OR_FOLLOWER`.
A request that names a topic by its id hears `UNKNOWN_TOPIC_ID` where others hear
`UNKNOWN_TOPIC_OR_PARTITION`."""

ROLES = """\
## By the role of the broker beside the gateway

What stock brokers say, and what clients hear where that is no answer. A follower answers a Fetch of
version 11 and newer. *Unaware*: the broker's metadata does not have the topic, or the partition,
yet. Of a tracked topic nobody is told so: it exists, so the broker lags, and the client asks again
(seed 000, "Produce request handling by state")."""

FAILURES = """\
## When the suffix fails

`REQUEST_TIMED_OUT` of Postgres or the object store becomes `{fetch}` in a Fetch: the Java
consumer dies of the former there."""


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> list[str]:
    lines = [head, ["---"] * len(head), *rows]
    return [f"| {' | '.join(line)} |" for line in lines]


def _code(code: KafkaErrorCode) -> str:
    return f"`{code.name}`"


def _told(handling: Handling) -> str:
    if handling.behaviour is Behaviour.REFUSE:
        return _code(handling.error)
    words = str(handling.behaviour)
    if handling.error:
        words += f" / {_code(handling.error)}"
    return f"{words}, then the leader" if handling.then_leader else words


def _states(lease: LeaseState) -> list[str]:
    """One table per API: what is asked by state."""
    lines = []
    for request, group in groupby(Asked, lambda asked: asked.request):
        asked = list(group)
        lines += ["", f"### {request}", ""]
        rows = []
        for state in State:
            told = [_told(ANSWERS[one][state].under(lease)) for one in asked]
            rows.append((str(state), *told))
        lines += table(("state", *map(str, asked)), rows)
    return lines


Told = tuple[str, ...]


def _grouped(told: Mapping[tuple[Asked, State], Told]) -> list[tuple[str, ...]]:
    """Rows of what is asked, states, and the answer; places with one answer are one row."""
    asked_in: dict[tuple[Told, State], list[Asked]] = {}
    for (asked, state), answer in told.items():
        asked_in.setdefault((answer, state), []).append(asked)
    states: dict[tuple[Told, tuple[Asked, ...]], list[State]] = {}
    for (answer, state), asked_there in asked_in.items():
        states.setdefault((answer, tuple(asked_there)), []).append(state)
    return [
        (_apis(asked_there), ", ".join(found), *answer)
        for (answer, asked_there), found in states.items()
    ]


def _apis(asked: Iterable[Asked]) -> str:
    """By API; one of which all is meant is named alone."""
    words = []
    for request, group in groupby(asked, lambda one: one.request):
        some = list(group)
        whole = some == [one for one in Asked if one.request is request]
        words.append(f"**{request}**" + ("" if whole else f": {', '.join(some)}"))
    return "; ".join(words)


def _changes(lease: LeaseState) -> list[tuple[str, ...]]:
    """Where ``lease`` changes what is answered."""
    return _grouped(
        {
            (asked, state): (_told(cell.under(lease)),)
            for asked, row in ANSWERS.items()
            for state, cell in row.items()
            if cell.under(lease) != cell.held
        }
    )


def _roles() -> list[str]:
    lines = table(
        ("Kafka says to", *map(str, Role)),
        (
            (str(request), *(_code(code) if code else "answers" for code in by_role.values()))
            for request, by_role in KAFKA_SAYS.items()
        ),
    )
    told = {(asked, state): _by_role(asked, state) for asked in Asked for state in State}
    differs = {at: answer for at, answer in told.items() if len(set(answer)) > 1}
    return [*lines, "", *table(("asked", "state", *map(str, Role)), _grouped(differs))]


def _by_role(asked: Asked, state: State) -> tuple[str, ...]:
    told = []
    for role in Role:
        case = Case(asked, state, LeaseState.HELD, role)
        if case.asks_leader:
            told.append("the leader's answer")
        elif case.answer.behaviour is Behaviour.REFUSE or case.is_relayed_refusal:
            told.append(_code(case.answer.error))
        else:
            told.append(str(case.answer.behaviour))
    return tuple(told)


def _errors(found: Mapping[str, KafkaErrorCode]) -> list[tuple[str, str]]:
    return [(f"`{name}`", "success" if not code else _code(code)) for name, code in found.items()]


def render() -> str:
    """The whole page."""
    lines = [INTRODUCTION, "", "## With a valid lease", *_states(LeaseState.HELD)]
    head = ("asked", "state", "answer")
    lines += ["", "## Without a valid lease", ""]
    lines += ["Fenced, not registered yet, or Postgres has been away for as long as a lease lasts."]
    lines += ["Where this changes nothing there is no row; nothing new is confirmed, so what is"]
    lines += ["gated is told only as far as it was confirmed before.", ""]
    lines += table(head, _changes(LeaseState.LAPSED))
    lines += ["", "## Over another Postgres than was pinned", ""]
    lines += table(head, _changes(LeaseState.STOPPED))
    lines += ["", ROLES, "", *_roles()]
    lines += ["", FAILURES.format(fetch=FETCH_FAILURE.name), ""]
    named = {failure.value: code for failure, code in FAILURE_ERRORS.items()}
    lines += table(("failure", "answer"), _errors(named))
    lines += ["", *table(("a commit says", "a producer hears"), _errors(COMMIT_ERRORS))]
    lines += ["", *table(("a look-up says", "a consumer hears"), _errors(FIND_ERRORS))]
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    Path(sys.argv[1]).write_text(render())
