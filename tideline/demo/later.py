"""What happens to a topic after its migration, while clients go on."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from tideline.demo.context import DemoContext
from tideline.demo.report import Check
from tideline.demo.workload import GroupConsumer, LibrdkafkaProducer, wait_until_consumed
from tideline.domain.messages import TopicRef


class Later:
    """A hybrid topic, a producer that goes on, and readers that begin at its first offset."""

    def __init__(self, demo: DemoContext, ref: TopicRef) -> None:
        self.demo, self.ref = demo, ref
        self.step = demo.output.step

    @asynccontextmanager
    async def producing(
        self, name: str, *, rate: float | None = None, patience_s: int = 120
    ) -> AsyncIterator[None]:
        """``rate`` records a second meanwhile, or one per partition; the producer is told as
        ``name``, and gives up a record that nobody has taken for ``patience_s``."""
        demo, ref = self.demo, self.ref
        producer = LibrdkafkaProducer(
            name, demo.bootstrap, ref.topic, range(ref.partitions), demo.ledger,
            records_per_second=rate or ref.partitions,
            config={"delivery.timeout.ms": patience_s * 1000, **demo.login},
        )  # fmt: skip
        producer.start()
        try:
            yield
        finally:
            await asyncio.to_thread(producer.stop)

    def read_again(self, name: str, when: str) -> Check:
        """Another group reads from the first offset, and everything is compared."""
        demo, ref = self.demo, self.ref
        ledger, group = demo.ledger.for_another_reader(), f"{name}-{ref.topic}"
        member = GroupConsumer(name, demo.bootstrap, ref.topic, group, ledger, config=demo.login)
        member.start()
        try:
            done = wait_until_consumed(ledger, 120.0)
        finally:
            member.stop()
        verdicts = [ledger.verdict(p) for p in range(ref.partitions)]
        acknowledged, consumed = ledger.counts()
        return Check(
            f"every acknowledged record is read from the first offset, {when}",
            done and all(v.ok for v in verdicts) and not member.resets,
            f"{acknowledged} acknowledged, {consumed} consumed across prefix, merged segments and "
            "WAL" + "".join(f"; {v}" for v in verdicts if not v.ok),
        )
