"""Verdicts that are kept between runs, and all that they were judged by: what has not changed is
judged neither from its segments nor by them.

One object, ``<prefix>state/coverage/<cluster id>/verdicts``, written as a whole. A partition's
verdict is taken from it only if nothing that could have made another one has changed:

- of the metadata: the topic's identity; each of its partitions starts where it started, and the
  newest record of the fold is still there, in the same leader epoch
  (:mod:`spark.common.snapshots` says why what lies before it is the same then); no record since is
  about the partition; none is of an unknown kind; the fold was read from the start since the last
  audit;
- of the partition: all that is judged of it, its merged segments included. In it is the look at its
  objects, which must be one that may be relied on: else they are listed, and it is judged;
- where objects are: the store and the bucket;
- the code of Tideline, all of it: of the driver, and of the executors that folded and judged.

A verdict on objects that an earlier look has seen depends on no clock. Only those are kept: on a
partition that is covered, whose objects were all there.
"""

from __future__ import annotations

import hashlib
import io
import json
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import asdict, dataclass, field, replace
from typing import TYPE_CHECKING, Any, Protocol
from uuid import UUID

import pyarrow as pa
import pyarrow.parquet as pq
from kio.schema.errors import ErrorCode

from spark.common.kept_fold import NOT_UNDERSTOOD
from spark.common.metadata_columns import columns_of
from spark.common.metadata_topic import Extent
from spark.common.remote_log import FoldOfPlace, last_record
from spark.common.rows import from_batch, to_batch
from spark.common.snapshots import Identity, LastRecord, Unusable
from spark.coverage.frames import CoveredLog
from spark.coverage.judge import NOTHING_MERGED, CoverageVerdict
from tideline.errors import TidelineError
from tideline.kafka.errors import KafkaError
from tideline.object_store.client import ObjectMissing

if TYPE_CHECKING:
    from tideline.object_store.client import ObjectStoreClient

MANY = 20_000
"""New records of the metadata that a driver reads to know which partitions they are about: two
megabytes, of the size that brokers write. Of more, nearly all are judged anyway."""
_HEADER = b"tideline"
_INPUTS = "inputs"
_DIGEST_BYTES = 32
Log = tuple[UUID, int]
"""Topic id and partition."""


class FewRecords(Protocol):
    """:class:`spark.common.metadata_topic.RecordReader`."""

    def few(self, wanted: Sequence[Extent]) -> dict[int, list[Any]]: ...


@dataclass(frozen=True, slots=True)
class Scene:
    """What all verdicts of a run have in common."""

    identity: Identity
    server: str
    """The URL of the store; empty: AWS'."""
    bucket: str
    code: str
    """:data:`spark.common.code.DIGEST` of the driver."""


@dataclass(frozen=True, slots=True)
class Place:
    """A partition of the metadata topic, folded over ``[start, end)``."""

    partition: int
    start: int
    end: int
    last: LastRecord | None
    """``None``: there were no records."""


@dataclass(frozen=True, slots=True)
class Since:
    """What has come to the metadata since verdicts were kept."""

    about: frozenset[Log]
    places: tuple[Place, ...]
    """As they are now."""


