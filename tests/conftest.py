"""One embedded stack per process of a run, for the tests that need real brokers and stores."""

from __future__ import annotations

import atexit
import gc
import os
import re
import tempfile
from collections import Counter
from collections.abc import Generator, Iterator
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.request import urlopen

import pytest
import structlog
from hypothesis import settings

from infra.apis_shown import SHOWN
from tests import deaths, last_words
from tests.last_words import LastWords
from tests.support.waiting import HANGS_S, until
from tideline.domain.places import SETTING as PLACES
from tideline.stack import ALL_PARTS, Stack
from tideline.stack.spark_classes import driver_options

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from xdist.remote import Producer

    from tests.side_by_side import SideBySide

# How long one example takes says how busy the machine is, and nothing else. `make test` tries the
# same examples each time; `make test-all` looks for others, and says how to have one again.
settings.register_profile("same examples", deadline=None, derandomize=True)
settings.register_profile("other examples", deadline=None, print_blob=True)
settings.load_profile("same examples")
# boto3 asks an address of the cloud for credentials where it has none.
os.environ["AWS_EC2_METADATA_DISABLED"] = "true"

HOME_VARIABLE = "TIDELINE_TEST_HOME"
"""Names the home of a stack to reuse and leave running, for quick turns while developing."""

PARTS_VARIABLE = "TIDELINE_TEST_PARTS"
"""Comma-separated kinds of parts to start; all of them by default."""

HOMES_VARIABLE = "TIDELINE_TEST_HOMES"
"""Tells the processes of a run where the homes of their stacks go; set by the first of them."""

SHARED = {PLACES: "50"}
"""Tests that share a stack do not wait for each other's topics."""

TESTS = Path(__file__).parent
REQUESTS = re.compile(r'^inkless_gateway_requests_total\{api="(\w+)",[^}]*\} (\S+)$', re.MULTILINE)


def is_one_of_several(config: pytest.Config) -> bool:
    """Whether this process was started by another one of the same run."""
    return hasattr(config, "workerinput")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--stacks", type=int, default=2, help="processes that may have an embedded stack"
    )


def pytest_configure(config: pytest.Config) -> None:
    if not is_one_of_several(config):
        homes = tempfile.mkdtemp(prefix="tideline-test-")
        Path(homes).chmod(0o755)
        os.environ[HOMES_VARIABLE] = homes


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Producer) -> SideBySide:
    from tests.side_by_side import SideBySide

    return SideBySide(config, log)


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """What is collected, and all that it imports, stays until the end: a million objects that the
    garbage collector does not look at again and again (a quarter of what tests cost otherwise)."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.collect()
        gc.freeze()
        atexit.register(gc.unfreeze)  # duckdb complains of what is left at the end
        gc.set_threshold(5_000)
        gc.enable()


def pytest_sessionstart() -> None:
    deaths.watch()  # not earlier: pytest sets a hook of its own when it is configured


def pytest_runtest_logfinish() -> None:
    deaths.forget()


def pytest_unconfigure(config: pytest.Config) -> None:
    """A process that was interrupted may not have taken its stack down."""
    if not is_one_of_several(config):
        homes = Path(os.environ.pop(HOMES_VARIABLE))
        for home in homes.iterdir():
            Stack.take_down(home)
            print(f"The files of a stack are kept in {home}")
        with suppress(OSError):  # not empty
            homes.rmdir()


STACKS = pytest.StashKey[list[LastWords]]()


def pytest_runtest_call(item: pytest.Item) -> None:
    item.stash[STACKS] = LastWords.of(item.funcargs)  # type: ignore[attr-defined]


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """A test that fails shows what explains it."""
    report = yield
    if report.failed:
        given = getattr(item, "funcargs", {})
        report.sections += [("machine", last_words.of_the_machine())]
        report.sections += [("stack", words.told()) for words in item.stash.get(STACKS, [])]
        report.sections += list(last_words.of_witnesses(given))
    return report


@pytest.fixture(scope="session")
def stack(request: pytest.FixtureRequest) -> Iterator[Stack]:
    """Three brokers, their stores, gateways and worker; taken down after the last test."""
    parts = tuple(filter(None, os.environ.get(PARTS_VARIABLE, "").split(","))) or ALL_PARTS
    process = os.environ.get("PYTEST_XDIST_WORKER", "one")
    if reused := os.environ.get(HOME_VARIABLE):
        yield Stack.up(reused, parts=parts)
        return
    home = Path(os.environ[HOMES_VARIABLE]) / process
    home.mkdir(mode=0o755)
    try:
        yield Stack.up(home, brokers=3, parts=parts, settings=SHARED)
    finally:
        if request.session.testsfailed:
            Stack.take_down(home)
        else:
            Stack.purge(home)


def requests_by_api(stack: Stack) -> Counter[str]:
    """What the gateways have counted."""
    found: Counter[str] = Counter()
    for program, address in stack.endpoints.metrics.items():
        if program.startswith("gateway-"):
            with urlopen(f"http://{address}/metrics", timeout=HANGS_S) as answer:
                for api, count in REQUESTS.findall(answer.read().decode()):
                    found[api] += int(float(count))
    return found


@pytest.fixture(autouse=True)
def own_logs() -> Iterator[None]:
    """A program, also one that a test runs in this process, sets up the process's logs for itself:
    perhaps on a stream that is closed with it, which no later test may write to."""
    yield
    structlog.reset_defaults()


@pytest.fixture(autouse=True)
def shows_what_it_is_said_to(request: pytest.FixtureRequest) -> Iterator[None]:
    """A test that docs/apis.md names has sent each of its APIs to a gateway."""
    path = request.path.relative_to(TESTS).as_posix()
    said = SHOWN.get(f"{path}::{getattr(request.node, 'originalname', '')}")
    if said is None:
        yield
        return
    stack = request.getfixturevalue("stack")
    before = requests_by_api(stack)
    yield

    def counted() -> bool:
        """A page of metrics is served for a second."""
        asked = requests_by_api(stack)
        return all(asked[api] > before[api] for api in said)

    until(f"{', '.join(sorted(said))} to be asked of a gateway", counted)


@pytest.fixture(scope="session")
def spark() -> Iterator[SparkSession]:
    """One Spark session in this process for the whole run; two cores, on loopback. Its JVM compiles
    for the minutes that it lives: what each test plans is planned once or twice."""
    from spark.common.session import make_session

    options = " ".join(driver_options())
    os.environ["SPARK_SUBMIT_OPTS"] = f"{os.environ.get('SPARK_SUBMIT_OPTS', '')} {options}".strip()
    session = make_session(
        "tideline-tests",
        "local[2]",
        {"spark.sql.shuffle.partitions": "2", "spark.sql.adaptive.enabled": "false"},
    )
    try:
        yield session
    finally:
        session.stop()
