"""A segment's log is uploaded while it is written, and appears at once or never."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from spark.tiering import log_upload
from spark.tiering.log_upload import LogUpload, WrongLength
from tests.contract.tiering_world import TIERED, MemoryStore
from tideline.object_store.client import ObjectStoreRefused, ObjectStoreUnavailable
from tideline.object_store.signature import Body, pieces, size

KEY = "t/0.log"


@pytest.fixture(autouse=True)
def small_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(log_upload, "PART_BYTES", 10)


def upload(store: MemoryStore, *pieces: bytes) -> int:
    """How many requests it took."""
    with LogUpload(store, TIERED, KEY) as log:
        for piece in pieces:
            log.write(memoryview(piece))
            assert store.keys(TIERED) == [], "nobody sees it before it is whole"
        log.finish(sum(map(len, pieces)))
    return log.requests


def test_a_small_log_is_one_request_and_a_large_one_comes_in_parts() -> None:
    store = MemoryStore()
    assert upload(store, b"abc", b"def") == 1
    assert store.get(TIERED, KEY) == b"abcdef"
    store.delete(TIERED, [KEY])
    pieces = [bytes([n]) * 7 for n in range(7)]
    assert upload(store, *pieces) == 2 + 5, "parts of ten, and nine"
    assert store.get(TIERED, KEY) == b"".join(pieces)
    assert store.parts == {}
    store.delete(TIERED, [KEY])
    assert upload(store, b"x" * 10) == 3, "its last part is full"


class SizesSeen(MemoryStore):
    def __init__(self) -> None:
        super().__init__()
        self.sizes: list[int] = []

    def put_part(self, bucket: str, key: str, upload: str, number: int, body: Body) -> str:
        self.sizes.append(size(body))
        return super().put_part(bucket, key, upload, number, body)


@pytest.mark.parametrize("piece", [1, 3, 7, 10, 11, 25])
def test_every_part_but_the_last_has_one_size_whatever_comes(piece: int) -> None:
    """Cloudflare R2 completes no other upload."""
    store = SizesSeen()
    pieces = [bytes([n]) * piece for n in range(100 // piece)]
    upload(store, *pieces)
    *others, last = store.sizes
    assert set(others) == {10}
    assert 0 < last <= 10
    assert store.get(TIERED, KEY) == b"".join(pieces)


def test_small_pieces_are_put_together_and_others_are_sent_as_they_lie(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(log_upload, "SENT_AS_IT_LIES", 3)
    sent = list[Body]()

    class Watched(MemoryStore):
        def put_part(self, bucket: str, key: str, upload: str, number: int, body: Body) -> str:
            sent.append(tuple(map(bytes, pieces(body))))
            return super().put_part(bucket, key, upload, number, body)

    store = Watched()
    upload(store, b"a", b"b", b"cdef", b"g", b"h", b"i", b"jk", b"l", b"m")
    assert sent == [(b"ab", b"cdef", b"ghij"), (b"klm",)]
    assert store.get(TIERED, KEY) == b"abcdefghijklm"


def test_one_that_is_not_finished_leaves_nothing() -> None:
    store = MemoryStore()

    def wrong() -> None:
        with LogUpload(store, TIERED, KEY) as log:
            log.write(b"x" * 25)
            raise ValueError("CRC")

    with pytest.raises(ValueError, match="CRC"):
        wrong()
    assert (store.objects, store.parts) == ({}, {})


class Forgetful(MemoryStore):
    """The answer to the first completion is lost."""

    lost = False

    def complete_parts(self, bucket: str, key: str, upload: str, tags: Sequence[str]) -> None:
        super().complete_parts(bucket, key, upload, tags)
        if not self.lost:
            self.lost = True
            raise ObjectStoreUnavailable("the connection broke")


def test_a_completion_whose_answer_was_lost_finds_its_own_object() -> None:
    store = Forgetful()
    upload(store, b"x" * 25)
    assert store.get(TIERED, KEY) == b"x" * 25


class Aborted(MemoryStore):
    """Somebody ends the upload before it is completed."""

    def complete_parts(self, bucket: str, key: str, upload: str, tags: Sequence[str]) -> None:
        self.abort_parts(bucket, key, upload)
        super().complete_parts(bucket, key, upload, tags)


def test_a_completion_that_is_refused_and_left_no_object_is_refused() -> None:
    store = Aborted()
    with LogUpload(store, TIERED, KEY) as log:
        log.write(b"x" * 25)
        with pytest.raises(ObjectStoreRefused):
            log.finish(25)


@pytest.mark.parametrize("written", [b"x" * 9, b"x" * 25], ids=["whole", "in parts"])
@pytest.mark.parametrize("more", [-1, 1])
def test_a_log_of_another_length_than_its_segment_has_never_appears(
    written: bytes, more: int
) -> None:
    store = MemoryStore()

    def wrong() -> None:
        with LogUpload(store, TIERED, KEY) as log:
            log.write(written)
            log.finish(len(written) + more)

    with pytest.raises(WrongLength, match=f"{len(written)} bytes were written"):
        wrong()
    assert (store.objects, store.parts) == ({}, {})


class Broken(MemoryStore):
    def put_part(self, bucket: str, key: str, upload: str, number: int, body: Body) -> str:
        if number == 2:
            raise ObjectStoreRefused("no")
        return super().put_part(bucket, key, upload, number, body)


def test_a_part_that_fails_fails_the_writer_and_the_parts_are_forgotten() -> None:
    store = Broken()
    with pytest.raises(ObjectStoreRefused):
        upload(store, *[b"x" * 10] * 6)
    assert (store.objects, store.parts) == ({}, {})