@dataclass(frozen=True, slots=True)
class KeptVerdicts:
    """Of one run, and of earlier ones what was still right then."""

    scene: Scene
    places: tuple[Place, ...]
    whole_at: int
    """ms; since when each place has been read from its start, at the worst."""
    verdicts: Mapping[int, tuple[bytes, CoverageVerdict]]
    """By log id, with the digest of what it was judged by beside the metadata."""

    def check(self, scene: Scene, whole_since: int, now_ms: int) -> None:
        """Raises :class:`Unusable`."""
        if self.scene != scene:
            raise Unusable("they are of other metadata, another store or another Tideline")
        if not whole_since <= self.whole_at <= now_ms:
            raise Unusable("the metadata was last read from its start too long ago, or will be")

    def since(self, extents: Sequence[Extent], records: FewRecords) -> Since:
        """Raises :class:`Unusable` where the metadata is not what it was, or too much is new."""
        before = {one.partition: one for one in self.places}
        if [one.partition for one in self.places] != [one.partition for one in extents] or any(
            one.start != before[one.partition].start or one.end < before[one.partition].end
            for one in extents
        ):
            raise Unusable("the metadata does not reach from where to where it did")
        if sum(one.end - before[one.partition].end for one in extents) > MANY:
            raise Unusable("too many records are new")
        wanted = [
            replace(one, start=last.offset if (last := before[one.partition].last) else one.start)
            for one in extents
        ]
        try:
            found = records.few(wanted)
        except KafkaError as error:
            if error.code is ErrorCode.offset_out_of_range:
                raise Unusable(str(error)) from error
            raise
        about, places = set[Log](), []
        for extent in extents:
            messages, last = found.get(extent.partition, []), before[extent.partition].last
            if last is not None:
                if not messages or last_record(messages[0]) != last:
                    raise Unusable("the last record that they have seen is not there any more")
                messages = messages[1:]
            if messages:
                about.update(_about(extent.partition, messages))
                if (last := last_record(messages[-1])) is None:
                    raise Unusable("the brokers do not say the leader epochs of records")
            places.append(Place(extent.partition, extent.start, extent.end, last))
        return Since(frozenset(about), tuple(places))

    def may_be_on(self, log: CoveredLog, since: Since) -> bool:
        """Whether it is worth knowing the merged segments of ``log``, for :meth:`on`."""
        return (
            log.log_id in self.verdicts
            and log.seen_digest is not None
            and (log.topic_id, log.partition) not in since.about
        )

    def on(self, log: CoveredLog, merged: str, since: Since) -> CoverageVerdict | None:
        """The verdict on ``log``, if it is what a judge would say. ``merged``: the digest of its
        merged segments."""
        if not self.may_be_on(log, since):
            return None
        inputs, verdict = self.verdicts[log.log_id]
        is_of_it = inputs == inputs_of(log, merged) and _agrees(verdict, log, merged)
        return verdict if is_of_it and _is_kept(verdict, self.scene) else None

    def to_object(self) -> bytes:
        rows = [verdict for _, verdict in self.verdicts.values()]
        table = pa.Table.from_batches([to_batch(CoverageVerdict, rows)]).append_column(
            _INPUTS, pa.array([inputs for inputs, _ in self.verdicts.values()], pa.binary())
        )
        identity = asdict(self.scene.identity)
        header = {
            "scene": asdict(self.scene)
            | {"identity": identity | {"topic_id": str(identity["topic_id"])}},
            "places": [asdict(one) for one in self.places],
            "whole_at": self.whole_at,
        }
        file = io.BytesIO()
        pq.write_table(
            table.replace_schema_metadata({_HEADER: json.dumps(header).encode()}),
            file,
            compression="zstd",
        )
        body = file.getvalue()
        return hashlib.sha256(body).digest() + body

    @classmethod
    def from_object(cls, found: bytes) -> KeptVerdicts:
        """Raises :class:`Unusable` for anything but what :meth:`to_object` made."""
        digest, body = found[:_DIGEST_BYTES], found[_DIGEST_BYTES:]
        if hashlib.sha256(body).digest() != digest:
            raise Unusable("their bytes are not those that were written")
        try:
            table = pq.read_table(io.BytesIO(body))
            header = json.loads(table.schema.metadata[_HEADER])
            rows = from_batch(CoverageVerdict, table)
            inputs = table[_INPUTS].to_pylist()
            return cls(
                _scene(**header["scene"]),
                tuple(_place(**one) for one in header["places"]),
                header["whole_at"],
                {one.log_id: (by, one) for by, one in zip(inputs, rows, strict=True)},
            )
        except (
            pa.ArrowException, ValueError, TypeError, KeyError, AttributeError, OSError,
        ) as error:  # fmt: skip
            # What another version has left.
            raise Unusable(f"they cannot be read: {error}") from error


