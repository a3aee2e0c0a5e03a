"""Files of Iceberg tables in the installation's own bucket, for pyiceberg.

By the client that everything else goes through: the same credentials, authorities and bounds, the
same rights. A file is read and written whole: none of these tables' is larger than some MiB.
"""

from __future__ import annotations

import io
import itertools
from collections.abc import Iterator
from contextlib import contextmanager
from types import TracebackType
from typing import Any

from pyiceberg.io import PY_IO_IMPL, FileIO, InputFile, InputStream, OutputFile, OutputStream
from pyiceberg.typedef import EMPTY_DICT, Properties

from tideline.object_store.client import ObjectMissing, ObjectStoreClient
from tideline.object_store.runs import bucket_and_key

STORE = "tideline.store"
_stores: dict[str, ObjectStoreClient] = {}
_numbers = itertools.count()


@contextmanager
def files_of(store: ObjectStoreClient) -> Iterator[dict[str, str]]:
    """The properties that let a catalog use ``store``, as long as the context lasts."""
    name = str(next(_numbers))
    _stores[name] = store
    try:
        yield {PY_IO_IMPL: f"{__name__}.{BucketFiles.__name__}", STORE: name}
    finally:
        del _stores[name]


class BucketFiles(FileIO):
    """Objects by their address, ``s3://bucket/key``."""

    def __init__(self, properties: Properties = EMPTY_DICT) -> None:
        super().__init__(properties)
        self._store = _stores[properties[STORE]]

    def new_input(self, location: str) -> InputFile:
        return _Object(self._store, location)

    def new_output(self, location: str) -> OutputFile:
        return _NewObject(self._store, location)

    def delete(self, location: str | InputFile | OutputFile) -> None:
        """One that is gone already counts as deleted."""
        name = location if isinstance(location, str) else location.location
        bucket, key = bucket_and_key(name)
        self._store.delete(bucket, [key])


class _Object(InputFile):
    def __init__(self, store: ObjectStoreClient, location: str) -> None:
        super().__init__(location)
        self._store, self._body = store, None

    _body: bytes | None

    def _got(self) -> bytes:
        if self._body is None:
            try:
                self._body = self._store.get(*bucket_and_key(self.location))
            except ObjectMissing as error:
                raise FileNotFoundError(self.location) from error
        return self._body

    def __len__(self) -> int:
        return len(self._got())

    def exists(self) -> bool:
        try:
            self._got()
        except FileNotFoundError:
            return False
        return True

    def open(self, seekable: bool = True) -> InputStream:
        return io.BytesIO(self._got())


class _NewObject(OutputFile):
    def __init__(self, store: ObjectStoreClient, location: str) -> None:
        super().__init__(location)
        self._store, self._size = store, 0

    def __len__(self) -> int:
        return self._size

    def exists(self) -> bool:
        return self.to_input_file().exists()

    def to_input_file(self) -> InputFile:
        return _Object(self._store, self.location)

    def create(self, overwrite: bool = False) -> OutputStream:
        """Names have a UUID in them: whether one is taken is not asked."""
        return _Body(self)

    def put(self, body: bytes) -> None:
        self._store.put(*bucket_and_key(self.location), body)
        self._size = len(body)


class _Body(io.BytesIO):
    """Is put as it is closed, unless what wrote it failed."""

    def __init__(self, file: _NewObject) -> None:
        super().__init__()
        self._file, self._failed = file, False

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._failed = kind is not None
        self.close()

    def close(self) -> None:
        if not self.closed and not self._failed:
            self._file.put(self.getvalue())
        super().close()

    def __del__(self) -> Any:
        # Dropped without a word: what was written of it is no file.
        self._failed = True
