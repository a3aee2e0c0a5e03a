"""``tideline rebuild``: from a bucket, and an old backup or nothing, to a control plane."""

from __future__ import annotations

import getpass
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Annotated, Any
from uuid import UUID

import typer

from tideline import control_plane, ownership
from tideline.cli.output import Format, FormatOption, console, echo, echo_json, run
from tideline.domain.history import ServerIdentity
from tideline.errors import ExitCode, RefusedError, UsageError
from tideline.kafka.client import KafkaCluster
from tideline.object_store.client import ObjectStoreClient
from tideline.rebuild import report
from tideline.rebuild.filling import fill
from tideline.rebuild.postgres import RebuildPostgres
from tideline.rebuild.reader import BucketReader
from tideline.rebuild.segments import SegmentReader
from tideline.rebuild.survey import Choices, Survey, again, survey
from tideline.rebuild.told import differences, read_told
from tideline.rebuild.write import assert_still, tell_catalog, watch, write
from tideline.settings import ControlPlaneSettings, RebuildSettings, WorkerSettings, load

APPLICATION = "tideline-rebuild"


def rebuild(
    write_it: Annotated[
        bool, typer.Option("--write", help="Write it, and begin a new history. Else: a report.")
    ] = False,
    reason: Annotated[
        str | None, typer.Option(help="With --write: what was lost. Kept with the new history.")
    ] = None,
    by: Annotated[
        str | None, typer.Option("--by", help="Who does it (default: the user of this machine).")
    ] = None,
    topic: Annotated[
        list[str] | None, typer.Option(help="Only this topic, by name or id; may be repeated.")
    ] = None,
    history: Annotated[
        UUID | None, typer.Option(help="The one that counts (default: the bucket's owner object).")
    ] = None,
    give_up_open: Annotated[
        bool, typer.Option(help="What nobody tells of was told to nobody: its offsets go again.")
    ] = False,
    fill_holes: Annotated[
        bool,
        typer.Option(help="What lay in holes and open ends is given up: readers pass over them."),
    ] = False,
    told: Annotated[
        list[Path] | None,
        typer.Option(help="Compare with what clients were told: docs/restore.md. May be repeated."),
    ] = None,
    output: FormatOption = Format.TABLE,
) -> None:
    """Say what the bucket tells of every log, beside a Postgres if one is named; or write it there.

    Ends with 1 when something that was acknowledged may be missing, or was given up by this run.
    Changes nothing without --write, which goes on where an earlier run was ended.
    """
    if write_it and not (reason or "").strip():
        raise UsageError("--write needs --reason: it is kept as the record of what was lost")
    if write_it and topic:
        raise UsageError("--write writes every topic: leave --topic out")
    told_before = [one for path in told or () for one in read_told(path)]
    settings = load(RebuildSettings)
    choices = Choices(
        history or _owners_history(settings),
        frozenset(topic or ()),
        give_up_open,
        fill_holes,
    )
    with _postgres(settings) as postgres:
        if write_it:
            if postgres is None:
                raise UsageError("--write needs TIDELINE_REBUILD_POSTGRES_DSN: where to write")
            found = _write(settings, postgres, choices, by or getpass.getuser(), str(reason))
        else:
            found = _survey(settings, postgres, choices)
    problems = differences(told_before, found)
    _show(found, problems, output)
    fine = report.is_fine(found) and not problems
    raise typer.Exit(ExitCode.OK if fine else ExitCode.FAILED)


def _show(found: Survey, problems: list[str], output: Format) -> None:
    if output is Format.JSON:
        echo_json({**report.document(found), "told_and_not_known": problems})
        return
    for said in report.lines(found):
        echo(said)
    for text in problems:
        echo(f"told and not known: {text}")


