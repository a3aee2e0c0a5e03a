"""A listing becomes segments, whatever the layout and however long it is."""

from __future__ import annotations

import pickle
from collections.abc import Iterator
from datetime import UTC, datetime
from uuid import UUID

from hypothesis import given
from hypothesis import strategies as st

from spark.common.control_plane import key_ranges
from spark.common.packing import kind_bits
from spark.coverage.tasks import segments_listed
from tideline.domain.coverage import AIVEN_KINDS, OWN_KINDS
from tideline.domain.ids import topic_id_to_base64
from tideline.object_store.client import ObjectEntry, ObjectStoreClient
from tideline.object_store.inventory import group_by_segment
from tideline.settings import ObjectStoreSettings

NOW = datetime(2026, 1, 1, tzinfo=UTC)
CREDENTIALS = {"TIDELINE_S3_ACCESS_KEY": "key", "TIDELINE_S3_SECRET_KEY": "secret"}
KINDS = st.frozensets(st.sampled_from(sorted(OWN_KINDS | AIVEN_KINDS | {"log", "txnindex", "tmp"})))


@given(st.dictionaries(st.uuids(), KINDS, max_size=6))
def test_segments_are_those_of_the_workers_inventory(segments: dict[UUID, frozenset[str]]) -> None:
    entries = sorted(
        (
            ObjectEntry(f"t-x/0/{n:020d}-{topic_id_to_base64(segment)}.{kind}", 7 + n, NOW)
            for n, (segment, kinds) in enumerate(segments.items())
            for kind in kinds
        ),
        key=lambda entry: entry.key,
    )
    expected = group_by_segment((entry.key, entry.size) for entry in entries)
    found = {s.segment_id: (s.log_bytes, s.kinds) for s in segments_listed(1, entries)}
    assert found == {i: (o.log_bytes, kind_bits(o.kinds)) for i, o in expected.items()}


def test_one_segment_is_in_memory_at_a_time() -> None:
    def endless() -> Iterator[ObjectEntry]:
        for n in range(10**9):
            name = f"{n:020d}-{topic_id_to_base64(UUID(int=n + 1))}"
            yield ObjectEntry(f"{name}.log", n, NOW)

    listing = segments_listed(1, endless())
    assert [next(listing).start_offset for _ in range(3)] == [0, 1, 2]


def test_the_newest_object_says_how_old_a_segment_is() -> None:
    name = f"{5:020d}-{topic_id_to_base64(UUID(int=1))}"
    later = datetime(2026, 1, 2, tzinfo=UTC)
    (found,) = segments_listed(
        1, [ObjectEntry(f"{name}.index", 1, later), ObjectEntry(f"{name}.log", 9, NOW)]
    )
    assert found.last_modified == later.timestamp() * 1000


@given(st.integers(0, 10_000), st.integers(0, 10_000), st.integers(1, 64))
def test_key_ranges_are_whole_and_not_too_many(lo: int, size: int, pieces: int) -> None:
    ranges = key_ranges(lo, lo + size, pieces)
    assert len(ranges) <= pieces
    assert [n for keys in ranges for n in range(keys.lo, keys.hi)] == list(range(lo, lo + size))
    assert all(keys.lo < keys.hi for keys in ranges)


def test_a_store_travels_to_an_executor_without_its_connections() -> None:
    store = ObjectStoreClient(ObjectStoreSettings.of(CREDENTIALS))
    assert store._client is store._client
    copy = pickle.loads(pickle.dumps(store))
    assert "_client" not in copy.__dict__
    assert copy._settings.s3_secret_key.get_secret_value() == "secret"
