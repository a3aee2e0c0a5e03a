"""Gateways that commit in a Postgres and store what they tell in a bucket, and the rows of both."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from random import Random

from tests.contract.scenes import GatewayProcess, PostgresScene
from tests.contract.traffic import Traffic
from tests.unit.rebuild.buckets import HISTORY, NOT_COMMITTED, Bucket
from tideline.control_plane.model import BatchToCommit, StreamPlace
from tideline.domain import catalog
from tideline.domain.ids import TopicIdPartition
from tideline.domain.producer_tail import ProducerSeed
from tideline.domain.wal_footer import (
    BatchOutcome,
    EarlierCommit,
    Footer,
    decode_tail,
    encode,
)
from tideline.gateway.produce.commit_stream import described

ROWS = {
    "topics": """
        SELECT name, topic_id, kind, status, tracked, timestamp_type, max_message_bytes,
               timestamp_before_max_ms, timestamp_after_max_ms
        FROM topics ORDER BY name, topic_id""",
    "logs": """
        SELECT topic_name, partition, migration_state, diskless_log_start_offset,
               diskless_log_start_epoch, suffix_start, log_start_offset, high_watermark,
               max_timestamp, tiered_log_start_offset, tiered_high_offset, prefix_max_timestamp,
               prefix_max_timestamp_offset, seeds_digest, seeds_last_offset, quiesce,
               accepted_gap_from
        FROM logs ORDER BY topic_name, partition""",
    "batches": """
        SELECT topic_name, partition, base_offset, last_offset, object_key, byte_offset,
               byte_size, log_append_time, append_time, b.max_timestamp, running_max_timestamp
        FROM batches AS b JOIN logs AS l USING (log_id) JOIN wal_files AS f USING (file_id)
        WHERE last_offset >= suffix_start ORDER BY topic_name, partition, base_offset""",
    "producers": """
        SELECT topic_name, partition, producer_id, producer_epoch, base_sequences,
               last_sequences, base_offsets, append_times, unlocated_sequence
        FROM producer_state JOIN logs USING (log_id)
        ORDER BY topic_name, partition, producer_id""",
    "files": """
        SELECT object_key, gateway_id, incarnation, status, size, outcome_errors,
               outcome_base_offsets, outcome_append_times, stream_sequence, withdrawn,
               (SELECT c.object_key FROM wal_files AS c
                   WHERE c.file_id = f.carried_by) AS carrier
        FROM wal_files AS f WHERE EXISTS (SELECT FROM batches AS b JOIN logs AS l USING (log_id)
            WHERE b.file_id = f.file_id AND last_offset >= suffix_start)
        ORDER BY f.object_key""",
    "segments": """
        SELECT topic_name, partition, segment_id, state, object_key_stem, base_offset,
               last_offset, size_bytes, m.max_timestamp, leader_epoch, record_count, batch_count,
               offset_index_bytes, time_index_bytes
        FROM merged_segments AS m JOIN logs USING (log_id) ORDER BY segment_id""",
    "snapshots": """
        SELECT topic_name, partition, end_offset, entries
        FROM producer_snapshots JOIN logs USING (log_id) ORDER BY topic_name, partition""",
}
"""What a rebuild must bring back. Numbers of rows, generations, tokens and times of writing are its
own; what retention has passed, the collection may have taken."""

Table = list[tuple[object, ...]]


def rows(scene: PostgresScene) -> dict[str, Table]:
    return {name: scene.sql(query) for name, query in ROWS.items()}


@dataclass
class Upload:
    key: str
    sequence: int
    batches: list[BatchToCommit]


@dataclass
class RecordingGateway:
    """One process: what it has stored, what it has yet to commit and to tell."""

    process: GatewayProcess
    sequence: int = -1
    pending: list[Upload] = field(default_factory=list)
    untold: dict[str, EarlierCommit] = field(default_factory=dict)


class Recorder:
    """Random traffic to a few logs through two gateways."""

    def __init__(self, scene: PostgresScene, bucket: Bucket, random: Random) -> None:
        self.scene, self.bucket, self.random = scene, bucket, random
        self.gateways: list[RecordingGateway] = []
        self.logs: list[TopicIdPartition] = []
        self.traffic = Traffic(random, again=0.15, plain=0.4)
        self.boundary: dict[TopicIdPartition, int] = {}

    async def begin(self) -> None:
        """One log that has crossed at B0 = 10 with a producer, two that were born diskless."""
        self.gateways = [RecordingGateway(await self.scene.gateway()) for _ in range(2)]
        seeds = (ProducerSeed(3, 0, 0, 9, 0, 9, 1_000),)
        _, (crossed,) = await self.scene.migrating_topic([g.process for g in self.gateways])
        generation = await self.scene.quiesce(crossed, [g.process for g in self.gateways], 9)
        await self.scene.persist(crossed, 10, generation, seeds=seeds)
        self.traffic.next_sequence[crossed, 3] = 10
        self.boundary[crossed] = 10
        self.logs = [crossed, *await self.born()]
        crossed_name = str(
            self.scene.sql("SELECT name FROM topics WHERE topic_id = %s", crossed.topic_id)[0][0]
        )
        self.bucket.note(
            catalog.Topic(crossed.topic_id, crossed_name, False, 1, 1),
            catalog.Boundary(crossed.topic_id, 0, generation, 3, 10, seeds, 0, -1, -1),
        )

    async def born(self, name: str | None = None) -> list[TopicIdPartition]:
        """The logs of a topic that is born diskless, and noted down."""
        name, logs = await self.scene.diskless_topic(2, name)
        for gateway in self.gateways:
            await self.scene.plane.acknowledge_tracking(
                gateway.process.gateway_id, gateway.process.incarnation, name
            )
        await self.scene.plane.activate_topic(name)
        self.boundary |= dict.fromkeys(logs, 0)
        self.bucket.note(catalog.Topic(logs[0].topic_id, name, True, 2, 0))
        return logs

    async def play(self, steps: int) -> None:
        for _ in range(steps):
            gateway = self.random.choice(self.gateways)
            action = self.random.choice(("upload", "upload", "commit", "commit", "tell", "cut"))
            if action == "upload":
                gateway.pending.append(self.upload(gateway, self.traffic.batches(self.logs)))
            elif action == "commit" and gateway.pending:
                await self.commit(gateway, gateway.pending.pop(0))
            elif action == "tell" and gateway.untold and not gateway.pending:
                await self.tell(gateway)
            elif action == "cut" and self.random.random() < 0.3:
                await self.cut(self.random.choice(self.logs))

    async def settle(self) -> None:
        """Every commit is answered and told."""
        for gateway in self.gateways:
            while gateway.pending:
                await self.commit(gateway, gateway.pending.pop(0))
            if gateway.untold:
                await self.tell(gateway)

    async def cut(self, log: TopicIdPartition) -> None:
        """Retention, and what it notes down."""
        ((start, high),) = self.scene.sql(
            "SELECT suffix_start, high_watermark FROM logs WHERE topic_id = %s AND partition = %s",
            log.topic_id,
            log.partition,
        )
        until = self.random.randint(int(str(start)), int(str(high)))
        await self.scene.plane.delete_records(log, until)
        self.bucket.note(
            catalog.SuffixStart(log.topic_id, log.partition, self.boundary[log], until)
        )

    def upload(self, gateway: RecordingGateway, batches: Sequence[BatchToCommit]) -> Upload:
        gateway.sequence += 1
        key = f"wal/{gateway.process.gateway_id}-{gateway.sequence:04}-{self.random.random()}"
        footer = Footer(
            HISTORY,
            gateway.process.gateway_id,
            gateway.process.incarnation,
            gateway.sequence,
            int(time.time() * 1000),
            tuple(map(described, batches)),
            tuple(gateway.untold.values()),
        )
        body = b"x" * sum(one.byte_size for one in batches)
        self.bucket.objects[key] = body + encode(footer)
        return Upload(key, gateway.sequence, list(batches))

    async def tell(self, gateway: RecordingGateway) -> None:
        """An object that only carries."""
        await self.commit(gateway, self.upload(gateway, []))

    async def commit(self, gateway: RecordingGateway, upload: Upload) -> None:
        process = gateway.process
        named = (process.gateway_id, process.incarnation)
        every = range(len(upload.batches))
        # One that is left with nothing is given up and not committed.
        live = [n for n in every if self.random.random() < 0.95] or list(every)
        carried = tuple(self._carried(gateway, upload))
        place = StreamPlace(
            upload.sequence,
            tuple(n for n in range(len(upload.batches)) if n not in live),
            carried,
        )
        await self.scene.plane.register_object_keys(*named, [upload.key])
        answers = await self.scene.plane.commit_file(
            *named,
            upload.key,
            len(self.bucket.objects[upload.key]),
            [upload.batches[n] for n in live],
            place,
        )
        if not upload.batches:  # else a carrier tells it again, which stays for that
            for key in carried:
                gateway.untold.pop(key, None)
        if upload.batches:
            outcomes = [NOT_COMMITTED] * len(upload.batches)
            for n, told in zip(live, answers, strict=True):
                outcomes[n] = BatchOutcome(str(told.error), told.base_offset, told.append_time)
            gateway.untold[upload.key] = EarlierCommit(upload.sequence, upload.key, tuple(outcomes))

    def _carried(self, gateway: RecordingGateway, upload: Upload) -> list[str]:
        body = self.bucket.objects[upload.key]
        told = decode_tail(body, len(body)).earlier
        return [commit.object_key for commit in told if commit.object_key in gateway.untold]
