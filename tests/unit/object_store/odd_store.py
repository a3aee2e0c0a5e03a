"""An S3 server of this process that keeps objects, and does what it is told otherwise than S3."""

from __future__ import annotations

import hashlib
import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import parse_qs, unquote, urlsplit


@dataclass
class OddStore:
    late_wins: bool = False
    """What came of a PUT whose connection ended is kept, over what is there."""
    knows_conditions: bool = True
    knows_ranges: bool = True
    batch_deletion: bool = True
    versions: bool = False
    parts_kept: int = 1_000
    """Of an object in parts."""
    refuses: set[str] = field(default_factory=set)
    """Methods."""
    objects: dict[str, bytes] = field(default_factory=dict)
    puts: list[str] = field(default_factory=list)
    """Keys of PUTs that were whole."""
    parts: dict[int, bytes] = field(default_factory=dict)
    """Of the one upload that is open."""
    address: str = ""

    def put(self, key: str, body: bytes, promised: int) -> None:
        if len(body) == promised:
            self.puts.append(key)
        if len(body) == promised or self.late_wins:
            self.objects[key] = body


@contextmanager
def odd_store(store: OddStore) -> Iterator[OddStore]:
    """``store`` answers at its ``address``."""

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_PUT(self) -> None:
            promised = int(self.headers.get("Content-Length") or 0)
            body = self.rfile.read(promised)
            taken = self.headers.get("If-None-Match") == "*" and self._key() in store.objects
            if "PUT" in store.refuses:
                status = 403
            elif taken and store.knows_conditions:
                status = 412
            elif "partNumber" in self._query():
                status, store.parts[int(self._query()["partNumber"])] = 200, body
            else:
                status = 200
                store.put(self._key(), body, promised)
            if len(body) == promised:
                self._answer(status, tag=_tag(body))
            else:
                self.close_connection = True

        def do_HEAD(self) -> None:
            found = store.objects.get(self._key())
            self._answer(404 if found is None else 200, length=len(found or b""), tag=_tag(found))

        def do_GET(self) -> None:
            found = store.objects[self._key()]
            first, last = map(int, self.headers["Range"].removeprefix("bytes=").split("-"))
            if store.knows_ranges:
                self._answer(206, found[first : last + 1], tag=_tag(found))
            else:
                self._answer(200, found, tag=_tag(found))

        def do_DELETE(self) -> None:
            if "DELETE" in store.refuses:
                return self._answer(403)
            store.objects.pop(self._key(), None)
            self._answer(204)

        def do_POST(self) -> None:
            asked = self.rfile.read(int(self.headers.get("Content-Length") or 0))
            if "uploads" in self._query():
                self._answer(200, b"<R><UploadId>u</UploadId></R>")
            elif "uploadId" in self._query():
                kept = sorted(store.parts)[: store.parts_kept]
                store.objects[self._key()] = b"".join(store.parts[n] for n in kept)
                self._answer(200, b"<R><ETag>t</ETag></R>")
            elif not store.batch_deletion:
                self._answer(501)
            elif "POST" in store.refuses:
                self._answer(403)
            else:
                bucket = self._key().split("/")[0]
                gone = re.findall(r"<Key>(.*?)</Key>", asked.decode())
                for key in gone:
                    store.objects.pop(f"{bucket}/{key}", None)
                named = "".join(f"<Deleted><Key>{key}</Key></Deleted>" for key in gone)
                self._answer(200, f"<DeleteResult>{named}</DeleteResult>".encode())

        def _key(self) -> str:
            return unquote(urlsplit(self.path).path).lstrip("/")

        def _query(self) -> dict[str, str]:
            found = parse_qs(urlsplit(self.path).query, keep_blank_values=True)
            return {name: values[0] for name, values in found.items()}

        def _answer(
            self, status: int, body: bytes = b"", length: int | None = None, tag: str = ""
        ) -> None:
            self.send_response(status)
            self.send_header("Content-Length", str(len(body) if length is None else length))
            if tag:
                self.send_header("ETag", tag)
            if store.versions:
                self.send_header("x-amz-version-id", "v1")
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            """Nothing is printed."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    store.address = f"http://127.0.0.1:{server.server_address[1]}"
    serving = threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True)
    serving.start()
    try:
        yield store
    finally:
        server.shutdown()
        server.server_close()
        serving.join()


def _tag(body: bytes | None) -> str:
    return f'"{hashlib.md5(body or b"", usedforsecurity=False).hexdigest()}"'
