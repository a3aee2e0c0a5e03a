"""Object keys that are registered in the control plane before anything is put under them.

An upload that sleeps past the collector's grace finds its key marked as deleting, and its commit
is rejected (schedule 17).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from typing import Protocol
from uuid import UUID, uuid4

from tideline.domain.suffix_log import KEYS_KEPT_AHEAD_MS

POOL_SIZE = 16
MAX_AGE_S = KEYS_KEPT_AHEAD_MS / 1000


class KeyRegistry(Protocol):
    async def register_object_keys(
        self, gateway_id: int, incarnation: UUID, keys: Sequence[str]
    ) -> None: ...


class ObjectKeys:
    """A small pool of registered keys, so that no upload waits for Postgres first."""

    def __init__(
        self,
        registry: KeyRegistry,
        *,
        gateway_id: int,
        incarnation: Callable[[], UUID],
        clock: Callable[[], float],
    ) -> None:
        self._registry = registry
        self._gateway_id = gateway_id
        self._incarnation = incarnation
        self._clock = clock
        self._pool: deque[tuple[str, float]] = deque()
        self._owner: UUID | None = None

    def take(self) -> str | None:
        """A registered key, or ``None``: call :meth:`refill` first."""
        if self._owner != self._incarnation():
            self._pool.clear()
        while self._pool:
            key, registered = self._pool.popleft()
            if self._clock() - registered <= MAX_AGE_S:
                return key
        return None

    @property
    def low(self) -> bool:
        return len(self._pool) < POOL_SIZE // 2

    async def refill(self) -> None:
        """Register fresh keys. Raises what the control plane raises."""
        owner, started = self._incarnation(), self._clock()
        keys = [f"wal/{uuid4().hex}" for _ in range(POOL_SIZE)]
        await self._registry.register_object_keys(self._gateway_id, incarnation=owner, keys=keys)
        if owner != self._owner:
            self._pool.clear()
            self._owner = owner
        self._pool.extend((key, started) for key in keys)
