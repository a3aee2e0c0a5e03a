"""Which variables named ``TIDELINE_…`` there are beside the settings, and what is said of others.

A name that nobody knows is a setting that somebody believes to have made. A name that any process
of Tideline knows is right in the environment of each: one file of variables may serve several.
"""

from __future__ import annotations

import difflib
from collections.abc import Collection, Iterable, Iterator, Set

from tideline.errors import UsageError

PREFIX = "TIDELINE_"
SECRET_FILE = "_FILE"
PAGE = "docs/settings.md"
OTHERS = {
    "TIDELINE_CONFIG": "the settings file: `.toml`, or lines `NAME=value`",
    "TIDELINE_CONTEXT": "which of the contexts of a `.toml` file is meant",
    "TIDELINE_HOME": "where the embedded stack keeps its files",
    "TIDELINE_KAFKA_RELEASE": "the embedded stack: the release of its brokers, as `4.1.2`",
    "TIDELINE_GATEWAY_BOOTSTRAP": "in the embedded stack's `client.env`: the gateways' addresses, "
    "for scripts and clients",
    "TIDELINE_STACK": "marks the embedded stack's processes: whose they are",
    "TIDELINE_STACK_PROGRAM": "the same: which program one is",
    "TIDELINE_TEST_HOME": "tests: the home of a stack to reuse and leave running",
    "TIDELINE_TEST_HOMES": "tests: where the homes of a run's stacks are",
    "TIDELINE_TEST_PARTS": "tests: the parts of a stack to start",
    "TIDELINE_PASSWORD": "`compose.yaml`: the password of the login roles",
}
"""What each name is for that is read as a variable and is no setting, or is only carried along."""
_SERVICE_HOST = "_SERVICE_HOST"
_OF_A_SERVICE = (_SERVICE_HOST, "_SERVICE_PORT", "_PORT")
MOST_NAMED = 5


def nearest(name: str, names: Iterable[str]) -> str:
    """``; … was meant?``, or nothing."""
    near = difflib.get_close_matches(name, list(names), n=1)
    return f"; {near[0]} was meant?" if near else ""


def refuse_unknown(
    variables: Collection[str], settings: Set[str], secrets: Set[str], where: str
) -> None:
    """Raises :class:`UsageError` for names of ``variables`` that begin as Tideline's do, in upper
    or lower case, and that nobody knows. ``settings``: every one there is, in lower case and
    without prefix; ``secrets`` those of them that may lie in a file of their own."""
    known = {f"{PREFIX}{name.upper()}" for name in settings} | OTHERS.keys()
    known |= {f"{PREFIX}{name.upper()}{SECRET_FILE}" for name in secrets}
    given = {name.upper() for name in variables if name.upper().startswith(PREFIX)}
    unknown = sorted(given - known - set(_of_services(given)))
    if not unknown:
        return
    told = unknown[:MOST_NAMED]
    named = "; ".join(f"{name} is no setting{nearest(name, known)}" for name in told)
    more = f"; and {len(unknown) - MOST_NAMED} more" if len(unknown) > MOST_NAMED else ""
    stop = "" if (said := f"{where}: {named}{more}").endswith("?") else "."
    raise UsageError(f"{said}{stop} Correct the name, or take it out: {PAGE} has all names")


def _of_services(given: Set[str]) -> Iterator[str]:
    """What Kubernetes adds to a pod of a namespace with a service whose name begins with tideline
    (``envvars.FromServices``)."""
    services = {
        name.removesuffix(_SERVICE_HOST) for name in given if name.endswith(_SERVICE_HOST)
    } - {""}
    for name in given:
        for service in services:
            rest = name.removeprefix(service)
            if rest != name and rest.startswith(_OF_A_SERVICE):
                yield name
