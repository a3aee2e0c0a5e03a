"""WAL objects on the disk of a host, each read once for all the partitions that it holds.

Where many partitions share an object, a request for each of their runs costs more than its bytes.
So the first task on a host that needs a byte of such an object fetches all of it, into Spark's
local directory, from where every other one reads its run. Spark removes that directory with the
application.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import random
import sys
import tempfile
import threading
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

from spark.common.read_ahead import read_ahead
from tideline.object_store.byte_ranges import ByteRange
from tideline.object_store.client import ObjectMissing

MOST_BYTES = 16 * 1024 * 1024 * 1024
"""On a host, about; a run of merge whose objects are larger together reads ranges."""
LOOKS = 64
"""A task looks at all that is kept once it has kept one of so many parts of the room that it found:
each task beside it may pass the bound by as much."""
FOLDER = "tideline-wal"


@contextmanager
def local_directory() -> Iterator[Path]:
    """Spark's own of this host, shared by its Python workers; without Spark one for the caller."""
    if named := os.environ.get("SPARK_LOCAL_DIRS", "").split(",")[0]:
        yield Path(named) / FOLDER
    else:
        with tempfile.TemporaryDirectory(prefix=FOLDER) as own:
            yield Path(own)


class WholeObjects:
    """Reads ranges out of whole objects, until the disk fails: then by ``read_range``. Safe to
    share between threads and processes. ``fetch``: the bytes of an object; what the two raise is
    raised here."""

    def __init__(
        self,
        directory: Path,
        fetch: Callable[[str], bytes],
        read_range: Callable[[ByteRange], bytes],
        most_bytes: int = MOST_BYTES,
    ) -> None:
        self._directory, self._fetch, self._most = directory, fetch, most_bytes
        self._read_range = read_range
        self._disk_failed = False
        self._room = threading.Lock()
        self._unseen_bytes = 0
        """That may still be kept before anybody has to look how much is."""

    def read(self, parts: Sequence[ByteRange]) -> Generator[bytes]:
        """The bytes of each; see :meth:`get`. What nobody has fetched is fetched first, from any
        place on: of several that begin at once each fetches something else."""
        keys = list(dict.fromkeys(part.key for part in parts))
        begin = random.randrange(len(keys)) if keys else 0
        for key in (*keys[begin:], *keys[:begin]):
            self._fetch_unless_fetched(key)
        if self._disk_failed:
            yield from read_ahead(parts, self._read_range)
        else:
            yield from map(self.get, parts)

    def get(self, part: ByteRange) -> bytes:
        """The bytes of the range; fewer where the object is shorter."""
        if not self._disk_failed:
            try:
                return self._out_of_whole(part)
            except OSError as error:
                self._failed(error)
        return self._read_range(part)

    def _path(self, key: str) -> Path:
        return self._directory / hashlib.sha256(key.encode()).hexdigest()

    def _fetch_unless_fetched(self, key: str) -> None:
        """Nor waits for who does it. What is missing is told where it is read."""
        path = self._path(key)
        try:
            if self._disk_failed or path.exists():
                return
            self._directory.mkdir(parents=True, exist_ok=True)
            with suppress(BlockingIOError, ObjectMissing), _locked(path, wait=False):
                if not path.exists():
                    self._keep(path, key)
        except OSError as error:
            self._failed(error)

    def _out_of_whole(self, part: ByteRange) -> bytes:
        path = self._path(part.key)
        if (found := _read(path, part)) is not None:
            return found
        self._directory.mkdir(parents=True, exist_ok=True)
        with _locked(path):
            if (found := _read(path, part)) is not None:
                return found
            return self._keep(path, part.key)[part.start : part.end]

    def _keep(self, path: Path, key: str) -> bytes:
        """Fetch all of an object that is locked; its bytes."""
        body = self._fetch(key)
        self._make_room(len(body))
        draft = path.with_suffix(f".{os.getpid()}")
        try:
            draft.write_bytes(body)
            draft.rename(path)
        finally:
            draft.unlink(missing_ok=True)
        return body

    def _failed(self, error: OSError) -> None:
        # It is Spark's, and others fill it too; no segment has to wait for room.
        self._disk_failed = True
        print(f"whole objects are not kept, ranges are read: {error}", file=sys.stderr)

    def _make_room(self, size: int) -> None:
        """Removes the oldest. Who reads one of them meanwhile has it open."""
        with self._room:
            if size <= self._unseen_bytes:
                self._unseen_bytes -= size
                return
            kept = []
            with os.scandir(self._directory) as found:
                for entry in found:
                    with suppress(FileNotFoundError):
                        if "." not in entry.name:
                            about = entry.stat()
                            kept.append((about.st_mtime_ns, about.st_size, entry.path))
            held = sum(of_one for _, of_one, _ in kept) + size
            for _, of_one, path in sorted(kept):
                if held <= self._most:
                    break
                Path(path).unlink(missing_ok=True)
                held -= of_one
            self._unseen_bytes = max(0, self._most - held) // LOOKS


def _read(path: Path, part: ByteRange) -> bytes | None:
    with suppress(FileNotFoundError), path.open("rb") as file:
        return os.pread(file.fileno(), part.size, part.start)
    return None


@contextmanager
def _locked(path: Path, *, wait: bool = True) -> Iterator[None]:
    """One task of the host at a time; the lock of a killed one dies with it. Raises
    ``BlockingIOError`` where it is not waited for."""
    with path.with_suffix(".lock").open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
        yield
