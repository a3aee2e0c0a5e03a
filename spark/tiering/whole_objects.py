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
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from tideline.object_store.byte_ranges import ByteRange

MOST_BYTES = 16 * 1024 * 1024 * 1024
"""On a host at most; a run of merge whose objects are larger together reads ranges."""
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

    def get(self, part: ByteRange) -> bytes:
        """The bytes of the range; fewer where the object is shorter."""
        if not self._disk_failed:
            try:
                return self._out_of_whole(part)
            except OSError as error:
                # It is Spark's, and others fill it too; no segment has to wait for room.
                self._disk_failed = True
                print(f"whole objects are not kept, ranges are read: {error}", file=sys.stderr)
        return self._read_range(part)

    def _out_of_whole(self, part: ByteRange) -> bytes:
        path = self._directory / hashlib.sha256(part.key.encode()).hexdigest()
        if (found := _read(path, part)) is not None:
            return found
        self._directory.mkdir(parents=True, exist_ok=True)
        with _locked(path.with_suffix(".lock")):
            if (found := _read(path, part)) is not None:
                return found
            body = self._fetch(part.key)
            self._make_room(len(body))
            draft = path.with_suffix(f".{os.getpid()}")
            try:
                draft.write_bytes(body)
                draft.rename(path)
            finally:
                draft.unlink(missing_ok=True)
        return body[part.start : part.end]

    def _make_room(self, size: int) -> None:
        """Removes the oldest. Who reads one of them meanwhile has it open."""
        kept = []
        for path in self._directory.iterdir():
            with suppress(FileNotFoundError):
                if not path.suffix:
                    kept.append((path.stat().st_mtime_ns, path.stat().st_size, path))
        held = sum(found for _, found, _ in kept) + size
        for _, found, path in sorted(kept):
            if held <= self._most:
                return
            path.unlink(missing_ok=True)
            held -= found


def _read(path: Path, part: ByteRange) -> bytes | None:
    with suppress(FileNotFoundError), path.open("rb") as file:
        return os.pread(file.fileno(), part.size, part.start)
    return None


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    """One task of the host at a time; the lock of a killed one dies with it."""
    with path.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield
