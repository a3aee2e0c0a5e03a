"""Holes that an operator gives up are filled once, in the bucket, and are no holes from then on."""

from __future__ import annotations

from dataclasses import dataclass, field
from uuid import uuid4

import pytest

from tests.unit.rebuild.buckets import (
    OTHER,
    TOPIC,
    Bucket,
    Stream,
    footer_batch,
    look,
    note_orders_and_births,
)
from tideline.domain.ids import TopicIdPartition
from tideline.domain.rebuild_plan import Verdict
from tideline.domain.wal_filling import is_filling
from tideline.domain.wal_footer import UNANSWERED, BatchOutcome
from tideline.kafka.batches import iter_batches
from tideline.rebuild import report
from tideline.rebuild.filling import fill
from tideline.rebuild.survey import Survey

LOG, BIRTHS = TopicIdPartition(TOPIC, 0), TopicIdPartition(OTHER, 0)


@dataclass
class MortalBucket(Bucket):
    """Whose store ends after so many PUTs."""

    puts_left: int = 1_000
    order: list[str] = field(default_factory=list)

    def put(self, bucket: str, key: str, body: bytes, *, new: bool = False) -> None:
        if self.puts_left == 0:
            raise KeyboardInterrupt
        self.puts_left -= 1
        self.order.append(key)
        super().put(bucket, key, body, new=new)


@pytest.fixture
def bucket() -> MortalBucket:
    made = MortalBucket()
    note_orders_and_births(made)
    return made


def give_up(bucket: Bucket, *, asked: bool = True) -> Survey:
    found = look(bucket, fill_holes=asked)
    fill(found, "", lambda key, body: bucket.put("wal", key, body))
    return found


def of(found: Survey, name: str) -> dict[str, object]:
    (log,) = (one for one in report.document(found)["logs"] if one["topic"] == name)
    return dict(log)


def lose(bucket: Bucket) -> tuple[str, bytes]:
    """Of ``orders`` offsets 10 to 12 are lost, 13 is there; of ``births`` 0 is there, and two
    objects may have been committed behind it."""
    one, other = Stream(bucket), Stream(bucket, gateway_id=2)
    lost = one.commit(10, footer_batch(TOPIC, records=3))
    one.commit(13, footer_batch(TOPIC))
    one.commit(0, footer_batch(OTHER))
    one.store()
    one.store(footer_batch(OTHER, records=3))
    other.store(footer_batch(OTHER, records=4))
    return lost, bucket.objects.pop(lost)


def leave_unanswered(bucket: Bucket, *answered: int) -> None:
    """Of ``births`` 0 is known; two gateways stop while a commit of theirs is under way, and say
    that they told nobody of it, but for those ``answered``."""
    for number in (1, 2):
        stream = Stream(bucket, gateway_id=number)
        if number == 1:
            stream.commit(0, footer_batch(OTHER))
        key = stream.store(footer_batch(OTHER, records=number + 2))
        if number not in answered:
            stream.committed(key, stream.sequence, BatchOutcome(UNANSWERED, -1, -1))
        stream.store()


def test_what_was_acknowledged_to_nobody_takes_its_offsets_without_being_asked(
    bucket: MortalBucket,
) -> None:
    """Somebody may have read there: what comes next lies behind it."""
    leave_unanswered(bucket)
    found = give_up(bucket, asked=False)
    assert of(found, "births")["filled_now"] == [[1, 7]]
    assert report.is_fine(found), "nothing that was acknowledged is missing"
    later = look(bucket)
    assert later.plans[BIRTHS].verdict is Verdict.BEHIND
    assert later.plans[BIRTHS].high_watermark == 8


def test_one_that_may_have_been_acknowledged_is_asked_for(bucket: MortalBucket) -> None:
    leave_unanswered(bucket, 2)
    found = give_up(bucket, asked=False)
    assert found.plans[BIRTHS].verdict is Verdict.OPEN
    assert not report.is_fine(found)
    assert bucket.order == []


def test_a_report_says_what_would_be_given_up_and_puts_nothing(bucket: MortalBucket) -> None:
    lose(bucket)
    asked, silent = look(bucket, fill_holes=True), look(bucket)
    assert of(asked, "orders")["to_fill"] == [[10, 12]]
    assert of(asked, "births")["to_fill"] == [[1, 7]]
    assert of(silent, "orders")["to_fill"] == []
    assert not report.is_fine(asked)
    text = "    --write would give up offsets 10 to 12, with an empty batch"
    assert text in list(report.lines(asked))
    assert bucket.order == []