def _scene(identity: Mapping[str, Any], **rest: str) -> Scene:
    topic_id = UUID(identity["topic_id"])
    return Scene(Identity(**{**identity, "topic_id": topic_id}), **rest)


def _place(last: Mapping[str, Any] | None, **rest: int) -> Place:
    return Place(**rest, last=None if last is None else LastRecord(**last))


def _about(place: int, messages: Sequence[Any]) -> Iterator[Log]:
    """Of which partitions ``messages`` tell. Raises :class:`Unusable` for what is not understood:
    it concerns all of them."""
    batch = columns_of(place, [one.offset() for one in messages], [one.value() for one in messages])
    topics, partitions = (batch[name].to_pylist() for name in ("topic_id", "partition"))
    for topic_id, partition in zip(topics, partitions, strict=True):
        if topic_id is None or partition is None or (topic_id, partition) == NOT_UNDERSTOOD:
            raise Unusable("a record is not understood")
        yield UUID(bytes=topic_id), partition


def inputs_of(log: CoveredLog, merged: str) -> bytes:
    """A digest of what is judged of a partition beside its metadata."""
    return hashlib.sha256(repr((log, merged)).encode()).digest()


def _is_kept(verdict: CoverageVerdict, scene: Scene) -> bool:
    """Whether a judge who has the same before him must say the same, at whatever time."""
    return (
        verdict.complete
        and verdict.objects_digest is not None
        and not verdict.anomalies
        and verdict.judged_by == scene.code
    )


def _agrees(verdict: CoverageVerdict, log: CoveredLog, merged: str) -> bool:
    """Whether what ``verdict`` says of its inputs is so, whatever it was filed under."""
    end, digest = max(log.log_start, log.boundary), log.seen_digest
    return (
        (verdict.wanted_start, verdict.wanted_end) == (log.log_start, end)
        and verdict.objects_seen_at == log.seen_at
        and verdict.objects_digest == (None if digest is None else digest.hex())
        and verdict.merged_digest == merged
    )


def to_keep(
    before: tuple[KeptVerdicts, Since] | None,
    scene: Scene,
    extents: Sequence[Extent],
    told: Collection[FoldOfPlace],
    logs: Mapping[int, CoveredLog],
    taken: Set[int],
    judged: Collection[CoverageVerdict],
) -> KeptVerdicts | None:
    """What is kept for the next run; ``None`` if nothing can be, or nothing is new.

    ``before``: what verdicts were taken from; ``taken``: of which logs. ``told``: of the folds that
    the others were judged by.
    """
    folds = _places(extents, told, scene.code) if judged else None
    if judged and folds is None:
        return None
    verdicts = {
        one.log_id: (inputs_of(relied_on_next(logs[one.log_id], one), one.merged_digest), one)
        for one in judged
        if _is_kept(one, scene)
    }
    whole_at = min((one.whole_at for one in told), default=None) if judged else None
    if before is not None:
        old, since = before
        if folds is not None and folds != since.places:
            return None
        if not judged and old.places == since.places and old.verdicts.keys() == taken:
            return None
        verdicts |= {log_id: old.verdicts[log_id] for log_id in taken}
        folds = since.places
        whole_at = old.whole_at if whole_at is None else min(whole_at, old.whole_at)
    if folds is None or whole_at is None:
        return None
    return KeptVerdicts(scene, folds, whole_at, verdicts)


def _places(
    extents: Sequence[Extent], told: Collection[FoldOfPlace], code: str
) -> tuple[Place, ...] | None:
    """``None`` where a fold's last record is not known, two tries of a task read others, or another
    Tideline folded."""
    if any(one.folded_by != code for one in told):
        return None
    lasts: dict[int, set[LastRecord | None]] = {}
    for one in told:
        lasts.setdefault(one.partition, set()).add(one.last)
    places = []
    for extent in extents:
        last = None
        if extent.end > extent.start:
            found = lasts.get(extent.partition, {None})
            if None in found or len(found) > 1:
                return None
            (last,) = found
        places.append(Place(extent.partition, extent.start, extent.end, last))
    return tuple(places)


