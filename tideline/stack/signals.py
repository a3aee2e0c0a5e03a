"""A command that has brought a stack up takes it down however it is asked to end."""

from __future__ import annotations

import signal

_ASKED_TO_END = (signal.SIGTERM, signal.SIGHUP)


def end_as_by_ctrl_c() -> None:
    """From now on SIGTERM (``timeout``, a service manager) and SIGHUP (the terminal is closed)
    raise ``KeyboardInterrupt`` as Ctrl-C does. What is ignored stays ignored (``nohup``)."""
    for number in _ASKED_TO_END:
        if signal.getsignal(number) is signal.SIG_DFL:
            signal.signal(number, signal.default_int_handler)
