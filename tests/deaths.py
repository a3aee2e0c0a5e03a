"""What a test has started beside itself and ended by an error: threads, and programs of clients.

A consumer whose thread has died reads nothing, as one does that a gateway keeps waiting. So every
wait of a test (:func:`tests.support.waiting.until`) asks here first, and is told of a death instead
of waiting for what nobody does any more. ``filterwarnings`` fails the test of a thread that died
when nobody waited any more.
"""

from __future__ import annotations

import threading
import traceback

_died: list[str] = []


def watch() -> None:
    """Hear of every thread that ends by an error, from now on; whoever heard before still does."""
    before = threading.excepthook

    def heard(ended: threading.ExceptHookArgs) -> None:
        if ended.exc_type is not SystemExit:
            name = "a thread" if ended.thread is None else f"thread {ended.thread.name}"
            note(name, "".join(traceback.format_exception(ended.exc_value)))
        before(ended)

    threading.excepthook = heard


def note(who: str, how: str) -> None:
    """``who`` does nothing any more, because of ``how``."""
    _died.append(f"{who} ended by an error: {how}")


def check() -> None:
    """Raises ``AssertionError`` when something that this test began has died."""
    assert not _died, "\n".join(_died)


def forget() -> None:
    """What has died is no news to the next test."""
    _died.clear()
