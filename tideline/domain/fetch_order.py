"""How the partitions of one Fetch share its bytes (KIP-74, ``ReplicaManager.readFromLog``)."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(slots=True)
class FetchBytes:
    """What is left of an answer's bytes, while its partitions are served in the order of the
    request, whichever region holds their records. A client, or its session, puts those that had
    records to the end of the next request: so none waits for longer than the others are read."""

    left: int
    """``max_bytes`` of the request at first; never below 0 once anything was served"""
    nothing_yet: bool = True

    def most(self, first_batch: int) -> int:
        """Bytes that the next partition may have, whose first batch has so many: up to what is
        left. A batch that is larger than that is given to the first partition that has records,
        and to no other."""
        if first_batch <= self.left:
            return self.left
        return first_batch if self.nothing_yet else 0

    def serve(self, size: int) -> None:
        """The partition gets ``size`` bytes."""
        if size:
            self.nothing_yet = False
            self.left = max(0, self.left - size)
