"""Keys of WAL objects, registered before anything is put under them."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable
from uuid import UUID, uuid4

from tideline.control_plane import ControlPlane
from tideline.control_plane.model import KEYS_KEPT_AHEAD_MS
from tideline.gateway.tracking.lease import Lease

KEY_POOL_SIZE = 16
KEY_MAX_AGE_S = KEYS_KEPT_AHEAD_MS / 1000


class ObjectKeys:
    """A small pool of object keys, registered in the control plane before anything is put under
    them and before an upload needs one, so that none waits for Postgres first.

    An upload that sleeps past the collector's grace finds its key marked as deleting, and its
    commit is rejected (schedule 17).
    """

    def __init__(
        self,
        registry: ControlPlane,
        lease: Lease,
        *,
        prefix: str = "",
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """``prefix``: of the installation in the bucket, empty or with a slash at its end."""
        self._prefix = prefix
        self._registry = registry
        self._lease = lease
        self._clock = clock
        self._pool: deque[tuple[str, float]] = deque()
        self._owner: UUID | None = None

    def take(self) -> str | None:
        """A registered key, or ``None``: call :meth:`refill` first."""
        if self._owner != self._lease.incarnation:
            self._pool.clear()
        while self._pool:
            key, registered = self._pool.popleft()
            if self._clock() - registered <= KEY_MAX_AGE_S:
                return key
        return None

    @property
    def low(self) -> bool:
        return len(self._pool) < KEY_POOL_SIZE // 2

    def unregistered(self) -> str:
        """A key for what is never committed: once it is of no use, it is an orphan to the
        collection."""
        return f"{self._prefix}wal/{uuid4().hex}"

    async def refill(self) -> None:
        """Register fresh keys. Raises what the control plane raises."""
        owner, started = self._lease.incarnation, self._clock()
        keys = [self.unregistered() for _ in range(KEY_POOL_SIZE)]
        await self._registry.register_object_keys(
            self._lease.gateway_id, incarnation=owner, keys=keys
        )
        if owner != self._owner:
            self._pool.clear()
            self._owner = owner
        self._pool.extend((key, started) for key in keys)
