"""Ports that other stacks of this user have, though nothing may listen there at the moment.

A broker that a fault test keeps down for a while must find its port free when it comes back.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Collection
from pathlib import Path

import psutil
from pydantic import BaseModel, ValidationError

from tideline.stack.home import write_private
from tideline.stack.programs import MARKER


class Claim(BaseModel):
    """One running stack."""

    supervisor_pid: int
    ports: list[int]

    def is_alive(self, identity: str) -> bool:
        """Whether the supervisor of the stack ``identity`` still runs; its pid may be another's."""
        try:
            return psutil.Process(self.supervisor_pid).environ().get(MARKER) == identity
        except (psutil.Error, OSError):
            return False


class _Claims(BaseModel):
    stacks: dict[str, Claim] = {}


class ClaimedPorts:
    """The claims of all stacks of one user. Hold the turn to start while using it."""

    def __init__(self, path: Path | None = None) -> None:
        self._path = path or Path(tempfile.gettempdir()) / f"tideline-{os.getuid()}-ports.json"

    def of_others(self, identity: str) -> set[int]:
        """Ports of running stacks other than ``identity``."""
        return {
            port
            for other, claim in self._living().items()
            if other != identity
            for port in claim.ports
        }

    def claim(self, identity: str, supervisor_pid: int, ports: Collection[int]) -> None:
        """Record the ports of a stack that was just launched; forget stacks that ended."""
        stacks = self._living() | {
            identity: Claim(supervisor_pid=supervisor_pid, ports=sorted(ports))
        }
        write_private(self._path, _Claims(stacks=stacks).model_dump_json())

    def _living(self) -> dict[str, Claim]:
        try:
            claims = _Claims.model_validate_json(self._path.read_text())
        except (FileNotFoundError, ValidationError):
            return {}
        return {
            identity: claim for identity, claim in claims.stacks.items() if claim.is_alive(identity)
        }
