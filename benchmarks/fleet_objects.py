"""Objects of the embedded S3 server that nobody has put.

SeaweedFS keeps what its directories list in a store, here a Postgres of its own (``filer.toml``).
One object of each kind is put by S3; the entries that this has left are copied under other names,
some ten thousand a second. Listing them, by S3, is what it is for objects that were put: size, time
and tag are in the entry. Only their bytes, which no job reads, are those of the first.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from uuid import UUID

import psycopg

from benchmarks.throwaway import throwaway
from tideline.domain.ids import topic_id_to_base64
from tideline.stack.home import Home

SERVER = {
    "shared_buffers": "512MB",
    "max_connections": "100",
    "fsync": "off",
    "synchronous_commit": "off",
    "autovacuum": "off",
}
TABLE = """
    CREATE UNLOGGED TABLE filemeta (
        dirhash bigint, name varchar(65535), directory varchar(65535), meta bytea,
        PRIMARY KEY (dirhash, name))
"""
"""The one that its ``postgres`` store expects, in the order of bytes. Nothing of it is to last."""
CONFIGURATION = """
[postgres]
enabled = true
hostname = "127.0.0.1"
port = {port}
username = "postgres"
password = ""
database = "postgres"
sslmode = "disable"
connection_max_idle = 40
connection_max_open = 60
connection_max_lifetime_seconds = 3600
"""
HASH = "('x' || left(md5({}), 16))::bit(64)::bigint"
"""``HashStringToLong`` of ``weed/util/bytes.go``: the first half of the MD5 of a directory."""
FILES = f"""
    INSERT INTO filemeta (dirhash, name, directory, meta)
    SELECT place.dirhash, lpad((number * %(records)s)::text, 20, '0') || '-' || id || '.' || kind,
           place.directory, meta
        FROM (SELECT partition, directory, {HASH.format("directory")} AS dirhash
                  FROM generate_series(0, %(partitions)s - 1) AS partition
                  CROSS JOIN LATERAL
                      (SELECT %(topic)s::text || '/' || partition AS directory) AS named
                  ORDER BY dirhash) AS place
        CROSS JOIN generate_series(0, %(segments)s - 1) AS number
        CROSS JOIN LATERAL (SELECT rtrim(translate(encode(decode(md5(
                  %(topic_id)s::text || ' ' || partition || ' ' || number), 'hex'), 'base64'),
                  '+/', '-_'), '=') AS id OFFSET 0) AS named
        CROSS JOIN unnest(%(kinds)s::text[], %(metas)s::bytea[]) AS like_it(kind, meta)
    ON CONFLICT DO NOTHING
"""
DIRECTORIES = f"""
    INSERT INTO filemeta (dirhash, name, directory, meta)
    SELECT {HASH.format("%(parent)s::text")}, name, %(parent)s::text, %(meta)s
        FROM unnest(%(names)s::text[]) AS name
    ON CONFLICT DO NOTHING
"""
ENTRY = f"""
    SELECT meta FROM filemeta
    WHERE dirhash = {HASH.format("%(directory)s::text")}
        AND name = %(name)s AND directory = %(directory)s
"""


def segment_id(topic_id: UUID, partition: int, number: int) -> UUID:
    """Of a generated segment, as :data:`FILES` names it."""
    name = f"{topic_id} {partition} {number}".encode()
    return UUID(bytes=hashlib.md5(name, usedforsecurity=False).digest())


@dataclass(frozen=True, slots=True)
class FilerRows:
    """The entries of a SeaweedFS. ``pid``: of the Postgres that has them."""

    dsn: str
    pid: int

    def copy(
        self,
        bucket: str,
        root: str,
        topics: Mapping[str, UUID],
        partitions: int,
        segments: int,
        records: int,
        kinds: Sequence[str],
    ) -> None:
        """Segments of ``records`` offsets each, of each partition of ``topics``, in objects of
        ``kinds``. Segment 0 of partition 0 of the first topic was put; the others are like it.
        ``root``: prefix of keys, as the layout of tiered segments has it."""
        above = f"/buckets/{bucket}/{root.rstrip('/')}"
        folders = {f"{name}-{topic_id_to_base64(one)}": one for name, one in topics.items()}
        first, first_id = next(iter(folders.items()))
        of_first = f"{above}/{first}/0"
        stem = f"{0:020d}-{topic_id_to_base64(segment_id(first_id, 0, 0))}"
        with psycopg.connect(self.dsn, autocommit=True) as db:
            metas = [self._entry(db, of_first, f"{stem}.{kind}") for kind in kinds]
            meta = self._entry(db, above, first)
            self._add_directories(db, above, list(folders), meta)
            meta = self._entry(db, f"{above}/{first}", "0")
            for folder, topic_id in folders.items():
                topic = f"{above}/{folder}"
                self._add_directories(db, topic, [str(n) for n in range(partitions)], meta)
                db.execute(FILES.encode(), {
                    "topic": topic, "topic_id": str(topic_id), "partitions": partitions,
                    "segments": segments, "records": records, "kinds": list(kinds), "metas": metas,
                })  # fmt: skip
            db.execute("VACUUM ANALYZE filemeta")

    @staticmethod
    def _add_directories(
        db: psycopg.Connection[tuple[object, ...]], parent: str, names: Sequence[str], meta: bytes
    ) -> None:
        db.execute(DIRECTORIES.encode(), {"parent": parent, "names": list(names), "meta": meta})

    @staticmethod
    def _entry(db: psycopg.Connection[tuple[object, ...]], directory: str, name: str) -> bytes:
        found = db.execute(ENTRY.encode(), {"directory": directory, "name": name}).fetchone()
        if found is None or not isinstance(found[0], bytes):
            raise RuntimeError(f"the filer has no entry {name} in {directory}: what was put?")
        return found[0]


@contextmanager
def filer_rows() -> Iterator[tuple[FilerRows, str]]:
    """A store for a SeaweedFS that does not run yet, and the ``filer.toml`` that names it. The
    server reads that in its working directory."""
    with throwaway(SERVER) as server:
        server.start()
        with psycopg.connect(server.dsn, autocommit=True) as db:
            db.execute(TABLE)
        pid = int((server.data / "postmaster.pid").read_text().split()[0])
        yield FilerRows(server.dsn, pid), CONFIGURATION.format(port=server.port)


def configure(home: Path, configuration: str) -> None:
    """The S3 server of a stack that was never started in ``home``."""
    place = Home.locate(home)
    place.create()
    (place.run / "filer.toml").write_text(configuration)
