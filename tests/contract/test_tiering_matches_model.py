"""However split, merge, retention and garbage collection interleave, with claims lost midway:
readers see the log that they would see without tiering, and no object leaks or goes early."""

from __future__ import annotations

import asyncio
from collections import Counter
from typing import Any

from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from tests.contract.conftest import Database
from tests.contract.scenes import PostgresScene
from tests.contract.tiering import jobs
from tests.contract.tiering_history import BOUNDARY, LATEST, History
from tideline.control_plane import connect

LOGS = st.integers(0, 1)
WORKERS = st.integers(0, 1)
PICK = st.integers(0, 3)
"""Which of the claims or merges that were ever begun, from the newest on."""
SENT = st.lists(
    st.tuples(LOGS, st.integers(1, 3), st.integers(0, LATEST - 1), st.integers(61, 99)),
    min_size=1,
    max_size=5,
)
SIZES = st.sampled_from([1, 200, 400, 10_000])

STEPS: list[tuple[int, str, tuple[st.SearchStrategy[Any], ...]]] = [
    (6, "commit", (SENT,)),
    (5, "split", (WORKERS,)),
    (6, "merge", (WORKERS, LOGS, SIZES)),
    (3, "claim", (WORKERS, st.integers(0, LATEST), st.integers(1, 3))),
    (3, "finish_split", (PICK,)),
    (1, "release", (PICK,)),
    (3, "begin_merge", (WORKERS, LOGS, SIZES)),
    (3, "finish_merge", (PICK,)),
    (1, "abandon", (PICK,)),
    (2, "lapse", ()),
    (2, "steal", (LOGS,)),
    (3, "delete_records", (LOGS, st.integers(0, 6))),
    (1, "expire_prefix", (st.integers(0, BOUNDARY),)),
    (3, "collect", (st.sampled_from([0, 0, 3_600_000]),)),
    (1, "pause", (LOGS, st.booleans())),
    (1, "request", (LOGS,)),
]
STEP = st.one_of(
    *(
        st.tuples(st.just(name), st.tuples(*arguments))
        for weight, name, arguments in STEPS
        for _ in range(weight)
    )
)
HISTORIES: list[list[tuple[str, tuple[Any, ...]]]] = [
    # Of a split file's two batches one expires, and the other is merged before rows are pruned.
    [("split", (0,)), ("delete_records", (0, 1)), ("merge", (0, 0, 1))],
    # A claim holds, and so does the plan of a segment. Another worker takes each over, and both end
    # their work: the first in vain.
    [
        ("claim", (0, LATEST, 1)), ("claim", (1, LATEST, 1)), ("lapse", ()),
        ("claim", (1, LATEST, 1)), ("finish_split", (1,)), ("finish_split", (0,)),
        ("begin_merge", (0, 0, 10_000)), ("begin_merge", (1, 0, 10_000)), ("lapse", ()),
        ("begin_merge", (1, 0, 10_000)), ("abandon", (1,)), ("finish_merge", (1,)),
        ("finish_merge", (0,)),
    ],
    # What has run out and was not taken over is ended well.
    [
        ("claim", (0, LATEST, 1)), ("lapse", ()), ("finish_split", (0,)),
        ("begin_merge", (0, 0, 10_000)), ("lapse", ()), ("finish_merge", (0,)),
    ],
    # What was given back is anybody's, and its end comes to nothing.
    [
        ("claim", (0, LATEST, 1)), ("release", (0,)), ("release", (0,)), ("finish_split", (0,)),
        ("split", (1,)), ("begin_merge", (0, 0, 10_000)), ("abandon", (0,)), ("abandon", (0,)),
        ("finish_merge", (0,)), ("merge", (1, 0, 10_000)),
    ],
    # A batch is old that is older than the cutoff; nothing is merged across a young one.
    [
        ("commit", ([(0, 1, 20, 70)],)), ("commit", ([(0, 1, 5, 80)],)), ("claim", (0, 20, 9)),
        ("finish_split", (0,)), ("finish_split", (1,)), ("merge", (0, 0, 10_000)),
        ("split", (0,)), ("merge", (0, 0, 10_000)),
    ],
    # What has expired is claimed by nobody.
    [("delete_records", (0, 1)), ("split", (0,)), ("merge", (0, 0, 10_000))],
    # Of what was committed until it is asked for the age does not matter.
    [("request", (0,)), ("claim", (0, 0, 9)), ("finish_split", (0,)), ("merge", (0, 0, 10_000))],
    # Of a topic that is paused nothing is claimed, and no segment is begun.
    [
        ("pause", (0, True)), ("split", (0,)), ("pause", (0, False)), ("split", (0,)),
        ("pause", (0, True)), ("merge", (0, 0, 10_000)), ("pause", (0, False)),
        ("merge", (0, 0, 10_000)),
    ],
    # Commits go on meanwhile.
    [
        ("claim", (0, LATEST, 1)), ("commit", ([(0, 3, 1, 70)],)), ("finish_split", (0,)),
        ("begin_merge", (0, 0, 10_000)), ("commit", ([(0, 1, 1, 70)],)), ("finish_merge", (0,)),
    ],
    # Retention removes one claimed file whole and cuts another, of which the rest is merged.
    *(
        [
            ("commit", ([(0, 1, 0, 70)] * 3,)), ("claim", (0, LATEST, 2)),
            ("delete_records", (0, 3)), *pruned, ("finish_split", (0,)), ("finish_split", (1,)),
            ("merge", (0, 0, 10_000)),
        ]
        for pruned in ([], [("collect", (3_600_000,))])
    ),
    # It cuts a segment that is planned, and then takes one that is planned whole.
    *(
        [
            ("commit", ([(0, 1, 0, 70)] * 3,)), ("split", (0,)), ("begin_merge", (0, 0, 200)),
            ("delete_records", (0, 1)), *pruned, ("finish_merge", (0,)),
            ("begin_merge", (0, 0, 70)), ("delete_records", (0, 3)), *pruned,
            ("finish_merge", (0,)), ("abandon", (0,)), ("merge", (0, 0, 10_000)),
        ]
        for pruned in ([], [("collect", (3_600_000,))])
    ),
    # The prefix expires last and first.
    [
        ("split", (0,)), ("merge", (0, 0, 10_000)), ("delete_records", (0, 2)),
        ("expire_prefix", (BOUNDARY,)),
    ],
    [
        ("split", (0,)), ("merge", (0, 0, 10_000)), ("expire_prefix", (BOUNDARY,)),
        ("delete_records", (0, 1)), ("delete_records", (0, 1)), ("commit", ([(0, 1, 0, 70)],)),
        ("split", (0,)), ("merge", (0, 0, 10_000)), ("delete_records", (0, 1)),
    ],
]  # fmt: skip
"""What must not be left to chance, after a file of two batches of one record."""
TWO = [(0, 1, 0, 61), (0, 1, 0, 61)]
PLANNED: list[tuple[str, tuple[Any, ...]]] = [("split", (0,)), ("begin_merge", (0, 0, 10_000))]
END = st.sampled_from([None, None, 0, 1])
"""Which topic is deleted at last, if any."""


