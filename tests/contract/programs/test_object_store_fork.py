"""What a child process does with an object store's client that its parent has used."""

from __future__ import annotations

import os

from tests.unit.object_store.scripted_server import answer, scripted_server
from tests.unit.object_store.test_get_and_put import ONCE, settings
from tideline.object_store.client import ObjectStoreClient


def test_a_child_process_opens_connections_of_its_own() -> None:
    with scripted_server() as s3:
        s3.plays([answer(200, b"a")])
        client = ObjectStoreClient(settings(s3.url), bounds=ONCE)
        client.get("wal", "k")
        read, write = os.pipe()
        child = os.fork()
        if child == 0:
            try:
                os.write(write, client.get("wal", "k"))
            finally:
                os._exit(0)
        os.waitpid(child, 0)
        assert os.read(read, 10) == b"a"
        assert client.get("wal", "k") == b"a"
        assert [call.connection for call in s3.calls] == [1, 2, 1]
        client.close()
        os.close(read)
        os.close(write)
