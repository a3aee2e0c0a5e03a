"""What every job's entry point shares: arguments, progress, the result, exit codes.

A job is a function ``(job, **options) -> Outcome``; :func:`main` makes a command of it that ends
with one of :class:`tideline.errors.ExitCode`. The result is one JSON document, also when the job
fails: the last line on stdout and then, where ``--result`` says so, a file or an object.
"""

from __future__ import annotations

import importlib
import inspect
import json
import re
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass, field, is_dataclass, replace
from datetime import UTC, date, datetime
from functools import cached_property
from typing import TYPE_CHECKING, Annotated, Any, NoReturn
from uuid import UUID, uuid4

import typer

from spark.common import session as sessions
from spark.common.attempts import Attempt
from spark.common.records import Ended, Records, Told
from spark.common.results import write_result
from tideline.domain.foreign_text import in_one_line
from tideline.errors import ExitCode, TidelineError, UsageError
from tideline.object_store.runs import SCHEME, bucket_and_key
from tideline.settings import JobsSettings, load

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_RAISED = re.compile(r"^\s*(?P<module>tideline(?:\.\w+)+)\.(?P<name>\w+): (?P<message>.+)$", re.M)
_STORES = {
    "tideline.object_store": "S3",
    "tideline.kafka": "Kafka",
    "tideline.control_plane": "Postgres",
    "tideline.temporal": "Temporal",
}

TopicsOption = Annotated[
    list[str] | None, typer.Option("--topic", help="Only this topic; may be repeated.")
]
DryRunOption = Annotated[
    bool, typer.Option("--dry-run", help="Show what would be done; change nothing.")
]
MasterOption = Annotated[
    str | None,
    typer.Option(help="Spark master; default: what spark-submit gives, else this machine."),
]
ConfOption = Annotated[
    list[str] | None, typer.Option("--conf", help="Spark setting key=value; may be repeated.")
]
ResultOption = Annotated[
    str | None,
    typer.Option("--result", help="Also write the JSON result there: a file, or s3://bucket/key."),
]
RunIdOption = Annotated[
    UUID | None, typer.Option("--run-id", help="What the run is called; default: a new UUID.")
]


@dataclass(frozen=True, slots=True)
class Outcome:
    """What a job did. ``details`` must be JSON; ``failed`` says in one line why it is bad."""

    details: Mapping[str, object]
    failed: str | None = None
    final: bool = False
    """It stays bad until somebody does something: nobody is to try again by himself."""


@dataclass(frozen=True, slots=True)
class Launch:
    master: str | None = None
    conf: tuple[str, ...] = ()
    result: str | None = None
    run_id: UUID | None = None

    def check(self) -> None:
        """Raises :class:`UsageError` for what can be seen to be wrong before anything starts."""
        self.spark_config()
        if self.result is not None and self.result.startswith(SCHEME):
            bucket_and_key(self.result)

    def spark_config(self) -> dict[str, str]:
        """The ``--conf`` options. Raises :class:`UsageError`."""
        pairs = [entry.partition("=") for entry in self.conf]
        if wrong := [key for key, equals, _ in pairs if not key or not equals]:
            raise UsageError(f"--conf {wrong[0]!r}: write key=value")
        return {key: value for key, _, value in pairs}


def launch(
    master: MasterOption = None,
    conf: ConfOption = None,
    result: ResultOption = None,
    run_id: RunIdOption = None,
) -> Launch:
    """The options that every job has."""
    return Launch(master, tuple(conf or ()), result, run_id)


@dataclass
class Job:
    """One run of one job: its identity, settings and Spark session."""

    name: str
    settings: JobsSettings
    how: Launch = field(default_factory=Launch)
    run_id: UUID = field(default_factory=uuid4)
    started_at: datetime = field(default_factory=lambda: datetime.now(UTC))
    application: str = ""
    """Spark's id of it; empty until Spark was started."""
    _clock: float = field(default_factory=time.monotonic)

    @cached_property
    def spark(self) -> SparkSession:
        """Started when first used."""
        self.progress("starting Spark")
        made = sessions.make_session(
            f"tideline-{self.name}", self.how.master, self.how.spark_config()
        )
        self.application = made.sparkContext.applicationId
        return made

    @cached_property
    def parallelism(self) -> int:
        """Tasks that frames are cut into."""
        return sessions.cores(self.spark, self.settings.jobs_parallelism)

    @cached_property
    def records(self) -> Records:
        """What the run finds and does, for the tables that outlive it."""
        return Records(self.settings, self.name, self.run_id, self.started_at, self.progress)

    def progress(self, text: str) -> None:
        """One line on stderr."""
        elapsed = time.monotonic() - self._clock
        say(f"{elapsed:8.1f} s  {self.name}: {text}")

    @property
    def elapsed_ms(self) -> int:
        """Since the start, by a clock that never goes back."""
        return round((time.monotonic() - self._clock) * 1000)

    def close(self) -> None:
        """Stop Spark if it was started. What was done and told stays so if it does not stop well:
        its cluster may be away."""
        if "spark" not in self.__dict__:
            return
        try:
            self.spark.stop()
        except Exception as error:
            self.progress(f"Spark did not stop: {error}")


