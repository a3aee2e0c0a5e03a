"""``tideline rebuild`` from its settings to its exit code, on a real Postgres."""

from __future__ import annotations

import asyncio
import json
from random import Random
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from tests.contract.conftest import Database
from tests.contract.recorded import Recorder, rows
from tests.contract.scenes import CLUSTER, PostgresScene
from tests.unit.rebuild.buckets import HISTORY, Bucket
from tideline import ownership
from tideline.cli import rebuild as command
from tideline.cli.app import app
from tideline.errors import ExitCode, RefusedError, UsageError
from tideline.rebuild import write


class Store(Bucket):
    def connect(self) -> None:
        """There is nothing to connect to."""


@pytest.fixture
def bucket(monkeypatch: pytest.MonkeyPatch, database: Database) -> Store:
    made = Store()
    monkeypatch.setenv("TIDELINE_REBUILD_POSTGRES_DSN", database.dsn)
    monkeypatch.setenv("TIDELINE_POSTGRES_DSN", database.as_role("tideline_worker"))
    monkeypatch.setenv("TIDELINE_KAFKA_BOOTSTRAP", "127.0.0.1:1")
    monkeypatch.setattr(command, "ObjectStoreClient", lambda *_: made)

    async def cluster_id(_: object) -> str:
        return CLUSTER

    monkeypatch.setattr(command, "_cluster_id", cluster_id)
    monkeypatch.setattr(command, "watch", lambda *asked: write.watch(*asked, lambda _: None))
    return made


async def invoke(*arguments: str) -> Result:
    """In a thread: a command has its own event loop."""
    return await asyncio.to_thread(CliRunner().invoke, app, ["rebuild", *arguments])


async def recorded(scene: PostgresScene, bucket: Bucket) -> Recorder:
    recorder = Recorder(scene, bucket, Random(3))
    await recorder.begin()
    await recorder.play(40)
    await recorder.settle()
    return recorder


def own(bucket: Bucket, **values: Any) -> None:
    document = {"cluster_id": CLUSTER, "history_id": str(HISTORY), "installation_id": "gone"}
    bucket.objects[ownership.OWNER] = json.dumps({**document, **values}).encode()


async def test_a_lost_postgres_is_reported_then_written_and_has_a_new_history(
    postgres_scene: PostgresScene, bucket: Store
) -> None:
    await recorded(postgres_scene, bucket)
    own(bucket)
    before = rows(postgres_scene)
    postgres_scene.clear()
    looked = await invoke("-o", "json")
    told = json.loads(looked.stdout)
    assert (looked.exit_code, told["fine"]) == (ExitCode.OK, True)
    assert {log["verdict"] for log in told["logs"]} <= {"behind", "whole"}
    assert not rows(postgres_scene)["topics"], "a report writes nothing"
    done = await invoke("--write", "--reason", "the disk is gone", "-o", "json")
    assert done.exit_code == ExitCode.OK, done.output
    assert {log["verdict"] for log in json.loads(done.stdout)["logs"]} == {"whole"}
    assert rows(postgres_scene) == before
    identity = await postgres_scene.plane.identity()
    owner = json.loads(bucket.objects[ownership.OWNER])
    assert owner["history_id"] == str(identity.history_id) != str(HISTORY)
    assert identity.halted is None
    postgres_scene.clear()
    again = await invoke("--write", "--reason", "the next disk is gone")
    assert again.exit_code == ExitCode.OK, again.output
    assert rows(postgres_scene) == before, "the new history has its catalog, seeds included"


def lose_postgres_and_an_object(scene: PostgresScene, bucket: Store) -> None:
    """The first one of a log that is read."""
    ((key,),) = scene.sql(
        "SELECT object_key FROM batches JOIN wal_files USING (file_id) JOIN logs USING (log_id) "
        "WHERE last_offset >= suffix_start ORDER BY batches.log_id, last_offset LIMIT 1"
    )
    scene.clear()
    del bucket.objects[str(key)]


async def test_something_that_is_missing_ends_with_1_and_is_written_with_its_hole(
    postgres_scene: PostgresScene, bucket: Store
) -> None:
    recorder = await recorded(postgres_scene, bucket)
    own(bucket)
    lose_postgres_and_an_object(postgres_scene, bucket)
    looked = await invoke()
    assert looked.exit_code == ExitCode.FAILED
    assert "nothing known from offset" in looked.stdout
    done = await invoke("--write", "--reason", "the disk is gone")
    assert done.exit_code == ExitCode.FAILED
    assert len(rows(postgres_scene)["topics"]) == len({log.topic_id for log in recorder.logs})


async def test_what_is_given_up_is_listed_ends_with_1_once_and_is_whole_from_then_on(
    postgres_scene: PostgresScene, bucket: Store
) -> None:
    await recorded(postgres_scene, bucket)
    own(bucket)
    lose_postgres_and_an_object(postgres_scene, bucket)
    objects = len(bucket.objects)
    looked = await invoke("--fill-holes")
    assert looked.exit_code == ExitCode.FAILED
    assert "--write would give up offsets" in looked.stdout
    assert len(bucket.objects) == objects
    done = await invoke("--write", "--fill-holes", "--reason", "the disk is gone", "-o", "json")
    assert done.exit_code == ExitCode.FAILED, done.output
    told = json.loads(done.stdout)
    assert {log["verdict"] for log in told["logs"]} == {"whole"}
    assert any(log["filled_now"] for log in told["logs"])
    later = await invoke("-o", "json")
    assert later.exit_code == ExitCode.OK, later.output
    filled = [log["filled"] for log in told["logs"]]
    assert [log["filled"] for log in json.loads(later.stdout)["logs"]] == filled
    again = await invoke("--write", "--fill-holes", "--reason", "once more", "-o", "json")
    assert again.exit_code == ExitCode.OK, "nothing is given up by this one"


async def test_the_bucket_of_another_cluster_and_the_postgres_of_another_house_are_refused(
    postgres_scene: PostgresScene, bucket: Store
) -> None:
    await recorded(postgres_scene, bucket)
    own(bucket, cluster_id="another")
    done = await invoke("--write", "--reason", "x")
    assert isinstance(done.exception, RefusedError)
    assert "belongs to Kafka cluster another" in str(done.exception)
    own(bucket)
    done = await invoke("--write", "--reason", "x")
    assert "holds topics of installation" in str(done.exception)
    assert (await postgres_scene.plane.identity()).halted is None


async def test_what_cannot_be_read_is_refused_before_anything_is_halted(
    postgres_scene: PostgresScene, bucket: Store
) -> None:
    await recorded(postgres_scene, bucket)
    postgres_scene.clear()
    bucket.objects["wal/stray"] = b"y" * 100
    done = await invoke("--write", "--reason", "x")
    assert "move what no gateway wrote out of wal/" in str(done.exception)
    assert (await postgres_scene.plane.identity()).halted is None
    del bucket.objects["wal/stray"]
    done = await invoke("--write", "--reason", "x")
    assert done.exit_code == ExitCode.OK


@pytest.mark.parametrize("line", [("--write",), ("--write", "--reason", "x", "--topic", "orders")])
async def test_a_line_that_says_too_little_or_too_much_is_refused(
    bucket: Store, line: tuple[str, ...]
) -> None:
    assert isinstance((await invoke(*line)).exception, UsageError)