def _write(
    settings: RebuildSettings, postgres: RebuildPostgres, choices: Choices, by: str, reason: str
) -> Survey:
    """What is there afterwards."""
    worker = load(WorkerSettings).model_copy(update={"postgres_dsn": settings.rebuild_postgres_dsn})
    store = ObjectStoreClient(settings)
    cluster_id = run(_cluster_id(worker))
    _refuse_strangers(store, settings, postgres, cluster_id)
    screen = console(stderr=True)
    screen.print("watching that nobody lives ...")
    position = partial(ownership.fleet_position, store, settings)
    still = watch(postgres, position, settings.history_position_ms / 1000)
    found = _survey(settings, postgres, choices)
    if blockers := report.blockers(found):
        raise RefusedError("; ".join(blockers))
    assert_still(still, postgres, position)
    postgres.begin(by, reason, still.holders, still.beat)
    put = partial(store.put, settings.s3_bucket)
    if filled := fill(found, settings.diskless_prefix, put):
        screen.print(f"offsets of {filled} logs were given up")
    changed = write(found, postgres, settings.tiered_prefix)
    after = again(found, postgres, _segments(settings))
    now = run(_begin_history(worker, store, cluster_id, by, reason))
    tell_catalog(found, now.history_id, lambda key, body: put(settings.diskless_prefix + key, body))
    screen.print(
        f"{changed} logs were written. History {now.history_id} begins: start the worker and the "
        "gateways."
    )
    return after


def _refuse_strangers(
    store: ObjectStoreClient,
    settings: RebuildSettings,
    postgres: RebuildPostgres,
    cluster_id: str,
) -> None:
    """The bucket is of the Kafka cluster, and a Postgres that has anything is of the bucket."""
    place = ownership.places(settings)[0]
    owner = ownership.owner_of(store, place) or {}
    if owner and owner.get("cluster_id") != cluster_id:
        raise RefusedError(
            f"{place} belongs to Kafka cluster {owner.get('cluster_id')}, the brokers are of "
            f"cluster {cluster_id}: correct TIDELINE_KAFKA_BOOTSTRAP or TIDELINE_S3_PREFIX"
        )
    here = postgres.identity()
    if "tideline rebuild" in (here.halted or "") or not owner or not postgres.logs():
        return  # an earlier run began it, or there is nothing that could be another's
    if owner.get("installation_id") != str(here.installation_id):
        raise RefusedError(
            f"{place} belongs to installation {owner.get('installation_id')}, and this Postgres "
            f"holds topics of installation {here.installation_id}: name a backup of the bucket's "
            "own, or an empty database"
        )


async def _cluster_id(settings: WorkerSettings) -> str:
    async with KafkaCluster.of(settings, APPLICATION) as cluster:
        return await cluster.cluster_id()


async def _begin_history(
    settings: WorkerSettings, store: ObjectStoreClient, cluster_id: str, by: str, reason: str
) -> ServerIdentity:
    async with control_plane.connect(settings, application_name=APPLICATION) as plane:
        return await ownership.adopt(
            plane, store, settings, cluster_id, begun_by=by, reason=f"rebuilt: {reason}"
        )


@contextmanager
def _postgres(settings: RebuildSettings) -> Iterator[RebuildPostgres | None]:
    if settings.rebuild_postgres_dsn is None:
        yield None
        return
    values = {"postgres_dsn": settings.rebuild_postgres_dsn}
    postgres = RebuildPostgres(ControlPlaneSettings.model_validate(values))
    try:
        yield postgres
    finally:
        postgres.close()


def _survey(
    settings: RebuildSettings, postgres: RebuildPostgres | None, choices: Choices
) -> Survey:
    reader = BucketReader(_store(settings), settings.s3_bucket, settings.diskless_prefix)
    return survey(reader, postgres, choices, _progress(), _segments(settings))


def _segments(settings: RebuildSettings) -> SegmentReader:
    return SegmentReader(_store(settings), settings.s3_tiered_bucket, settings.tiered_prefix)


def _store(settings: RebuildSettings) -> ObjectStoreClient:
    store = ObjectStoreClient(settings)
    store.connect()  # boto3 must not make clients in several threads at once
    return store


def _owners_history(settings: RebuildSettings) -> UUID | None:
    owner = ownership.owner_of(ObjectStoreClient(settings), ownership.places(settings)[0])
    return UUID(str(owner["history_id"])) if owner else None


def _progress() -> Any:
    screen = console(stderr=True)

    def tell(objects: int) -> None:
        if objects % 10_000 == 0 and screen.is_terminal:
            screen.print(f"{objects} objects were read")

    return tell