def relied_on_next(log: CoveredLog, verdict: CoverageVerdict) -> CoveredLog:
    """What is judged of the partition in the next run, if nothing has happened: it relies on the
    look that ``verdict`` has had, or has relied on itself."""
    digest = verdict.objects_digest
    return replace(
        log,
        seen_at=verdict.objects_seen_at,
        seen_digest=None if digest is None else bytes.fromhex(digest),
    )


@dataclass(frozen=True)
class VerdictStore:
    """``root``: the prefix of the installation."""

    store: ObjectStoreClient
    bucket: str
    root: str
    cluster_id: str

    @property
    def key(self) -> str:
        return f"{self.root}state/coverage/{self.cluster_id}/verdicts"

    def read(self) -> KeptVerdicts | None:
        """``None``: there are none. Raises :class:`Unusable`, and what the store raises."""
        try:
            return KeptVerdicts.from_object(self.store.get(self.bucket, self.key))
        except ObjectMissing:
            return None

    def write(self, verdicts: KeptVerdicts) -> None:
        """Raises what the store raises."""
        self.store.put(self.bucket, self.key, verdicts.to_object())


@dataclass
class Memory:
    """What one run takes from the verdicts of earlier ones, and leaves to later ones."""

    store: VerdictStore
    scene: Scene
    extents: tuple[Extent, ...]
    say: Callable[[str], None]
    before: tuple[KeptVerdicts, Since] | None = None
    taken: set[int] = field(default_factory=set)
    """Ids of the logs whose verdicts are those of ``before``."""

    def recall(self, records: FewRecords, whole_since: int, now_ms: int) -> None:
        """What is not there, cannot be read or may not be used saves no work, and fails nothing: if
        brokers or store are away, who judges says so."""
        try:
            if (found := self.store.read()) is not None:
                found.check(self.scene, whole_since, now_ms)
                self.before = found, found.since(self.extents, records)
        except Exception as why:
            self._without(why)

    def _without(self, why: Exception) -> None:
        self.before = None
        self.say(f"earlier verdicts are not used: {_named(why)}")

    def unchanged(
        self, logs: Iterable[CoveredLog], merged: Callable[[Collection[int]], Mapping[int, str]]
    ) -> dict[int, CoverageVerdict]:
        """Verdicts that need not be judged anew, by log id. ``merged``: digests of the merged
        segments of those of the logs that have any."""
        if self.before is None:
            return {}
        old, since = self.before
        some = [log for log in logs if old.may_be_on(log, since)]
        try:
            digests = merged([log.log_id for log in some]) if some else {}
        except Exception as why:
            self._without(why)
            return {}
        found = {}
        for log in some:
            digest = digests.get(log.log_id, NOTHING_MERGED)
            if (verdict := old.on(log, digest, since)) is not None:
                found[log.log_id] = verdict
        self.taken.update(found)
        return found

    def keep(
        self,
        logs: Iterable[CoveredLog],
        judged: Collection[CoverageVerdict],
        told: Collection[FoldOfPlace],
    ) -> None:
        """``told``: of the folds that ``judged`` were judged by. Fails nothing."""
        by_id = {one.log_id: one for one in logs}
        codes = {one.judged_by for one in judged} | {one.folded_by for one in told}
        if not codes <= {self.scene.code}:
            self.say("verdicts of executors whose Tideline is not the driver's are not kept")
        try:
            new = to_keep(self.before, self.scene, self.extents, told, by_id, self.taken, judged)
            if new is not None:
                self.store.write(new)
        except Exception as why:
            self.say(f"verdicts are not kept: {_named(why)}")


def _named(why: Exception) -> str:
    """With its kind, unless it speaks for itself."""
    known = isinstance(why, (Unusable, TidelineError))
    return str(why) if known else f"{type(why).__name__}: {why}"
