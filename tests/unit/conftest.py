"""A unit test starts no program, and its sockets end on this machine."""

from __future__ import annotations

import ipaddress
import sys
from collections.abc import Iterator

import pytest

STARTS = frozenset(
    [
        *("os.exec", "os.fork", "os.forkpty", "os.posix_spawn", "os.spawn", "os.system"),
        *("pty.spawn", "subprocess.Popen"),
    ]
)
"""Audit events (sys.addaudithook, PEP 578)."""
REACHES = frozenset(("socket.bind", "socket.connect", "socket.sendto"))

_unit_test = ""


def _look(event: str, args: tuple[object, ...]) -> None:
    if not _unit_test:
        return
    if event in STARTS:
        raise AssertionError(
            f"{_unit_test} starts a program ({event}): it belongs into tests/contract/programs"
        )
    if event in REACHES and isinstance(address := args[1], tuple):
        assert ipaddress.ip_address(address[0]).is_loopback, f"{_unit_test} reaches {address}"


sys.addaudithook(_look)


@pytest.fixture(autouse=True)
def _alone(request: pytest.FixtureRequest) -> Iterator[None]:
    global _unit_test
    _unit_test = request.node.nodeid
    yield
    _unit_test = ""
