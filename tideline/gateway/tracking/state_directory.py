"""A gateway's state directory, held by one process, and the incarnations that it has registered.

What always holds: an incarnation is named in the directory, durably, before it is registered. So
whoever gets the directory's lock knows which incarnations belonged to processes that are dead now:
the tracking barrier need not wait for them (schedule 24). Nor does it wait then for what the next
process here may serve from the snapshot: that goes before they are accounted for, unless the
process that says so is registered itself (schedule 18).

The lock says so of processes under the same kernel only: a volume can be moved from a machine that
is cut off to another one, and a directory can be copied. The names carry the kernel's boot id and
the lock's device and inode, and prove nothing where these are others: fresh file systems give their
first files the same inodes.
"""

from __future__ import annotations

import fcntl
import json
import os
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any
from uuid import UUID

from tideline.errors import RefusedError
from tideline.gateway.tracking.durable_file import replace_durably

LOCK_NAME, NAMES_NAME = "gateway.lock", "incarnations.json"
PATIENCE_S = 5.0
"""How long a process that is ending may keep the lock."""
LOOK_AGAIN_S = 0.1
BOOT_ID = Path("/proc/sys/kernel/random/boot_id")


class StateDirectory:
    """Held from :meth:`hold` until :meth:`release`, or until the process dies."""

    def __init__(self, directory: Path, lock: int) -> None:
        self._names_file = directory / NAMES_NAME
        self._lock = lock
        found = os.fstat(lock)
        self._here = [_boot_id(), found.st_dev, found.st_ino]
        noted = _read(self._names_file)
        named = tuple(UUID(name) for name in noted.get("incarnations", ()))
        proven = self._here[0] is not None and noted.get("where") == self._here
        self.dead: tuple[UUID, ...] = named if proven else ()
        """Registered by processes that held this directory before and do not run any more."""

    @classmethod
    def hold(
        cls, directory: Path, gateway_id: int, patience_s: float = PATIENCE_S
    ) -> StateDirectory:
        """Raises ``RefusedError`` naming the holder when another process keeps it for longer than
        ``patience_s``, and ``OSError``."""
        directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        lock = os.open(directory / LOCK_NAME, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            ends = time.monotonic() + patience_s
            while not _locked(lock):
                if time.monotonic() >= ends:
                    holder = os.pread(lock, 200, 0).decode(errors="replace") or "another process"
                    raise RefusedError(
                        f"{directory} is held by {holder}: stop it, or give each gateway its own "
                        "TIDELINE_GATEWAY_STATE_DIR and TIDELINE_GATEWAY_ID"
                    )
                time.sleep(LOOK_AGAIN_S)
            os.ftruncate(lock, 0)
            os.pwrite(lock, f"gateway {gateway_id}, process {os.getpid()}".encode(), 0)
            return cls(directory, lock)
        except BaseException:
            os.close(lock)
            raise

    def note(self, incarnations: Sequence[UUID]) -> None:
        """Durable when it returns; what is ``dead`` stays named as well. Raises ``OSError``."""
        names = [str(name) for name in dict.fromkeys([*self.dead, *incarnations])]
        noted = json.dumps({"where": self._here, "incarnations": names})
        replace_durably(self._names_file, noted)

    def settled(self) -> None:
        """Postgres knows of the dead ones: the next :meth:`note` leaves them out."""
        self.dead = ()

    def release(self) -> None:
        """The kernel does the same at the end of the process."""
        lock, self._lock = self._lock, -1
        if lock >= 0:
            os.close(lock)


def _locked(lock: int) -> bool:
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _boot_id() -> str | None:
    try:
        return BOOT_ID.read_text(encoding="ascii").strip() or None
    except OSError:
        return None


def _read(file: Path) -> dict[str, Any]:
    """Nothing for a file that is missing or damaged: then nothing is proven."""
    try:
        found = json.loads(file.read_text(encoding="utf-8"))
        [UUID(name) for name in found["incarnations"]]
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return {}
    return dict(found)