def test_holes_and_open_ends_are_filled_and_later_surveys_find_nothing_wrong(
    bucket: MortalBucket,
) -> None:
    lose(bucket)
    found = give_up(bucket)
    assert not report.is_fine(found), "what is given up now is missing"
    assert of(found, "births")["filled_now"] == [[1, 7]]
    assert len(bucket.order) == 2, "one object for each log"
    later = look(bucket)
    assert report.is_fine(later), list(report.lines(later))
    assert of(later, "orders")["filled"] == [[10, 12]]
    assert of(later, "births")["filled"] == [[1, 7]]
    assert "    given up: offsets 1 to 7, readers pass over them" in list(report.lines(later))
    for log in (LOG, BIRTHS):
        assert later.plans[log].verdict is Verdict.BEHIND
        assert later.plans[log].add == found.plans[log].add, "what is written is what is read"
        assert later.plans[log].high_watermark == found.plans[log].high_watermark
        assert later.plans[log].open_objects == ()
    assert later.rebuilt.gone == [g for g in found.rebuilt.gone if g.base_offsets == (10,)]
    puts = list(bucket.order)
    give_up(bucket)
    assert bucket.order == puts, "there is nothing left to fill"


def test_whoever_is_ended_between_two_logs_ends_with_the_same_bucket(
    bucket: MortalBucket,
) -> None:
    lose(bucket)
    before = dict(bucket.objects)
    give_up(bucket)
    whole = dict(bucket.objects)
    bucket.objects = dict(before)
    bucket.puts_left = 1
    with pytest.raises(KeyboardInterrupt):
        give_up(bucket)
    assert before != bucket.objects != whole
    bucket.puts_left = 1_000
    give_up(bucket)
    assert bucket.objects == whole


def test_the_bodies_are_empty_batches_over_exactly_the_lost_offsets(
    bucket: MortalBucket,
) -> None:
    lose(bucket)
    found = give_up(bucket)
    for log, span in ((LOG, (10, 12)), (BIRTHS, (1, 7))):
        (row,) = (r for r in found.plans[log].add if is_filling(r.footer.byte_size))
        assert (row.base_offset, row.last_offset) == span
        body = bucket.objects[row.object_key][: row.footer.byte_size]
        (header,) = iter_batches(body)
        assert (header.is_empty, header.last_offset_delta) == (True, span[1] - span[0])


def test_an_object_that_is_brought_back_later_is_not_taken_and_nothing_contradicts(
    bucket: MortalBucket,
) -> None:
    lost, body = lose(bucket)
    give_up(bucket)
    bucket.objects[lost] = body
    later = look(bucket)
    assert later.plans[LOG].verdict is Verdict.BEHIND
    assert of(later, "orders")["found_where_given_up"] == 1
    assert "    1 batches lie where offsets were given up" in list(report.lines(later))


def test_what_gateways_store_after_it_is_judged_as_ever_whatever_their_clocks_say(
    bucket: MortalBucket,
) -> None:
    lose(bucket)
    give_up(bucket)
    new = Stream(bucket, history=uuid4())
    new.commit(8, footer_batch(OTHER, records=2))
    new.store()
    new.store(footer_batch(OTHER, records=6))
    later = look(bucket, current=new.history)
    (opened,) = (o for o in later.rebuilt.open_objects if o.log == BIRTHS)
    assert opened.placed_at == 10, "the last commit of the new history, as without any filling"
    assert later.plans[BIRTHS].high_watermark == 16


def test_what_is_inferred_stays_so_when_another_log_of_the_object_is_given_up(
    bucket: MortalBucket,
) -> None:
    """Of the first object of the tail the batch of ``orders`` has a place, and that of ``births``
    has none, since another stream may have written there, too."""
    one, other = Stream(bucket), Stream(bucket, gateway_id=2)
    one.commit(10, footer_batch(TOPIC))
    one.commit(0, footer_batch(OTHER))
    one.store()
    one.store(footer_batch(TOPIC, records=2), footer_batch(OTHER, records=3, at=10))
    other.store(footer_batch(OTHER, records=4))
    before = look(bucket)
    placed = before.plans[LOG].add
    assert [row.inferred for row in placed] == [False, True]
    give_up(bucket)
    later = look(bucket)
    assert later.plans[LOG].add == placed
    assert of(later, "births")["filled"] == [[1, 7]]
    assert report.is_fine(later)


def test_a_log_that_contradicts_itself_is_not_filled(bucket: MortalBucket) -> None:
    one, other = Stream(bucket), Stream(bucket, gateway_id=2)
    one.commit(10, footer_batch(TOPIC, records=3))
    other.commit(11, footer_batch(TOPIC))
    one.store()
    other.store()
    found = give_up(bucket)
    assert found.plans[LOG].verdict is Verdict.CONTRADICTED
    assert bucket.order == []


def test_a_log_of_which_a_commit_is_told_in_two_ways_is_not_filled_and_says_so(
    bucket: MortalBucket,
) -> None:
    stream = Stream(bucket)
    stream.commit(10, footer_batch(TOPIC))
    told_twice = stream.commit(11, footer_batch(TOPIC, records=2))
    stream.commit(13, footer_batch(TOPIC))
    stream.store()
    stream.committed(told_twice, 2, BatchOutcome("NONE", 14, 1_000))
    stream.store()
    found = give_up(bucket)
    assert found.plans[LOG].holes
    assert bucket.order == []
    said = "    not to be given up: contradicting things are told of an object of it"
    assert said in list(report.lines(found))
