"""What brokers give a topic that sets a config not itself.

Each leader goes by its own default. Brokers have the same one where it is set for the cluster, and
may differ where it is set for a broker, in its file or by a tool, or while they follow a change one
by one.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class BrokerDefaults:
    """The defaults of every live broker, by the topic's keys."""

    by_broker: Mapping[int, Mapping[str, str | None]]

    @property
    def of_first(self) -> Mapping[str, str | None]:
        """Those of the broker of the lowest number."""
        return self.by_broker[min(self.by_broker)]

    def difference(self, key: str) -> str | None:
        """In words, which brokers have which default; ``None`` while all have the same."""
        values = {node: found.get(key) for node, found in sorted(self.by_broker.items())}
        if len(set(values.values())) == 1:
            return None
        told = ", ".join(f"{value} on broker {node}" for node, value in values.items())
        return f"brokers have different defaults of {key}: {told}"