def test_tiering_is_invisible_to_readers_and_leaks_nothing(database: Database) -> None:
    happened: Counter[str] = Counter()
    with asyncio.Runner() as runner, jobs(database) as plane:
        connection = connect(database.settings(), application_name="model")
        scene = PostgresScene(runner.run(connection.__aenter__()), database.dsn)

        @settings(max_examples=20, deadline=None, suppress_health_check=list(HealthCheck))
        @given(first=SENT, steps=st.lists(STEP, min_size=15, max_size=30), deleted=END)
        @example(first=TWO, steps=PLANNED, deleted=0)
        def run(first: list[Any], steps: list[tuple[str, Any]], deleted: int | None) -> None:
            history = History(runner, scene, plane)
            history.commit(first)
            for n, (step, arguments) in enumerate(steps):
                getattr(history, step)(*arguments)
                history.check(7 * n % LATEST)
            if deleted is not None:
                history.delete_topic(deleted)
                history.merge(0, deleted, 10_000)
                history.finish_merge(0)
                history.finish_split(0)
            history.end()
            happened.update(history.happened)

        for steps in HISTORIES:
            run = example(first=TWO, steps=steps, deleted=None)(run)
        try:
            run()
        finally:
            runner.run(connection.__aexit__(None, None, None))
    for event in ("split None", "split StaleClaim", "merge None", "merge StaleClaim"):
        assert happened[event], happened
    # What is drawn differs from run to run; that it happens does not.
    assert happened["read a segment"] > 20, happened
    assert happened["collected"] > 5, happened
