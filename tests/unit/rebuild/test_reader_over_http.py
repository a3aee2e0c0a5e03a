"""The reader over the client of S3 that every process has: pages, ranges, what is gone."""

from __future__ import annotations

import re
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import parse_qs, urlsplit
from xml.sax.saxutils import escape

import pytest

from tests.unit.rebuild.buckets import Bucket, Stream, footer_batch
from tideline.domain.catalog import Topic
from tideline.domain.wal_streams import Streams
from tideline.object_store.client import ObjectStoreClient
from tideline.rebuild.reader import BucketReader
from tideline.settings import ObjectStoreSettings

PAGE = 3
"""Keys of one listing."""


class S3(BaseHTTPRequestHandler):
    """ListObjectsV2 and GetObject with a range, of one bucket in memory."""

    bucket: Bucket
    gone = ""

    def do_GET(self) -> None:
        address = urlsplit(self.path)
        key = address.path.removeprefix("/wal").removeprefix("/")
        if not key:
            self._answer(200, self._listing(parse_qs(address.query)))
        elif key == self.gone or key not in self.bucket.objects:
            self._answer(404, b"<Error><Code>NoSuchKey</Code></Error>")
        else:
            body = self.bucket.objects[key]
            asked = re.fullmatch(r"bytes=(\d+)-(\d+)", self.headers["Range"])
            assert asked is not None
            self._answer(206, body[int(asked[1]) : int(asked[2]) + 1])

    def _listing(self, asked: dict[str, list[str]]) -> bytes:
        (prefix,), (after,) = asked["prefix"], asked.get("continuation-token", [""])
        keys = [k for k in sorted(self.bucket.objects) if k.startswith(prefix) and k > after]
        page = keys[:PAGE]
        more = f"<NextContinuationToken>{page[-1]}</NextContinuationToken>" if keys[PAGE:] else ""
        contents = "".join(
            f"<Contents><Key>{escape(key)}</Key><Size>{len(self.bucket.objects[key])}</Size>"
            "<LastModified>2026-01-01T00:00:00Z</LastModified></Contents>"
            for key in page
        )
        truncated = "true" if more else "false"
        return (
            f"<ListBucketResult><IsTruncated>{truncated}</IsTruncated>{more}{contents}"
            "</ListBucketResult>"
        ).encode()

    def _answer(self, status: int, body: bytes) -> None:
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        """Nothing: requests are no news."""


@pytest.fixture
def bucket() -> Bucket:
    return Bucket()


@pytest.fixture
def client(bucket: Bucket) -> Iterator[ObjectStoreClient]:
    S3.bucket, S3.gone = bucket, ""
    server = ThreadingHTTPServer(("127.0.0.1", 0), S3)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    settings = {
        "s3_endpoint": f"http://127.0.0.1:{server.server_port}",
        "s3_access_key": "k",
        "s3_secret_key": "s",
    }
    found = ObjectStoreClient(ObjectStoreSettings.model_validate(settings))
    try:
        found.connect()
        yield found
    finally:
        found.close()
        server.shutdown()
        thread.join()
        server.server_close()


def test_a_bucket_is_read_over_pages_and_ranges(bucket: Bucket, client: ObjectStoreClient) -> None:
    topic = Topic(Stream(bucket).incarnation, "orders", True, 1, 0)
    stream = Stream(bucket)
    keys = [
        stream.commit(10 * n, *(footer_batch(topic.topic_id, at=10 * b) for b in range(10)))
        for n in range(8)
    ]
    long = stream.store(*(footer_batch(topic.topic_id, at=10 * b) for b in range(2_000)))
    bucket.note(topic)
    bucket.objects["wal/stray"] = b"y" * 100
    S3.gone = keys[0]
    streams = Streams()
    reader = BucketReader(client, "wal", "")
    reader.footers(streams)
    assert [told.wal_object.key for told in streams.told()] == keys[1:]
    assert [(one.key, one.count) for one in streams.tail()] == [(long, 2_000)]
    assert [one.key for one in streams.unreadable] == ["wal/stray"]
    assert [gone.key for gone in streams.gone()] == [keys[0]]
    assert [body for _, body in reader.documents()] == [
        body for key, body in bucket.objects.items() if key.startswith("meta/")
    ]
