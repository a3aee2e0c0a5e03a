"""A WAL object is fetched once on a host, however many partitions and tasks read it."""

from __future__ import annotations

import errno
import os
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from spark.tiering.whole_objects import WholeObjects, local_directory
from tests.support.waiting import HANGS_S, set_within
from tideline.object_store.byte_ranges import ByteRange
from tideline.object_store.client import ObjectMissing


class Store:
    def __init__(self) -> None:
        self.asked: list[str] = []

    def fetch(self, key: str) -> bytes:
        self.asked.append(key)
        if key == "away":
            raise KeyError(key)
        if key == "missing":
            raise ObjectMissing(key)
        return key.encode() * 10


def part(key: str, start: int, end: int) -> ByteRange:
    return ByteRange(key, start, end)


def no_range(wanted: ByteRange) -> bytes:
    raise AssertionError(f"{wanted} is read out of the whole object")


def test_every_range_of_an_object_costs_one_fetch_of_it(tmp_path: Path) -> None:
    store = Store()
    tasks = [WholeObjects(tmp_path / "new", store.fetch, no_range) for _ in range(3)]
    wanted = [part(key, n, n + 7) for n in range(20) for key in ("ab", "xyz")]
    with ThreadPoolExecutor(8) as pool:
        found = list(pool.map(lambda n: tasks[n % 3].get(wanted[n]), range(len(wanted))))
    assert found == [(w.key.encode() * 10)[w.start : w.end] for w in wanted]
    assert sorted(store.asked) == ["ab", "xyz"]
    assert tasks[0].get(part("ab", 15, 40)) == b"babab", "an object that is short is short"


def test_what_a_segment_reads_is_fetched_once_by_however_many_and_comes_in_its_order(
    tmp_path: Path,
) -> None:
    store = Store()
    tasks = [WholeObjects(tmp_path / "new", store.fetch, no_range) for _ in range(3)]
    wanted = [part(key, n, n + 2) for n in range(3) for key in ("ab", "xyz", "c")]
    with ThreadPoolExecutor(9) as pool:
        found = list(pool.map(lambda n: list(tasks[n % 3].read(wanted)), range(9)))
    assert found == [[(w.key.encode() * 10)[w.start : w.end] for w in wanted]] * 9
    assert sorted(store.asked) == ["ab", "c", "xyz"]
    assert list(tasks[0].read([])) == []


def test_an_object_that_another_one_fetches_is_not_waited_for_while_others_are_to_be_fetched(
    tmp_path: Path,
) -> None:
    begun, others, asked = threading.Event(), threading.Event(), list[str]()

    def fetch(key: str) -> bytes:
        asked.append(key)
        if key == "slow":
            begun.set()
            set_within("the others", others)
        elif len(asked) == 3:
            others.set()
        return key.encode()

    objects = WholeObjects(tmp_path, fetch, no_range)
    wanted = [part(key, 0, 4) for key in ("slow", "b", "c")]
    with ThreadPoolExecutor(1) as pool:
        first = pool.submit(objects.get, wanted[0])
        set_within("the slow one to begin", begun)
        assert list(objects.read(wanted)) == [b"slow", b"b", b"c"]
        assert first.result(HANGS_S) == b"slow"
    assert sorted(asked) == ["b", "c", "slow"]


def test_what_lies_before_a_missing_object_is_read(tmp_path: Path) -> None:
    objects = WholeObjects(tmp_path, Store().fetch, no_range)
    found = objects.read([part("ab", 0, 2), part("missing", 0, 2), part("c", 0, 1)])
    assert next(found) == b"ab"
    with pytest.raises(ObjectMissing):
        next(found)


def test_the_oldest_objects_go_when_the_bound_is_reached(tmp_path: Path) -> None:
    store = Store()
    objects = WholeObjects(tmp_path, store.fetch, no_range, most_bytes=25)
    for n, key in enumerate(("a", "b", "c", "d")):
        objects.get(part(key, 0, 1))
        newest = max(tmp_path.iterdir(), key=lambda p: (not p.suffix, p.stat().st_mtime_ns))
        os.utime(newest, ns=(n * 10**9, n * 10**9))
    assert objects.get(part("d", 0, 2)) == b"dd"
    assert store.asked == ["a", "b", "c", "d"]
    assert sum(p.stat().st_size for p in tmp_path.iterdir()) <= 25
    assert objects.get(part("a", 0, 2)) == b"aa"
    assert store.asked[-1] == "a"


def test_few_objects_need_a_look_at_all_that_are_kept_and_tasks_that_take_turns_keep_the_bound(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    looks, scandir = list[str](), os.scandir

    def counted(path: str) -> Iterator[os.DirEntry[str]]:
        looks.append(path)
        return scandir(path)

    monkeypatch.setattr(os, "scandir", counted)
    store = Store()
    tasks = [WholeObjects(tmp_path, store.fetch, no_range, most_bytes=10_000) for _ in range(4)]
    for n in range(400):
        tasks[n % 4].get(part(f"{n:03}", 0, 1))
        kept = [entry.stat().st_size for entry in scandir(tmp_path) if "." not in entry.name]
        assert sum(kept) <= 10_000
        if n < 100:
            assert len(looks) <= 4 + n // 4, "there is room for more than is kept"
    assert len(kept) > 300


def test_a_fetch_that_fails_leaves_nothing_and_the_next_one_asks_again(tmp_path: Path) -> None:
    store = Store()
    objects = WholeObjects(tmp_path, store.fetch, no_range)
    for _ in range(2):
        with pytest.raises(KeyError):
            objects.get(part("away", 0, 1))
    assert store.asked == ["away", "away"]
    assert [path for path in tmp_path.iterdir() if not path.suffix] == []


def full_disk(monkeypatch: pytest.MonkeyPatch) -> None:
    """It takes one byte more."""
    write = Path.write_bytes

    def write_bytes(path: Path, body: bytes) -> int:
        write(path, body[:1])
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(Path, "write_bytes", write_bytes)


def test_where_the_disk_is_full_ranges_are_read_and_no_draft_is_left(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    store, ranges = Store(), list[ByteRange]()

    def read_range(wanted: ByteRange) -> bytes:
        ranges.append(wanted)
        return (wanted.key.encode() * 10)[wanted.start : wanted.end]

    objects = WholeObjects(tmp_path, store.fetch, read_range)
    assert objects.get(part("ab", 1, 5)) == b"baba"
    full_disk(monkeypatch)
    wanted = [part("xyz", 0, 3), part("xyz", 3, 6), part("ab", 0, 2)]
    assert [objects.get(one) for one in wanted] == [b"xyz", b"xyz", b"ab"]
    assert (store.asked, ranges) == (["ab", "xyz"], wanted), "no object is fetched for nothing"
    assert [path for path in tmp_path.iterdir() if path.suffix not in ("", ".lock")] == []
    assert "No space left" in capsys.readouterr().err


def test_a_directory_that_cannot_be_made_leaves_ranges_to_read(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"")
    objects = WholeObjects(tmp_path / "file" / "in it", Store().fetch, lambda _: b"range")
    assert objects.get(part("ab", 0, 5)) == b"range"


def test_objects_lie_in_sparks_own_directory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SPARK_LOCAL_DIRS", "/one,/two")
    with local_directory() as directory:
        assert directory.parent == Path("/one")
    monkeypatch.delenv("SPARK_LOCAL_DIRS")
    with local_directory() as directory:
        assert directory.is_dir()
    assert not directory.exists()
