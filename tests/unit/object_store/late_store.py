"""An S3 server of this process to which connections may end before a body has come."""

from __future__ import annotations

import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import unquote, urlsplit


class LateStore:
    """``late_wins``: what came of a PUT whose connection ended is kept, over what is there."""

    def __init__(self, *, late_wins: bool) -> None:
        self.late_wins = late_wins
        self.refuses: set[str] = set()
        """Methods."""
        self.objects: dict[str, bytes] = {}
        self.puts: list[str] = []
        """Keys of PUTs that were whole."""
        self.address = ""

    def put(self, key: str, body: bytes, promised: int) -> None:
        if len(body) == promised:
            self.puts.append(key)
        if len(body) == promised or self.late_wins:
            self.objects[key] = body


@contextmanager
def late_store(*, late_wins: bool) -> Iterator[LateStore]:
    store = LateStore(late_wins=late_wins)

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_PUT(self) -> None:
            promised = int(self.headers.get("Content-Length") or 0)
            body = self.rfile.read(promised)
            if "PUT" not in store.refuses:
                store.put(self._key(), body, promised)
            if len(body) == promised:
                self._answer(403 if "PUT" in store.refuses else 200)
            else:
                self.close_connection = True

        def do_HEAD(self) -> None:
            found = store.objects.get(self._key())
            self._answer(404 if found is None else 200, length=len(found or b""))

        def do_POST(self) -> None:
            asked = self.rfile.read(int(self.headers.get("Content-Length") or 0))
            bucket = self._key().split("/")[0]
            if "POST" in store.refuses:
                return self._answer(403)
            for key in re.findall(rb"<Key>(.*?)</Key>", asked):
                store.objects.pop(f"{bucket}/{key.decode()}", None)
            self._answer(200, b"<DeleteResult></DeleteResult>")

        def _key(self) -> str:
            return unquote(urlsplit(self.path).path).lstrip("/")

        def _answer(self, status: int, body: bytes = b"", length: int | None = None) -> None:
            self.send_response(status)
            self.send_header("Content-Length", str(len(body) if length is None else length))
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
