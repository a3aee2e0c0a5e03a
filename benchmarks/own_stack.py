"""An embedded stack for one benchmark, gone with it."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from tideline.stack import Stack
from tideline.stack.signals import end_as_by_ctrl_c


@contextmanager
def own_stack(
    step: Callable[[str], None],
    *,
    brokers: int = 3,
    settings: Mapping[str, str] | None = None,
    prepare: Callable[[Path], None] = lambda _: None,
) -> Iterator[Stack]:
    """Also gone when the benchmark is ended by a signal. ``prepare``: what is done to its home
    before it starts."""
    with tempfile.TemporaryDirectory(prefix="tideline-bench-") as home:
        Path(home).chmod(0o755)
        step("embedded stack")
        end_as_by_ctrl_c()
        prepare(Path(home))
        stack = Stack.up(home, brokers=brokers, settings=settings)
        try:
            yield stack
        finally:
            stack.down()
