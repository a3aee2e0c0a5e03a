"""What a thread still writes, whose task was cancelled, comes before what is done next."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.support.waiting import HANGS_S, SOON_S
from tideline.gateway.tracking.durable_file import remove_durably, replace_durably


@pytest.mark.parametrize(
    ("then", "left"),
    [(lambda path: replace_durably(path, "new"), "new"), (remove_durably, None)],
    ids=["replaced", "removed"],
)
def test_a_write_that_is_under_way_ends_before_the_next_change(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    then: Callable[[Path], None],
    left: str | None,
) -> None:
    path = tmp_path / "file"
    sync, held, goes_on = os.fsync, threading.Event(), threading.Event()

    def slow_once(file: int) -> None:
        if not held.is_set():
            held.set()
            assert goes_on.wait(HANGS_S)
        sync(file)

    monkeypatch.setattr("os.fsync", slow_once)
    under_way = threading.Thread(target=replace_durably, args=(path, "old"))
    under_way.start()
    assert held.wait(HANGS_S)
    following = threading.Thread(target=then, args=(path,))
    following.start()
    try:
        following.join(SOON_S / 10)
        assert following.is_alive(), "it waits"
    finally:
        goes_on.set()
        under_way.join(HANGS_S)
    following.join(HANGS_S)
    assert (path.read_text() if path.exists() else None) == left
    assert list(tmp_path.iterdir()) == ([path] if left else [])
