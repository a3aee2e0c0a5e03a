"""The catalog's records: nothing but what was written is ever read back, and a key says what lies
under it."""

import json
from dataclasses import fields, replace
from uuid import UUID

import crc32c
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tideline.domain.catalog import (
    ANNOUNCED,
    KINDS,
    CatalogError,
    CutRecord,
    DamagedRecord,
    Entry,
    SuffixStart,
    TopicDeleted,
    UnknownRecordKind,
    UnknownRecordVersion,
    assert_known,
    decode,
    encode,
    log_of,
    object_key,
)

ENTRIES = st.builds(
    Entry, st.uuids(), st.booleans(), st.one_of(*(st.from_type(kind) for kind in KINDS.values()))
)
HISTORY = UUID(int=7)
START = Entry(HISTORY, True, SuffixStart(UUID(int=1), 3, 100, 250))


def _framed(body: bytes, version: int = 1) -> bytes:
    return b"TLMETA %d %08x %d\n" % (version, crc32c.crc32c(body), len(body)) + body


def _changed(**changes: object) -> bytes:
    document = json.loads(encode(START).partition(b"\n")[2])
    document["record"] |= changes
    return _framed(json.dumps(document).encode())


@given(ENTRIES)
def test_a_record_is_read_as_it_was_written(entry: Entry) -> None:
    assert decode(encode(entry)) == entry


@given(ENTRIES, st.data())
def test_a_record_with_any_changed_byte_is_refused(entry: Entry, data: st.DataObject) -> None:
    written = bytearray(encode(entry))
    written[data.draw(st.integers(0, len(written) - 1))] ^= data.draw(st.integers(1, 255))
    with pytest.raises(CatalogError):
        decode(bytes(written))


@given(ENTRIES, st.data())
def test_a_record_that_is_cut_or_goes_on_is_refused(entry: Entry, data: st.DataObject) -> None:
    written = encode(entry)
    with pytest.raises(CutRecord):
        decode(written[: data.draw(st.integers(0, len(written) - 1))])
    with pytest.raises(DamagedRecord):
        decode(written + b" ")


def test_a_newer_version_and_an_unknown_kind_are_named_and_not_guessed() -> None:
    body = encode(START).partition(b"\n")[2]
    with pytest.raises(UnknownRecordVersion, match="version 2"):
        decode(_framed(body, version=2))
    with pytest.raises(UnknownRecordKind, match="'next-thing'"):
        decode(_changed(kind="next-thing"))


@pytest.mark.parametrize(
    "changes",
    [{"start": True}, {"start": "250"}, {"start": None}, {"more": 1}, {"topic_id": "1"}],
)
def test_a_body_that_does_not_fit_its_kind_is_refused(changes: dict[str, object]) -> None:
    with pytest.raises(DamagedRecord):
        decode(_changed(**changes))
    with pytest.raises(DamagedRecord):
        decode(_framed(b"[]"))


@given(ENTRIES, ENTRIES)
def test_a_key_is_of_one_entry_and_ends_with_what_it_is(one: Entry, other: Entry) -> None:
    assert (object_key("", one) == object_key("", other)) == (one == other)
    counted = object_key("p/", replace(one, counted=True))
    assert object_key("p/", replace(one, counted=False)) == counted + ANNOUNCED


def test_keys_lie_by_version_kind_topic_and_partition() -> None:
    key = object_key("here/", START)
    assert key.startswith("here/meta/v1/suffix-start/AAAAAAAAAAAAAAAAAAAAAQ/3/")
    deleted = Entry(HISTORY, True, TopicDeleted(UUID(int=1), "gateway", "Kafka deleted it"))
    assert object_key("", deleted).startswith("meta/v1/topic-deleted/AAAAAAAAAAAAAAAAAAAAAQ/")
    assert log_of(deleted.record) is None


def test_folders_of_a_newer_version_are_refused() -> None:
    assert_known(["p/meta/v1/", *(f"p/meta/v1/{kind}/" for kind in KINDS)], "p/")
    with pytest.raises(UnknownRecordVersion, match="v2"):
        assert_known(["p/meta/v1/", "p/meta/v2/"], "p/")
    with pytest.raises(UnknownRecordKind, match="next-thing"):
        assert_known(["p/meta/v1/next-thing/"], "p/")


def test_every_record_is_about_a_topic_id() -> None:
    assert all("topic_id" in {one.name for one in fields(kind)} for kind in KINDS.values())
