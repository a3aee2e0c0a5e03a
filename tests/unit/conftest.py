"""A unit test starts no program, and its sockets end on this machine."""

from __future__ import annotations

import ipaddress
import sys
from collections.abc import Iterator

import pytest

STARTS = frozenset({
    "os.exec", "os.fork", "os.forkpty", "os.posix_spawn", "os.spawn", "os.system", "pty.spawn",
    "subprocess.Popen",
})  # fmt: skip
"""Audit events (sys.addaudithook, PEP 578)."""
REACHES = frozenset(("socket.bind", "socket.connect", "socket.sendmsg", "socket.sendto"))

_unit_test = ""
_found: list[str] = []


def _look(event: str, args: tuple[object, ...]) -> None:
    if not _unit_test:
        return
    if event in STARTS:
        _refuse(f"starts a program ({event}): it belongs into tests/contract/programs")
    if event in REACHES and isinstance(args[1], tuple) and not _is_here(str(args[1][0])):
        _refuse(f"reaches {args[1]}")


def _is_here(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def _refuse(what: str) -> None:
    """Whoever it is told may pass over an error: the test fails all the same."""
    _found.append(f"{_unit_test} {what}")
    raise AssertionError(_found[-1])


sys.addaudithook(_look)


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    """Before the fixtures of a module, too. Of what is below this directory, as it stands here."""
    global _unit_test
    _unit_test = item.nodeid


@pytest.hookimpl(wrapper=True)
def pytest_runtest_teardown() -> Iterator[None]:
    global _unit_test
    try:
        return (yield)
    finally:
        _unit_test = ""
        found = list(_found)
        _found.clear()
        assert not found, found
