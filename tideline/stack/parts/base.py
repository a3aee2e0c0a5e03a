"""What every part has."""

from __future__ import annotations

import shutil
import sysconfig
from abc import ABC, abstractmethod
from dataclasses import dataclass
from pathlib import Path

from tideline.stack.credentials import Credentials
from tideline.stack.endpoints import Endpoints, address, endpoints_of, environment_of
from tideline.stack.errors import StackError
from tideline.stack.home import Home, StackState
from tideline.stack.probes import Address
from tideline.stack.processes import Program
from tideline.stack.secured import Secured


@dataclass(frozen=True)
class StackPlan:
    """A stack on paper: where it lives, which ports and keys it has. Parts are made from it."""

    home: Home
    state: StackState
    credentials: Credentials

    @property
    def endpoints(self) -> Endpoints:
        return endpoints_of(self.state, self.credentials)

    @property
    def secured(self) -> Secured | None:
        """Certificates and users, if it has any."""
        return Secured(self.home) if self.state.secure else None

    def address(self, listener: str) -> Address:
        return address(self.state, listener)

    def port(self, listener: str) -> int:
        return self.state.ports[listener]

    def environment(self, role: str) -> dict[str, str]:
        return environment_of(self.home, self.state, self.credentials, role)


class StackPart(ABC):
    """One program of the stack, in the order prepare, start, probe until it passes, finish."""

    ready_within_s: float = 30
    """How long the probe may fail after a start while the part does not work."""

    def __init__(self, plan: StackPlan) -> None:
        self.plan = plan

    @property
    @abstractmethod
    def name(self) -> str: ...

    @property
    @abstractmethod
    def where(self) -> str:
        """The address that a person wants to know."""

    @property
    def needs(self) -> tuple[str, ...]:
        """Names of the programs that must be finished before this one is prepared."""
        return ()

    @abstractmethod
    def program(self) -> Program: ...

    @property
    def preparation(self) -> str:
        """What is slow about the preparation, for a person who waits; empty when nothing is."""
        return ""

    def prepare(self) -> None:
        """Before the start; idempotent. Nothing by default."""
        return

    @abstractmethod
    def probe(self) -> None:
        """Raises :class:`~tideline.stack.errors.NotReadyError` while it does not answer."""

    def finish(self) -> None:
        """Once it answers; idempotent. Nothing by default."""
        return

    def log(self, name: str | None = None) -> Path:
        return self.plan.home.logs / f"{name or self.name}.log"


def installed_program(name: str, package: str) -> str:
    """A program that a Python package brought along."""
    beside = Path(sysconfig.get_path("scripts")) / name
    found = str(beside) if beside.is_file() else shutil.which(name)
    if found is None:
        raise StackError(
            f"`{name}` was not found: it comes with the package {package}. "
            "Install the extra: pip install 'tideline[stack]'."
        )
    return found
