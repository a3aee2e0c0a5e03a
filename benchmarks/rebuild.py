"""``python -m benchmarks.rebuild --dsn DSN``: what a rebuild of generated footers costs.

Into an empty database, from a bucket in memory: the requests to a real store come on top, one for
each object, sixteen at once.
"""

from __future__ import annotations

import argparse
import resource
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from uuid import UUID

from tideline.control_plane.migrate import apply
from tideline.domain import catalog
from tideline.domain.wal_footer import BatchOutcome, EarlierCommit, Footer, FooterBatch, encode
from tideline.object_store.client import ObjectEntry
from tideline.rebuild.postgres import RebuildPostgres
from tideline.rebuild.reader import BucketReader
from tideline.rebuild.survey import Choices, again, survey
from tideline.rebuild.write import write
from tideline.settings import ControlPlaneSettings

HISTORY, TOPIC = UUID(int=1), UUID(int=2)
PARTITIONS, GATEWAYS, PER_OBJECT, BATCH_BYTES = 100, 3, 100, 100


class Bucket:
    """Objects of three gateways in turn; every batch is of an idempotent producer."""

    def __init__(self, batches: int) -> None:
        self.objects: dict[str, bytes] = {}
        topic = catalog.Topic(TOPIC, "generated", True, PARTITIONS, 0)
        entry = catalog.Entry(HISTORY, True, topic)
        self.objects[catalog.object_key("", entry)] = catalog.encode(entry)
        ends = [0] * PARTITIONS
        untold: list[tuple[EarlierCommit, ...]] = [()] * GATEWAYS
        for number in range(batches // PER_OBJECT + GATEWAYS):
            gateway, sequence = number % GATEWAYS, number // GATEWAYS
            made: list[FooterBatch] = []
            outcomes: list[BatchOutcome] = []
            for place in range(PER_OBJECT if number < batches // PER_OBJECT else 0):
                partition = (number + place) % PARTITIONS
                base = ends[partition]
                ends[partition] += 1
                made.append(
                    FooterBatch(
                        TOPIC, partition, place * BATCH_BYTES, BATCH_BYTES, 1, partition, 0,
                        base, base, number, False,
                    )
                )  # fmt: skip
                outcomes.append(BatchOutcome("NONE", base, number))
            key = f"wal/{gateway}-{sequence:09}"
            footer = Footer(
                HISTORY, gateway, UUID(int=9 + gateway), sequence, 0, tuple(made), untold[gateway]
            )
            self.objects[key] = bytes(len(made) * BATCH_BYTES) + encode(footer)
            untold[gateway] = (EarlierCommit(sequence, key, tuple(outcomes)),)

    def list_objects(self, bucket: str, prefix: str) -> Iterator[ObjectEntry]:
        for key in sorted(self.objects):
            if key.startswith(prefix):
                yield ObjectEntry(key, len(self.objects[key]), datetime.now(UTC))

    def get(
        self, bucket: str, key: str, start: int | None = None, size: int | None = None
    ) -> bytes:
        first = start or 0
        return self.objects[key][first : None if size is None else first + size]


@contextmanager
def timed(what: str) -> Iterator[None]:
    began = time.perf_counter()
    yield
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024
    print(f"{what}: {time.perf_counter() - began:.1f} s; memory so far at most {peak} MiB")


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--dsn", required=True)
    parser.add_argument("--batches", type=int, default=1_000_000)
    asked = parser.parse_args()
    apply(asked.dsn)
    with timed(f"generate {asked.batches} batches"):
        bucket = Bucket(asked.batches)
    postgres = RebuildPostgres(ControlPlaneSettings.model_validate({"postgres_dsn": asked.dsn}))
    reader = BucketReader(bucket, "wal", "")
    with timed("read and fold"):
        found = survey(reader, postgres, Choices(HISTORY))
    postgres.begin("benchmark", "generated", [], postgres.identity().beat)
    with timed("write"):
        write(found, postgres, "")
    with timed("compare with what was written"):
        after = again(found, postgres)
    verdicts = {plan.verdict.value for plan in after.plans.values()}
    print(f"{sum(len(plan.add) for plan in found.plans.values())} batches, verdicts {verdicts}")
    postgres.close()


if __name__ == "__main__":
    main()
