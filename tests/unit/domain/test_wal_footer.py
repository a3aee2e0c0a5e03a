"""What a WAL object says of itself: nothing but what was written is ever read back."""

import struct
from dataclasses import replace
from uuid import UUID

import crc32c
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tideline.control_plane.model import CommitError
from tideline.domain.wal_footer import (
    NOTICED,
    OUTCOMES,
    WITHDRAWN,
    BatchOutcome,
    DamagedFooter,
    EarlierCommit,
    Footer,
    FooterBatch,
    FooterError,
    NoFooter,
    TailTooShort,
    UnknownFooterVersion,
    decode_tail,
    encode,
    written_again,
)

_I16 = st.integers(-1, 2**15 - 1)
_I32 = st.integers(-1, 2**31 - 1)
_I64 = st.integers(-1, 2**63 - 1)
_OUTCOME = st.builds(BatchOutcome, st.sampled_from(OUTCOMES), _I64, _I64)
_EARLIER = st.builds(
    EarlierCommit,
    _I64,
    st.text(max_size=40),
    st.lists(_OUTCOME, max_size=4).map(tuple),
)


@st.composite
def _batches(draw: st.DrawFn) -> tuple[FooterBatch, ...]:
    batches = []
    position = 0
    for size in draw(st.lists(st.integers(1, 50), max_size=5)):
        batches.append(
            FooterBatch(
                topic_id=draw(st.uuids()),
                partition=draw(_I32),
                byte_offset=position,
                byte_size=size,
                record_count=draw(st.integers(1, 2**31 - 1)),
                producer_id=draw(_I64),
                producer_epoch=draw(_I16),
                base_sequence=draw(_I32),
                last_sequence=draw(_I32),
                max_timestamp=draw(_I64),
                log_append_time=draw(st.booleans()),
            )
        )
        position += size
    return tuple(batches)


_FOOTER = st.builds(
    Footer,
    history_id=st.uuids(),
    gateway_id=_I32,
    incarnation=st.uuids(),
    sequence=_I64,
    written_at_ms=_I64,
    batches=_batches(),
    earlier=st.lists(_EARLIER, max_size=4).map(tuple),
)


def _object(footer: Footer) -> bytes:
    return b"b" * sum(batch.byte_size for batch in footer.batches) + encode(footer)


def _batch(at: int = 0, size: int = 10, records: int = 1) -> FooterBatch:
    return FooterBatch(UUID(int=1), 0, at, size, records, -1, -1, -1, -1, 0, False)


def _footer(*batches: FooterBatch, earlier: tuple[EarlierCommit, ...] = ()) -> Footer:
    return Footer(UUID(int=2), 1, UUID(int=3), 0, 0, batches, earlier)


@given(_FOOTER, st.data())
def test_a_footer_is_read_back_from_any_tail_that_holds_it(footer: Footer, data: st.DataObject):
    whole = _object(footer)
    tail = data.draw(st.integers(len(encode(footer)), len(whole)))
    assert decode_tail(whole[len(whole) - tail :], len(whole)) == footer


@given(_FOOTER, st.integers(0, 2**62), st.integers(0, 2**62))
def test_each_attempt_to_store_an_object_tells_the_same_and_a_later_time(
    footer: Footer, at_ms: int, now_ms: int
):
    footer = replace(footer, written_at_ms=at_ms)
    again = written_again(encode(footer), now_ms)
    whole = _object(footer)[: -len(again)] + again
    assert decode_tail(whole, len(whole)) == replace(footer, written_at_ms=max(now_ms, at_ms + 1))


@given(_FOOTER, st.data())
def test_a_tail_that_is_too_short_says_what_it_takes(footer: Footer, data: st.DataObject):
    whole = _object(footer)
    tail = data.draw(st.integers(0, len(encode(footer)) - 1))
    with pytest.raises(TailTooShort) as first:
        decode_tail(whole[len(whole) - tail :], len(whole))
    assert tail < first.value.needed <= len(encode(footer))
    needed = first.value.needed
    if needed < len(encode(footer)):  # the trailer, which says the rest
        with pytest.raises(TailTooShort) as second:
            decode_tail(whole[len(whole) - needed :], len(whole))
        needed = second.value.needed
    assert decode_tail(whole[len(whole) - needed :], len(whole)) == footer


@given(_FOOTER, st.data())
def test_a_footer_with_a_changed_byte_is_refused(footer: Footer, data: st.DataObject):
    encoded = bytearray(encode(footer))
    at = data.draw(st.integers(0, len(encoded) - 1))
    encoded[at] ^= data.draw(st.integers(1, 255))
    body = sum(batch.byte_size for batch in footer.batches)
    with pytest.raises(FooterError):
        decode_tail(b"b" * body + bytes(encoded), body + len(encoded))


@given(_FOOTER, st.data())
def test_an_object_that_was_cut_at_either_end_is_refused(footer: Footer, data: st.DataObject):
    whole = _object(footer)
    kept = data.draw(st.integers(0, len(whole) - 1))
    with pytest.raises(FooterError):
        decode_tail(whole[:kept], kept)
    with pytest.raises(FooterError):
        decode_tail(whole[len(whole) - kept :], kept)


@given(st.binary(max_size=200))
def test_other_bytes_are_no_footer(data: bytes):
    with pytest.raises(FooterError):
        decode_tail(data, len(data))


def test_an_object_without_a_footer_is_told_from_a_damaged_one():
    with pytest.raises(NoFooter):
        decode_tail(b"record batches, and nothing else", 32)


def test_another_version_is_named():
    encoded = encode(_footer())
    assert encoded.endswith(b"TLWALF\x00\x01")
    for version in (0, 2):
        with pytest.raises(UnknownFooterVersion, match=f"version {version}"):
            decode_tail(encoded[:-1] + bytes([version]), len(encoded))


def test_a_count_beyond_the_bytes_is_refused_before_anything_is_built():
    """With a checksum that agrees: the counts themselves are looked at."""
    payload = bytearray(encode(_footer())[:-16])
    for at, what in ((len(payload) - 8, "63"), (len(payload) - 4, "14")):
        lied = bytearray(payload)
        lied[at : at + 4] = b"\xff" * 4
        trailer = struct.pack(">II8s", len(lied), crc32c.crc32c(bytes(lied)), b"TLWALF\x00\x01")
        with pytest.raises(DamagedFooter, match=f"4294967295 times {what} bytes"):
            decode_tail(bytes(lied) + trailer, len(lied) + 16)


@pytest.mark.parametrize(
    "footer",
    [
        _footer(_batch(at=1)),
        _footer(_batch(), _batch(at=11)),
        _footer(_batch(size=0)),
        _footer(_batch(records=0)),
        _footer(_batch(size=2**31)),
        _footer(earlier=(EarlierCommit(1, "k" * 2**16, ()),)),
        _footer(earlier=(EarlierCommit(1, "k", (BatchOutcome("PERHAPS", 0, 0),)),)),
    ],
)
def test_what_could_not_be_read_back_is_not_written(footer: Footer):
    with pytest.raises(ValueError, match="no footer can hold this"):
        encode(footer)


def test_every_outcome_of_a_commit_has_a_number():
    assert {*OUTCOMES} == {*map(str, CommitError), WITHDRAWN, *NOTICED}


def test_a_batch_takes_about_sixty_bytes():
    assert len(encode(_footer(_batch()))) - len(encode(_footer())) == 63