def run_job(
    name: str,
    work: Callable[[Job], Outcome],
    how: Launch,
    *,
    whole: bool = False,
    dry: bool = False,
) -> ExitCode:
    """:func:`carry_out` ``work`` and report how it ended. Never raises what a person can act on."""
    job: Job | None = None
    document: dict[str, object] = {"job": name} | ({"run_id": how.run_id} if how.run_id else {})
    code = ExitCode.OK
    try:
        try:
            how.check()
            job = Job(name, load(JobsSettings), how, how.run_id or uuid4())
            document |= {"run_id": job.run_id, "started_at": job.started_at}
            outcome = carry_out(job, work, whole=whole, dry=dry)
            document |= outcome.details
            if outcome.failed is not None:
                code = ExitCode.FAILED
                document |= {"error": outcome.failed, "store": None, "final": outcome.final}
        except Exception as error:
            failure = failure_of(error)
            if failure is None:
                # Not for an operator: the traceback says where the job is wrong.
                raise
            code = failure.exit_code
            document |= {"error": failure.message, "store": failure.store}
        if job is not None:
            document["elapsed_ms"] = job.elapsed_ms
            if job.application:
                document["spark_application"] = job.application
        _report(document | {"ok": code is ExitCode.OK, "exit_code": int(code)}, how.result)
    finally:
        if job is not None:
            job.close()
    return code


def carry_out(
    job: Job, work: Callable[[Job], Outcome], *, whole: bool, dry: bool = False
) -> Outcome:
    """Do ``work``; Postgres is told of a ``whole`` run, of all topics and no dry one, and the
    tables of every run that is not ``dry``. Raises what ``work`` raises."""
    attempt = Attempt(job.name, job.run_id, job.settings, job.progress, whole)
    attempt.begin()
    try:
        outcome = work(job)
    except Exception as error:
        failure = failure_of(error)
        how = "defect" if failure is None else failure.exit_code.name.lower()
        why = f"{type(error).__name__}: {error}" if failure is None else failure.message
        attempt.end(why, _told(job, Ended(whole, how, why, {}), tell=False, dry=dry))
        raise
    how = "ok" if outcome.failed is None else "failed"
    ended = Ended(whole, how, outcome.failed, outcome.details)
    told = _told(job, ended, tell=True, dry=dry)
    attempt.end(outcome.failed, told)
    if told is None:
        return outcome
    return replace(outcome, details={**outcome.details, "records": asdict(told)})


def _told(job: Job, ended: Ended, *, tell: bool, dry: bool) -> Told | None:
    """``None``: nothing is told of it. The bucket is not even asked by a run that has not found it
    to belong to what the job sees."""
    return None if dry or job.settings.seen is None else job.records.end(ended, tell=tell)


def _report(document: Mapping[str, object], place: str | None) -> None:
    """What may fail comes last: the work is done, and its document is printed by then."""
    if error := document.get("error"):
        say(f"error: {error}")
    text = json.dumps(document, default=plain)
    print(text, flush=True)
    if place is not None and (problem := write_result(place, f"{text}\n")):
        say(f"warning: the result is not in {place}: {problem}")


def say(text: str) -> None:
    """One line on stderr, which may be a terminal; it may repeat what a broker or store said."""
    print(in_one_line(text), file=sys.stderr, flush=True)


def plain(value: object) -> Any:
    """What JSON has no type for."""
    if is_dataclass(value) and not isinstance(value, type):
        return asdict(value)
    if isinstance(value, datetime | date):
        return value.isoformat()
    return str(value)


@dataclass(frozen=True, slots=True)
class Failure:
    """Why a job failed. ``store``: the part that did not answer, if it was one."""

    message: str
    exit_code: ExitCode
    store: str | None = None


def failure_of(error: BaseException) -> Failure | None:
    """What an operator can act on; ``None``: the error is a defect of the job itself.

    An error of an executor reaches the driver as the text of its traceback, often several times
    wrapped; its last line still names the class and the message of ours.
    """
    for cause in _causes(error):
        if isinstance(cause, TidelineError):
            return _failure(type(cause), str(cause))
        for raised in reversed(list(_RAISED.finditer(str(cause)))):
            if (kind := _class(raised["module"], raised["name"])) is not None:
                return _failure(kind, raised["message"].strip())
    return None


def _causes(error: BaseException | None) -> Iterator[BaseException]:
    seen: set[int] = set()
    while error is not None and id(error) not in seen:
        seen.add(id(error))
        yield error
        error = error.__cause__ or error.__context__


def _class(module: str, name: str) -> type[TidelineError] | None:
    try:
        found = getattr(importlib.import_module(module), name, None)
    except ImportError:
        return None
    return found if isinstance(found, type) and issubclass(found, TidelineError) else None


def _failure(kind: type[TidelineError], message: str) -> Failure:
    message = " ".join(message.split())
    code = kind.exit_code
    if code is not ExitCode.UNREACHABLE:
        return Failure(message, code)
    store = next((s for prefix, s in _STORES.items() if kind.__module__.startswith(prefix)), None)
    named = store is None or store.lower() in message.lower()
    return Failure(message if named else f"{store} is away: {message}", code, store)


def main(name: str, work: Callable[..., Outcome]) -> NoReturn:
    """Run a job as a process. Its options: the parameters of ``work`` behind the job itself, unless
    they are keyword-only, and those of :func:`launch`."""
    _, *own = inspect.signature(work, eval_str=True).parameters.values()
    shared = inspect.signature(launch, eval_str=True).parameters
    options = [one for one in own if one.kind is not inspect.Parameter.KEYWORD_ONLY]

    def command(**given: Any) -> None:
        how = launch(**{key: given.pop(key) for key in shared})
        dry = bool(given.get("dry_run"))
        whole = not given.get("topic") and not dry
        code = run_job(name, lambda job: work(job, **given), how, whole=whole, dry=dry)
        raise typer.Exit(code)

    command.__doc__ = work.__doc__
    command.__signature__ = inspect.Signature([*options, *shared.values()])  # type: ignore[attr-defined]
    app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)
    app.command(context_settings={"help_option_names": ["-h", "--help"]})(command)
    app()
    raise AssertionError("typer ends the process")
